"""`python -m bench`: run every measurement, print the figures with the aims beside them."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop
from rich.console import Console

from bench import writes
from bench.closing import closing
from bench.figures import Figure, show
from bench.fingerprints import fingerprints
from bench.keys import keys
from bench.links import links
from bench.load import LoadError
from bench.merges import merges
from bench.ranks import ranks
from bench.refill import refill
from bench.windows import windows
from bench.world import FULL, QUICK, Scale, World, world
from cluster.local_ring import RingError

# In this order: the large board is filled first, and refilled last.
ON_ONE_AGENT: dict[str, Callable[[World], Awaitable[list[Figure]]]] = {
    "singles": writes.singles,
    "hot": writes.hot_batches,
    "new": writes.new_members,
    "keys": keys,
    "windows": windows,
    "fill": writes.fill,
    "random": writes.random_members,
    "ranks": ranks,
    "refill": refill,
}
GROUPS = (*ON_ONE_AGENT, "closing", "merges", "fingerprints", "links")
NEED_FILL = {"random", "ranks", "refill"}


async def run(folder: Path, scale: Scale, groups: set[str], console: Console) -> list[Figure]:
    """Run the chosen groups; each prints a line when it begins."""
    figures: list[Figure] = []
    if groups & NEED_FILL:
        groups = groups | {"fill"}
    if groups & set(ON_ONE_AGENT):
        async with world(folder, scale) as made:
            for name, measure in ON_ONE_AGENT.items():
                if name in groups:
                    console.print(f"measuring {name} ...")
                    figures += await measure(made)
    if "closing" in groups:
        console.print("measuring closing ...")
        figures += await closing(folder / "closing", scale)
    if "merges" in groups:
        console.print("measuring merges ...")
        figures += await asyncio.to_thread(merges, folder / "merges", scale)
    if "fingerprints" in groups:
        console.print("measuring fingerprints ...")
        figures += await asyncio.to_thread(fingerprints, folder / "fingerprints", scale)
    if "links" in groups:
        console.print("measuring links ...")
        figures += await links(folder / "links", scale)
    return figures


def main() -> int:
    """Run what the options say and print it. The exit code tells only whether it ran."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="fewer, shorter rounds; 100,000 members"
    )
    parser.add_argument("--json", action="store_true", help="print JSON; progress to stderr")
    parser.add_argument(
        "groups", nargs="*", metavar="GROUP", help=f"only these: {', '.join(GROUPS)}"
    )
    options = parser.parse_args()
    unknown = set(options.groups) - set(GROUPS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(GROUPS)}")
    scale = QUICK if options.quick else FULL
    console = Console(stderr=options.json)
    groups = set(options.groups) or set(GROUPS)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="tallyring-bench-") as folder,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            figures = runner.run(run(Path(folder), scale, groups, console))
    except (RingError, LoadError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    if options.json:
        print(json.dumps([figure.document() for figure in figures]))
    else:
        show(figures, console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
