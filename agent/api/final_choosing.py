"""Choosing a final: which window, generation and version a reader means, and what is known of it.

Finals outlive their windows, their generations and their boards' definitions, so what is asked for
is looked for among certificates as well, and not only where the board places it now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent.api.etags import is_named
from agent.api.final_answers import CertificateAnswer, PendingFinal
from agent.api.route import Call
from agent.boards.catalog import Board, Placed
from agent.boards.entry import rfc3339
from agent.boards.final_waits import Lack, Stage, Waits, waits_of
from agent.boards.finals import Certificate, Final, Override, certifiable, final_of
from agent.boards.marks import place_of
from agent.boards.windows import is_sliding
from agent.crdt.space import MARKS_SPACE, NO_SHAPE, Space, encode_space
from agent.errors import Changed, NotFound, Unavailable
from agent.state import State
from agent.store.finals import Held, held_of, shapes_said
from agent.store.snapshot import SqliteSnapshot

LACKS = {
    Lack.CLOSE: "not closed there yet, as far as is known here",
    Lack.SETTLE: "not everything that was written for it has arrived there, or been said to",
    Lack.AGREE: "other standings there than most have",
    Lack.FREEZE: "the standings are not copied there yet",
    Lack.CERTIFY: "all have copied the same, and are about to say so",
    Lack.NOTHING: "",
}


@dataclass(frozen=True, slots=True)
class Chosen:
    """A window's final as it is known here.

    space: of the window. placed: where the board has it now; None where it has it no more.
    held: the complete copies here, by hash. empty: nothing is counted in the window here.
    """

    board: Board
    generation: int
    window: str
    space: bytes
    placed: Placed | None
    final: Final
    held: Mapping[bytes, Held]
    empty: bool


def generation_of(call: Call, board: Board) -> int:
    """The generation that is asked for; the present one by default.

    Raises:
        NotFound: (`unknown_generation`) there was none such yet.
    """
    asked: int | None = call.query.get("generation")
    if asked is None or asked == board.generation:
        return board.generation
    if asked > board.generation:
        raise NotFound(
            "unknown_generation",
            f"generation: board {board.name!r} is in generation {board.generation}",
            hint="a reset begins the next one; its cell may still be on its way",
        )
    return asked


def board_of(call: Call) -> Board:
    """The board that the path names, also one that is retired.

    Raises:
        Forbidden: not a board of the caller's token.
        NotFound: (`unknown_board`)
    """
    name, catalog = call.board_name(), call.services.queue.state.catalog
    found = catalog.find(name)
    return found if found is not None else catalog.board(name)


def prefix_of(board: str, generation: int) -> bytes:
    """What the spaces of a board's generation begin with."""
    return encode_space(Space(board, generation, NO_SHAPE, ""))[: -len(NO_SHAPE)]


async def choose(call: Call) -> Chosen:
    """The window of the path, with all that is known of its final, certified or not.

    Raises:
        NotFound: (`unknown_board`, `unknown_generation`, `unknown_window`)
    """
    services = call.services
    board = board_of(call)
    generation = generation_of(call, board)
    text = call.path("window")
    placed, refused = None, None
    if generation == board.generation:
        try:
            known = services.queue.state.catalog.board(board.name)
            placed = known.place(known.resolve(text, services.board_now_ms()))
        except NotFound as error:
            refused = error
    window = text if placed is None else placed.window.id

    def look(snapshot: SqliteSnapshot) -> tuple[bytes, Final] | None:
        return _look(snapshot, board.name, generation, window, placed)

    found = await services.readers.read(look)
    if found is None:
        raise refused or NotFound(
            "unknown_window",
            f"window: {window[:80]!r} of generation {generation} of board {board.name!r} has no"
            " final here",
            hint="GET /v1/boards/{board}/windows?generation= lists those that have one",
        )
    space, final = found

    def look_at(snapshot: SqliteSnapshot) -> tuple[dict[bytes, Held], bool]:
        held = {its.hash: its for its in held_of(snapshot, space)}
        return held, space not in snapshot.spaces_of(space)

    held, empty = await services.readers.read(look_at)
    return Chosen(board, generation, window, space, placed, final, held, empty)


