from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from ops.backup.archive import Archive, read, write
from ops.errors import OpsError

KEPT = Archive(
    {"cluster": "prod", "generation": 17},
    {"inventory.toml": b"x", "files/secrets/token": b"\x00\xff"},
    frozenset({"files/secrets/token"}),
)


def test_what_is_kept_comes_back_and_nobody_else_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "backup.tar.gz"
    write(path, KEPT)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read(path) == KEPT


def test_a_backup_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "backup.tar.gz"
    write(path, KEPT)
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        write(path, KEPT)
    assert path.read_bytes() == before


def test_what_is_cut_off_is_told(tmp_path: Path) -> None:
    path = tmp_path / "backup.tar.gz"
    write(path, KEPT)
    whole = path.read_bytes()
    for size in range(0, len(whole) // 2, 7):
        path.write_bytes(whole[:size])
        with pytest.raises(OpsError, match="is no backup, or damaged"):
            read(path)


def test_what_was_changed_is_told_by_name(tmp_path: Path) -> None:
    path, other = tmp_path / "backup.tar.gz", tmp_path / "other"
    write(path, KEPT)
    with tarfile.open(path) as tar:
        tar.extractall(other, filter="data")
    (other / "inventory.toml").write_text("y")
    with tarfile.open(path, "w:gz") as tar:
        for name in ("contents.json", "inventory.toml", "files/secrets/token"):
            tar.add(other / name, name)
    with pytest.raises(OpsError, match=r"is damaged: inventory\.toml$"):
        read(path)


@pytest.mark.parametrize("text", ["", "no archive", '{"format": 1}'])
def test_what_is_no_backup_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(OpsError, match="is no backup"):
        read(tmp_path / "x")
