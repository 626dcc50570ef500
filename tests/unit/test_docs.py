"""The documentation is true: every name, default, status and number on a page is the code's.

Each check is a generator over a page's text. `CHECKS` runs them on the pages as they are, and
`WRONG` on pages with one mistake, to show that each check can fail.
"""

from __future__ import annotations

import importlib
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import get_args, get_type_hints

import click
import msgspec
import pytest

from agent import limits
from agent.api.auth import Scope, Token
from agent.api.problem import CODES, problem_of
from agent.api.table import ROUTES
from agent.boards.definition import Definition, Order, Rule, ScoreRange, Ties
from agent.boards.scale import TICKS_MS, scale_of
from agent.boards.windows import Window, WindowSpec, buckets_of, is_sliding, series_of
from agent.boards.windows import check as check_window
from agent.config import Config, parse
from agent.errors import Indefinite, OutOfRange, Unavailable
from agent.gossip.answering import STATUS_OF
from agent.projection import keys
from bench.__main__ import GROUPS
from cluster.cli import main
from tests.unit import tidy
from tests.unit.documents import ROOT, fences, page, prose, rows, sections, ticked

Problems = Iterator[str]
UNNAMED = ("ARGUMENTS",)  # passed on as they are


def _same(what: str, shown: set[str], real: set[str]) -> Problems:
    for name in sorted(real - shown):
        yield f"{what}: {name} is not on the page"
    for name in sorted(shown - real):
        yield f"{what}: {name} is on the page and not in the code"


