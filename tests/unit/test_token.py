"""The identity token: written whole or not at all, and read only if it is whole."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agent.store.token import FILE, Token, file_id, read_token, write_token


def test_a_token_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_token(tmp_path) is None
    for boot in (1, 2):
        token = Token(2**61, boot, "ab")
        write_token(tmp_path, token)
        assert read_token(tmp_path) == token
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"log": 1}', '{"log": "x", "boot": 1}', "\xff"])
def test_what_is_not_a_token_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text, encoding="latin-1")
    assert read_token(tmp_path) is None


def test_a_copy_of_a_file_is_another_file(tmp_path: Path) -> None:
    one, two = tmp_path / "one.db", tmp_path / "two.db"
    one.write_bytes(b"x")
    shutil.copy2(one, two)
    assert file_id(one) != file_id(two)
    moved = one.rename(tmp_path / "three.db")
    assert file_id(moved) not in (file_id(two), "")
