"""Housekeeping of a simulated agent: marks, drops, ends of bans, erasures; and what must hold.

What agent/keeping.py does on a timer, with the same pure functions and operations. Here an event
says when.
"""

from __future__ import annotations

from collections import Counter

from agent.boards.entry import Entry
from agent.boards.final_rows import without_names
from agent.boards.finals import PASSING_KINDS, Shelve
from agent.boards.marks import Due
from agent.boards.tally import Group
from agent.crdt.cell import Key, Row, Value
from agent.crdt.slot import Kind
from agent.crdt.space import MARKS_SPACE
from agent.operation import (
    BoardChanged,
    ConfirmErasures,
    Drop,
    Erase,
    ForgetNames,
    LiftBan,
    Operation,
    Retract,
    SetBan,
    SetMarks,
    Write,
)
from agent.state import State
from agent.store.due import look
from cluster.simulator import plain
from cluster.simulator.actors import Actors
from cluster.simulator.agent import SimulatedAgent
from cluster.simulator.events import Contrary, Moderate

MARKED = {Kind.CLOSE: "window closed", Kind.ACK: "window acknowledged", Kind.COLLECTED: "collected"}
COMPENSATES = 64  # in the first byte of an incarnation: see rules.py, rule W
ENTRY_KINDS = b"+-MLCKHF"


def keep(agent: SimulatedAgent, cells_max: int, now_ms: int, seen: Counter[str]) -> None:
    """Do what is due at an agent."""
    if agent.closed in ("left", "removed", "fork"):
        return
    agent.settle(now_ms)
    due = due_marks(agent, now_ms)
    for mark in due:
        seen[MARKED[mark.kind]] += 1
    operations: list[Operation] = [SetMarks(tuple(due))] if due else []
    for member, board in agent.state.bans.over(now_ms):
        operations.append(LiftBan(member, board, "", "until", expired=True))
        seen["ban ended"] += 1
    if operations:
        agent.run(operations, now_ms)
    _drop(agent, cells_max, now_ms, seen)
    _erasures(agent, now_ms, seen)


def due_marks(agent: SimulatedAgent, now_ms: int) -> list[Due]:
    """The marks that an agent may set now: one that is not complete promises nothing."""
    state = agent.state
    snapshot = agent.disk.snapshot()
    return list(look(snapshot, state, now_ms, (), promises=promises(state)).due)


def promises(state: State) -> bool:
    """Whether an agent may promise anything: it has read what it once knew."""
    return state.complete


def _drop(agent: SimulatedAgent, cells_max: int, now_ms: int, seen: Counter[str]) -> None:
    """Remove what may not be here any more, a part at a time."""
    snapshot = agent.disk.snapshot()
    keys: list[Key] = []
    for space in snapshot.spaces():
        if snapshot.collects(space):
            said = snapshot.slots_of(MARKS_SPACE, space)
            passing = [(MARKS_SPACE, space, slot) for slot, _ in said if slot[0] in PASSING_KINDS]
            keys += passing[:cells_max] or snapshot.keys_in(space, cells_max)
    if keys:
        seen["cells dropped"] += len(keys)
        agent.run([Drop(tuple(keys))], now_ms)
    erased = agent.state.erased
    if len(erased):
        keys = [row.key for _, row in agent.disk.rows() if erased.forbids(row)]
        if keys:
            seen["cells erased"] += len(keys)
            agent.run([Drop(tuple(keys))], now_ms)
    ids = {its.id for its in erased.all()}
    if ids - agent.certifying.purged:
        agent.certifying.purged |= ids
        _purge_finals(agent, now_ms, seen)


def _purge_finals(agent: SimulatedAgent, now_ms: int, seen: Counter[str]) -> None:
    """Take the names that were erased out of the rows of finals: once for each, as Purge does."""
    for space, held in sorted(agent.disk.finals.items()):
        for hash_, (chunks, _) in sorted(held.items()):
            for number, chunk in sorted(chunks.items()):
                kept = without_names(chunk, agent.state.erased.closed)
                if kept is not None:
                    agent.run([Shelve(space, hash_, ((number, kept),))], now_ms)
                    seen["name taken out of a final"] += 1


def _erasures(agent: SimulatedAgent, now_ms: int, seen: Counter[str]) -> None:
    state = agent.state
    names = {member.name for member in state.ring.active()}
    mine = [its for its in state.erased.all() if agent.name not in its.confirmed]
    if mine:
        agent.run([ConfirmErasures(tuple(its.id for its in mine))], now_ms)
    done = [
        its.id
        for its in agent.state.erased.all()
        if its.name is not None and names <= its.confirmed.keys()
    ]
    if done and state.complete:
        seen["name forgotten"] += 1
        agent.run([ForgetNames(tuple(done))], now_ms)


# --- who is dealt with ---------------------------------------------------------------------


def moderate(agent: SimulatedAgent, event: Moderate, now_ms: int, seen: Counter[str]) -> list[str]:
    """Play a `Moderate`; what is wrong with what it did."""
    if agent.closed:
        return []
    agent.settle_boards(now_ms)
    member = event.member.encode()
    operation: Operation
    match event.act:
        case "ban":
            operation = SetBan(member, event.board, event.until_ms, "cheats", "ops")
        case "lift":
            operation = LiftBan(member, event.board, "no", "ops")
        case "erase":
            operation = Erase(member, event.at.to_bytes(16))
        case _:
            found = [
                row
                for _, row in agent.disk.rows()
                if row.member == member and row.slot == b"K" + event.key.encode()
            ]
            if not found:
                return []
            at_ms = plain.kept_at_ms(found[0].value)
            spaces = tuple(row.space for row in found)
            operation = Retract(event.board, member, event.key.encode(), at_ms, spaces)
    answer = agent.run([operation], now_ms)[0]
    if isinstance(answer, BoardChanged) and answer.changed:
        seen[f"{event.act} done"] += 1
    return []


