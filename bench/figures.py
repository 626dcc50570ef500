"""Figures: what was measured, with its spread, beside what is aimed at and what Valkey does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from rich.console import Console


@dataclass(frozen=True, slots=True)
class Aim:
    """What a figure should be: at least, or at most, so much."""

    number: float
    at_least: bool = True

    def met(self, value: float) -> bool:
        """Whether a value meets the aim."""
        return value >= self.number if self.at_least else value <= self.number

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {_short(self.number)}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing that was measured in several rounds.

    beside: by name, the values of others, measured in between in the same way.
    ratio_to: the other that the aim is a ratio to; None for an aim in the figure's own unit.
    """

    name: str
    unit: str
    values: tuple[float, ...]
    aim: Aim | None = None
    beside: dict[str, tuple[float, ...]] = field(default_factory=dict)
    ratio_to: str | None = None
    note: str = ""

    @property
    def middle(self) -> float:
        """The median of the rounds."""
        return median(self.values)

    def ratio(self, other: str) -> float:
        """The median of the ratios, round by round, to another's values."""
        return median(mine / its for mine, its in zip(self.values, self.beside[other], strict=True))

    @property
    def judged(self) -> float:
        """The number that the aim is about."""
        return self.middle if self.ratio_to is None else self.ratio(self.ratio_to)

    def document(self) -> dict[str, Any]:
        """The figure for --json."""
        return {
            "name": self.name,
            "unit": self.unit,
            **_spread(self.values),
            "beside": {
                name: {**_spread(values), "ratio": round(self.ratio(name), 4)}
                for name, values in self.beside.items()
            },
            "aim": None if self.aim is None else str(self.aim),
            "aim_is_ratio_to": self.ratio_to,
            "met": None if self.aim is None else self.aim.met(self.judged),
            "note": self.note,
        }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "min": round(min(values), 4),
        "median": round(median(values), 4),
        "max": round(max(values), 4),
    }


def _short(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def show(figures: Sequence[Figure], console: Console) -> None:
    """Print the figures, a few lines each, so that they also fit a narrow terminal."""
    console.print("min / median / max of the rounds; ratios are medians, round by round")
    for figure in figures:
        console.print(f"\n{figure.name}", style="bold", markup=False, highlight=False)
        for line in _lines(figure):
            console.print(f"    {line}", markup=False, highlight=False)


def _lines(figure: Figure) -> Iterator[str]:
    line = f"{_three(figure.values)} {figure.unit}"
    if figure.aim is not None and figure.ratio_to is None:
        line += f"   aim {figure.aim}: {_met(figure)}"
    yield line
    for name, values in figure.beside.items():
        line = f"{name}: {_three(values)}   ratio {figure.ratio(name):.3g}"
        if name == figure.ratio_to:
            line += f"   aim {figure.aim}: {_met(figure)}"
        yield line
    if figure.note:
        yield figure.note


def _met(figure: Figure) -> str:
    assert figure.aim is not None
    return "met" if figure.aim.met(figure.judged) else "MISSED"


def _three(values: Sequence[float]) -> str:
    if len(values) == 1:
        return _short(values[0])
    return f"{_short(min(values))} / {_short(median(values))} / {_short(max(values))}"
