"""Pages lead somewhere: links, named files, and each room's page, which names all of its files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.documents import ROOT, page, pages, prose, ticked

Problems = Iterator[str]
LINE_CHARACTERS_MAX = 180  # tables apart, and decisions, which are one paragraph each
_LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")
_PATH = re.compile(r"(?:agent|bench|cluster|docs|tests)/[\w./*-]*\w/?|\w[\w-]*\.(?:py|lua|md|toml)")
# Files that a user makes, or that an agent does.
NOT_OURS = frozenset({"eu.toml", "us.toml", "tokens.toml", "agent.toml"})


def broken_links(text: str, folder: Path) -> Problems:
    for link in _LINK.findall(prose(text)):
        if "://" not in link and not (folder / link.partition("#")[0]).exists():
            yield f"the link {link} leads nowhere"


def missing_files(text: str, folder: Path) -> Problems:
    """Paths in backticks, and pages named in the text, are there: from here, or from the root."""
    named = [name for name in ticked(prose(text)) if _PATH.fullmatch(name)]
    named += re.findall(r"docs/[\w/-]+\.md", text)
    for name in named:
        if name not in NOT_OURS and not any((ROOT / base / name).exists() for base in (folder, "")):
            yield f"there is no {name}"


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_files_are_there(path: Path) -> None:
    text = path.read_text()
    assert [*broken_links(text, path.parent), *missing_files(text, path.parent)] == []


def test_a_broken_link_is_noticed() -> None:
    assert list(broken_links("see [there](docs/nowhere.md#x)", ROOT)) != []
    assert list(missing_files("see `agent/nowhere.py`", ROOT)) != []
    assert list(missing_files("see docs/nowhere.md", ROOT)) != []


def unnamed_modules(text: str, folder: Path) -> Problems:
    """A room's own page names each of its files."""
    names = set(ticked(text)) | set(re.findall(r"\[`([^`]+)`\]", text))
    for file in sorted(folder.iterdir()):
        ours = file.suffix in (".py", ".lua") and file.name != "__init__.py"
        if ours and file.name not in names:
            yield f"{file.name} is not named"


@pytest.mark.parametrize(
    "room",
    [
        "agent",
        "agent/api",
        "agent/boards",
        "agent/crdt",
        "agent/gossip",
        "agent/projection",
        "agent/store",
        "cluster",
        "cluster/simulator",
    ],
)
def test_a_rooms_page_names_its_files(room: str) -> None:
    folder = ROOT / room
    text = page(f"{room}/README.md")
    assert list(unnamed_modules(text, folder)) == []
    first = next(
        name for name in ticked(text) if (folder / name).suffix == ".py" and "/" not in name
    )
    assert list(unnamed_modules(text.replace(f"`{first}`", "`x`"), folder)) != []


def test_lines_are_not_too_long() -> None:
    for path in set(pages()) - set(ROOT.glob("docs/adr/*")):
        lines = prose(path.read_text()).splitlines()
        wide = [
            line for line in lines if len(line) > LINE_CHARACTERS_MAX and not line.startswith("|")
        ]
        assert wide == [], path


def test_the_page_of_failures_names_tests_that_are_there() -> None:
    rows = [line for line in (ROOT / "docs/failures.md").read_text().splitlines() if "|" in line]
    named = {name for row in rows for name in re.findall(r"\btest_\w+", row)}
    assert len(named) > 8
    missing = [name for name in named if not (ROOT / f"tests/integration/{name}.py").exists()]
    assert missing == []
