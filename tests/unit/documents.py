"""Documentation as data: pages, their sections, tables and fenced blocks; and examples compared.

Only as much of Markdown as this project writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
_TICKED = re.compile(r"`([^`\n]+)`")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")

# What differs from run to run: of these fields only the type is compared.
VARYING = frozenset(
    {
        "lsn",
        "next",
        "position",
        "max_lag_ms",
        "incarnation",
        "incarnations",
        "url",
        "lag_ms",
        "cursor",
        "contact",
        "reached_at",
        "identity",
        "matrix",
        "unconfirmed",
        "began_at",
        "ended_at",
        "cells",
        "compared",
    }
)


class Fence(NamedTuple):
    """A fenced block: what stands behind its opening, and its lines."""

    info: str
    body: str


def pages() -> list[Path]:
    """Every Markdown file of the project."""
    folders = ("agent", "bench", "cluster", "docs", "tests")
    return sorted(
        [
            *ROOT.glob("*.md"),
            *(page for folder in folders for page in ROOT.glob(f"{folder}/**/*.md")),
        ]
    )


def page(name: str) -> str:
    """The text of a page, by its path from the project's root."""
    return (ROOT / name).read_text()


def fences(text: str) -> list[Fence]:
    """All fenced blocks, in order."""
    return [Fence(match["info"].strip(), match["body"]) for match in _FENCE.finditer(text)]


def prose(text: str) -> str:
    """A page without its fenced blocks."""
    return _FENCE.sub("", text)


def ticked(text: str) -> list[str]:
    """Everything that stands in backticks."""
    return _TICKED.findall(text)


def sections(text: str, level: int) -> dict[str, str]:
    """The text below each heading of a level, by the heading, up to the next one of that level."""
    parts = re.split(rf"^{'#' * level} (.*)$", text, flags=re.MULTILINE)
    higher = re.compile(rf"^#{{1,{level - 1}}} ", re.MULTILINE) if level > 1 else None
    found = {}
    for heading, body in zip(parts[1::2], parts[2::2], strict=True):
        end = higher.search(body) if higher else None
        found[heading.strip()] = body[: end.start()] if end else body
    return found


def rows(text: str) -> Iterator[list[str]]:
    """The cells of every row of every table, headings included."""
    for line in prose(text).splitlines():
        if line.startswith("|") and not line.startswith("|---"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def differences(shown: Any, real: Any, where: str = "answer") -> list[str]:
    """Where a documented JSON value and a real one differ, beside what differs in every run."""
    if isinstance(shown, dict) and isinstance(real, dict):
        if shown.keys() != real.keys():
            return [f"{where}: has {sorted(real)}, the page shows {sorted(shown)}"]
        found = []
        for name, value in shown.items():
            there = f"{where}.{name}"
            if name == "as_of" or name not in VARYING:
                found += differences(value, real[name], there)
            elif type(value) is not type(real[name]):
                found.append(f"{there}: is {real[name]!r}, the page shows {value!r}")
            elif isinstance(value, dict) and value.keys() != real[name].keys():
                found.append(f"{there}: has {sorted(real[name])}, the page shows {sorted(value)}")
        return found
    if isinstance(shown, list) and isinstance(real, list) and len(shown) == len(real):
        pairs = enumerate(zip(shown, real, strict=True))
        return [line for i, (one, two) in pairs for line in differences(one, two, f"{where}[{i}]")]
    times = isinstance(shown, str) and isinstance(real, str) and "as_of" in where
    if times and _TIME.fullmatch(shown) and _TIME.fullmatch(real):
        return []
    return [] if shown == real else [f"{where}: is {real!r}, the page shows {shown!r}"]
