"""The demo's story on a few rows: real processes, a real cut, and the check of everything."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from click.testing import CliRunner

from cluster import demo
from cluster.cli import main
from cluster.demo import Options
from cluster.local_ring import LocalRing
from cluster.replay import Progress
from cluster.workload import Departures


async def _watch(_progress: Progress, _ring: LocalRing) -> None:
    """Nobody looks; ended with the replay."""
    await asyncio.Event().wait()


async def test_three_regions_count_lose_a_link_and_end_equal(tmp_path: Path) -> None:
    said: list[str] = []
    options = Options(Departures(rows_max=600), folder=tmp_path / "ring", calm_s=0.2)
    result = await demo.run(options, said.append, _watch)
    assert result.verdict.equal, result.verdict.shown
    assert result.good
    assert (result.rows, result.cut.region) == (600, "ewr")
    assert result.cut.refused_bytes > 0
    assert result.cut.rows_written > 0
    assert result.cut.caught_up_s is not None
    assert result.wire_bytes > 0
    assert all(result.cells[name] > 100 for name in result.regions)
    assert result.calm.lost == 0
    assert result.calm.ms
    assert any("cutting ewr off" in line for line in said)


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
