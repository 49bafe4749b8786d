from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from consumer_lists import listfile
from consumer_lists.errors import EditRefused, Locked
from consumer_lists.listfile import advice
from messagebus.broker import LIST_BYTES_MAX, Broker
from messagebus.errors import ListInvalid

TEXT = "# generation: 1\nmb1:5672\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "list.txt"
    path.write_text(TEXT)
    return path


def _add(text: str) -> str:
    return listfile.add(text, Broker("mb2"))


def test_an_edit_is_written(path: Path) -> None:
    assert listfile.change(path, _add).generation == 2
    assert path.read_text() == "# generation: 2\nmb1:5672\nmb2:5672\n"
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_refused_edit_leaves_the_file(path: Path) -> None:
    inode = path.stat().st_ino
    with pytest.raises(EditRefused):
        listfile.change(path, lambda text: listfile.remove(text, Broker("mb1")))
    assert (path.read_text(), path.stat().st_ino) == (TEXT, inode)


def test_an_edit_that_makes_a_bad_list_is_not_written(path: Path) -> None:
    with pytest.raises(ListInvalid):
        listfile.change(path, lambda text: text + "mb1:0\n")
    assert path.read_text() == TEXT


def test_a_second_operator_is_refused_with_the_name_of_the_first(path: Path) -> None:
    with listfile.locked(path), pytest.raises(Locked, match=f"process {os.getpid()}"):
        listfile.change(path, _add)
    assert listfile.change(path, _add).generation == 2


def test_the_lock_ends_with_an_error(path: Path) -> None:
    with pytest.raises(EditRefused):
        listfile.change(path, lambda text: listfile.drain(text, Broker("mb9")))
    assert listfile.change(path, _add).generation == 2


@pytest.mark.parametrize(
    ("raw", "line"), [(b"mb1\nmb\xff\n", 2), (b"\xef\xbb\xbfmb1\n", 1), (b"mb1\nmb2:x\n", 2)]
)
def test_a_bad_line_is_named(path: Path, raw: bytes, line: int) -> None:
    path.write_bytes(raw)
    with pytest.raises(ListInvalid) as raised:
        listfile.read(path)
    assert raised.value.line == line


def test_a_file_that_is_no_list_is_not_read_whole(path: Path) -> None:
    path.write_bytes(b"#" * (LIST_BYTES_MAX + 1))
    with pytest.raises(ListInvalid, match="more than"):
        listfile.read(path)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        listfile.read(tmp_path / "none")


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=x", "-c", "user.email=x@example")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A list in a work tree, committed."""
    folder = tmp_path / "my lists"
    folder.mkdir()
    path = folder / "prod.txt"
    path.write_text("mb1\n")
    git(folder, "init", "-q")
    git(folder, "add", "prod.txt")
    git(folder, "commit", "-qm", "x")
    return path


def test_a_changed_list_is_to_be_committed(kept: Path) -> None:
    kept.write_text("mb1\nmb2\n")
    said = advice(kept, "prod: generation 8")
    assert said == f"to keep: git -C '{kept.parent}' commit -m 'prod: generation 8' -- prod.txt"


def test_a_new_list_is_to_be_added_first(kept: Path) -> None:
    new = kept.with_name("test.txt")
    new.write_text("mb1\n")
    said = advice(new, "test: generation 1")
    assert f"git -C '{kept.parent}' add test.txt && git -C" in said


def test_what_is_said_keeps_the_list(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "x")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "x@example")
    kept.write_text("mb1\nmb2\n")
    command = advice(kept, "prod: generation 8").removeprefix("to keep: ")
    subprocess.run(["sh", "-c", command], check=True, capture_output=True)
    assert advice(kept, "again") == ""


def test_what_git_ignores_is_none_of_our_business(kept: Path) -> None:
    kept.with_name(".gitignore").write_text("local.txt\n")
    kept.with_name("local.txt").write_text("mb1\n")
    assert advice(kept.with_name("local.txt"), "x") == ""


def test_outside_of_version_control_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert advice(tmp_path / "x.txt", "x") == f"{tmp_path}/x.txt is under no version control"


def test_without_git_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert advice(tmp_path / "x.txt", "x") == ""
