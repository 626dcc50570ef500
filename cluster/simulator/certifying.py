"""Certifying, as a simulated agent does it: the product's steps, one at a time, in virtual time.

What agent/certifying does in a loop over readers and a queue is done here in moves. A move either
looks (at a snapshot of now) and prepares what is to be done, or does what was prepared: in between
anything may happen to the agent, as it may while a reader scans or an operation waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from agent.boards.final_rows import pack_chunk
from agent.boards.finals import (
    Discard,
    Final,
    MakeHashKey,
    SayFinal,
    Shelve,
    Step,
    final_of,
    next_step,
)
from agent.certifying.fetched import Fetched
from agent.certifying.looking import certified_windows, closed_windows
from agent.certifying.steps import digest_now, makes_key, may_say, members_of, said_at
from agent.certifying.window import Copied, Pending, Tally
from agent.crdt.space import MARKS_SPACE
from agent.operation import BoardChanged
from agent.store.standings import Ordered, summed
from cluster.simulator.agent import SimulatedAgent

CHUNK_ROWS = 2  # so that a copy of a few rows is kept, sent and lost in parts
KEY_BYTES = 16

Source = Callable[[bytes, bytes, int], bytes | None]
"""(space, hash, number) -> a chunk of a final from some other agent's disk; None: from none."""
Told = Callable[[str, bytes, bytes], None]
"""(what, a window's space, a hash): what the run's judge is told of: copied, frozen."""


def _no_pace() -> None:
    """Virtual time does not pass while a snapshot is read."""


class Mover:
    """The next move of one agent.

    Args:
        source: where chunks of finals are fetched.
        tell: told what was copied and frozen.
    """

    def __init__(
        self,
        agent: SimulatedAgent,
        now_ms: int,
        source: Source,
        tell: Told,
        seen: Counter[str],
    ) -> None:
        self._agent = agent
        self._its = agent.certifying
        self._its.now_ms = now_ms
        self._source = source
        self._tell = tell
        self._seen = seen

    def move(self) -> bool:
        """Do what was prepared, or prepare what can be done; whether there was anything."""
        its, agent = self._its, self._agent
        if its.prepared:
            its.prepared.popleft()()
            return True
        snapshot, state = agent.disk.snapshot(), agent.state
        spaces = sorted(closed_windows(snapshot, state) | certified_windows(snapshot))
        for number in range(len(spaces)):
            at = (its.turn + number) % len(spaces)
            self._look(spaces[at])
            if its.prepared:
                its.turn = at + (number > 0)
                return True
        return False

    def _look(self, space: bytes) -> None:
        """Look at one window, and prepare its next step."""
        agent, state, disk = self._agent, self._agent.state, self._agent.disk
        final = final_of(disk.snapshot().slots_of(MARKS_SPACE, space))
        held = disk.complete_copies(space)
        window = self._its.pending.setdefault(space, Pending())
        digest = self._digest(space, final, window)
        if self._its.prepared:
            return
        hashes = {its: copied.hash for its, copied in window.copied.items()}
        step = next_step(final, agent.name, members_of(state), digest, hashes, held)
        match step:
            case Step.WAIT:
                return
            case Step.DONE:
                kept = {told.hash for _, told in final.certificates.values()}
                self._its.pending.pop(space)
                if disk.finals.get(space, {}).keys() - kept:
                    self._prepare(Discard(space, tuple(sorted(kept))))
            case Step.COPY:
                assert digest is not None
                self._copy(space, final, window, digest)
            case Step.FETCH:
                self._fetch(space, final)
            case _:
                said = said_at(step, space, final, state, digest, window.copied, held)
                self._its.prepared.append(lambda: self._say(step, said, window))

    def _prepare(self, operation: Shelve | Discard | MakeHashKey) -> None:
        def prepared() -> None:
            self._run(operation)

        self._its.prepared.append(prepared)

    def _run(self, operation: SayFinal | Shelve | Discard | MakeHashKey) -> bool:
        answer = self._agent.run([operation], self._its.now_ms)[0]
        return isinstance(answer, BoardChanged) and answer.changed

    def _digest(self, space: bytes, final: Final, window: Pending) -> bytes | None:
        """As Certifier._digest; where the sum must be read first, that is what is prepared."""
        state = self._agent.state
        placed = state.catalog.placed(space)
        if placed is None or not may_say(space, final, state):
            return None
        key = state.erased.key
        if key is None:
            if makes_key(final, state):
                self._prepare(MakeHashKey(self._agent.new_log().to_bytes(KEY_BYTES)))
            return None
        tally = window.tally
        if tally is None or not tally.usable or tally.erased != len(state.erased):
            tally = window.tally = Tally(len(state.erased))
            found = summed(self._agent.disk.snapshot(), placed, state.erased.closed, _no_pace)
            reads = tally.read
            self._its.prepared.append(lambda: reads(found))
            self._its.followed.add(space)
            return None
        return digest_now(placed, final, state, key, tally.total)

    def _copy(self, space: bytes, final: Final, window: Pending, digest: bytes) -> None:
        """Prepare the copy of the standings that have this digest, if they have it."""
        state = self._agent.state
        placed, key = state.catalog.placed(space), state.erased.key
        assert placed is not None
        assert key is not None
        hidden = frozenset(state.bans.hidden(placed.board.name))
        snapshot = self._agent.disk.snapshot()
        ordered = Ordered(snapshot, placed, state.erased.closed, hidden, _no_pace)
        if digest_now(placed, final, state, key, ordered.summed.total) != digest:
            ordered.close()
            return
        hash_, lsn, members = (
            ordered.hash(key, _no_pace),
            ordered.summed.lsn,
            ordered.summed.members,
        )
        rows = list(ordered.rows(key))
        ordered.close()
        self._tell("copied", space, hash_)
        last = max(0, -(-members // CHUNK_ROWS) - 1)
        for number in range(last + 1):
            chunk = pack_chunk(rows[number * CHUNK_ROWS : (number + 1) * CHUNK_ROWS])
            whole = members if number == last else None
            self._prepare(Shelve(space, hash_, ((number, chunk),), whole, lsn=lsn))

        def copied() -> None:
            window.copied = {digest: Copied(hash_, lsn)}

        self._its.prepared.append(copied)

    def _fetch(self, space: bytes, final: Final) -> None:
        """Prepare to fetch the rows of the certificate that is in force, a chunk at a time."""
        told = final.in_force
        assert told is not None
        its = self._its
        fetched = Fetched(space, told, self._agent.state.erased.closed, CHUNK_ROWS)

        def take(number: int) -> None:
            chunk = self._source(space, told.hash, number)
            if chunk is None:
                its.prepared.clear()
                return
            try:
                self._run(fetched.take(number, chunk))
            except ValueError:
                its.prepared.clear()
                self._seen["a final that does not fit its certificate"] += 1
                return
            self._seen["final fetched"] += number == fetched.last

        if self._source(space, told.hash, 0) is not None:
            its.prepared += [partial(take, number) for number in range(fetched.last + 1)]

    def _say(self, step: Step, saying: SayFinal, window: Pending) -> None:
        said = self._run(saying)
        match step:
            case Step.FREEZE:
                if said:
                    self._seen["frozen"] += 1
                    self._tell("frozen", saying.space, saying.said)
                else:
                    self._seen["changed while it was copied"] += 1
                    window.copied.clear()
            case Step.THAW:
                window.copied.clear()
                self._seen["thawed"] += said
            case Step.CERTIFY:
                self._seen["certified"] += said
            case Step.ADOPT:
                self._seen["certificate adopted"] += said
            case _:
                pass