def _look(
    snapshot: SqliteSnapshot, board: str, generation: int, window: str, placed: Placed | None
) -> tuple[bytes, Final] | None:
    """The window's space and what was said of it: where the board has it, else certified ones.

    A window of one id may have been certified in several shapes of a generation (one was left out
    of the definition and added anew in another zone): then the one that was certified last.
    """
    if placed is not None:
        final = final_of(snapshot.slots_of(MARKS_SPACE, placed.space))
        if final.in_force is not None:
            return placed.space, final
    found = []
    for shape in shapes_said(snapshot, prefix_of(board, generation)):
        space = shape + window.encode(errors="replace")
        final = final_of(snapshot.slots_of(MARKS_SPACE, space))
        if final.certificates:
            found.append((max(ms for ms, _ in final.certificates.values()), space, final))
    if found:
        _, space, final = max(found, key=lambda its: its[:2])
        return space, final
    if placed is None:
        return None
    return placed.space, final_of(snapshot.slots_of(MARKS_SPACE, placed.space))


def certificate_of(call: Call, chosen: Chosen) -> Certificate:
    """The certificate that is asked for: of `version`, else the one in force.

    Raises:
        NotFound: (`not_certified`) there is none; says how far the window is, and what it waits
            for.
    """
    final, version = chosen.final, call.query.get("version")
    if final.in_force is None:
        raise _not_certified(call, chosen)
    if version is None or version == final.in_force.version:
        return final.in_force
    found = [told for (its, _), (_, told) in final.certificates.items() if its == version]
    if not found:
        versions = ", ".join(map(str, sorted({its for its, _ in final.certificates})))
        raise NotFound(
            "not_certified",
            f"version: {version} of {chosen.window} is not certified; certified: {versions}",
        )
    return max(found, key=lambda told: (told.hash, told.packed()))


def check_held(chosen: Chosen, told: Certificate) -> None:
    """Check that a certificate's rows are here.

    Raises:
        NotFound: (`not_certified`) they are of an older version, and nobody fetches them any more.
        Unavailable: (`busy`) they are on their way.
    """
    if told.hash in chosen.held:
        return
    if told is not chosen.final.in_force:
        raise NotFound(
            "not_certified",
            f"version: the rows of {told.version} of {chosen.window} are not kept by this agent",
            hint="ask an agent that was there when it was certified",
        )
    raise Unavailable(
        "busy",
        f"{chosen.window} is certified, and its rows are being fetched from the other agents",
        hint="try again in a second, or ask another agent",
    )


def check_match(call: Call, told: Certificate) -> bool:
    """Heed If-Match and If-None-Match; whether the caller has this final already.

    Raises:
        Changed: (`final_changed`) it goes on with another one.
    """
    tag, headers = told.hash.hex(), call.request.headers
    wanted = headers.get("If-Match")
    if wanted is not None and not is_named(tag, wanted):
        raise Changed(
            "final_changed",
            f"the final has the hash {tag[:16]}... (version {told.version}), not the one of"
            " If-Match",
            hint="begin anew with what it is now, or ask for the older one with `version`",
        )
    known = headers.get("If-None-Match")
    return known is not None and is_named(tag, known)


def is_closed(state: State, chosen: Chosen, agent: str) -> bool:
    """Whether an agent has closed a window."""
    place = place_of(chosen.space)
    return place is not None and state.marks.closed_by(agent, place.series, place.window)


def waits(state: State, chosen: Chosen) -> Waits:
    """For whom a window's final waits."""
    members = [member.name for member in state.ring.active()]
    return waits_of(chosen.final, members, lambda name: is_closed(state, chosen, name))


