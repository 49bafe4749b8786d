from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.local import process
from ops.local.process import Process
from tests.support.eventually import eventually

# The system call that ends one thread; libc's own exit ends them all.
SYS_EXIT = {"x86_64": 60, "aarch64": 93}[os.uname().machine]


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Process]:
    started = process.spawn(
        ["/bin/sleep", "60"],
        env={},
        log=tmp_path / "log",
        pid_file=tmp_path / "pid",
        mark=str(tmp_path),
    )
    yield started
    process.kill([started])


def test_a_started_process_is_found_by_its_pid_file_and_by_its_mark(
    sleeper: Process, tmp_path: Path
) -> None:
    assert process.find(tmp_path / "pid") == sleeper
    # The kernel lets us go on a moment before it has laid out the environment of what it started.
    eventually(lambda: process.marked(str(tmp_path)) == [sleeper], within_s=10)


def test_a_pid_that_belongs_to_somebody_else_is_never_signalled(
    sleeper: Process, tmp_path: Path
) -> None:
    other = Process(sleeper.pid, sleeper.started - 1)
    assert not other.is_alive
    assert not process.send(other, signal.SIGKILL)
    assert sleeper.is_alive
    (tmp_path / "pid").write_text(f"{other.pid} {other.started}\n")
    assert process.find(tmp_path / "pid") is None


def test_a_family_is_a_process_and_all_that_it_started(tmp_path: Path) -> None:
    started = process.spawn(
        ["/bin/sh", "-c", "(setsid sleep 60 & wait) & wait"],
        env={"PATH": "/usr/bin:/bin"},
        log=tmp_path / "log",
        pid_file=tmp_path / "pid",
        mark=str(tmp_path),
    )
    # Two shells, and the sleeper in a session of its own.
    family = eventually(
        lambda: found if len(found := process.family(started)) == 3 else [], within_s=10
    )
    process.kill(family)
    assert [member for member in family if member.is_alive] == []


def test_a_family_that_grows_is_held_whole(tmp_path: Path) -> None:
    """A child that was missed would outlive the kill of all others."""
    started = process.spawn(
        ["/bin/sh", "-c", "while :; do sleep 60 & sleep 0.002; done"],
        env={"PATH": "/usr/bin:/bin"},
        log=tmp_path / "log",
        pid_file=tmp_path / "pid",
        mark=str(tmp_path),
    )
    eventually(lambda: len(process.family(started)) > 3, within_s=10)
    held = process.hold(started)
    assert {one.state for one in held} <= set(process.STOPPED)
    process.kill(held)
    assert process.marked(str(tmp_path)) == []


def test_a_killed_child_is_gone_at_once_and_leaves_no_zombie(sleeper: Process) -> None:
    process.kill([sleeper])
    assert not sleeper.is_alive
    assert not Path(f"/proc/{sleeper.pid}").exists()


def test_a_stopped_process_says_so(sleeper: Process) -> None:
    process.send(sleeper, signal.SIGSTOP)
    assert process.wait_gone([sleeper], within_s=0) == [sleeper]
    assert sleeper.state in "TRS"


def test_a_process_is_not_gone_while_one_of_its_threads_still_ends(tmp_path: Path) -> None:
    first_thread_ends = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        f"ctypes.CDLL(None).syscall({SYS_EXIT}, 0)\n"
    )
    started = process.spawn(
        [sys.executable, "-c", first_thread_ends],
        env={},
        log=tmp_path / "log",
        pid_file=tmp_path / "pid",
        mark=str(tmp_path),
    )
    eventually(lambda: started.state == "Z", within_s=10)
    assert process.wait_gone([started], within_s=0) == [started]
    process.kill([started])
    assert not Path(f"/proc/{started.pid}").exists()


@pytest.mark.parametrize("text", ["", "12", "a b", "1 2 3", "-1 -1"])
def test_a_pid_file_that_makes_no_sense_names_nobody(text: str, tmp_path: Path) -> None:
    (tmp_path / "pid").write_text(text)
    assert process.find(tmp_path / "pid") is None
    assert process.find(tmp_path / "none") is None
