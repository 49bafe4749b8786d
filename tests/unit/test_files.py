from __future__ import annotations

import os
from pathlib import Path

import pytest

from messagebus.files import replace_file, write_whole


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "\ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_nobody_else_can_read_a_file_unless_it_is_said(tmp_path: Path) -> None:
    for mode in (0o600, 0o644, 0o400):
        write_whole(tmp_path / "new" / f"{mode}", "text", mode=mode)
        assert (tmp_path / "new" / f"{mode}").stat().st_mode & 0o777 == mode
    write_whole(tmp_path / "secret", "text")
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def test_a_file_may_keep_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "inventory.toml"
    write_whole(path, "old", mode=None)
    assert path.stat().st_mode & 0o777 == 0o644
    path.chmod(0o640)
    write_whole(path, "new", mode=None)
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o640)


def test_a_replaced_file_is_the_new_one_or_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    replace_file(path, "old")
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    with pytest.raises(UnicodeEncodeError):
        replace_file(path, "\ud800")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_at_the_temporary_name_is_not_followed(tmp_path: Path) -> None:
    path, other = tmp_path / "list", tmp_path / "other"
    other.write_text("kept")
    path.with_name(f".list.{os.getpid()}").symlink_to(other)
    replace_file(path, "new")
    assert (path.read_text(), other.read_text()) == ("new", "kept")
