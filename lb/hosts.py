"""The machine of a balancer, as `lb.apply` needs it: this one, or one behind SSH.

Here files, processes and the lock are the system's own; on a host behind SSH the same is done by commands.
The SSH connection is handed in: this kit runs no SSH of its own.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from inventory.inventory import Balancer, Inventory
from lb.errors import ApplyFailed, BalancerUnreachable
from messagebus.errors import MessageBusError
from messagebus.files import write_whole

STDIN = "/dev/stdin"


class Machine(Protocol):
    """The machine of a balancer. Every method raises BalancerUnreachable where it cannot be reached."""

    def read(self, path: Path) -> str:
        """Return a file's text; "" where there is none."""

    def write(self, path: Path, text: str) -> None:
        """Replace a file atomically and durably; only its owner can read it."""

    def config_faults(self, text: str, balancer: Balancer) -> str:
        """Return what HAProxy reports about a wrong configuration for this path; "" for a good one."""

    def signal_master(self, balancer: Balancer, number: signal.Signals | None) -> bool:
        """Send a signal to our master, none with None. Returns False when it does not run."""

    def locked(self, balancer: Balancer) -> AbstractContextManager[Path]:
        """Hold the lock for writing configuration and state, and yield the admin socket on this machine.

        Raises ApplyFailed when another writer does not end in time.
        """


def is_our_master(cmdline: bytes, config: Path) -> bool:
    """Return whether a process's command line is that of a HAProxy with this configuration.

    A pid file may outlive its process, and its number may belong to another process by now.
    """
    arguments = cmdline.split(b"\0")
    return arguments[0].endswith(b"haproxy") and str(config).encode() in arguments


CHECK_WITHIN_S = 10.0
"""Timeout of `haproxy -c`; host names that do not resolve take it longest."""
LOCK_WITHIN_S = 20.0
"""Time for another operator's `apply` to end: longer than one may take."""
POLL_S = 0.05


