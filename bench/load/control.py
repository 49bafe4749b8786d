"""The files that a coordinator and its load processes exchange in the folder of the run.

``rate.json`` is written by the coordinator and read by every publisher; ``progress/NAME.json`` is
written by each load process and read by the coordinator. Both are replaced whole.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.manifest import write_atomically

__all__ = ["Progress", "RateFile", "read_progress", "rss_bytes", "set_rate", "write_progress"]

RATE_FILE = "rate.json"
PROGRESS_FOLDER = "progress"
STATES = ("starting", "running", "stopping", "ended")


def set_rate(folder: Path, rate_per_s: float) -> None:
    """Set the rate of all publishers together."""
    write_atomically(folder / RATE_FILE, json.dumps({"rate_per_s": rate_per_s}))


class RateFile:
    """A reader that notices changes of the rate. share: the number of publishers that divide it."""

    def __init__(self, folder: Path, *, share: int) -> None:
        self._path = folder / RATE_FILE
        self._share = share
        self._seen: tuple[int, int] | None = None

    def changed(self) -> float | None:
        """Return the rate of one publisher; None if the file is invalid, or not new since the last call."""
        try:
            stat = self._path.stat()
            if (stat.st_ino, stat.st_mtime_ns) == self._seen:
                return None
            rate = float(json.loads(self._path.read_text())["rate_per_s"]) / self._share
        except (OSError, ValueError, KeyError, TypeError):
            return None
        self._seen = (stat.st_ino, stat.st_mtime_ns)
        return rate if 0 <= rate < float("inf") else None


@dataclass(slots=True)
class Progress:
    """The progress of a load process. brokers: ``host:port`` -> messages confirmed or delivered there.

    done: messages with an outcome, or deliveries answered. bad: outcomes other than confirmed, or stale
    answers. held: publishes or deliveries still open. attached: broker -> time since which a consumer has a
    link to it. at_ns: time of writing. Both times are monotonic.
    """

    name: str
    state: str = "starting"
    done: int = 0
    bad: int = 0
    held: int = 0
    brokers: dict[str, int] = field(default_factory=dict)
    attached: dict[str, int] = field(default_factory=dict)
    at_ns: int = 0
    rss_bytes: int = 0
    cpu_s: float = 0.0
    latency_ms: float = 0.0

    def count(self, broker: str) -> None:
        self.done += 1
        self.brokers[broker] = self.brokers.get(broker, 0) + 1


def write_progress(folder: Path, progress: Progress) -> None:
    """Write this process's progress, with its current memory and CPU time."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    progress.at_ns = time.monotonic_ns()
    progress.rss_bytes = rss_bytes()
    progress.cpu_s = usage.ru_utime + usage.ru_stime
    write_atomically(
        folder / PROGRESS_FOLDER / f"{progress.name}.json", json.dumps(dataclasses.asdict(progress))
    )


def read_progress(folder: Path) -> Mapping[str, Progress]:
    """Return name -> the last progress of each load process; without those that have not written any."""
    found: dict[str, Progress] = {}
    for path in sorted((folder / PROGRESS_FOLDER).glob("*.json")):
        if path.name.startswith("."):
            continue
        progress = Progress(**json.loads(path.read_text()))
        found[progress.name] = progress
    return found


def rss_bytes() -> int:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
