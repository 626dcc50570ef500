"""What one batch does: merges, claims, stamps, alarms. The model test covers long histories."""

from __future__ import annotations

from collections.abc import Sequence
from unittest import mock

import pytest

from agent.boards.definition import COUNTERS, Definition, ScoreRange
from agent.boards.entry import Entry
from agent.boards.tally import Group
from agent.boards.windows import WindowSpec
from agent.committer import Commit, Committer
from agent.crdt import hyperloglog
from agent.crdt.cell import Row, Value
from agent.crdt.document import Status
from agent.crdt.fingerprint import fingerprint
from agent.crdt.slot import Kind, slot_of_one, slot_of_replica
from agent.crdt.space import RING_SPACE
from agent.crdt.total import total_of
from agent.errors import Forbidden, Malformed, NotFound, OutOfRange, Refused
from agent.exchange import Boot, Chunk, Reading
from agent.operation import (
    Announce,
    BoardChanged,
    ChangeMember,
    Define,
    Fence,
    Import,
    Merge,
    Merged,
    Operation,
    Retire,
    Write,
    Written,
)
from agent.store.identity import Identity
from agent.store.memory import MemoryStore

NOW_MS = 1_800_000_000_000
INC, OTHER = 5, 6


class Agent:
    """A committer over a store in memory."""

    def __init__(self) -> None:
        self.store = MemoryStore(Identity("r", "eu", "eu", INC, 50))
        self.committer = Committer(self.store, lambda _now_ms, inc: (inc + 100, 900 + inc))

    def begin(self, boot: int = 1, burnt: str = "") -> None:
        """Begin a process."""
        assert self.store.begin(boot * 1_000, 60 if burnt else None, burnt).number == boot
        self.committer = Committer(self.store, lambda _now_ms, inc: (inc + 100, 900 + inc))

    def run(self, *operations: Operation) -> Commit:
        return self.committer.run(operations, NOW_MS)

    @property
    def rows(self) -> dict[bytes, Row]:
        """The rows by slot, of the log."""
        snapshot = self.store.snapshot()
        return {row.slot: row for _, row in snapshot.log_after(0, 10**6) if row is not None}


@pytest.fixture
def agent() -> Agent:
    return Agent()


def add(*amounts: int, member: str = "m") -> Write:
    entries = [Entry(member, add=amount) for amount in amounts]
    return Write((Group(COUNTERS, entries, range(len(entries))),))


def received(
    slot: bytes, value: Value, seq: int = 1, inc: int = OTHER, member: bytes = b"m"
) -> Row:
    return Row(b"\xffspace", member, slot, *value, inc, seq)


def merge(
    rows: Sequence[Row], start: int = 0, to: int = 9, vv: dict[int, int] | None = None
) -> Merge:
    return Merge("us", Chunk(60, start, to, vv is not None, tuple(rows), {"us": 3}), vv)


def written(*scores: int) -> Written:
    """The answer to entries of one request for `counters`."""
    return Written(([{"all": score} for score in scores],), ({},))


def test_all_changes_of_a_batch_share_one_seq(agent: Agent) -> None:
    commit = agent.run(add(1), add(2, 3), add(-4))
    assert (commit.state.seq, commit.state.lsn, commit.state.vv) == (1, 2, {INC: 1})
    assert commit.answers == [written(1), written(3, 6), written(2)]
    assert (commit.own, commit.rows) == (True, 2)
    assert {row.seq for row in agent.rows.values()} == {1}


def test_a_request_that_fails_fails_alone_and_leaves_no_trace(agent: Agent) -> None:
    two = Write((Group(COUNTERS, [Entry("m", add=5)], [0]), Group("no", [Entry("m", add=5)], [1])))
    bad = Write((Group(COUNTERS, [Entry("m", add=7), Entry("", add=1)], [0, 1]),))
    commit = agent.run(add(1), two, bad, Retire("nobody"), add(2))
    kinds = [type(answer) for answer in commit.answers]
    assert kinds == [Written, NotFound, Malformed, NotFound, Written]
    assert commit.answers[-1] == written(3)


