"""Fan-out, jitter and backoff."""

from __future__ import annotations

from random import Random

from agent.gossip import schedule


def test_all_peers_are_in_each_round_up_to_the_limit() -> None:
    assert schedule.chosen(list("abcdefgh"), 8, Random(1)) == list("abcdefgh")


def test_beyond_the_limit_the_stalest_and_two_others() -> None:
    peers = list(range(20))
    met = set()
    random = Random(1)
    for _ in range(200):
        chosen = schedule.chosen(peers, 8, random)
        assert chosen[0] == 0
        assert len(set(chosen)) == 3
        met.update(chosen)
    assert met == set(peers)


def test_jitter_stays_within_a_fifth() -> None:
    random = Random(1)
    pauses = [schedule.jittered(10.0, random) for _ in range(1000)]
    assert 8.0 <= min(pauses) < 8.2
    assert 11.8 < max(pauses) <= 12.0


def test_backoff_doubles_up_to_its_bound_and_never_gives_up() -> None:
    random = Random(1)
    for failures, ceiling in ((1, 1.0), (2, 2.0), (4, 8.0), (6, 30.0), (10_000, 30.0)):
        pauses = [schedule.backoff_s(failures, 30.0, random) for _ in range(500)]
        assert max(pauses) <= ceiling
        assert max(pauses) > 0.9 * ceiling
        assert min(pauses) >= ceiling / 10
