"""`python -m agent --config FILE` runs one agent until it gets SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from agent.errors import ConfigError, StoreError
from agent.node import run_agent


def main(arguments: list[str] | None = None) -> int:
    """Run an agent; the exit code is 0 after a clean stop, 2 if it could not start."""
    parser = argparse.ArgumentParser(prog="python -m agent", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="the agent's TOML file")
    try:
        run_agent(parser.parse_args(arguments).config)
    except (ConfigError, StoreError) as error:
        sys.stderr.write(f"tallyring: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
