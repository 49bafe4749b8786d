from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from lb.here import Here, write_private
from tests.support.balancer import inventory


def test_a_file_that_is_not_there_is_empty(tmp_path: Path) -> None:
    here = Here()
    assert here.read(tmp_path / "file") == ""
    here.write(tmp_path / "file", "text")
    assert here.read(tmp_path / "file") == "text"


@pytest.mark.parametrize("text", ["", "no number", "1", "999999999", str(os.getpid())])
def test_a_pid_that_is_not_our_haproxy_is_never_signalled(tmp_path: Path, text: str) -> None:
    read = inventory(base=tmp_path)
    read.balancer.master_pid_file.parent.mkdir()
    read.balancer.master_pid_file.write_text(text)
    assert not Here().signal_master(read.balancer, signal.SIGUSR2)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_private(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_private(path, "\ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