def test_single_entries_that_are_tallied_together_are_refused_each_for_itself(
    agent: Agent,
) -> None:
    commit = agent.run(add(1), add(2**53), add(1, member=""), add(3), add(1, member="n"))
    kinds = [type(answer) for answer in commit.answers]
    assert kinds == [Written, OutOfRange, Malformed, Written, Written]
    assert commit.answers[3] == written(4)
    for refused in commit.answers[1:3]:
        assert isinstance(refused, Refused)
        assert refused.detail.startswith("entries[0].")
        assert [error.index for error in refused.errors] == [0]


def test_a_batch_that_changes_nothing_takes_no_seq(agent: Agent) -> None:
    agent.run(add(0))
    before = agent.committer.state
    commit = agent.run(add(0), Retire("nobody"))
    assert commit.state == before
    assert (commit.own, commit.rows) == (False, 0)


def test_a_received_row_keeps_its_stamp_and_gets_a_new_lsn(agent: Agent) -> None:
    agent.run(add(1))
    commit = agent.run(merge([received(b"M", (3, 0, b""), seq=77)]))
    assert commit.answers == [Merged(True, 1)]
    assert agent.rows[b"M"][6:] == (OTHER, 77)
    assert (commit.state.seq, commit.state.lsn, commit.own) == (1, 2, False)


def test_an_equal_or_lesser_value_changes_nothing_and_keeps_my_stamp(agent: Agent) -> None:
    agent.run(merge([received(b"M", (3, 0, b"x"), seq=5)]))
    lsn = agent.committer.state.lsn
    for value in ((3, 0, b"x"), (3, 0, b""), (2, 9, b"z")):
        agent.run(merge([received(b"M", value, seq=9, inc=99)]))
    assert agent.rows[b"M"][3:] == (3, 0, b"x", OTHER, 5)
    assert agent.committer.state.lsn == lsn


def test_the_vector_and_the_times_are_claimed_only_at_head(agent: Agent) -> None:
    agent.run(Merge("us", Chunk(60, 0, 4, False, (), {"us": 3}), {OTHER: 9}))
    assert (agent.committer.state.vv, agent.committer.state.times) == ({}, {})
    assert agent.committer.state.cursors == {60: Reading("us", 4)}
    agent.run(merge([], start=4, vv={OTHER: 9}))
    assert agent.committer.state.vv == {OTHER: 9}
    assert agent.committer.state.times == {"us": 3}


def test_a_head_whose_vector_is_not_known_claims_nothing(agent: Agent) -> None:
    agent.run(Merge("us", Chunk(60, 0, 4, True, (), {"us": 3}), None))
    assert (agent.committer.state.vv, agent.committer.state.times) == ({}, {})
    assert agent.committer.state.cursors == {60: Reading("us", 4)}


def test_a_chunk_behind_a_gap_is_ignored_whole(agent: Agent) -> None:
    agent.run(merge([], to=4))
    before = agent.committer.state
    commit = agent.run(merge([received(b"M", (3, 0, b""))], start=5, vv={OTHER: 9}))
    assert commit.answers == [Merged(False, 0)]
    assert commit.state is before
    assert b"M" not in agent.rows


@pytest.mark.parametrize("slot", [b"~x", b"\x00", b"\xff" * 300])
def test_an_unknown_kind_is_stored_as_it_is(agent: Agent, slot: bytes) -> None:
    agent.run(merge([received(slot, (-(2**63), 2**63 - 1, b"\xc1"))]))
    assert agent.rows[slot].value == (-(2**63), 2**63 - 1, b"\xc1")


