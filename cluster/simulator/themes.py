"""Themes: what runs are mostly about, and how often each thing happens in them."""

from __future__ import annotations

KEPT_THEMES = frozenset({"keyed", "windows", "boards", "finals"})
"""Themes whose agents do their housekeeping, over hours and days."""
LOSSES = frozenset({"wipe", "backup", "restore", "tail", "rollback", "join", "depart"})
STEPS_MS: dict[str, tuple[int, ...]] = {
    "keyed": (1, 1, 5, 40, 300, 1, 1, 5, 40, 300, 20_000, 120_000, 600_000),
    "windows": (1, 40, 1_000, 60_000, 600_000, 1_800_000, 3_600_000),
    "boards": (1, 1, 5, 40, 300, 5, 40, 300, 60_000, 600_000),
}
STEPS_MS_ELSE = (1, 1, 5, 40, 300)
THEMES = (
    "network",
    "network",
    "disks",
    "identity",
    "members",
    "keyed",
    "finals",
    "keyed",
    "windows",
    "boards",
)
"""What a run is mostly about. Every theme has writes, exchanges, crashes and restarts."""

# By theme: how often each fault is drawn, beside 34 writes and 50 exchanges.
WEIGHTS: dict[str, dict[str, int]] = {
    "network": {"change": 4, "crash": 3, "restart": 1, "partition": 1, "newer": 4, "sketch": 3},
    "disks": {
        "change": 3,
        "crash": 3,
        "tail": 2,
        "wipe": 2,
        "backup": 2,
        "restore": 2,
        "newer": 2,
        "restart": 2,
        "damage": 3,
        "partition": 1,
        "sketch": 2,
    },
    "identity": {
        "change": 2,
        "crash": 2,
        "restart": 6,
        "rollback": 4,
        "move": 2,
        "back": 2,
        "clone": 2,
        "partition": 1,
        "jump": 2,
        "sketch": 1,
    },
    "members": {
        "change": 3,
        "crash": 2,
        "restart": 1,
        "join": 4,
        "depart": 4,
        "partition": 1,
        "newer": 2,
        "jump": 2,
        "wipe": 1,
        "sketch": 1,
    },
    "keyed": {
        "entries": 40,
        "keep": 14,
        "change": 2,
        "crash": 3,
        "wipe": 2,
        "backup": 2,
        "restore": 2,
        "tail": 1,
        "restart": 2,
        "rollback": 1,
        "partition": 2,
        "join": 1,
        "depart": 1,
    },
    "windows": {
        "entries": 40,
        "keep": 14,
        "change": 2,
        "crash": 2,
        "wipe": 1,
        "backup": 1,
        "restore": 1,
        "tail": 1,
        "restart": 1,
        "partition": 2,
        "jump": 5,
        "join": 1,
        "depart": 1,
    },
    "boards": {
        "entries": 30,
        "moderate": 14,
        "contrary": 5,
        "keep": 8,
        "change": 1,
        "crash": 2,
        "wipe": 2,
        "backup": 2,
        "restore": 2,
        "tail": 1,
        "partition": 2,
        "join": 1,
        "depart": 1,
    },
    "finals": {
        "entries": 30,
        "moderate": 3,
        "keep": 20,
        "certify": 40,
        "round": 40,
        "override": 6,
        "crash": 3,
        "wipe": 2,
        "backup": 2,
        "restore": 1,
        "tail": 1,
        "restart": 1,
        "partition": 3,
        "join": 1,
        "depart": 1,
    },
}
WRITES = {"keyed": 4, "finals": 1, "windows": 4, "boards": 4}  # else 34
CLOSING_MS = 4_000  # in a run of finals: by then most windows are closed
WRITES_ELSE, EXCHANGES, EXCHANGES_KEPT = 34, 50, 80