def contrary(
    one: SimulatedAgent,
    other: SimulatedAgent,
    event: Contrary,
    clocks: tuple[int, int],
    actors: Actors,
    seen: Counter[str],
) -> None:
    """Play a `Contrary`, where the flag is on at both places."""
    board = one.state.catalog.find(event.board)
    there = other.state.catalog.find(event.board)
    if one.closed or other.closed or board is None or there is None:
        return
    if board.definition is None or there.definition is None:
        return
    if board.definition.windows[0].name != "all" or board.generation != there.generation:
        return
    for agent, now_ms in ((one, clocks[0]), (other, clocks[1])):
        agent.settle(now_ms)
    key = (board.space, event.member.encode(), b"C" + event.actor.encode())
    values = [agent.disk.value(key) for agent in (one, other)]
    if values[0] is None or values[0] != values[1] or values[0][0] % 2 == 0:
        return
    for agent, now_ms, present in ((one, clocks[0], False), (other, clocks[1], True)):
        entry = Entry(event.member, actor=event.actor, present=present)
        agent.run([Write((Group(event.board, [entry], [0]),))], now_ms)
    said = other.disk.value(key)
    if said is not None and one.disk.value(key) != values[0]:
        seen["unlike here, like there"] += 1
        actors.said_again(key, said)


# --- what must hold ------------------------------------------------------------------------


def written_problems(agent: SimulatedAgent, rows: list[Row], now_ms: int) -> list[str]:
    """What an agent may not write: entries into what it has closed or what is collected (rule 1),
    and marks before their time.

    `rows` are its own.
    """
    found: list[str] = []
    if not rows:
        return found
    cells = agent.disk.values()
    gone = plain.Gone(cells)
    for row in rows:
        if row.space == plain.MARKS and row.slot[:1] in (b"c", b"g"):
            found += _mark_problems(agent, row, now_ms)
        if row.space[1:2] == b"~" or not plain.split(row.space)[1].startswith(WINDOWS):
            continue
        if row.slot[0] not in ENTRY_KINDS or row.slot.startswith(b"C~erased:"):
            continue
        if row.slot[:1] in b"+-" and row.slot[1] & COMPENSATES:
            continue
        if plain.closed_by(cells, agent.name, row.space) or gone.collected(row.space):
            found.append(f"{agent.name} wrote into {plain.split(row.space)[1]}, which is closed")
    return found


def _mark_problems(agent: SimulatedAgent, row: Row, now_ms: int) -> list[str]:
    prefix, _ = plain.split(row.member)
    board = agent.state.catalog.find(prefix[1 : 1 + prefix[0]].decode())
    if board is None or board.definition is None:
        return [f"{agent.name} set a mark of a board that it does not know"]
    window = row.body.decode()
    closes_ms, ends_ms = plain.times_of(board.definition, window)
    due_ms = ends_ms if row.slot[:1] == b"g" else closes_ms
    if due_ms > now_ms:
        return [f"{agent.name} set {row.slot[:1]!r} for {window} {due_ms - now_ms} ms early"]
    return []


def member_problems(
    agent: SimulatedAgent, cells: dict[Key, Value], now_ms: int, *, forgets: bool
) -> list[str]:
    """Bans, retractions and erasures at the end, by the cells alone.

    forgets: whether all members take part, so that erased names are forgotten.
    """
    found = []
    owners = plain.by_owner(cells)
    standing: set[tuple[bytes, str]] = set()
    for (space, member), slots in owners.items():
        for slot, value in slots.items():
            if space.startswith(b"\x05~bans") and b"\0" not in slot and value[0] % 2:
                standing.add((member, slot[1:].decode()))
                if value[1] and value[1] <= now_ms:
                    found.append(f"{agent.name}: the ban of {member!r} was over at {value[1]}")
            if forgets and space == plain.ERASED and slot[:1] == b"E" and value[0] == 1:
                found.append(f"{agent.name}: the name in {member.hex()} was not forgotten")
        taken_back = {slot[1:] for slot in slots if slot[:1] == b"X"}
        for (other, its), more in owners.items() if taken_back else ():
            if its != member or other[: 5 + other[0]] != space[: 5 + space[0]]:
                continue
            for key in taken_back:
                if b"K" + key in more and b"X" + key not in more and _is_counted(agent, other):
                    window = plain.split(other)[1]
                    found.append(f"{agent.name}: {key!r} of {member!r} stands in {window}")
    members = {member for _, member in owners}
    for member in members:
        for board in ("laps", "clicks"):
            wanted = bool({(member, board), (member, "")} & standing)
            if agent.state.bans.hides(member, board) != wanted:
                found.append(f"{agent.name}: hides {member!r} on {board}: {not wanted}")
    return found


def _is_counted(agent: SimulatedAgent, space: bytes) -> bool:
    """Whether a space is a window of its board as it is defined now: an overruled definition may
    have had others."""
    prefix, window = plain.split(space)
    board = agent.state.catalog.find(prefix[1 : 1 + prefix[0]].decode())
    if board is None or board.definition is None:
        return False
    name = window.partition(":")[0]
    names = {counted.series.name for counted in board.counted if counted.prefix == prefix}
    return name in names and plain.start_of(window) >= board.opens.get(name, -(2**62))


WINDOWS = ("hour:", "day:", "keys:")
