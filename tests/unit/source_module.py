"""One source file as the house rules see it: its name, tree, comments, imports and calls."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath


def last_name(node: ast.expr) -> str:
    """The identifier at the end of a name or attribute; empty for other expressions."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(attr=attr):
            return attr
    return ""


@dataclass(frozen=True)
class Finding:
    """One broken rule: where, which, and what to do."""

    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: [{self.rule}] {self.text}"


@dataclass(frozen=True)
class Module:
    """One source file, by its path from the project's root (`agent/crdt/cell.py`)."""

    path: PurePosixPath
    source: str

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.source, filename=str(self.path))

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the tree."""
        return tuple(ast.walk(self.tree))

    @cached_property
    def name(self) -> str:
        """The dotted name; a package is named as its folder."""
        parts = self.path.with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def top(self) -> str:
        """The top folder."""
        return self.path.parts[0]

    @cached_property
    def comments(self) -> dict[int, str]:
        """The comment of each line that has one, without its `#`."""
        tokens = tokenize.generate_tokens(io.StringIO(self.source).readline)
        return {
            t.start[0]: t.string.lstrip("#").strip() for t in tokens if t.type == tokenize.COMMENT
        }

    @cached_property
    def imports(self) -> tuple[tuple[int, str], ...]:
        """(line, dotted name) of everything imported anywhere in the file."""
        found: list[tuple[int, str]] = []
        for node in self.nodes:
            match node:
                case ast.Import(names=names):
                    found += [(node.lineno, alias.name) for alias in names]
                case ast.ImportFrom(names=names):
                    origin = self._origin(node)
                    found += [(node.lineno, f"{origin}.{alias.name}") for alias in names]
        return tuple(found)

    @cached_property
    def bindings(self) -> dict[str, str]:
        """What each imported name stands for: `dt` -> `datetime.datetime`."""
        bound: dict[str, str] = {}
        for node in self.nodes:
            match node:
                case ast.Import(names=names):
                    for alias in names:
                        first = alias.name.split(".")[0]
                        bound[alias.asname or first] = alias.name if alias.asname else first
                case ast.ImportFrom(names=names):
                    for alias in names:
                        bound[alias.asname or alias.name] = f"{self._origin(node)}.{alias.name}"
        return bound

    def dotted(self, node: ast.expr) -> str:
        """The full name of a bare name, or of an attribute of something imported; else empty.

        `datetime.now` is `datetime.datetime.now` where `datetime` was imported from `datetime`,
        and nothing where `datetime` is an argument.
        """
        match node:
            case ast.Name(id=name):
                return self.bindings.get(name, name)
            case ast.Attribute(value=value, attr=attr):
                imported = isinstance(value, ast.Attribute) or last_name(value) in self.bindings
                base = self.dotted(value) if imported else ""
                return f"{base}.{attr}" if base else ""
        return ""

    def calls(self) -> Iterator[tuple[ast.Call, str]]:
        """Every call with the full name of what it calls."""
        for node in self.nodes:
            if isinstance(node, ast.Call):
                yield node, self.dotted(node.func)

    def _origin(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = self.path.parent.parts
        base = package[: len(package) - node.level + 1]
        return ".".join([*base, *([node.module] if node.module else [])])