def window_stage(state: State, placed: Placed | None, final: Final, now_ms: int) -> Stage:
    """How far this agent is with a window; certified where anybody is."""
    said = final.state(state.agent)
    if said is not None:
        return said
    if placed is None or placed.window.name == "all" or is_sliding(placed.window.name):
        return "open"
    closed = state.marks.closed_by(state.agent, placed.counted.marks, placed.window.id)
    closes_ms = placed.window.end_ms + placed.counted.series.grace_ms
    return "closed" if closed or closes_ms <= now_ms else "open"


def _not_certified(call: Call, chosen: Chosen) -> NotFound:
    state, placed = call.services.queue.state, chosen.placed
    how = window_stage(state, placed, chosen.final, call.services.board_now_ms())
    assert placed is not None, "else there is a certificate"
    if not certifiable(placed) or is_sliding(placed.window.name):
        return NotFound(
            "not_certified",
            f"{chosen.window} of board {chosen.board.name!r} gets no final",
            hint="hours, days, weeks, months and seasons do, unless the definition says"
            ' "certify": false, and not on `trend` boards',
        )
    if how == "open":
        closes = rfc3339(placed.window.end_ms + placed.counted.series.grace_ms)
        return NotFound(
            "not_certified", f"{chosen.window} is open, and takes entries until {closes}"
        )
    waiting = waits(state, chosen)
    if chosen.empty and not chosen.final.digests:
        older = chosen.generation
        return NotFound(
            "not_certified",
            f"{chosen.window} is {how} here, and nothing was counted in it: there is no final",
            hint=f"before its resets the board was in generation {older - 1}: ask for `generation`"
            if older
            else "",
        )
    names = ", ".join(waiting.agents)
    if not names:
        return NotFound(
            "not_certified",
            f"{chosen.window} is {how} here; all who are left in the ring were left out of it",
            hint="POST .../certify with fewer, or nobody, in `without` takes them in again",
        )
    override = chosen.final.override
    version = ""
    if override is not None:
        without = ", ".join(override.without) or "nobody"
        version = f" version {override.version} was begun without {without};"
    return NotFound(
        "not_certified",
        f"{chosen.window} is {how} here;{version} it waits for {names}: {LACKS[waiting.lack]}",
        hint="POST .../certify goes on without an agent that is down",
    )


def override_of(final: Final, version: int) -> Override | None:
    """The operator's word that began a version; of several the one that counts."""
    found = [its for (number, _), its in final.overrides.items() if number == version]
    return max(found, default=None)


def certificate_answer(final: Final, told: Certificate) -> CertificateAnswer:
    """A certificate as it is shown."""
    override = override_of(final, told.version)
    return CertificateAnswer(
        version=told.version,
        hash=told.hash.hex(),
        mode="override" if told.version else "unanimous",
        members=told.members,
        agents=told.agents if isinstance(told.agents, int) else list(told.agents),
        without=[] if override is None else list(override.without),
        reason="" if override is None else override.reason,
        by="" if override is None else override.by,
        began_at=None if override is None else rfc3339(override.at_ms),
        certified_at={
            agent: rfc3339(ms)
            for (_, agent), (ms, its) in sorted(final.certificates.items())
            if (its.version, its.hash) == (told.version, told.hash)
        },
    )


def history_of(final: Final, shown: Certificate) -> list[CertificateAnswer]:
    """The other certified versions, newest first; of a conflict both."""
    others = {its[:2]: its for _, its in final.certificates.values() if its[:2] != shown[:2]}
    return [certificate_answer(final, others[key]) for key in sorted(others, reverse=True)]


def pending_of(state: State, chosen: Chosen) -> PendingFinal | None:
    """The version that was begun and is not certified yet."""
    final, override = chosen.final, chosen.final.override
    told = final.in_force
    if override is None or (told is not None and told.version >= final.version):
        return None
    return PendingFinal(
        version=override.version,
        without=list(override.without),
        reason=override.reason,
        by=override.by,
        began_at=rfc3339(override.at_ms),
        waits_for=list(waits(state, chosen).agents),
    )
