"""The rules of an exchange, one by one. The simulator shows that they suffice together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import pytest

from agent import exchange
from agent.crdt.cell import Row
from agent.exchange import Boot, Chunk, ChunkLimits, Cursor, PeerView, Reply, Request, Sender, Told

EU = Sender("eu", inc=1, log=11, boot=Boot(1, 100))
US = Sender("us", inc=2, log=22, boot=Boot(1, 200))
LIMITS = ChunkLimits()


def row(number: int, inc: int = 1, seq: int = 1, body: bytes = b"") -> Row:
    return Row(b"s", b"m%d" % number, b"M", number, 0, body, inc, seq)


@dataclass
class Snapshot:
    """A log in memory: lsn -> row, or None for a superseded entry."""

    log: dict[int, Row | None] = field(default_factory=dict)
    vv: Mapping[int, int] = field(default_factory=dict)
    cursors: Mapping[int, int] = field(default_factory=dict)
    newest: int | None = None
    root: int = 0

    def read_to(self, log: int) -> int | None:
        return self.cursors.get(log)

    @property
    def newest_lsn(self) -> int:
        return max(self.log, default=0) if self.newest is None else self.newest

    def log_after(self, lsn: int, limit: int) -> Iterator[tuple[int, Row | None]]:
        yield from [entry for entry in sorted(self.log.items()) if entry[0] > lsn][:limit]


def chunk_of(
    snapshot: Snapshot, start: int = 0, covered: Mapping[int, int] | None = None, **limits: int
) -> Chunk:
    return exchange.build_chunk(
        snapshot, 11, start, covered or {}, {"eu": 5}, replace(LIMITS, **limits)
    )


FOUR = Snapshot({lsn: row(lsn, seq=lsn) for lsn in (1, 2, 3, 4)})


def test_a_whole_log_is_a_chunk_at_head_with_times() -> None:
    chunk = chunk_of(FOUR)
    assert (chunk.start, chunk.to, chunk.head, len(chunk.rows)) == (0, 4, True, 4)
    assert chunk.times == {"eu": 5}


def test_a_chunk_that_is_cut_is_not_at_head_and_has_no_times() -> None:
    chunk = chunk_of(FOUR, rows_max=2)
    assert (chunk.to, chunk.head, chunk.times) == (2, False, None)
    assert [r.major for r in chunk.rows] == [1, 2]
    rest = chunk_of(FOUR, start=chunk.to, rows_max=2)
    assert (rest.start, rest.to, rest.head) == (2, 4, True)


def test_covered_rows_are_left_out_and_passed_over() -> None:
    chunk = chunk_of(FOUR, covered={1: 3})
    assert ([r.major for r in chunk.rows], chunk.to, chunk.head) == ([4], 4, True)
    assert chunk_of(FOUR, covered={1: 4}).rows == ()
    assert chunk_of(FOUR, covered={2: 9}) == chunk_of(FOUR)


def test_rows_behind_a_full_chunk_that_are_covered_still_bring_it_to_head() -> None:
    snapshot = Snapshot({1: row(1, inc=1), 2: row(2, inc=2), 3: None})
    chunk = chunk_of(snapshot, covered={2: 1}, rows_max=1)
    assert ([r.major for r in chunk.rows], chunk.to, chunk.head) == ([1], 3, True)


def test_superseded_entries_count_as_scanned() -> None:
    snapshot = Snapshot({1: None, 2: None, 3: row(3)})
    chunk = chunk_of(snapshot, scanned_max=2)
    assert (chunk.rows, chunk.to, chunk.head) == ((), 2, False)
    assert chunk_of(snapshot, start=2, scanned_max=2).head


def test_a_pruned_tail_does_not_keep_a_reader_from_the_head() -> None:
    snapshot = Snapshot({1: row(1)}, newest=9)
    assert (chunk_of(snapshot).to, chunk_of(snapshot).head) == (9, True)
    assert chunk_of(snapshot, scanned_max=1).head is False
    assert chunk_of(snapshot, start=1, scanned_max=1).head


def test_a_chunk_always_carries_at_least_one_row() -> None:
    snapshot = Snapshot({1: row(1, body=b"x" * 1024), 2: row(2)})
    chunk = chunk_of(snapshot, bytes_max=1, rows_max=1)
    assert ([r.major for r in chunk.rows], chunk.to, chunk.head) == ([1], 1, False)


def test_bytes_bound_a_chunk() -> None:
    size = exchange.row_bytes(row(1))
    assert [r.major for r in chunk_of(FOUR, bytes_max=2 * size).rows] == [1, 2]
    assert [r.major for r in chunk_of(FOUR, bytes_max=2 * size + 1).rows] == [1, 2]


def test_a_reader_beyond_the_head_is_at_head() -> None:
    chunk = chunk_of(FOUR, start=9)
    assert (chunk.start, chunk.to, chunk.head, chunk.rows) == (9, 9, True, ())


@pytest.mark.parametrize(
    ("start", "read_to", "expected"),
    [(0, None, True), (0, 5, True), (5, 5, True), (3, 5, True), (6, 5, False), (3, None, False)],
)
def test_the_cursor_check(start: int, read_to: int | None, expected: bool) -> None:
    assert exchange.contiguous(Chunk(11, start, start + 1, True, ()), read_to) is expected


@pytest.mark.parametrize(("read_to", "expected"), [(None, 4), (2, 4), (9, 9)])
def test_a_cursor_only_rises(read_to: int | None, expected: int) -> None:
    assert exchange.advanced(Chunk(11, 0, 4, False, ()), read_to) == expected


def test_a_reader_that_is_ahead_of_my_log_shows_that_it_was_set_back() -> None:
    assert exchange.beyond(Cursor(EU.log, 8), EU, 7)
    assert not exchange.beyond(Cursor(EU.log, 7), EU, 7)
    assert not exchange.beyond(Cursor(99, 8), EU, 7)
    assert not exchange.beyond(None, EU, 7)


def test_vectors_and_times_join_to_their_maximum() -> None:
    mine = {1: 5, 2: 1}
    assert exchange.vv_join(mine, {1: 3, 2: 4, 3: 1}) == {1: 5, 2: 4, 3: 1}
    assert exchange.vv_join(mine, {1: 5}) is mine
    assert exchange.times_join({"a": -5}, {"a": -4, "b": -9}) == {"a": -4, "b": -9}
    times = {"a": 1}
    assert exchange.times_join(times, {"a": 1}) is times


def test_a_digest_is_of_the_content() -> None:
    assert exchange.vv_digest({1: 2, 3: 4}) == exchange.vv_digest({3: 4, 1: 2})
    assert exchange.vv_digest({1: 2}) != exchange.vv_digest({2: 1})
    assert exchange.vv_digest({}).hex() == "e4a6a0577479b2b4", "frozen: it goes over the wire"


def request_of(
    eu: Snapshot, view: PeerView, sender: Sender = EU, limits: ChunkLimits = LIMITS
) -> Request:
    return exchange.build_request(eu, sender, US.log, view, {}, limits)


def reply_of(us: Snapshot, request: Request, view: PeerView, sender: Sender = US) -> Reply:
    return exchange.build_reply(us, sender, request, view, {}, 7, LIMITS)


def test_a_first_request_tells_everything_and_pushes_nothing() -> None:
    eu = Snapshot({1: row(1)}, vv={1: 1})
    request = request_of(eu, PeerView())
    assert (request.vv, request.known, request.cursor) == ({1: 1}, b"", None)
    assert (request.push, request.to_boot) == (None, None)


def test_the_second_request_pushes_what_the_other_lacks_and_tells_no_vector() -> None:
    eu = Snapshot({1: row(1, inc=1, seq=1), 2: row(2, inc=2, seq=1)}, vv={1: 1, 2: 1})
    us = Snapshot(vv={2: 1})
    request = request_of(eu, PeerView())
    theirs = exchange.heard_request(PeerView(), request)
    reply = reply_of(us, request, theirs)
    view = exchange.heard_reply(PeerView(), request, reply)
    again = request_of(eu, view)
    assert again.push is not None
    assert [r.inc for r in again.push.rows] == [1], "a row is not pushed to where it came from"
    assert (again.vv, again.to_boot, again.known) == (None, US.boot, reply.digest)
    assert reply_of(us, again, exchange.heard_request(theirs, again)).vv is None


def test_a_vector_that_grew_is_told_by_what_is_new() -> None:
    eu, us = Snapshot(vv={1: 1, 3: 7}), Snapshot(vv={2: 1})
    request = request_of(eu, PeerView())
    theirs = exchange.heard_request(PeerView(), request)
    reply = reply_of(us, request, theirs)
    theirs = exchange.answered(theirs, reply)
    view = exchange.heard_reply(PeerView(), request, reply)
    eu.vv, us.vv = {1: 2, 3: 7, 4: 1}, {2: 9}
    again = request_of(eu, view)
    assert (again.vv, again.base) == ({1: 2, 4: 1}, exchange.vv_digest({1: 1, 3: 7}))
    theirs = exchange.heard_request(theirs, again)
    assert theirs.vv == eu.vv
    answer = reply_of(us, again, theirs)
    assert (answer.vv, answer.base) == ({2: 9}, reply.digest)
    assert exchange.heard_reply(view, again, answer).vv == us.vv
    # Who does not have the base can't know the vector, and says so.
    assert exchange.vector_of(again, PeerView(boot=EU.boot)) is None
    assert reply_of(us, again, PeerView(boot=EU.boot)).need_vv
    wrong = replace(again, digest=b"another!")
    assert exchange.vector_of(wrong, exchange.heard_request(PeerView(), request)) is None


def test_states_that_claim_the_same_and_differ_are_noticed() -> None:
    eu, us = Snapshot(vv={1: 1}, root=5), Snapshot(vv={1: 1}, root=6)
    request = request_of(eu, PeerView())
    assert exchange.diverged(request, reply_of(us, request, PeerView()))
    us.root = 5
    assert not exchange.diverged(request, reply_of(us, request, PeerView()))
    us.root, us.vv = 6, {1: 2}
    assert not exchange.diverged(request, reply_of(us, request, PeerView()))


def test_a_push_starts_at_what_the_other_confirmed_of_this_log() -> None:
    eu = Snapshot({1: row(1), 2: row(2, seq=2)}, vv={1: 2})
    view = PeerView(boot=US.boot, vv={}, acked=Cursor(EU.log, 1))
    push = request_of(eu, view).push
    assert push is not None
    assert (push.start, len(push.rows)) == (1, 1)
    old_log = request_of(eu, replace(view, acked=Cursor(99, 1))).push
    assert old_log is not None
    assert (old_log.start, len(old_log.rows)) == (0, 2)


def test_a_push_is_joined_only_by_the_process_it_was_filtered_for() -> None:
    chunk = Chunk(11, 0, 1, True, ())
    request = Request(EU, b"", {}, b"", None, push=chunk, to_boot=US.boot)
    assert exchange.push_to_join(request, US) is chunk
    assert exchange.push_to_join(request, replace(US, boot=Boot(2, 200))) is None
    assert exchange.push_to_join(replace(request, to_boot=None), US) is None


def test_who_is_told_a_digest_that_it_does_not_know_asks_for_the_vector() -> None:
    eu = Snapshot({1: row(1)}, vv={1: 1})
    told = PeerView(boot=US.boot, vv={}, told=Told(exchange.vv_digest(eu.vv), eu.vv))
    request = request_of(eu, told)
    assert request.vv is None
    restarted = replace(US, boot=Boot(2, 201))
    reply = reply_of(Snapshot(vv={5: 5}), request, PeerView(), restarted)
    assert (reply.need_vv, reply.chunk, reply.vv) == (True, None, {5: 5})
    view = exchange.heard_reply(told, request, reply)
    assert (view.told, view.boot) == (None, restarted.boot)
    assert request_of(eu, view).vv == {1: 1}


def test_a_reply_starts_at_the_callers_cursor_on_this_log_only() -> None:
    us = Snapshot({1: row(1, inc=2), 2: row(2, inc=2, seq=2)}, vv={2: 2})
    request = Request(EU, b"", {}, b"", Cursor(US.log, 1))
    chunk = reply_of(us, request, PeerView()).chunk
    assert chunk is not None
    assert (chunk.start, len(chunk.rows)) == (1, 1)
    other = reply_of(us, replace(request, cursor=Cursor(99, 1)), PeerView()).chunk
    assert other is not None
    assert (other.start, len(other.rows)) == (0, 2)


def test_a_view_is_void_when_the_other_restarts() -> None:
    view = PeerView("us", US.boot, {1: 1}, b"d", Cursor(11, 5), Told(b"t", {}))
    assert exchange.met(view, US) is view
    restarted = replace(US, boot=Boot(2, 5))
    assert exchange.met(view, restarted) == PeerView("us", restarted.boot)
    # A reply without a vector names it by its digest; a view of another process does not count.
    reply = Reply(restarted, b"d", None, None, None, 0)
    assert exchange.vector_of(reply, view) is None
    assert exchange.vector_of(replace(reply, sender=US), view) == {1: 1}
    assert exchange.vector_of(replace(reply, sender=US, digest=b"x"), view) is None
    assert exchange.vector_of(replace(reply, vv={3: 3}), view) == {3: 3}
    based = replace(reply, sender=US, digest=b"x", vv={3: 3}, base=b"d")
    assert exchange.vector_of(based, view) is None, "it does not give the digest that it names"
