"""The house rules that a machine can check: layers, sizes, names, purity, tasks, documentation.

Each rule is a generator over one parsed module; `RULES` names them all, `check_source` runs them
on one source text, `check_tree` on the project. A rule looks at the text alone and imports
nothing, so a module that can't even be imported is still checked.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from tests.unit.source_module import Finding, Module, last_name

FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 400

TOP_FOLDERS = ("agent", "cluster", "bench", "tests")
PRODUCT_FOLDERS = frozenset({"agent", "cluster", "bench"})
FORBIDDEN_NAMES = frozenset(
    {"utils", "util", "helpers", "helper", "common", "manager", "managers", "misc"}
)

# Every room of the house and its floor. A room imports itself, the foundation, and rooms on
# lower floors; two rooms on one floor do not see each other.
FLOORS = {
    "agent.crdt": 0,
    "agent.boards": 1,
    "agent.exchange": 2,
    "agent.membership": 3,
    "agent.operation": 4,
    "agent.state": 5,
    "agent.facts": 5,
    "agent.draft": 6,
    "agent.late": 6,
    "agent.members": 7,
    "agent.finals": 7,
    "agent.wanted": 8,
    "agent.apply": 9,
    "agent.store": 10,
    "agent.committer": 11,
    "agent.identity": 11,
    "agent.commit": 12,
    "agent.gossip": 13,
    "agent.projection": 13,
    "agent.keeping": 13,
    "agent.certifying": 13,
    "agent.beginning": 14,
    "agent.api": 14,
    "agent.composing": 15,
    "agent.node": 16,
    "agent.__main__": 17,
    "cluster": 18,
    "bench": 19,
    "tests": 20,
}
# Usable anywhere; of the product they import only each other.
FOUNDATION = frozenset({"agent", "agent.errors", "agent.config", "agent.limits"})
# What the values may use beside the standard library and msgpack (and themselves).
CRDT_MAY_IMPORT = frozenset({"agent.errors", "agent.limits"})

PURE_ROOMS = frozenset(
    {
        "agent.crdt",
        "agent.boards",
        "agent.exchange",
        "agent.membership",
        "agent.operation",
        "agent.state",
        "agent.draft",
        "agent.facts",
        "agent.late",
        "agent.members",
        "agent.finals",
        "agent.wanted",
        "agent.apply",
    }
)
IMPURE_MODULES = frozenset(
    {"asyncio", "logging", "secrets", "socket", "sqlite3", "structlog", "threading", "time"}
)
IMPURE_NAMES = frozenset(
    {
        "datetime.date.today",
        "datetime.datetime.now",
        "datetime.datetime.today",
        "datetime.datetime.utcnow",
        "os.urandom",
        "uuid.uuid1",
        "uuid.uuid4",
    }
)
# Not reasons: what a linter reads.
DIRECTIVE = re.compile(
    r"noqa(: *[A-Z]+\d+([, ]+[A-Z]+\d+)*)?|type: *ignore(\[[^]]*\])?|pragma: *no \w+"
)


Report = Iterator[tuple[int, str]]
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def room_of(name: str) -> str | None:
    """The room or foundation stone that a dotted name of ours lies in; None if it has no place."""
    top, *rest = name.split(".")
    if top != "agent":
        return top
    place = ".".join([top, *rest[:1]])
    return place if place in FLOORS or place in FOUNDATION else None


def layers(module: Module) -> Report:
    """Imports only go down; rooms on one floor do not import each other."""
    here = room_of(module.name)
    if here is None:
        yield 1, f"{module.name} has no place in the layers; change the architecture first"
        return
    for line, name in module.imports:
        if name.split(".")[0] not in TOP_FOLDERS:
            continue
        there = room_of(name) or "agent"  # else a name that `agent` itself defines
        if there == here or (there in FOUNDATION and here != "agent.crdt"):
            continue
        elif here == "agent.crdt":
            if there not in CRDT_MAY_IMPORT:
                yield line, f"values import only {', '.join(sorted(CRDT_MAY_IMPORT))}, not {name}"
        elif here in FOUNDATION:
            yield line, f"{here} is usable anywhere, so it can't import {name}"
        elif FLOORS[there] >= FLOORS[here]:
            yield line, f"{here} may not import {name}: imports only go down"


def crdt_imports(module: Module) -> Report:
    """Values need nothing but the standard library, and msgpack for their bodies."""
    if room_of(module.name) != "agent.crdt":
        return
    for line, name in module.imports:
        top = name.split(".")[0]
        if top not in TOP_FOLDERS and top not in {*sys.stdlib_module_names, "msgpack"}:
            yield line, f"values use the standard library and msgpack only, not {top}"


def names(module: Module) -> Report:
    """A file or folder is named after what it is about."""
    for part in module.path.with_suffix("").parts:
        if part in FORBIDDEN_NAMES:
            yield 1, f"{part!r} says nothing; name it after what it is about"


def sizes(module: Module) -> Report:
    """Functions and modules stay short enough to be read at once."""
    lines = len(module.source.splitlines())
    if lines > MODULE_LINES_MAX:
        yield 1, f"{lines} lines; a module has at most {MODULE_LINES_MAX}"
    for node in module.nodes:
        if isinstance(node, FunctionNode):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield (
                    node.lineno,
                    f"{node.name} has {length} lines; at most {FUNCTION_LINES_MAX}",
                )


def purity(module: Module) -> Report:
    """The core has no I/O, no clock, no async, no logging and no global randomness."""
    if room_of(module.name) not in PURE_ROOMS:
        return
    for line, name in module.imports:
        if name.split(".")[0] in IMPURE_MODULES:
            yield line, f"the core may not import {name}: it is given what it needs"
        elif name.split(".")[0] == "random" and name not in {"random", "random.Random"}:
            yield line, f"the core may not use {name}: a random.Random is an argument"
    for node in module.nodes:
        match node:
            case ast.AsyncFunctionDef() | ast.AsyncFor() | ast.AsyncWith() | ast.Await():
                yield node.lineno, "the core has no async"
            case ast.Call(func=ast.Name(id="print" | "open" | "input" as name)):
                yield node.lineno, f"the core has no I/O: {name}()"
            case ast.Call(func=func, args=[]) if module.dotted(func) == "random.Random":
                yield node.lineno, "random.Random() without a seed is global randomness"
            case ast.Attribute():
                name = module.dotted(node)
                if name in IMPURE_NAMES:
                    yield node.lineno, f"the core may not use {name}: time is an argument"
                elif name.startswith("random.") and name != "random.Random":
                    yield node.lineno, f"the core may not use {name}: pass a random.Random"


def no_print(module: Module) -> Report:
    """The agent logs; it never prints."""
    if module.top != "agent":
        return
    for call, name in module.calls():
        if name in {"print", "rich.print"}:
            yield call.lineno, "print in the agent; log an event instead"


def excepts(module: Module) -> Report:
    """An except that takes everything says why, on its own line."""
    for node in module.nodes:
        if not isinstance(node, ast.ExceptHandler):
            continue
        match node.type:
            case None:
                caught = ["BaseException"]
            case ast.Tuple(elts=elts):
                caught = [module.dotted(e) for e in elts]
            case expression:
                caught = [module.dotted(expression)]
        if not {"Exception", "BaseException"}.isdisjoint(caught):
            reason = DIRECTIVE.sub("", module.comments.get(node.lineno, "")).strip(" #-:;,")
            if len(reason.split()) < 3:
                yield node.lineno, "a blind except needs its reason in a comment on this line"


def tasks(module: Module) -> Report:
    """Tasks are children of a TaskGroup, so that none outlives or fails behind its parent."""
    groups = _task_groups(module)
    for call, name in module.calls():
        if name in {"asyncio.ensure_future", "asyncio.create_task"}:
            yield call.lineno, f"{name} starts a task without a parent; use a TaskGroup"
            continue
        match call.func:
            case ast.Attribute(value=receiver, attr="create_task"):
                if last_name(receiver) not in groups:
                    text = f"{ast.unparse(receiver)} is not known as an asyncio.TaskGroup here"
                    yield call.lineno, text


def sleeps(module: Module) -> Report:
    """A test waits for a condition, never for a guess of how long something takes."""
    if module.top != "tests":
        return
    for call, name in module.calls():
        if name not in {"time.sleep", "asyncio.sleep"} or not call.args:
            continue
        match call.args[0]:
            case ast.Constant(value=value) if value:
                yield call.lineno, f"{name}({value!r}) in a test; wait for a condition"


def documented(module: Module) -> Report:
    """Every public definition of the product states its contract."""
    if module.top not in PRODUCT_FOLDERS:
        return
    if ast.get_docstring(module.tree) is None:
        yield 1, "the module has no docstring"
    for node, is_method in _public_definitions(module.tree):
        dunder = node.name.startswith("__")
        if not dunder and not _is_accessory(node) and ast.get_docstring(node) is None:
            yield node.lineno, f"{node.name} has no docstring"
        if not isinstance(node, ast.ClassDef):
            yield from _missing_annotations(node, is_method=is_method)


def _task_groups(module: Module) -> set[str]:
    groups: set[str] = set()
    for node in module.nodes:
        match node:
            case ast.withitem(context_expr=source, optional_vars=ast.expr() as target):
                named = [target]
            case ast.Assign(targets=named, value=source):
                pass
            case ast.AnnAssign(target=target, annotation=source):
                named = [target]
            case ast.arg(arg=name, annotation=ast.expr() as source):
                named = [ast.Name(name)]
            case _:
                continue
        if "TaskGroup" in ast.unparse(source):
            groups.update(last_name(target) for target in named)
    return groups - {""}


def _public_definitions(
    body: ast.Module | ast.ClassDef,
) -> Iterator[tuple[FunctionNode | ast.ClassDef, bool]]:
    in_class = isinstance(body, ast.ClassDef)
    for node in body.body:
        if not isinstance(node, FunctionNode | ast.ClassDef):
            continue
        if node.name.startswith("_") and not node.name.startswith("__"):
            continue
        yield node, in_class
        if isinstance(node, ast.ClassDef):
            yield from _public_definitions(node)


def _decorators(node: FunctionNode | ast.ClassDef) -> set[str]:
    return {last_name(decorator) for decorator in node.decorator_list}


def _is_accessory(node: FunctionNode | ast.ClassDef) -> bool:
    # The contract stands at the getter, or at the implementation below the overloads.
    return not {"overload", "setter", "deleter"}.isdisjoint(_decorators(node))


def _missing_annotations(node: FunctionNode, *, is_method: bool) -> Report:
    positional = [*node.args.posonlyargs, *node.args.args]
    if is_method and "staticmethod" not in _decorators(node):
        positional = positional[1:]
    rest = [arg for arg in (node.args.vararg, node.args.kwarg) if arg]
    for arg in [*positional, *node.args.kwonlyargs, *rest]:
        if arg.annotation is None:
            yield node.lineno, f"{node.name}: {arg.arg} has no annotation"
    if node.returns is None:
        yield node.lineno, f"{node.name} has no return annotation"


RULES: dict[str, Callable[[Module], Report]] = {
    "layers": layers,
    "crdt-imports": crdt_imports,
    "names": names,
    "sizes": sizes,
    "purity": purity,
    "print": no_print,
    "except": excepts,
    "tasks": tasks,
    "sleep": sleeps,
    "documented": documented,
}


def check_source(path: str, source: str) -> list[Finding]:
    """All broken rules of one file; `path` is relative to the project's root."""
    module = Module(PurePosixPath(path), source)
    return sorted(
        (
            Finding(path, line, rule, text)
            for rule, check in RULES.items()
            for line, text in check(module)
        ),
        key=lambda finding: (finding.line, finding.rule),
    )


def sources(root: Path) -> list[Path]:
    """Every Python file of the project."""
    return sorted(path for top in TOP_FOLDERS for path in (root / top).rglob("*.py"))


def check_tree(root: Path) -> list[Finding]:
    """All broken rules of the project at `root`."""
    return [
        finding
        for path in sources(root)
        for finding in check_source(path.relative_to(root).as_posix(), path.read_text("utf-8"))
    ]
