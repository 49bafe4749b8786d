"""lb.hosts with a fake host; on real SSH: tests/integration/test_balancers.py."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from lb.errors import ApplyFailed, BalancerUnreachable
from lb.hosts import Connection, LocalMachine, RemoteMachine, is_our_master
from ops.errors import CommandFailed
from tests.support.balancer import inventory


@pytest.mark.parametrize(
    ("cmdline", "is_ours"),
    [
        (b"/usr/sbin/haproxy\0-Ws\0-f\0/etc/x.cfg\0-p\0pid\0", True),
        (b"haproxy\0-f\0/etc/x.cfg\0", True),
        (b"/usr/sbin/haproxy\0-f\0/etc/y.cfg\0", False),
        (b"vi\0/etc/x.cfg\0", False),
        (b"", False),
    ],
)
def test_our_master_is_a_haproxy_with_our_configuration(cmdline: bytes, is_ours: bool) -> None:
    assert is_our_master(cmdline, Path("/etc/x.cfg")) is is_ours


def test_a_file_that_is_not_there_is_empty(tmp_path: Path) -> None:
    here = LocalMachine()
    assert here.read(tmp_path / "file") == ""
    here.write(tmp_path / "file", "text")
    assert here.read(tmp_path / "file") == "text"


@pytest.mark.parametrize(
    "text", ["", "no number", "1", "999999999", pytest.param(str(os.getpid()), id="own")]
)
def test_a_pid_that_is_not_our_haproxy_is_never_signalled(tmp_path: Path, text: str) -> None:
    read = inventory(base=tmp_path)
    read.balancer.master_pid_file.parent.mkdir()
    read.balancer.master_pid_file.write_text(text)
    assert not LocalMachine().signal_master(read.balancer, signal.SIGUSR2)


BALANCER = inventory().balancer


class Host:
    """Host with files that records its commands."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.ran: list[list[str]] = []
        self.refuses = ""
        self.away = False

    def run(self, argv: Sequence[str], *, timeout_s: float, stdin: str = "") -> str:
        if self.away:
            raise CommandFailed(argv, 127, "SSH: no route", "front2")
        match list(argv):
            case ["env", "LC_ALL=C", "cat", path]:
                if path not in self.files:
                    raise CommandFailed(argv, 1, f"cat: {path}: No such file or directory", "f")
                return self.files[path]
            case ["/usr/sbin/haproxy", "-c", "-f", path]:
                assert path in self.files
                if self.refuses:
                    raise CommandFailed(argv, 1, self.refuses, "front2")
            case ["rm", "-f", path]:
                self.files.pop(path, None)
            case words:
                self.ran.append(words)
        return ""

    def write(self, path: Path, text: str, *, mode: int) -> None:
        assert mode == 0o600
        self.run(["true"], timeout_s=1)
        self.files[str(path)] = text

    def remote(self, _host: str) -> Iterator[Connection]:
        raise AssertionError("one connection is enough")

    @contextmanager
    def forwarded(
        self, host: str, socket: Path, *, lock: Path | None = None, within_s: float = 0
    ) -> Iterator[Path]:
        if self.away:
            raise CommandFailed(["flock"], 1, "", host)
        assert (socket, lock) == (BALANCER.socket, BALANCER.lock_file)
        yield Path("/tmp/here")


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def far(host: Host) -> RemoteMachine:
    return RemoteMachine(host, "front2", host)  # type: ignore[arg-type]


def test_files_are_read_and_written_there(far: RemoteMachine, host: Host) -> None:
    assert far.read(BALANCER.config) == ""
    far.write(BALANCER.config, "text")
    assert far.read(BALANCER.config) == "text"
    host.away = True
    for act in (lambda: far.read(BALANCER.config), lambda: far.write(BALANCER.config, "")):
        with pytest.raises(BalancerUnreachable, match=r"on front2: .*no route"):
            act()


def test_its_own_haproxy_reads_the_candidate_which_does_not_stay(
    far: RemoteMachine, host: Host
) -> None:
    assert far.config_faults("text", BALANCER.config) == ""
    host.refuses = "[ALERT] (7) : config : bad"
    assert far.config_faults("text", BALANCER.config) == host.refuses
    host.refuses = "command not found"
    with pytest.raises(ApplyFailed, match="cannot run /usr/sbin/haproxy -c"):
        far.config_faults("text", BALANCER.config)
    assert host.files == {}


def test_our_master_is_signalled_and_no_other_process(far: RemoteMachine, host: Host) -> None:
    assert not far.signal_master(BALANCER, signal.SIGUSR2)
    host.files[str(BALANCER.master_pid_file)] = "47 11; reboot\n"
    assert not far.signal_master(BALANCER, signal.SIGUSR2)
    host.files[str(BALANCER.master_pid_file)] = "4711\n"
    assert not far.signal_master(BALANCER, signal.SIGUSR2)
    host.files["/proc/4711/cmdline"] = "vi\0x\0"
    assert not far.signal_master(BALANCER, signal.SIGUSR2)
    host.files["/proc/4711/cmdline"] = f"/usr/sbin/haproxy\0-f\0{BALANCER.config}\0"
    assert far.signal_master(BALANCER, None)
    assert host.ran == []
    assert far.signal_master(BALANCER, signal.SIGUSR2)
    assert host.ran == [["kill", "-12", "4711"]]


def test_the_lock_there_is_held_while_the_socket_is_here(far: RemoteMachine, host: Host) -> None:
    with far.locked(BALANCER) as socket:
        assert socket == Path("/tmp/here")
    host.away = True
    with pytest.raises(BalancerUnreachable), far.locked(BALANCER):
        raise AssertionError("nobody is there")
