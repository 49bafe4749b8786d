from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from ops.errors import LocalFault
from ops.local import preflight
from ops.local.cluster import LocalCluster
from ops.local.layout import Layout


def test_a_missing_program_is_told_with_its_package(tmp_path: Path) -> None:
    haproxy = tmp_path / "usr/sbin/haproxy"
    haproxy.parent.mkdir(parents=True)
    haproxy.touch()
    assert preflight._missing(tmp_path) == (
        f"missing in {tmp_path}: /usr/lib/rabbitmq/bin/rabbitmq-server (package rabbitmq-server), "
        "/usr/bin/epmd (package erlang-base)"
    )


def test_too_little_is_told_with_both_numbers() -> None:
    assert preflight._too_little("memory", 5, 5) == ""
    assert preflight._too_little("memory", 100_000_000, 2_000_000_000) == (
        "too little memory: 100 MB of 2,000 MB"
    )


def test_a_long_folder_is_told_before_haproxy_stumbles_over_it(tmp_path: Path) -> None:
    layout = Layout(dir=tmp_path / ("x" * 100), numbers=(1,))
    assert preflight._too_long(layout.front.admin_socket).startswith("path of HAProxy's socket")
    layout.dir.mkdir()
    with pytest.raises(LocalFault, match="choose another folder"):
        preflight.check(layout, to_start=1)


def test_memory_is_what_linux_says_is_available(tmp_path: Path) -> None:
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:  4000 kB\nMemAvailable:    2000 kB\n")
    assert preflight._memory_available_bytes(file) == 2000 * 1024


def test_the_folder_of_a_local_cluster_is_its_owner_s_alone(tmp_path: Path) -> None:
    folder = tmp_path / "clusters" / "mine"
    with LocalCluster(folder, 1)._folder.lock():
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"messagebus-ports-{os.getuid()}"


def test_a_lock_is_had_once(place: Path) -> None:
    fd = preflight._lock("a")
    assert fd is not None
    assert preflight._lock("a") is None
    os.close(fd)
    assert (place.stat().st_mode & 0o777, (place / "a").stat().st_mode & 0o777) == (0o700, 0o600)


def test_a_folder_of_somebody_else_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.mkdir()
    owner = os.getuid()
    uids = iter([owner, owner + 1])
    monkeypatch.setattr(os, "getuid", lambda: next(uids))
    with pytest.raises(LocalFault, match="belongs to another user"):
        preflight._lock("a")
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
        preflight._lock("a")
    assert not target.exists() or list(target.iterdir()) == []
