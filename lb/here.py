"""A balancer of this machine: files, processes and the lock, by the system's own means."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inventory.inventory import Balancer
from lb.errors import ApplyFailed
from lb.place import HAPROXY, is_our_master

__all__ = ["Here", "write_private"]

CHECK_WITHIN_S = 10.0
"""For `haproxy -c`; host names that do not resolve take it longest."""
SAVE_WAITS_S = 20.0
"""For an `apply` of somebody else to end: longer than one may take."""
POLL_S = 0.05


class Here:
    """This machine, as a `Place`."""

    def read(self, path: Path) -> str:
        try:
            # What is damaged is compared and looked through, and never stops a start.
            return path.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def write(self, path: Path, text: str) -> None:
        write_private(path, text)

    def complaint(self, text: str, config: Path) -> str:
        # In a folder of its own: HAProxy would find its state file by the same name beside it.
        with tempfile.TemporaryDirectory(prefix="messagebus-lb-") as folder:
            candidate = Path(folder) / config.name
            write_private(candidate, text)
            # Not "-q": then it is silent about certificates that it cannot load.
            argv = [HAPROXY, "-c", "-f", str(candidate)]
            try:
                done = subprocess.run(
                    argv, capture_output=True, text=True, timeout=CHECK_WITHIN_S, check=False
                )
            except (OSError, subprocess.TimeoutExpired) as fault:
                raise ApplyFailed(f"cannot run {HAPROXY} -c: {fault}") from fault
        return done.stderr if done.returncode else ""

    def signal_master(self, balancer: Balancer, number: signal.Signals | None) -> bool:
        """The process is held by a descriptor while it is looked at."""
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
            until = time.monotonic() + SAVE_WAITS_S
            while not _locked(file.fileno()):
                if time.monotonic() > until:
                    raise ApplyFailed(f"somebody else applies a configuration ({path})")
                time.sleep(POLL_S)
            yield balancer.socket


def write_private(path: Path, text: str) -> None:
    """Replace a file at once and for good; only its owner can read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
