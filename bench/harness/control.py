"""The files that the coordinator and the load processes of a run exchange in its folder.

Each process reports that it is ready. When all are, the coordinator sets the start in wall-clock time, and
each process converts it to its own monotonic clock. Meanwhile each process reports its progress, and the
coordinator may change the rate of a steered load. The coordinator also ends the run. Any host with access to
the folder can join. Files are replaced whole, and there are no connections between processes.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.errors import BenchError
from messagebus.recording.manifest import write_whole

PROFILE, RUN = "profile.json", "run.json"
READY, START, OVER = "ready", "start.json", "over.json"
PROGRESS, RATE = "progress", "rate.json"
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
    write_whole(folder / START, json.dumps(asdict(start)))


def say_over(folder: Path) -> None:
    """End the run: consumers end, and publishers that still run do too."""
    write_whole(folder / OVER, "{}")


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


@dataclass(slots=True)
class Progress:
    """The progress of one publisher or consumer. done: messages that it has sent, or received.

    brokers: ``host:port`` -> messages confirmed or delivered there. attached: broker -> monotonic time since
    which a consumer has a link to it, as far as it reports its links.
    """

    name: str
    done: int = 0
    brokers: dict[str, int] = field(default_factory=dict)
    attached: dict[str, int] = field(default_factory=dict)


def write_progress(folder: Path, progress: Progress) -> None:
    (folder / PROGRESS).mkdir(exist_ok=True)
    write_whole(folder / PROGRESS / f"{progress.name}.json", json.dumps(asdict(progress)))


def read_progress(folder: Path) -> Mapping[str, Progress]:
    """Return name -> last progress; without those that have not written any."""
    files = sorted((folder / PROGRESS).glob("[!.]*.json"))
    found = (Progress(**json.loads(path.read_text())) for path in files)
    return {each.name: each for each in found}


def set_rate(folder: Path, rate_per_s: float) -> None:
    """Set the rate of all publishers of a steered load together."""
    write_whole(folder / RATE, json.dumps(rate_per_s))


def rate_per_s(folder: Path) -> float | None:
    """Return the rate that was set last; None before the first."""
    path = folder / RATE
    return float(json.loads(path.read_text())) if path.exists() else None