def test_counter_slots_of_a_peer_enter_the_total(agent: Agent) -> None:
    agent.run(add(1))
    space = agent.committer.state.catalog.board(COUNTERS).space
    theirs = Row(space, b"m", slot_of_replica(Kind.UP, OTHER), 10, NOW_MS, b"", OTHER, 1)
    commit = agent.run(add(1), merge([theirs]), add(1))
    assert commit.answers == [written(2), Merged(True, 1), written(13)]
    (total,) = agent.store.load([], [(space, b"m")]).totals.values()
    assert total == agent.store.snapshot().totals_of([(space, b"m")])[space, b"m"]


def test_alarms(agent: Agent) -> None:
    quiet = agent.run(merge([received(b"M", (3, 0, b""), seq=4)], vv={OTHER: 5})).alarms
    assert (quiet.covered_changed, quiet.forked, quiet.peer_ahead) == (0, 0, 0)
    covered = agent.run(merge([received(b"M", (4, 0, b""), seq=5)]))
    assert covered.alarms.covered_changed == 1
    assert agent.rows[b"M"].major == 4, "alarmed, and still joined"
    for value in ((3, 0, b""), (9, 0, b"")):  # a lesser and a greater value of the same stamp
        assert agent.run(merge([received(b"M", value, seq=5)])).alarms.forked == 1
    ahead = agent.run(merge([], vv={INC: 8, OTHER: 9}))
    assert ahead.alarms.peer_ahead == 1


def test_a_later_change_of_a_cell_moves_it_to_the_end_of_the_batch() -> None:
    agent = Agent()
    one, two = received(b"M", (1, 0, b"")), received(b"L", (1, 0, b""))
    agent.run(merge([one, two, received(b"M", (2, 0, b""), seq=2)]))
    log = [row.slot for _, row in agent.store.snapshot().log_after(0, 9) if row is not None]
    assert log == [b"L", b"M"]


def test_who_i_am_is_announced_once_and_each_boot(agent: Agent) -> None:
    agent.begin(boot=1)
    agent.run(Announce("eu", "http://a"))
    agent.begin(boot=2)
    agent.run(Announce("eu", "http://a"))
    member = agent.committer.state.ring.members["eu"]
    assert (member.epoch, member.url, member.incs) == (1, "http://a", (INC,))
    agent.begin(boot=3)
    agent.run(Announce("eu", "http://b"))
    assert agent.committer.state.ring.members["eu"].epoch == 2
    assert agent.rows[slot_of_replica(Kind.INCARNATION, INC)].value == (3, 3_000, b"")


def test_a_batch_meets_each_change_of_its_boards(agent: Agent) -> None:
    write = Write((Group("b", [Entry("m", score=5)], [0]),))
    commit = agent.run(write, Define("b", Definition(rule="best")), write, Retire("b"), write)
    kinds = [type(answer).__name__ for answer in commit.answers]
    assert kinds == ["NotFound", "BoardChanged", "Written", "BoardChanged", "NotFound"]


def test_times_alone_are_not_made_durable(agent: Agent) -> None:
    agent.run(merge([], to=4, vv={OTHER: 1}))
    with mock.patch.object(agent.store, "commit") as commit:
        agent.run(Merge("us", Chunk(60, 0, 4, True, (), {"us": 99}), {OTHER: 1}))
    assert agent.committer.state.times == {"us": 99}
    assert not commit.called


def own_total(agent: Agent, member: bytes = b"m") -> dict[int, int]:
    """The `+` slots of a member: incarnation -> total."""
    space = agent.committer.state.catalog.board(COUNTERS).space
    slots = agent.store.snapshot().slots_of(space, member)
    return {int.from_bytes(slot[1:9]): value[0] for slot, value in slots if slot[0] == Kind.UP}


def test_a_burnt_incarnation_is_followed_by_another_at_the_next_write_of_its_own(
    agent: Agent,
) -> None:
    agent.begin()
    agent.run(Announce("eu", "http://a"), add(5))
    agent.begin(boot=2, burnt="unclean")
    agent.run(Announce("eu", "http://a"), merge([received(b"M", (3, 0, b""))]))
    assert (agent.committer.state.inc, agent.committer.state.burnt) == (INC, "unclean")
    commit = agent.run(add(1), add(2))
    state = commit.state
    assert (state.inc, state.seq, state.burnt, commit.minted) == (INC + 100, 2, "", "unclean")
    assert commit.answers == [written(6), written(8)]
    assert own_total(agent) == {INC: 5, INC + 100: 3}
    assert state.ring.members["eu"].incs == (INC, INC + 100)
    assert state.vv == {INC: 1, INC + 100: 2}