class LocalMachine:
    """This machine, as a `Machine`."""

    def read(self, path: Path) -> str:
        try:
            # A damaged file is only compared and searched: it must never stop a start.
            return path.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def write(self, path: Path, text: str) -> None:
        write_whole(path, text)

    def config_faults(self, text: str, balancer: Balancer) -> str:
        # Not "-q": it would hide complaints about certificates that cannot be loaded.
        argv = [str(balancer.program), "-c", "-f", STDIN]
        try:
            done = subprocess.run(
                argv,
                input=text,
                capture_output=True,
                text=True,
                timeout=CHECK_WITHIN_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as fault:
            raise ApplyFailed(f"cannot run {balancer.program} -c: {fault}") from fault
        return done.stderr.replace(STDIN, balancer.config.name) if done.returncode else ""

    def signal_master(self, balancer: Balancer, number: signal.Signals | None) -> bool:
        """Send a signal. A descriptor holds the process while its command line is checked."""
        try:
            pid = int(balancer.master_pid_file.read_text())
            process = os.pidfd_open(pid)
        except (OSError, ValueError):
            return False
        try:
            cmdline = Path(f"/proc/{pid}/cmdline").read_bytes()
            ended = select.select([process], [], [], 0)[0]
            if ended or not is_our_master(cmdline, balancer.config):
                return False
            if number is not None:
                signal.pidfd_send_signal(process, number)
            return True
        except OSError:
            return False
        finally:
            os.close(process)

    @contextmanager
    def locked(self, balancer: Balancer) -> Iterator[Path]:
        path = balancer.lock_file
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            until = time.monotonic() + LOCK_WITHIN_S
            while not _locked(file.fileno()):
                if time.monotonic() > until:
                    raise ApplyFailed(f"another operator applies a configuration ({path})")
                time.sleep(POLL_S)
            yield balancer.socket


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


Socket = AbstractContextManager[Path]

COMMAND_WITHIN_S = 15.0


class Connection(Protocol):
    """One host. Both methods raise MessageBusError for a failed command, and for a host that is away."""

    def run(self, argv: Sequence[str], *, timeout_s: float, stdin: str = "") -> str: ...
    def write(self, path: Path, text: str, *, mode: int) -> None: ...


class Ssh(Protocol):
    """The part of `inventory.shell` that is needed here."""

    def remote(self, host: str, /) -> AbstractContextManager[Connection]: ...
    def forwarded(
        self, host: str, socket: Path, /, *, lock: Path | None = None, within_s: float = 0
    ) -> AbstractContextManager[Path]: ...


class RemoteMachine:
    """One host behind SSH, as a `Machine`. host: ``[user@]host[:port]``."""

    def __init__(self, ssh: Ssh, host: str, connection: Connection) -> None:
        self._ssh = ssh
        self._host = host
        self._connection = connection

    def read(self, path: Path) -> str:
        argv = ["env", "LC_ALL=C", "cat", str(path)]
        try:
            return self._connection.run(argv, timeout_s=COMMAND_WITHIN_S)
        except MessageBusError as fault:
            if "No such file or directory" in str(getattr(fault, "output", "")):
                return ""
            raise BalancerUnreachable(str(fault)) from fault

    def write(self, path: Path, text: str) -> None:
        try:
            self._connection.write(path, text, mode=0o600)
        except MessageBusError as fault:
            raise BalancerUnreachable(str(fault)) from fault

    def config_faults(self, text: str, balancer: Balancer) -> str:
        # A file: the standard input of a command behind SSH is a socket, which HAProxy cannot open.
        config, program = balancer.config, balancer.program
        candidate = config.with_name(f".{config.name}.candidate")
        self.write(candidate, text)
        try:
            argv = [str(program), "-c", "-f", str(candidate)]
            self._connection.run(argv, timeout_s=COMMAND_WITHIN_S)
        except MessageBusError as fault:
            output = str(getattr(fault, "output", "")) or str(fault)
            if "[ALERT]" not in output:
                raise ApplyFailed(f"cannot run {program} -c: {fault}") from fault
            return output
        finally:
            self._run(["rm", "-f", str(candidate)])
        return ""

    def signal_master(self, balancer: Balancer, number: signal.Signals | None) -> bool:
        pid = self.read(balancer.master_pid_file).strip()
        if not re.fullmatch(r"[1-9][0-9]{0,8}", pid):
            return False
        cmdline = self.read(Path(f"/proc/{pid}/cmdline")).encode()
        if not is_our_master(cmdline, balancer.config):
            return False
        if number is not None:
            self._run(["kill", f"-{number.value}", pid])
        return True

    @contextmanager
    def locked(self, balancer: Balancer) -> Iterator[Path]:
        self._run(["mkdir", "-p", str(balancer.config.parent)])
        with forwarded(self._ssh, self._host, balancer, lock=balancer.lock_file) as socket:
            yield socket

    def _run(self, argv: Sequence[str]) -> str:
        try:
            return self._connection.run(argv, timeout_s=COMMAND_WITHIN_S)
        except MessageBusError as fault:
            raise BalancerUnreachable(str(fault)) from fault


@contextmanager
def machine_of(ssh: Ssh, inventory: Inventory, balancer: Balancer) -> Iterator[Machine]:
    """Reach the machine of a balancer: this one, or one behind SSH."""
    if not balancer.host:
        yield LocalMachine()
        return
    host = inventory.host(balancer.host).ssh
    with ssh.remote(host) as connection:
        yield RemoteMachine(ssh, host, connection)


@contextmanager
def forwarded(
    ssh: Ssh, host: str, balancer: Balancer, *, lock: Path | None = None
) -> Iterator[Path]:
    """Forward the admin socket of a balancer on another host. Raises BalancerUnreachable."""
    connecting = ssh.forwarded(host, balancer.socket, lock=lock, within_s=LOCK_WITHIN_S)
    try:
        socket = connecting.__enter__()
    except MessageBusError as fault:
        raise BalancerUnreachable(str(fault)) from fault
    try:
        yield socket
    finally:
        connecting.__exit__(None, None, None)