def _first_column(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each name in the first column of a table, with its row."""
    for row in rows(text):
        for name in ticked(row[0]):
            yield name, row


# --- configuration -------------------------------------------------------------------------


def _default(value: object) -> str:
    match value:
        case None:
            return "none"
        case Path():
            return json.dumps(str(value))
        case tuple():
            return json.dumps(list(value))
        case _:
            return json.dumps(value)


def real_settings() -> dict[str, str]:
    """Every setting with its default, as a page shows it."""
    found = {}
    for section, kind in get_type_hints(Config).items():
        for field in fields(kind):
            required = field.default is MISSING
            found[f"{section}.{field.name}"] = "required" if required else _default(field.default)
    return found


def settings(text: str) -> Problems:
    real = real_settings()
    shown = {n: row[1].strip("`") for n, row in _first_column(text) if "." in n}
    shown = {name: value for name, value in shown.items() if not name.startswith("agent.limits.")}
    yield from _same("setting", set(shown), set(real))
    for name in shown.keys() & real.keys():
        if shown[name] != real[name]:
            yield f"{name}: the default is {real[name]}, not {shown[name]}"


def example_config(text: str) -> Problems:
    for fence in fences(text):
        if fence.info == "toml":
            config = parse(tomllib.loads(fence.body), Path("/"), {})
            if (config.name, config.listen[1]) != ("eu-1", 7401):
                yield "the example is another one"
            if config.redis.url != "redis://127.0.0.1:6379/0":
                yield "the example's Redis is another one"
            return
    yield "there is no example"


def variables(text: str) -> Problems:
    real = {f"TALLYRING_{name}".replace(".", "_").upper() for name in real_settings()}
    real |= {"TALLYRING_SECTION_FIELD", "TALLYRING_URL", "TALLYRING_TOKEN"}
    for name in re.findall(r"TALLYRING_[A-Z_]+", text):
        if name not in real:
            yield f"{name} is no variable"


def defaults(text: str) -> Problems:
    """What a text says in brackets behind a setting is its default: `gossip.poke_s` (50 ms)."""
    for name, number, unit in re.findall(r"`(\w+\.\w+)` \((\d+) (ms|s)\b", text):
        if float(number) / (1000 if unit == "ms" else 1) != float(real_settings()[name]):
            yield f"{name}: the default is {real_settings()[name]}"


def tokens(text: str) -> Problems:
    """The example of a tokens file is one."""
    lines = [line[4:] for line in text.splitlines() if line.startswith("    ")]
    example = msgspec.convert(tomllib.loads("\n".join(lines))["token"], tuple[Token, ...])
    if example[0].name != "game-eu":
        yield "the example is another one"
    for scope in get_args(Scope):
        if f"`{scope}`" not in text:
            yield f"the scope {scope} is missing"


def every_limit(text: str) -> Problems:
    real = {name for name in vars(limits) if name.isupper() and not name.startswith("INT64")}
    shown = {name.removeprefix("agent.limits.") for name, _ in _first_column(text)}
    yield from _same("limit", {name for name in shown if name.isupper()}, real)


def numbers(text: str) -> Problems:
    """Rows `dotted.name.OF_A_CONSTANT | value` say the value that the code has."""
    for name, row in _first_column(text):
        module, _, constant = name.rpartition(".")
        if module.startswith(("agent.", "cluster.")) and constant.isupper():
            real = getattr(importlib.import_module(module), constant, None)
            if f"{real:,}" != row[1]:
                yield f"{name} is {real:,}, not {row[1]}"


# --- the API -------------------------------------------------------------------------------


def routes(text: str) -> Problems:
    shown = {h.strip("`"): body for h, body in sections(text, 3).items() if h.startswith("`")}
    real = {f"{route.method} {route.path}": route for route in ROUTES}
    yield from _same("route", set(shown), set(real))
    for name in shown.keys() & real.keys():
        route, body = real[name], prose(shown[name])
        scope = re.search(r"Scope `(\w+)`", body)
        if (scope[1] if scope else None) != route.scope:
            yield f"{name}: the scope is {route.scope}"
        if route.scope is None and "Everybody may call" not in body:
            yield f"{name}: everybody may call it"
        for what, given in (
            ("Query", {query.name for query in route.query}),
            ("Errors", set(route.codes)),
        ):
            listed = re.search(rf"{what}: ([^.]*)\.", body)
            yield from _same(f"{name}: {what}", set(ticked(listed[1] if listed else "")), given)


def codes(text: str) -> Problems:
    for heading, real in (
        ("Codes of the public routes", CODES),
        ("Codes between agents", {code: int(status) for code, status in STATUS_OF.items()}),
    ):
        found = _first_column(sections(text, 2)[heading])
        shown = {name: row for name, row in found if row[1].isdigit()}
        yield from _same("code", set(shown), set(real))
        for name in shown.keys() & real.keys():
            if int(shown[name][1]) != real[name]:
                yield f"{name}: the status is {real[name]}"
            definite = {"internal": "no", "not_replicated": "no", "busy": "see `definite`"}.get(
                name, "yes"
            )
            if real is CODES and shown[name][2] != definite:
                yield f"{name}: definite is {definite}"


def board_names(text: str) -> Problems:
    """The README's tables of rules and ties."""
    body = sections(text, 2)["Boards"]
    shown = {name for name, _ in _first_column(body)}
    yield from _same("rule or ties", shown, {*get_args(Rule), *get_args(Ties)})


def tie_budget(text: str) -> Problems:
    """The greatest score beside each tick, by window: one more takes the next tick, or none."""
    checked = 0
    for name, row in _first_column(sections(text, 2)["Windows"]):
        sizes = [cell.replace(",", "") for cell in row[1:]]
        if not all(map(str.isdecimal, sizes)):
            continue
        checked += 1
        for tick_ms, size in zip(TICKS_MS, map(int, sizes), strict=True):
            if (_tick_ms(name, size), _tick_ms(name, size + 1) == tick_ms) != (tick_ms, False):
                yield f"{name}: {size} is not the greatest score of a tick of {tick_ms} ms"
    if checked < 8:
        yield "windows are missing"


def _tick_ms(name: str, size: int) -> int | None:
    spec = check_window(WindowSpec(name), "window")
    definition = Definition(rule="best", windows=(spec,), score=ScoreRange(0, size))
    window = Window(name, name, 0, 0)
    span_ms = series_of(spec).span_ms if not is_sliding(name) else _sliding_span_ms(spec)
    try:
        return scale_of(definition, window, span_ms).tick_ms
    except OutOfRange:
        return None


def _sliding_span_ms(spec: WindowSpec) -> int:
    bucket, count = buckets_of(spec)
    return (count + 1) * series_of(bucket).span_ms


def definition_words(text: str) -> Problems:
    body = sections(text, 3)["`PUT /v1/boards/{board}`"]
    for word in (*get_args(Rule), *get_args(Ties), *get_args(Order)):
        if f"`{word}`" not in body:
            yield f"{word} is missing"


# --- Redis, commands, benchmark, layers ----------------------------------------------------


def redis_names(text: str) -> Problems:
    parts = sections(text, 2)
    claim = keys.Claim("r", "g", "a", 1)
    watermark = keys.Watermark(claim, 1, 1, {}, {}, 1)
    for heading, real in (
        (
            "Keys",
            {
                keys.board_key("BOARD", "WINDOW"),
                keys.meta_key("BOARD", "WINDOW"),
                keys.filling_key("BOARD", "WINDOW", "NONCE"),
                keys.counter_key(b"NAME").decode(),
                keys.WATERMARK_KEY,
                keys.PROGRESS_KEY,
                keys.sentinel_key("NAME"),
            },
        ),
        ("Decoding", {*keys.META_FIELDS, keys.AS_OF}),
        ("The watermark", set(watermark.fields())),
    ):
        yield from _same(heading, {name for name, _ in _first_column(parts[heading])}, real)


def _commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def commands(text: str) -> Problems:
    shown = {heading.strip("`"): body for heading, body in sections(text, 3).items()}
    real = dict(_commands(main, "tallyring"))
    yield from _same("command", set(shown), set(real))
    for name in shown.keys() & real.keys():
        body = shown[name]
        options = [o for o in real[name].params if isinstance(o, click.Option)]
        names = {option.opts[-1] for option in options}
        yield from _same(f"{name}: option", set(re.findall(r"--[a-z][a-z-]*", body)), names)
        for option in options:
            plain = isinstance(option.default, int | float) and not option.is_flag
            if plain and f"default {option.default}" not in body:
                yield f"{name}: {option.opts[-1]} has the default {option.default}"
        for argument in real[name].params:
            word = str(argument.name).upper()
            if isinstance(argument, click.Argument) and word not in (*UNNAMED, *body.split()):
                yield f"{name}: the argument {word} is missing"


def groups(text: str) -> Problems:
    yield from _same("group", {name for name, _ in _first_column(text)}, set(GROUPS))


def layers(text: str) -> Problems:
    body = sections(text, 2)["Layers"]
    for room in {*tidy.FLOORS, *tidy.FOUNDATION} - {"bench", "tests", "agent"}:
        path = room.replace(".", "/")
        if f"`{path}/`" not in body and f"`{path}.py`" not in body:
            yield f"{room} is missing"


def decisions(text: str) -> Problems:
    real = {each.name for each in (ROOT / "docs" / "adr").glob("[0-9]*.md")}
    yield from _same("decision", set(re.findall(r"\]\(([^)]*\.md)\)", text)), real)


CHECKS: list[tuple[str, Callable[[str], Problems]]] = [
    ("docs/configuration.md", settings),
    ("docs/configuration.md", example_config),
    ("docs/configuration.md", variables),
    ("docs/configuration.md", every_limit),
    ("docs/configuration.md", numbers),
    ("docs/architecture.md", numbers),
    ("docs/architecture.md", layers),
    ("docs/protocol.md", defaults),
    ("docs/security.md", tokens),
    ("docs/api.md", routes),
    ("docs/api.md", definition_words),
    ("docs/api.md", tie_budget),
    ("docs/errors.md", codes),
    ("docs/redis.md", redis_names),
    ("docs/cli.md", commands),
    ("docs/cli.md", variables),
    ("docs/benchmarks.md", groups),
    ("docs/adr/README.md", decisions),
    ("README.md", board_names),
]

# (page, check, what stands there, a mistake)
WRONG: list[tuple[str, Callable[[str], Problems], str, str]] = [
    ("docs/configuration.md", settings, "| `gossip.poke_s` | `0.05`", "| `gossip.poke_s` | `0.5`"),
    ("docs/configuration.md", settings, "| `redis.port` |", "| `redis.ports` |"),
    ("docs/configuration.md", example_config, 'listen = "127.0.0.1:7401"', 'listen = "[::1]:1"'),
    ("docs/configuration.md", variables, "TALLYRING_GOSSIP_POKE_S", "TALLYRING_GOSSIP_POKE"),
    ("docs/configuration.md", every_limit, "agent.limits.BOARDS_MAX", "agent.limits.BOARD_MAX"),
    ("docs/configuration.md", numbers, "BOARDS_MAX` | 10,000", "BOARDS_MAX` | 1,000"),
    ("docs/architecture.md", numbers, "QUEUE_COST_MAX` | 200,000", "QUEUE_COST_MAX` | 20,000"),
    ("docs/architecture.md", layers, "`agent/membership.py`", "`agent/members.py`"),
    ("docs/protocol.md", defaults, "`gossip.poke_s` (50 ms)", "`gossip.poke_s` (60 ms)"),
    ("docs/security.md", tokens, "`admin` for", "`root` for"),
    ("docs/api.md", routes, "### `GET /healthz`", "### `GET /health`"),
    ("docs/api.md", routes, "Query: `preview`", "Query: `dry_run`"),
    ("docs/api.md", routes, "Errors: `too_large`, and", "Errors: and"),
    ("docs/api.md", routes, "List the boards in use. Scope `read`", "List. Scope `admin`"),
    ("docs/api.md", definition_words, "`shared`", "`equal`"),
    ("docs/api.md", tie_budget, "68,719,476,735", "68,719,476,736"),
    ("docs/api.md", tie_budget, "| 4,095 |", "| 4,094 |"),
    ("docs/errors.md", codes, "| `too_stale` | 503 |", "| `too_stale` | 504 |"),
    ("docs/errors.md", codes, "| `internal` | 500 | no |", "| `internal` | 500 | yes |"),
    ("docs/errors.md", codes, "| `fork` | 409 |", "| `forked` | 409 |"),
    ("docs/redis.md", redis_names, "| `tick_ms` |", "| `tick` |"),
    ("docs/redis.md", redis_names, "| `batch` |", "| `batches` |"),
    ("docs/redis.md", redis_names, "| `ct:{s0}:NAME` |", "| `ct:NAME` |"),
    ("docs/cli.md", commands, "### `tallyring top`", "### `tallyring best`"),
    ("docs/cli.md", commands, "| `--keep` |", "| `--stay` |"),
    ("docs/cli.md", commands, "`--neighbors` default 2", "`--neighbors` default 3"),
    ("docs/cli.md", variables, "TALLYRING_URL", "TALLYRING_URLS"),
    ("docs/benchmarks.md", groups, "| `refill` |", "| `fillup` |"),
    ("docs/adr/README.md", decisions, "(0007-counter-slots-are-bounded.md)", "(0007.md)"),
    ("README.md", board_names, "| `latest` |", "| `newest` |"),
]


@pytest.mark.parametrize(
    ("name", "check"), CHECKS, ids=lambda value: getattr(value, "__name__", value)
)
def test_the_page_is_true(name: str, check: Callable[[str], Problems]) -> None:
    assert list(check(page(name))) == []


@pytest.mark.parametrize(("name", "check", "right", "mistake"), WRONG)
def test_a_mistake_on_the_page_is_noticed(
    name: str, check: Callable[[str], Problems], right: str, mistake: str
) -> None:
    text = page(name)
    assert right in text
    assert list(check(text.replace(right, mistake))) != []


def test_definite_is_as_documented() -> None:
    assert problem_of(Unavailable("busy", "")).definite
    assert not problem_of(Indefinite("")).definite
    assert not problem_of(ValueError()).definite