def rows_that_know_more(agent: Agent) -> dict[str, Merge]:
    """What shows that this incarnation has written more, or otherwise, than this file holds."""
    space = agent.committer.state.catalog.board(COUNTERS).space
    slot = slot_of_replica(Kind.UP, INC)
    mine = slot_of_replica(Kind.INCARNATION, INC)
    return {
        "a later vector": merge([], vv={INC: 8}),
        "a later row": merge([Row(space, b"x", slot, 4, NOW_MS, b"", INC, 8)]),
        "a greater slot": merge([Row(space, b"m", slot, 99, NOW_MS, b"", INC, 1)]),
        "a greater slot, by another": merge([Row(space, b"m", slot, 99, NOW_MS, b"", OTHER, 1)]),
        "the same write, otherwise": merge([Row(space, b"m", slot, 4, NOW_MS, b"", INC, 2)]),
        "another process": merge([Row(RING_SPACE, b"eu", mine, 1, 2_000, b"", INC, 1)]),
    }


@pytest.mark.parametrize(
    "what",
    [
        "a later vector",
        "a later row",
        "a greater slot",
        "a greater slot, by another",
        "the same write, otherwise",
        "another process",
    ],
)
def test_whoever_knows_more_of_my_incarnation_ends_it_at_once(agent: Agent, what: str) -> None:
    agent.begin()
    agent.run(Announce("eu", "http://a"))
    agent.run(add(5))
    log_before = agent.committer.state.log
    commit = agent.run(rows_that_know_more(agent)[what])
    state = commit.state
    assert (state.inc, state.burnt) == (INC + 100, "")
    assert state.log != log_before, "numbers of the log may have been used twice as well"
    assert commit.minted
    alarms = commit.alarms
    if what != "a greater slot, by another":
        assert alarms.peer_ahead + alarms.forked + alarms.covered_changed >= 1
    before = sum(own_total(agent).values())
    agent.run(add(1))
    assert own_total(agent)[INC + 100] == 1
    assert sum(own_total(agent).values()) == before + 1


def test_a_removed_member_stays_removed_whatever_it_announces(agent: Agent) -> None:
    agent.run(Announce("eu", "http://a"))
    removed = ChangeMember("eu", Status.REMOVED)
    assert agent.run(removed, removed).answers == [BoardChanged(True), BoardChanged(False)]
    epoch, status, said = agent.rows[slot_of_one(Kind.MEMBER)].value
    assert status == Status.REMOVED
    late = Row(RING_SPACE, b"eu", slot_of_one(Kind.MEMBER), 77, 0, said, OTHER, 1)
    agent.run(merge([late]))
    assert agent.rows[slot_of_one(Kind.MEMBER)].value == (epoch, status, said)
    answers = agent.run(ChangeMember("eu", url="http://b"), ChangeMember("nobody")).answers
    assert [type(answer) for answer in answers] == [Forbidden, NotFound]


def test_what_is_imported_counts_once_and_as_my_own_write(agent: Agent) -> None:
    space = agent.committer.state.catalog.board(COUNTERS).space
    agent.run(add(1))
    theirs = Row(space, b"m", slot_of_replica(Kind.UP, OTHER), 10, NOW_MS, b"", OTHER, 7)
    ring = Row(RING_SPACE, b"x", slot_of_one(Kind.MEMBER), 1, 0, b"", OTHER, 7)
    assert agent.run(Import((theirs, ring))).answers == [Merged(True, 1)]
    assert agent.rows[theirs.slot][6:] == (INC, 2)
    assert agent.run(Import((theirs,)), add(1)).answers == [Merged(True, 0), written(12)]
    assert agent.committer.state.vv == {INC: 3}


