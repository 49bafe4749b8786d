"""A balancer of another host, over SSH: the same files, processes and lock, by commands.

What reaches the host is handed in: this kit runs no SSH of its own.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from inventory.inventory import Balancer, Inventory
from lb.errors import ApplyFailed, BalancerUnreachable
from lb.here import Here
from lb.place import HAPROXY, Place, is_our_master
from messagebus.errors import MessageBusError

__all__ = ["Connection", "Far", "Socket", "Ssh", "forwarded", "place_of"]

Socket = AbstractContextManager[Path]

COMMAND_WITHIN_S = 15.0
LOCK_WITHIN_S = 20.0
"""For an `apply` of somebody else to end: longer than one may take."""


class Connection(Protocol):
    """One host. Both raise MessageBusError for a failed command, and for a host that is away."""

    def run(self, argv: Sequence[str], *, timeout_s: float, stdin: str = "") -> str: ...
    def write(self, path: Path, text: str, *, mode: int) -> None: ...


class Ssh(Protocol):
    """What `ops.shell` offers."""

    def remote(self, host: str, /) -> AbstractContextManager[Connection]: ...
    def forwarded(
        self, host: str, socket: Path, /, *, lock: Path | None = None, within_s: float = 0
    ) -> AbstractContextManager[Path]: ...


class Far:
    """One host behind SSH, as a `Place`. host: ``[user@]host[:port]``."""

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

    def complaint(self, text: str, config: Path) -> str:
        candidate = config.with_name(f".{config.name}.candidate")
        self.write(candidate, text)
        try:
            self._connection.run([HAPROXY, "-c", "-f", str(candidate)], timeout_s=COMMAND_WITHIN_S)
        except MessageBusError as fault:
            said = str(getattr(fault, "output", "")) or str(fault)
            if "[ALERT]" not in said:
                raise ApplyFailed(f"cannot run {HAPROXY} -c: {fault}") from fault
            return said
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
def place_of(ssh: Ssh, inventory: Inventory, balancer: Balancer) -> Iterator[Place]:
    """Reach the machine of a balancer: this one, or one behind SSH."""
    if not balancer.host:
        yield Here()
        return
    host = inventory.host(balancer.host).ssh
    with ssh.remote(host) as connection:
        yield Far(ssh, host, connection)


@contextmanager
def forwarded(
    ssh: Ssh, host: str, balancer: Balancer, *, lock: Path | None = None
) -> Iterator[Path]:
    """Have the admin socket of a balancer on another host here. Raises BalancerUnreachable."""
    connecting = ssh.forwarded(host, balancer.socket, lock=lock, within_s=LOCK_WITHIN_S)
    try:
        socket = connecting.__enter__()
    except MessageBusError as fault:
        raise BalancerUnreachable(str(fault)) from fault
    try:
        yield socket
    finally:
        connecting.__exit__(None, None, None)
