from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from consumer_lists.history import advice


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
