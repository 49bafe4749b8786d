from __future__ import annotations

from pathlib import Path

import pytest

from ops.errors import LocalFault
from ops.local import roots
from ops.local.layout import HERE


def _root(folder: Path, version: str) -> Path:
    for program in roots.PROGRAMS:
        path = folder / program.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (folder / roots.SERVERS / f"rabbitmq_server-{version}").mkdir(parents=True)
    return folder


def test_programs_of_this_system_are_started_as_they_are() -> None:
    assert roots.chrooted(HERE, Path("/c"), ["/usr/bin/epmd", "-d"]) == ["/usr/bin/epmd", "-d"]


def test_programs_of_a_root_folder_are_entered_with_the_clusters_folder() -> None:
    argv = roots.chrooted(Path("/roots/sid"), Path("/c"), ["/usr/bin/epmd", "-d"])
    assert argv[0] == "/usr/bin/unshare"
    assert argv[-4:] == ["/roots/sid", "/c", "/usr/bin/epmd", "-d"]


def test_the_version_is_that_of_the_folder(tmp_path: Path) -> None:
    assert roots.version(_root(tmp_path, "4.3.6")) == "4.3.6"
    assert roots.version(tmp_path / "empty") == ""


def test_a_version_is_a_root_folder_or_this_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roots, "HERE", _root(tmp_path / "here", "3.10.8"))
    monkeypatch.setattr(roots, "ROOTS", tmp_path / "roots")
    sid = _root(tmp_path / "roots" / "sid", "4.3.6")
    assert roots.of_version("3.10", say=print) == tmp_path / "here"
    assert roots.of_version("4.3", say=print) == sid


def test_another_version_than_wanted_is_told_with_the_way_to_take_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roots, "HERE", tmp_path / "here")
    monkeypatch.setattr(roots, "ROOTS", tmp_path / "roots")
    sid = _root(tmp_path / "roots" / "sid", "4.30.0")
    with pytest.raises(LocalFault, match=rf"4\.30\.0 in Debian's sid, not 4\.3; .*--root {sid}"):
        roots.of_version("4.3", say=print)


def test_a_root_folder_without_a_program_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roots, "ROOTS", tmp_path)
    (tmp_path / "sid").mkdir()
    with pytest.raises(LocalFault, match=r"package erlang-base"):
        roots.make("sid", say=print)
