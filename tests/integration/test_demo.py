"""The demo's story on a few rows: real processes, a real cut, and the check of everything."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from click.testing import CliRunner

from cluster import demo
from cluster.actor_checker import LIKES, UNIQUES
from cluster.checker import GONE
from cluster.cli import main
from cluster.demo import Options
from cluster.demo_result import Result
from cluster.departures import Departures
from cluster.local_ring import LocalRing
from cluster.replay import Progress
from cluster.windows import DAY_MS


async def _watch(_progress: Progress, _ring: LocalRing) -> None:
    """Nobody looks; ended with the replay."""
    await asyncio.Event().wait()


async def test_three_regions_count_lose_a_link_and_end_equal(tmp_path: Path) -> None:
    said: list[str] = []
    told: list[tuple[int, int]] = []
    # Some 150 days, so that the first ones are kept no longer at the end.
    departures = Departures(every=300, rows_max=450)
    options = Options(departures, folder=tmp_path / "ring", calm_s=0.2)
    result = await demo.run(
        options, said.append, _watch, told=lambda done, total: told.append((done, total))
    )
    assert result.verdict.equal, result.verdict.shown
    assert result.good
    assert (result.rows, result.cut.region) == (450, "ewr")
    _check_keys_likes_and_windows(result)
    assert told[-1][0] == told[-1][1]
    assert result.cut.refused_bytes > 0
    assert result.cut.rows_written > 0
    assert result.cut.caught_up_s is not None
    assert result.wire_bytes > 0
    assert all(result.cells[name] > 100 for name in result.regions)
    assert result.calm.lost == 0
    assert result.calm.ms
    assert any("cutting ewr off" in line for line in said)


def _check_keys_likes_and_windows(result: Result) -> None:
    """That what was compared was there, and happened."""
    keyed, parts = result.keyed, result.verdict.parts
    assert (keyed.keys, keyed.resent, keyed.late) == (23, 34, 0)
    assert keyed.answered >= 11  # those to the same region at the least
    assert keyed.taken_back > 0
    assert result.taps is not None
    assert result.taps.across > 100
    assert result.estimates.counted > 10
    assert result.times is not None
    assert (result.times[1] - result.times[0]) > 120 * DAY_MS
    for name, least in (("days", 100), ("weeks", 15), (GONE, 20), (LIKES, 100), (UNIQUES, 10)):
        assert parts[name].things >= least, name
        assert parts[name].compared >= 3 * least, name


def test_own_input_is_replayed_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    rows = [f"{region},likes,m{i % 7},{i % 5 - 1}" for i in range(60) for region in ("eu", "us")]
    file.write_text("region,board,member,add\n" + "\n".join(rows))
    result = CliRunner().invoke(main, ["demo", "--input", str(file), "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["ok"] is True
    assert document["regions"] == ["eu", "us"]
    assert document["check"]["compared"] > 0
