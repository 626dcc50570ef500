"""The house is tidy, and the checker that says so can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit import tidy

ROOT = Path(__file__).resolve().parents[2]
LONG_FUNCTION = "def f() -> None:\n    '''F.'''\n" + "    f()\n" * tidy.FUNCTION_LINES_MAX
LONG_MODULE = "'''M.'''\n" + "x = 1\n" * tidy.MODULE_LINES_MAX

# (file, source, rules it breaks)
BAD: list[tuple[str, str, set[str]]] = [
    ("agent/crdt/a.py", "from agent.boards import rules", {"layers"}),
    ("agent/crdt/a.py", "import agent.config", {"layers"}),
    ("agent/crdt/a.py", "def _f():\n    from agent import apply", {"layers"}),
    ("agent/boards/a.py", "from agent.apply import f", {"layers"}),
    ("agent/boards/a.py", "from .. import apply", {"layers"}),
    ("agent/exchange.py", "from agent.apply import f", {"layers"}),
    ("agent/exchange.py", "from agent.store import f", {"layers"}),
    ("agent/apply.py", "from agent.store.rows import f", {"layers"}),
    ("agent/store/a.py", "from agent.commit import Commit", {"layers"}),
    ("agent/commit.py", "from agent.gossip import poke", {"layers"}),
    ("agent/commit.py", "from agent.projection import wake", {"layers"}),
    ("agent/gossip/a.py", "from agent.projection import wake", {"layers"}),
    ("agent/projection/a.py", "import agent.gossip.client", {"layers"}),
    ("agent/gossip/a.py", "from agent.api import peer", {"layers"}),
    ("agent/api/a.py", "from agent.node import Node", {"layers"}),
    ("agent/node.py", "import agent.__main__", {"layers"}),
    ("agent/node.py", "from cluster import proxy", {"layers"}),
    ("agent/errors.py", "from agent.crdt import cell", {"layers"}),
    ("agent/__init__.py", "from agent.node import Node", {"layers"}),
    ("agent/config.py", "if TYPE_CHECKING:\n    from agent.boards import rules", {"layers"}),
    ("agent/shortcut.py", "X = 1", {"layers"}),
    ("cluster/a.py", "import bench", {"layers"}),
    ("cluster/a.py", "from tests.unit import tidy", {"layers"}),
    ("bench/a.py", "from tests.unit import tidy", {"layers"}),
    ("agent/crdt/a.py", "import msgspec", {"crdt-imports"}),
    ("agent/crdt/a.py", "import msgpack_numpy", {"crdt-imports"}),
    ("agent/crdt/a.py", "from msgspec.json import decode", {"crdt-imports"}),
    ("agent/store/utils.py", "X = 1", {"names"}),
    ("cluster/helpers/a.py", "X = 1", {"names"}),
    ("tests/unit/common.py", "X = 1", {"names"}),
    ("agent/gossip/manager.py", "X = 1", {"names"}),
    ("agent/store/a.py", LONG_FUNCTION, {"sizes"}),
    ("tests/unit/a.py", LONG_FUNCTION.replace("def", "async def"), {"sizes"}),
    ("bench/a.py", LONG_MODULE, {"sizes"}),
    ("agent/apply.py", "import time", {"purity"}),
    ("agent/apply.py", "from time import time", {"purity"}),
    ("agent/apply.py", "import time as t\nx = t.time()", {"purity"}),
    ("agent/boards/a.py", "from datetime import datetime\nx = datetime.now()", {"purity"}),
    ("agent/boards/a.py", "import datetime as d\nx = d.datetime.utcnow()", {"purity"}),
    ("agent/boards/a.py", "import datetime as d\nclock = d.date.today", {"purity"}),
    ("agent/crdt/a.py", "import random\nx = random.random()", {"purity"}),
    ("agent/crdt/a.py", "from random import randrange", {"purity"}),
    ("agent/crdt/a.py", "import random\nx = random.Random()", {"purity"}),
    ("agent/crdt/a.py", "import logging", {"purity"}),
    ("agent/apply.py", "import structlog", {"purity"}),
    ("agent/exchange.py", "async def _f() -> None: ...", {"purity"}),
    ("agent/exchange.py", "import os\nx = os.urandom(8)", {"purity"}),
    ("agent/exchange.py", "x = open('a')", {"purity"}),
    ("agent/exchange.py", "print(1)", {"purity", "print"}),
    ("agent/node.py", "print(1)", {"print"}),
    ("agent/api/a.py", "from rich import print as show\nshow(1)", {"print"}),
    ("agent/node.py", "try: f()\nexcept: pass", {"except"}),
    ("agent/node.py", "try: f()\nexcept Exception: pass", {"except"}),
    ("agent/node.py", "try: f()\nexcept Exception as e:  # noqa: BLE001\n    pass", {"except"}),
    ("agent/node.py", "try: f()\nexcept (OSError, BaseException): pass", {"except"}),
    ("tests/unit/a.py", "try: f()\nexcept* Exception: pass", {"except"}),
    ("agent/node.py", "import asyncio\nasyncio.create_task(f())", {"tasks"}),
    ("agent/node.py", "from asyncio import create_task as go\ngo(f())", {"tasks"}),
    ("agent/node.py", "import asyncio\nasyncio.ensure_future(f())", {"tasks"}),
    ("agent/node.py", "loop.create_task(f())", {"tasks"}),
    ("cluster/a.py", "import asyncio\nasyncio.get_running_loop().create_task(f())", {"tasks"}),
    ("tests/unit/a.py", "self.loop.create_task(f())", {"tasks"}),
    ("tests/unit/a.py", "import time\ntime.sleep(0.1)", {"sleep"}),
    ("tests/unit/a.py", "import asyncio as a\nasync def f():\n    await a.sleep(1)", {"sleep"}),
    ("agent/node.py", "def f() -> None: ...", {"documented"}),
    ("agent/node.py", "class A: ...", {"documented"}),
    ("agent/node.py", "class A:\n  'A.'\n  def f(self) -> None: ...", {"documented"}),
    ("agent/node.py", "def f(a) -> None:\n  'F.'", {"documented"}),
    ("agent/node.py", "def f(*, a: int):\n  'F.'", {"documented"}),
    ("agent/node.py", "class A:\n  'A.'\n  def __init__(self, a) -> None: ...", {"documented"}),
]

# What the rules must let through: (file, source)
GOOD: list[tuple[str, str]] = [
    ("agent/crdt/a.py", "from agent.crdt.cell import join\nfrom agent.errors import Malformed"),
    ("agent/crdt/a.py", "import msgpack\nfrom msgpack import packb"),
    ("agent/crdt/a.py", "import agent.limits\nfrom collections.abc import Iterable"),
    ("agent/boards/a.py", "from agent import VERSION, limits\nfrom agent.config import Board"),
    ("agent/apply.py", "from agent.exchange import Cursor\nimport msgpack"),
    ("agent/gossip/a.py", "from agent.commit import Commit\nfrom agent.gossip.wire import f"),
    ("agent/api/a.py", "from agent.gossip import a\nfrom agent.projection import b"),
    ("agent/config.py", "from agent import errors, limits"),
    ("cluster/a.py", "from agent.node import Node\nimport time\nx = time.time()\nprint(x)"),
    ("tests/unit/a.py", "from bench import a\nfrom cluster import b\nfrom agent import node"),
    ("agent/crdt/a.py", "from random import Random\nx = Random(1).random()"),
    ("agent/apply.py", "def _f(random: object, time: object) -> None: random.f(time.time())"),
    (
        "agent/boards/a.py",
        "from datetime import datetime, UTC\nx = datetime(2013, 1, 1, tzinfo=UTC)",
    ),
    (
        "agent/node.py",
        "try: f()\nexcept Exception:  # noqa: BLE001 - the loop outlives any peer\n  g()",
    ),
    ("agent/node.py", "try: f()\nexcept (OSError, ValueError): pass"),
    ("agent/node.py", "import asyncio\nasync with asyncio.TaskGroup() as tg: tg.create_task(f())"),
    ("agent/node.py", "def _f(group: 'asyncio.TaskGroup | None') -> None: group.create_task(g())"),
    ("agent/node.py", "self._tasks: TaskGroup\nself._tasks.create_task(g())"),
    ("tests/unit/a.py", "import asyncio\nasync def f():\n  await asyncio.sleep(0)"),
    ("tests/unit/a.py", "async def test_it() -> None: ..."),
    ("agent/node.py", "class A:\n  'A.'\n  def __init__(self, a: int) -> None: ..."),
    ("agent/node.py", "class A:\n  'A.'\n  @x.setter\n  def x(self, a: int) -> None: ..."),
    ("agent/node.py", "class _A:\n  def f(self): ...\ndef _g(x): ..."),
]


def rules_broken(path: str, source: str) -> set[str]:
    # A snippet is about one rule; the module docstring would only be noise in it.
    return {finding.rule for finding in tidy.check_source(path, f'"""M."""\n{source}\n')}


def test_the_house_is_tidy() -> None:
    findings = tidy.check_tree(ROOT)
    assert not findings, "\n" + "\n".join(map(str, findings))


def test_the_check_reads_the_whole_house() -> None:
    seen = {path.relative_to(ROOT).as_posix() for path in tidy.sources(ROOT)}
    expected = {"agent/__init__.py", "agent/crdt/cell.py", "cluster/proxy.py"}
    assert expected | {"tests/unit/test_tidy.py"} <= seen


@pytest.mark.parametrize(("path", "source", "rules"), BAD)
def test_a_bad_source_is_reported(path: str, source: str, rules: set[str]) -> None:
    assert rules_broken(path, source) == rules


@pytest.mark.parametrize(("path", "source"), GOOD)
def test_a_good_source_is_let_through(path: str, source: str) -> None:
    assert rules_broken(path, source) == set()


def test_every_rule_has_a_bad_source() -> None:
    assert set().union(*(rules for _, _, rules in BAD)) == set(tidy.RULES)


def test_a_module_without_docstring_is_reported() -> None:
    assert [f.rule for f in tidy.check_source("agent/node.py", "X = 1\n")] == ["documented"]


def test_the_limits_themselves_are_allowed() -> None:
    longest = LONG_FUNCTION.removesuffix("    f()\n" * 2)
    assert rules_broken("agent/node.py", longest) == set()
    assert rules_broken("agent/node.py", "x = 1\n" * (tidy.MODULE_LINES_MAX - 2)) == set()


def test_a_finding_names_its_place() -> None:
    (finding,) = tidy.check_source("agent/node.py", '"""M."""\n\nprint(1)\n')
    assert str(finding).startswith("agent/node.py:3: [print] ")
