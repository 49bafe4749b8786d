"""The folder of port locks, in a place that anybody may write to."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from ops.errors import LocalFault
from ops.local import ports


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"messagebus-ports-{os.getuid()}"


def test_a_lock_is_had_once(place: Path) -> None:
    fd = ports._lock("a")
    assert fd is not None
    assert ports._lock("a") is None
    os.close(fd)
    assert (place.stat().st_mode & 0o777, (place / "a").stat().st_mode & 0o777) == (0o700, 0o600)


def test_a_folder_of_somebody_else_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.mkdir()
    owner = os.getuid()
    uids = iter([owner, owner + 1])
    monkeypatch.setattr(os, "getuid", lambda: next(uids))
    with pytest.raises(LocalFault, match="belongs to somebody else"):
        ports._lock("a")
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("linked", ["folder", "file"])
def test_links_are_not_followed(place: Path, tmp_path: Path, linked: str) -> None:
    target = tmp_path / "target"
    if linked == "folder":
        target.mkdir()
        place.symlink_to(target)
    else:
        place.mkdir()
        (place / "a").symlink_to(target)
    with pytest.raises(LocalFault, match="messagebus-ports"):
        ports._lock("a")
    assert not target.exists() or list(target.iterdir()) == []
