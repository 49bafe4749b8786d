"""Where a balancer runs: what `lb.apply` needs of that machine, be it this one or one behind SSH."""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from inventory.inventory import Balancer

__all__ = ["HAPROXY", "Place", "is_our_master"]

HAPROXY = "/usr/sbin/haproxy"


class Place(Protocol):
    """Raises BalancerUnreachable where the machine cannot be reached."""

    def read(self, path: Path) -> str:
        """A file's text; "" where there is none."""

    def write(self, path: Path, text: str) -> None:
        """Replace a file at once and for good; only its owner can read it."""

    def complaint(self, text: str, config: Path) -> str:
        """What HAProxy has against a configuration that would go to this path; "" for nothing."""

    def signal_master(self, balancer: Balancer, number: signal.Signals | None) -> bool:
        """Send a signal to our master, none with None. False when it does not run."""

    def locked(self, balancer: Balancer) -> AbstractContextManager[Path]:
        """Be the one writer of configuration and state, and have the admin socket on this machine.

        Raises ApplyFailed when another one does not end in time.
        """


def is_our_master(cmdline: bytes, config: Path) -> bool:
    """Whether a process's command line is that of a HAProxy with this configuration.

    A pid file may outlive its process, and its number may belong to another one by now.
    """
    arguments = cmdline.split(b"\0")
    return arguments[0].endswith(b"haproxy") and str(config).encode() in arguments
