"""The start barrier of load processes: files in the run's folder, so any host with access to it can join.

Each process reports that it is ready. When all are, the coordinator sets the start in wall-clock time, and
each process converts it to its own monotonic clock. The coordinator also ends the run. Files are replaced
whole, and there are no connections between processes.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.errors import BenchError
from bench.manifest import write_atomically

__all__ = ["Start", "is_over", "missing", "say_over", "say_ready", "say_start", "wait_for_start"]

READY, START, OVER = "ready", "start.json", "over.json"
POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The start of the load.

    at_wall_ns: its time. host, wall_minus_monotonic_ns: the coordinator's host and clock.

    Processes of one host share one monotonic clock, so they share one offset too, and latencies
    between them are exact; those of another host read their own wall clock.
    """

    at_wall_ns: int
    host: str
    wall_minus_monotonic_ns: int

    @classmethod
    def soon(cls, after_s: float) -> Start:
        """Return a start in after_s seconds, by this host's clock."""
        offset = time.time_ns() - time.monotonic_ns()
        at_ns = time.monotonic_ns() + offset + int(after_s * 1e9)
        return cls(at_wall_ns=at_ns, host=socket.gethostname(), wall_minus_monotonic_ns=offset)

    def offset_ns(self) -> int:
        """Return the offset from this process's monotonic clock to the wall-clock time of the run."""
        if socket.gethostname() == self.host:
            return self.wall_minus_monotonic_ns
        return time.time_ns() - time.monotonic_ns()


def say_ready(folder: Path, name: str) -> None:
    """Report that this process has connected and may start."""
    (folder / READY).mkdir(exist_ok=True)
    (folder / READY / name).touch()


def missing(folder: Path, names: Iterable[str]) -> list[str]:
    """Return the names that are not ready yet."""
    return [name for name in names if not (folder / READY / name).exists()]


def say_start(folder: Path, start: Start) -> None:
    write_atomically(folder / START, json.dumps(asdict(start)))


def say_over(folder: Path) -> None:
    """End the run: consumers end, and publishers that still run do too."""
    write_atomically(folder / OVER, "{}")


def is_over(folder: Path) -> bool:
    return (folder / OVER).exists()


def wait_for_start(
    folder: Path, *, within_s: float, sleep_s: Callable[[float], None] = time.sleep
) -> Start:
    """Wait for the start. Raises BenchError when it does not come in time, or the run ends before."""
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        if (folder / START).exists():
            return Start(**json.loads((folder / START).read_text()))
        if is_over(folder):
            raise BenchError("the run was over before it had started")
        sleep_s(POLL_S)
    raise BenchError(f"nobody said start within {within_s:.0f} s")
