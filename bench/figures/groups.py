"""Means of measuring a group of figures: a cluster, a folder, a number of repetitions, and a size."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.errors import BenchError
from bench.figures.figure import Figure
from messagebus.terminal import QUIET_S, duration
from ops.local.cluster import LocalCluster
from ops.local.single import SingleServer, layout_in

BEHIND_HAPROXY = "HAProxy before three brokers"
DEFAULT_REPEAT = 5
# Of a server beside the brokers.
HOST = "127.0.0.1"
# A quick run shows that everything works; its numbers mean little.
QUICK_PART = 0.1


@dataclass(frozen=True, slots=True)
class Setup:
    """The resources of one group. folder: empty, and removed afterwards. quick: a tenth of everything."""

    folder: Path
    say: Callable[[str], None]
    repeat: int = DEFAULT_REPEAT
    quick: bool = False
    started: LocalCluster | None = None

    @property
    def cluster(self) -> LocalCluster:
        if self.started is None:
            raise BenchError("this group of figures has asked for no cluster")
        return self.started

    def part(self, count: int, least: int = 1) -> int:
        """Return the count, or a tenth of it in a quick run, but not less than `least`."""
        return max(least, round(count * QUICK_PART)) if self.quick else count

    def turns(self) -> Iterator[int]:
        """Yield the number of each repetition. Of long ones, say how many are done, and the time left."""
        began_s = time.monotonic()
        for number in range(self.repeat):
            yield number
            done, took_s = number + 1, time.monotonic() - began_s
            if done < self.repeat and took_s > QUIET_S:
                left_s = took_s / done * (self.repeat - done)
                self.say(f"{done} of {self.repeat} repetitions done, about {duration(left_s)} left")


@dataclass(frozen=True, slots=True)
class Group:
    """A group of figures.

    name: mostly the beginning of its figures' ids. brokers: the number it needs, 0 for no cluster. path:
    whether HAProxy stands between clients and brokers.
    """

    name: str
    brokers: int
    path: str
    measure: Callable[[Setup], Iterator[Figure]]


class Clusters:
    """A cluster that starts when a group needs one, and is kept while the next groups need the same."""

    def __init__(self, folder: Path, network: str, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._network = network
        self._say = say
        self._cluster: LocalCluster | None = None
        self._brokers = 0

    @contextmanager
    def open(self) -> Iterator[Clusters]:
        """Stop and remove the cluster on exit."""
        try:
            yield self
        finally:
            self._stop()

    def setup(self, group: Group, wanted: Setup) -> Setup:
        """Start everything that the group needs, and return its setup."""
        if group.brokers and group.brokers != self._brokers:
            self._stop()
            self._say(f"a cluster of {group.brokers} starts")
            self._cluster = LocalCluster(
                self._folder / f"cluster{group.brokers}",
                group.brokers,
                network=self._network,
                say=self._say,
            )
            self._brokers = group.brokers
            self._cluster.up()
        folder = self._folder / group.name
        folder.mkdir(parents=True)
        return dataclasses.replace(wanted, folder=folder, started=self._cluster)

    def _stop(self) -> None:
        if self._cluster is not None:
            self._cluster.down(wipe=True)
        self._cluster, self._brokers = None, 0


def repeat_command(group: str, repeat: int = 0) -> str:
    """Return the command that repeats the figures of a group."""
    return f"python -m bench figures {group}" + (f" --repeat {repeat}" if repeat else "")


@contextmanager
def server(kind: str, folder: Path) -> Iterator[str]:
    """Start a server (redis, postgresql, mariadb), its files here; give its address with its password."""
    started = SingleServer(layout_in(folder, kind, host=HOST), folder)
    try:
        started.start()
        yield started.url
    finally:
        started.kill()
