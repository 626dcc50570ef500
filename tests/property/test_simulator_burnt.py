"""An incarnation that is found burnt in the middle of a batch: one case, without chance."""

from __future__ import annotations

from agent.boards.entry import Entry
from agent.boards.tally import Group
from agent.committer import Committer
from agent.crdt.cell import Row
from agent.exchange import Chunk
from agent.operation import Announce, Merge, Merged, Write, Written
from agent.store.identity import Identity
from agent.store.memory import MemoryStore

NOW_MS = 1_800_000_000_000


def test_what_waits_behind_a_chunk_that_burns_is_written_by_the_next_incarnation() -> None:
    """A file was set back and nothing told of it: its numbers above 1 are used already."""
    store = MemoryStore(Identity("ring", "a0", "eu", 1_000, 5))
    store.begin(7)
    committer = Committer(store, lambda _now_ms, _newest: (2_000, 6))
    committer.run([Announce("eu", "http://a0")], NOW_MS)
    used = Row(b"\xff", b"m", b"~", 1, 0, b"", 1_000, 9)
    write = Write((Group("counters", [Entry("ada", add=1)], [0]),))

    commit = committer.run(
        [Merge("a1", Chunk(77, 0, 1, True, (used,)), {1_000: 9}), write, write], NOW_MS
    )

    counted = [Written(([{"all": score}],), ({},)) for score in (1, 2)]
    assert commit.answers == [Merged(True, 1), *counted]
    assert commit.minted
    rows = [row for _, row in store.snapshot().log_after(0, 100) if row is not None]
    assert not [row for row in rows if row.inc == 1_000 and row.seq > 1 and row.slot != b"~"]
    assert [row.major for row in rows if row.slot[:1] == b"+" and row.inc == 2_000] == [2]
    assert commit.alarms.peer_ahead


def test_a_row_of_a_commit_that_this_file_has_lost_is_no_commit_of_its_own() -> None:
    """The other rows of that commit may be elsewhere: to claim it would hide them for ever."""
    store = MemoryStore(Identity("ring", "a0", "eu", 1_000, 5))
    store.begin(7)
    Committer(store, lambda _now_ms, _newest: (2_000, 6)).run([Announce("eu", "x")], NOW_MS)
    store.begin(8, 9, "the last process did not end cleanly")
    committer = Committer(store, lambda _now_ms, _newest: (2_000, 6))
    lost = Row(b"\xff", b"m", b"~", 1, 0, b"", 1_000, 2)

    committer.run([Merge("a1", Chunk(77, 0, 1, False, (lost,)), None)], NOW_MS)

    assert committer.state.seq == 1
    assert committer.state.vv == {1_000: 1}
    assert committer.state.seen == {1_000: 2}


def test_voids_of_a_chunk_that_burns_are_written_by_the_next_incarnation() -> None:
    """The chunk brings two facts of one key, and a row that shows what this file has lost."""
    facts = []
    for name, inc in (("a1", 3_000), ("a2", 4_000)):
        store = MemoryStore(Identity("ring", name, "eu", inc, inc))
        store.begin(7)
        its = Committer(store, lambda _now_ms, _newest: (9_000, 9))
        its.run([Announce("eu", name)], NOW_MS)
        entry = Entry("ada", add=1, key="k", at=NOW_MS)
        its.run([Write((Group("counters", [entry], [0]),))], NOW_MS)
        facts += [
            row
            for _, row in store.snapshot().log_after(0, 100)
            if row is not None and row.slot[:1] in (b"F", b"+")
        ]
    store = MemoryStore(Identity("ring", "a0", "eu", 1_000, 5))
    store.begin(7)
    committer = Committer(store, lambda _now_ms, _newest: (2_000, 6))
    committer.run([Announce("eu", "http://a0")], NOW_MS)
    used = Row(b"\xff", b"m", b"~", 1, 0, b"", 1_000, 9)

    chunk = Chunk(77, 0, 9, True, (*facts, used))
    commit = committer.run([Merge("a1", chunk, {1_000: 9, 3_000: 3, 4_000: 3})], NOW_MS)

    assert commit.minted
    rows = [row for _, row in store.snapshot().log_after(0, 100) if row is not None]
    voids = [row for row in rows if row.slot[:1] == b"V"]
    assert [row.inc for row in voids] == [2_000]
    assert committer.state.vv[1_000] == 9