def test_fingerprints_are_the_sum_of_the_cells(agent: Agent) -> None:
    agent.run(add(1), add(2, member="n"), merge([received(b"M", (3, 0, b"x"))]))
    agent.run(add(1), merge([received(b"M", (4, 0, b"y"), seq=2)]))
    rows = [row for _, row in agent.store.snapshot().log_after(0, 99) if row is not None]
    root = 0
    for row in rows:
        root ^= fingerprint(row)
    assert agent.committer.state.root == root
    assert sum(cells for _, cells in agent.store.snapshot().buckets()) == len(rows)


def test_the_newest_process_of_an_incarnation_is_remembered(agent: Agent) -> None:
    agent.run(Fence(OTHER, Boot(3, 5)), Fence(OTHER, Boot(2, 9)))
    assert agent.committer.state.fences == {OTHER: Boot(3, 5)}
    slot = slot_of_replica(Kind.INCARNATION, OTHER)
    agent.run(merge([Row(RING_SPACE, b"us", slot, 4, 1, b"", OTHER, 1)]))
    assert agent.committer.state.fences == {OTHER: Boot(4, 1)}


def test_only_a_few_logs_of_an_agent_are_remembered(agent: Agent) -> None:
    for number in range(1, 20):
        agent.run(Merge("us", Chunk(number, 0, 4, False, ()), None))
    agent.run(Merge("uk", Chunk(99, 0, 4, False, ()), None))
    assert [log for log in agent.committer.state.cursors if log != 99] == list(range(12, 20))


def test_registers_of_an_incarnation_that_the_ring_does_not_know_yet_are_met(
    agent: Agent,
) -> None:
    """A process that begins moves its row of the ring to the end of its log, behind its cells."""
    agent.run(Define("u", Definition(rule="unique")))
    space = agent.committer.state.catalog.board("u").space
    actors = [b"%d" % number for number in range(20_000)]
    by_register: dict[tuple[int, int], dict[int, bytes]] = {}
    for actor in actors:
        segment, index, rho = hyperloglog.place(actor)
        by_register.setdefault((segment, index), {})[rho] = actor
    (segment, index), ranks = next(its for its in by_register.items() if len(its[1]) > 1)
    high, low = max(ranks), min(ranks)
    for log, (inc, rho) in enumerate([(OTHER, high), (OTHER + 1, low)]):
        value = hyperloglog.offer(None, index, rho)
        assert value is not None
        slot = slot_of_replica(Kind.HLL, inc, segment.to_bytes(2))
        row = Row(space, b"m", slot, *value, inc, 1)
        agent.run(Merge("us", Chunk(70 + log, 0, 1, False, (row,), {}), None))
    slots = agent.store.snapshot().slots_of(space, b"m")
    assert agent.store._totals[space, b"m"] == total_of(slots)
    before = agent.committer.state.lsn
    seen = Write((Group("u", [Entry("m", actor=ranks[low].decode())], [0]),))
    assert agent.run(seen).answers == [Written(([{"all": 1}],), ({},))]
    assert agent.committer.state.lsn == before, "another replica's register says it already"


def test_kept_results_that_add_up_stay_in_the_boards_range(agent: Agent) -> None:
    definition = Definition(
        rule="sum", results="keep", score=ScoreRange(-5, 10), windows=(WindowSpec("day"),)
    )
    agent.run(Define("r", definition))

    def code(key: str, amount: int) -> str:
        entry = Entry("m", add=amount, key=key, at=NOW_MS)
        (answer,) = agent.run(Write((Group("r", [entry], [0]),))).answers
        return answer.code if isinstance(answer, Refused) else ""

    said = [code("a", 8), code("b", 3), code("b", 2), code("b", 2), code("c", 1), code("d", -15)]
    assert said == ["", "out_of_range", "", "", "out_of_range", ""]
    assert code("e", -1) == "out_of_range"
