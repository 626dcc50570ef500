"""Rounding: counts as people write likes. The exact number always stands beside it."""

from __future__ import annotations

from agent.boards.definition import Rule

# Rules whose scores are counts that people show rounded.
ROUNDED_RULES: tuple[Rule, ...] = ("distinct", "unique", "trend")
_UNITS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))


def rounded(number: int) -> str:
    """A count in short: 999, 1.2K, 12K, 123K, 1.2M.

    Below ten units with one digit behind the point, unless that is 0. Cut, never rounded up: a post
    has a million likes when it has them.
    """
    sign, size = ("-", -number) if number < 0 else ("", number)
    for unit, letter in _UNITS:
        if size >= unit:
            tenths = size * 10 // unit
            digit = tenths % 10 if tenths < 100 else 0
            return f"{sign}{tenths // 10}{f'.{digit}' if digit else ''}{letter}"
    return f"{sign}{size}"
