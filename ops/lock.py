"""One change of a cluster at a time: a lock beside its inventory, and one on each host of a balancer.

The first keeps apart whoever works from this copy of the inventory; the others whoever works from any. A lock
on a host is held by a connection, so that it goes with the operator's process, however that ends; no clock
has a part in it. A host that cannot be reached keeps nobody apart: that is said, since a playbook may be
wanted because it is dead.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from inventory.inventory import Balancer, load
from messagebus.errors import ConfigError
from messagebus.terminal import say
from ops import shell
from ops.errors import CommandFailed, LockHeld

__all__ = ["held", "held_everywhere"]

# Beside what HAProxy's writers lock, and not that: a playbook runs `lb apply` as one of its steps.
OPERATORS = ".operators"
# flock's, when somebody else has it.
_TAKEN = 1
TELL_WITHIN_S = 10.0


@contextmanager
def held_everywhere(file: Path, inventory: Path, what: str) -> Iterator[None]:
    """Hold the lock `file`, and those on the balancers' hosts, while `what` is done.

    Raises LockHeld as `held`; that one of a host was taken meanwhile, too.
    """
    with held(file, what), ExitStack() as locks:
        for balancer, ssh in _far(inventory):
            path = balancer.lock_file.with_name(balancer.lock_file.name + OPERATORS)
            try:
                locks.enter_context(shell.forwarded(ssh, balancer.socket, lock=path, within_s=0))
            except CommandFailed as fault:
                if fault.exit_code == _TAKEN:
                    raise LockHeld(*_told(ssh, path)) from None
                say(
                    f"note: no lock on {balancer.host}, which keeps no other operator out: {fault}",
                    err=True,
                )
                continue
            _tell(ssh, path, what)
        yield


def _far(inventory: Path) -> list[tuple[Balancer, str]]:
    """Balancers of other hosts, and how to get there; none where the inventory cannot be read."""
    with suppress(ConfigError):
        read = load(inventory)
        return [(one, read.host(one.host).ssh) for one in read.balancers if one.host]
    return []


def _tell(ssh: str, path: Path, what: str) -> None:
    """Keep there who has it; a lock of which that is not known is one all the same."""
    with suppress(CommandFailed):
        shell.run_over_ssh(ssh, ["tee", str(path)], timeout_s=TELL_WITHIN_S, stdin=_who(what))


def _told(ssh: str, path: Path) -> tuple[str, str]:
    with suppress(CommandFailed):
        return _parsed(shell.run_over_ssh(ssh, ["cat", str(path)], timeout_s=TELL_WITHIN_S))
    return _parsed("")


@contextmanager
def held(file: Path, what: str) -> Iterator[None]:
    """Hold the lock while `what` is done. Raises LockHeld, at once, with who has it.

    The end of the process frees it, however it ends.
    """
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockHeld(*_parsed(os.pread(fd, 4096, 0).decode(errors="replace"))) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, _who(what).encode(), 0)
        yield
    finally:
        os.close(fd)


def _who(what: str) -> str:
    who = f"{getpass.getuser()}@{socket.gethostname()}, pid {os.getpid()}, {what!r}"
    return json.dumps([who, time.strftime("%F %T %Z")])


def _parsed(text: str) -> tuple[str, str]:
    try:
        who, since = json.loads(text)
        return str(who), str(since)
    except (ValueError, TypeError):
        return "somebody", "a moment ago"
