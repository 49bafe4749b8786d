"""Python programs that are killed, frozen and begun anew, as a supervisor does it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.environment import CHECKOUT

STOP_WITHIN_S = 120


def children_of(pid: int) -> list[int]:
    """Return the processes that the main thread of a process has begun."""
    with contextlib.suppress(OSError):  # it has ended
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


class Killed:
    """A Python program that is begun anew when it was killed, until it ends by itself or is stopped.

    argv: behind the interpreter. setting: an environment variable that gets the name of each start, NAME.1,
    NAME.2, where NAME is that of the log. pids: the processes that were killed. kills: how many.
    """

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        *,
        cwd: Path = CHECKOUT,
        setting: str = "",
    ) -> None:
        self._argv, self._env, self._log, self._cwd = argv, env, log, cwd
        self._setting, self._starts = setting, 0
        self.pids: list[int] = []
        self._begin()

    def _begin(self) -> None:
        self._starts += 1
        env = {**self._env, self._setting: self.name} if self._setting else self._env
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self._argv], env=env, cwd=self._cwd, stdout=log, stderr=log
            )

    @property
    def name(self) -> str:
        """The name of its present start."""
        return f"{self._log.stem}.{self._starts}"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def kills(self) -> int:
        return len(self.pids)

    @property
    def is_done(self) -> bool:
        """True when it has done all its work."""
        return self._process.poll() == 0

    def revive(self) -> bool:
        """Begin it anew where it failed, as without its database. Returns whether it had."""
        has_failed = self._process.poll() not in (None, 0)
        if has_failed:
            self._begin()
        return has_failed

    def kill(self) -> None:
        """Kill it, and begin it anew."""
        if self._process.poll() is None:
            self.pids.append(self._process.pid)
            self.end()
            self._begin()

    def send(self, number: int) -> None:
        """Send it a signal, such as one that freezes it."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def stop(self) -> int:
        """End it in an orderly way; return its exit code."""
        self._process.terminate()
        return self._process.wait(STOP_WITHIN_S)

    def end(self) -> None:
        """Kill it for good."""
        self._process.kill()
        self._process.wait()
