"""What clients do on boards with keys, windows, actors and kept results: drawn in advance.

Each of the themes `keyed`, `windows` and `boards` has boards of its own. A key is a real one: it is
tried at one to three agents, again at the same one, late, twice in one batch, and now and then with
other content.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from msgspec.structs import replace as replace_spec

from agent.boards.definition import Definition
from agent.boards.windows import WindowSpec
from cluster.simulator import events as ev
from cluster.simulator.events import HOUR_MS, START_MS, Event, Figure

MEMBERS = ("ada", "bo", "cy", "dan")
ERASABLE = ("dan", "eve")
ALL, HOUR, DAY = WindowSpec("all"), WindowSpec("hour"), WindowSpec("day")
_HOURS = (
    WindowSpec("hour", grace="0s", keep="30m"),
    WindowSpec("hour", grace="5m", keep="1h"),
    WindowSpec("hour", grace="10m", keep="6h"),
)
_DAYS = (WindowSpec("day", grace="0s", keep="1h"), WindowSpec("day", grace="1h", keep="6h"))

_KEYED = tuple(
    Definition(rule="sum", key_retention=retention, windows=windows)
    for retention in ("1m", "5m", "10m")
    for windows in (
        (ALL,),
        (ALL, _HOURS[0]),
        (ALL, _HOURS[1], _DAYS[0]),
        (_HOURS[1],),
        (ALL, _HOURS[2]),
    )
)
# Of so many windows no finals are made: that has a theme of its own.
_WINDOWED = tuple(
    (replace_spec(hour, certify=False), *rest)
    for hour in _HOURS
    for rest in (
        (),
        *((replace_spec(day, certify=False),) for day in _DAYS),
        (ALL,),
    )
)
_CLOSING = tuple(
    WindowSpec("hour", grace=grace, keep=keep)
    for grace, keep in (("1s", "1m"), ("2s", "1m"), ("2s", "1h"), ("4s", "1h"))
)
DEFINITIONS: dict[str, dict[str, tuple[Definition, ...]]] = {
    "keyed": {"clicks": _KEYED, "wins": _KEYED},
    "windows": {
        "clicks": tuple(
            Definition(rule="sum", windows=windows, key_retention="10m") for windows in _WINDOWED
        ),
        "laps": tuple(
            Definition(rule="best", order="low", windows=windows) for windows in _WINDOWED
        ),
        "mood": tuple(Definition(rule="latest", windows=windows) for windows in _WINDOWED),
        "runs": tuple(
            Definition(rule="best", results="keep", windows=windows)
            for windows in _WINDOWED
            if ALL not in windows
        ),
        "likes": tuple(Definition(rule="distinct", windows=windows) for windows in _WINDOWED),
    },
    "boards": {
        "likes": (Definition(rule="distinct"), Definition(rule="distinct", windows=(ALL, DAY))),
        "visits": (Definition(rule="unique"), Definition(rule="unique", windows=(ALL, DAY))),
        "runs": (
            Definition(rule="best", results="keep", windows=(DAY,)),
            Definition(rule="best", results="keep", windows=(DAY, HOUR)),
        ),
        "points": (
            Definition(rule="sum", results="keep", windows=(DAY,)),
            Definition(rule="sum", results="keep", windows=(HOUR, DAY)),
        ),
        "clicks": (Definition(rule="sum", key_retention="10m"),),
        "laps": (Definition(rule="best"),),
    },
    # The run begins with the hour: that of before closes while it lasts.
    "finals": {
        "laps": tuple(
            Definition(rule="best", order="low", windows=(ALL, hour)) for hour in _CLOSING
        ),
        "clicks": tuple(
            Definition(rule="sum", ties="shared", key_retention="10m", windows=(ALL, hour))
            for hour in _CLOSING
        ),
        "runs": tuple(Definition(rule="sum", results="keep", windows=(hour,)) for hour in _CLOSING),
    },
}
"""By theme and board, the definitions that it may have: all of one shape."""


class Entries:
    """Draws what clients do, with the chance of a script."""

    def __init__(self, theme: str, r: Random) -> None:
        self._theme = theme
        self._boards = DEFINITIONS.get(theme, {})
        self._r = r
        self._key = 0
        self._results: list[tuple[Figure, int]] = []

    def definitions(self, agents: int) -> list[Event]:
        """The boards of a theme, each defined at all agents at once, and not the same at all."""
        r = self._r
        found: list[Event] = []
        for board, known in self._boards.items():
            two = r.choice(known), r.choice(known)
            if self._theme == "finals" and r.random() < 0.7:
                two = two[0], two[0]
            found += [
                ev.Change(START_MS, place, "define", board, r.choice(two))
                for place in range(agents)
            ]
        return found

    def change(self, at: int, place: int) -> Event:
        """A board gets other windows, or another retention."""
        board = self._r.choice(sorted(self._boards))
        return ev.Change(at, place, "define", board, self._r.choice(self._boards[board]))

    def draw(self, kind: str, at: int, place: int, agents: int) -> tuple[Event, list[Event]]:
        """What a client does now, and what it will do later."""
        match kind:
            case "moderate":
                return self._moderate(at, place), []
            case "contrary":
                return self._contrary(at, place, agents)
            case _:
                return self._entries(at, place, agents)

    # --- entries ---------------------------------------------------------------------------

    def _entries(self, at: int, place: int, agents: int) -> tuple[Event, list[Event]]:
        r = self._r
        figure = self._figure(at)
        requests: list[tuple[Figure, ...]] = [(figure,)]
        if self._is_kept(figure):
            self._results.append((figure, place))
        while r.random() < 0.35:
            more = self._figure(at, figure.member)
            if r.random() < 0.3:
                requests.append((more, self._figure(at)))
            else:
                requests.append((more,))
        if r.random() < 0.15:
            requests.append((figure,))
        r.shuffle(requests)
        disk = "works"
        if all(len(request) == 1 for request in requests):
            disk = r.choice(("works",) * 12 + ("refuses", "is uncertain"))
        later: list[Event] = []
        if figure.key is not None:
            times = r.choice((0, 1, 1, 2))
            later += [self._retry(figure, at, r.randrange(agents)) for _ in range(times)]
        return ev.Writes(at, place, tuple(requests), disk), later

    def _retry(self, figure: Figure, at: int, place: int) -> Event:
        """The same once more, soon or late, there or elsewhere; at times with another amount."""
        r = self._r
        when = at + r.choice((0, r.randint(0, 400), r.randint(0, 400), 90_000, 900_000, HOUR_MS))
        if self._theme == "finals":
            when = at + r.choice((0, r.randint(0, 400), r.randint(0, 4_000)))
        number = figure.number + (1 if figure.number and r.random() < 0.1 else 0)
        number = number or figure.number
        again = replace(figure, number=number)
        return ev.Writes(when, place, ((again,),), "works")

    def _figure(self, at: int, member: str | None = None) -> Figure:
        r = self._r
        board = r.choice((*self._boards, "counters")) if self._theme == "keyed" else ""
        board = board or r.choice(sorted(self._boards))
        names = (*MEMBERS, "eve") if self._theme in ("boards", "finals") else MEMBERS[:3]
        member = member or r.choice(names)
        rule = "sum" if board == "counters" else self._boards[board][0].rule
        at_ms: int | None = at - r.choice((0, 0, 0, 1_000, 30_000))
        if self._theme == "windows":
            at_ms = self._near_a_bound(at)
        if self._theme == "finals" and r.random() < 0.85:
            at_ms = START_MS - r.choice((1, 1_000, 1_000, r.randint(1, 60_000)))
        key = None
        if self._is_kept(Figure(board, member, 0)) or (
            rule == "sum" and r.random() < (0.7 if self._theme == "keyed" else 0.4)
        ):
            self._key += 1
            key = f"k{self._key}"
        elif r.random() < 0.3 and self._theme != "finals":
            at_ms = None
        if rule in ("distinct", "unique"):
            actor = r.choice(("u1", "u2", "u3", "u4", f"v{r.randrange(40)}", "eve"))
            present = rule == "unique" or r.random() < 0.6
            return Figure(board, member, 0, at_ms=at_ms, actor=actor, present=present)
        number = r.choice((1, 1, 2, 3, 5)) * (r.choice((1, 1, 1, -1)) if rule == "sum" else 7)
        if r.random() < 0.05:
            number = 0
        return Figure(board, member, number, at_ms=at_ms, key=key)

    def _is_kept(self, figure: Figure) -> bool:
        return figure.board in self._boards and self._boards[figure.board][0].results is not None

    def late(self, at: int, place: int) -> Event:
        """An entry of the end of the last hour."""
        member = self._r.choice(MEMBERS[:3])
        return ev.Writes(at, place, ((Figure("clicks", member, 1, at_ms=at - at % HOUR_MS - 1),),))

    def _near_a_bound(self, at: int) -> int:
        """A time around the bound of an hour, or a while ago."""
        r = self._r
        bound = at - at % HOUR_MS
        return r.choice(
            (
                at,
                at,
                at - r.randint(0, 60_000),
                bound - 1,
                bound,
                bound - r.randint(0, 900_000),
                at - r.randint(0, 6 * HOUR_MS),
            )
        )

    # --- who does what to whom -------------------------------------------------------------

    def _moderate(self, at: int, place: int) -> Event:
        r = self._r
        act = r.choice(("ban", "ban", "lift", "retract", "retract", "retract", "erase"))
        if act == "retract" and self._results:
            figure, there = r.choice(self._results[-6:])
            where = there if r.random() < 0.7 else place
            return ev.Moderate(at, where, act, figure.board, figure.member, figure.key or "")
        if act == "erase" and r.random() < 0.5:
            return ev.Moderate(at, place, act, "", r.choice(ERASABLE))
        board, member = r.choice((("", "ada"), ("laps", "ada"), ("laps", "bo")))
        until_ms = r.choice((None, at + 30_000, at + 900_000)) if act == "ban" else None
        what = "lift" if act == "lift" else "ban"
        return ev.Moderate(at, place, what, board, member, until_ms=until_ms)

    def _contrary(self, at: int, place: int, agents: int) -> tuple[Event, list[Event]]:
        r = self._r
        self._key += 1
        actor, member = f"c{self._key}", r.choice(MEMBERS[:3])
        like = Figure("likes", member, 0, actor=actor)
        when = at + r.choice((300, 1_000, 60_000, 300_000, 900_000))
        other = r.choice([its for its in range(agents) if its != place])
        both = (place, other) if r.random() < 0.5 else (other, place)
        later: list[Event] = [ev.Contrary(when, *both, "likes", member, actor)]
        later += [
            ev.Exchange(when - back, other, place, (1,), (1,), 0, False) for back in (200, 100)
        ]
        return ev.Writes(at, place, ((like,),)), later
