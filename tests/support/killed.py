"""Programs that are killed at random and begun anew."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["Killed", "children_of"]

ROOT = Path(__file__).resolve().parents[2]
STOP_WITHIN_S = 60


def children_of(pid: int) -> list[int]:
    """Return the processes that the main thread of a process has begun."""
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # it has ended
        return []


class Killed:
    """A Python program that is begun anew when it was killed, until it ends by itself or is stopped.

    pids: the processes that were killed. kills: how many.
    """

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], log: Path, *, cwd: Path = ROOT
    ) -> None:
        self._argv, self._env, self._log, self._cwd = argv, env, log, cwd
        self.pids: list[int] = []
        self._begin()

    def _begin(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self._argv], env=self._env, cwd=self._cwd, stdout=log, stderr=log
            )

    @property
    def kills(self) -> int:
        return len(self.pids)

    @property
    def is_done(self) -> bool:
        """True when it has done all its work."""
        return self._process.poll() == 0

    def revive(self) -> None:
        """Begin it anew where it failed, as without its database."""
        if self._process.poll() not in (None, 0):
            self._begin()

    def kill(self) -> None:
        """Kill it, and begin it anew."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
            self.pids.append(self._process.pid)
            self._begin()

    def send(self, number: int) -> None:
        """Send it a signal, such as one that freezes it."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def kill_a_child(self) -> None:
        """Kill one of its own processes, which it begins anew by itself."""
        if children := children_of(self._process.pid):
            pid = random.choice(children)
            os.kill(pid, signal.SIGKILL)
            self.pids.append(pid)

    def handles(self, number: int) -> bool:
        """Return whether it has a handler of this signal, and so is past its start."""
        try:
            status = Path(f"/proc/{self._process.pid}/status").read_text()
        except OSError:  # it has ended
            return False
        caught = next((line for line in status.splitlines() if line.startswith("SigCgt:")), ":0")
        return bool(int(caught.partition(":")[2], 16) >> number - 1 & 1)

    def stop(self) -> int:
        """End it in an orderly way; return its exit code."""
        self._process.terminate()
        return self._process.wait(STOP_WITHIN_S)

    def end(self) -> None:
        """Kill it for good."""
        self._process.kill()
        self._process.wait()
