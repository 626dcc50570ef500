"""What must hold at every moment of a run: the invariants of docs/protocol.md."""

from __future__ import annotations

from collections.abc import Sequence

from agent.boards.standing import standing_of
from cluster.simulator.agent import SimulatedAgent
from cluster.simulator.history import History, show


def cover_problem(agent: SimulatedAgent, history: History, checked: dict[int, int]) -> str | None:
    """I2: every write that the version vector claims is in the state.

    `checked` is how far each incarnation was checked before; cells and vectors only grow, so the
    rest needs no second look. It is moved on.
    """
    for inc, seq in agent.state.vv.items():
        for number in range(checked.get(inc, 0) + 1, seq + 1):
            for key, value in history.commits.get((inc, number), ()):
                mine = agent.disk.value(key)
                if mine is None or mine < value:
                    return f"I2: {agent.name} claims ({inc}, {number}), {show(key)} is {mine}"
        checked[inc] = seq
    return None


def cursor_problem(reader: SimulatedAgent, peer: SimulatedAgent) -> str | None:
    """I3: every cell of the peer that its reader's cursor covers is in the reader's state."""
    cursor = reader.state.cursors.get(peer.name)
    if cursor is None or cursor.log != peer.state.log:
        return None
    for lsn, row in peer.disk.rows():
        if lsn > cursor.lsn:
            break
        mine = reader.disk.value(row.key)
        if mine is None or mine < row.value:
            return f"I3: {reader.name} has read {peer.name} to {cursor.lsn}, not {show(row.key)}"
    return None


def times_problem(agent: SimulatedAgent, history: History) -> str | None:
    """`as_of`: an agent holds all commits of another up to the time that it says."""
    for name, until_ms in sorted(agent.state.times.items()):
        for at_ms, key, value in history.times.get(name, ()):
            mine = agent.disk.value(key)
            if at_ms < until_ms and (mine is None or mine < value):
                return f"as_of: {agent.name} says {name} up to {until_ms}, lacks {show(key)}"
    return None


def final_problems(agents: Sequence[SimulatedAgent], history: History) -> list[str]:
    """After healing: the right answer everywhere, and the same everywhere."""
    problems: list[str] = []
    first = agents[0]
    for agent in agents:
        rows = [row for _, row in agent.disk.rows()]
        cells = {row.key: row.value for row in rows}
        problems += history.cell_problems(agent.name, cells)
        if cells != {row.key: row.value for _, row in first.disk.rows()}:
            problems.append(f"{agent.name} and {first.name} hold different cells")
        if agent.state.vv != first.state.vv:
            problems.append(f"{agent.name} and {first.name} claim different writes")
        if list(agent.state.catalog) != list(first.state.catalog):
            problems.append(f"{agent.name} and {first.name} have different boards")
        problems += _score_problems(agent, history)
        problem = cover_problem(agent, history, {}) or times_problem(agent, history)
        problems += [problem] if problem else []
        alarms = agent.alarms
        if alarms.covered_changed or alarms.forked or alarms.peer_ahead:
            problems.append(f"{agent.name}: {alarms}")
    return problems


def _score_problems(agent: SimulatedAgent, history: History) -> list[str]:
    """Whether every score that an agent would show is the plain one."""
    problems = []
    snapshot = agent.disk.snapshot()
    cells = {row.key: row.value for _, row in agent.disk.rows()}
    for space, definition in history.boards.items():
        for member, slots in snapshot.members_after(space, b"", 10_000):
            standing = standing_of(definition, slots)
            score = history.score_of(space, member, cells)
            if (standing and standing[:2]) != score:
                problems.append(f"{agent.name}: {member!r} has {standing}, not {score}")
            if definition.rule != "sum":
                continue
            loaded = agent.disk.load([], [(space, member)]).totals[space, member]
            if loaded is None or loaded[:2] != score:
                problems.append(f"{agent.name}: the total of {member!r} is {loaded}, not {score}")
            exact = history.sums.get((space, member), 0)
            if score and score[0] != exact and history.all_kept((space, member)):
                problems.append(f"{agent.name}: {member!r} has {score[0]}, {exact} was written")
    return problems
