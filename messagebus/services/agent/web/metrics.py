"""Figures of the agent for Prometheus, read from a snapshot at each scrape; the disk's mirror among them.

The mirror is shown as DRBD 8.4 has it in /proc/drbd, in three numbers for an alert. Nothing is decided by
them: `ops storage` tells what to do.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

PREFIX = "messagebus_agent_"
PROC = Path("/proc/drbd")
_LINE = r"^\s*{minor}: cs:(\w+)(?: ro:\w+/\w+ ds:(\w+)/(\w+))?"


@dataclass(frozen=True, slots=True)
class Figure:
    """One number. counter: it only grows while the agent runs. queue: the queue it is about, "" for none.

    Figures of one name must follow each other.
    """

    name: str
    help: str
    value: float
    counter: bool = False
    queue: str = ""


class Metrics:
    """A renderer of the figures that `figures` yields, labelled with the broker's name."""

    def __init__(self, broker: str, figures: Callable[[], Iterable[Figure]]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Figures(broker, figures))

    def text(self) -> bytes:
        """Return the figures in Prometheus' text format."""
        return generate_latest(self._registry)


class _Figures(Collector):
    def __init__(self, broker: str, figures: Callable[[], Iterable[Figure]]) -> None:
        self._broker = broker
        self._figures = figures

    def describe(self) -> list[Metric]:
        """Return nothing: otherwise the registry collects once while the agent is half built."""
        return []

    def collect(self) -> Iterator[Metric]:
        for _name, same in itertools.groupby(self._figures(), key=lambda figure: figure.name):
            first, *more = same
            kind = CounterMetricFamily if first.counter else GaugeMetricFamily
            labels = ["broker", "queue"] if first.queue else ["broker"]
            family = kind(PREFIX + first.name, first.help, labels=labels)
            for figure in (first, *more):
                values = [self._broker, figure.queue] if figure.queue else [self._broker]
                family.add_metric(values, figure.value)
            yield family


@dataclass(frozen=True, slots=True)
class MirrorState:
    """The state of a DRBD mirror. copies: disks that are up to date, 0 to 2; 1 is a single copy.

    connected: the hosts talk. alone: this host does not even try to: after a split brain, or by order.
    """

    copies: int
    connected: bool
    alone: bool


def look(device: str, proc: Path = PROC) -> MirrorState | None:
    """Read the state of the device of this path, ``/dev/drbd0``. None: DRBD knows no such device."""
    try:
        return read(proc.read_text(), device)
    except OSError:
        return None


def read(text: str, device: str) -> MirrorState | None:
    minor = re.search(r"\d+$", device)
    found = re.search(_LINE.format(minor=minor[0] if minor else "-"), text, re.MULTILINE)
    if not found or found[2] is None:
        return None
    link, *disks = found.groups()
    return MirrorState(
        copies=disks.count("UpToDate"),
        connected=link not in ("StandAlone", "WFConnection", "Unconnected", "Disconnecting"),
        alone=link == "StandAlone",
    )


def mirror_of(device: str, proc: Path = PROC) -> MirrorState | None:
    """Return the mirror's state, None for no device; a device that DRBD does not know has no copy."""
    if not device:
        return None
    return look(device, proc) or MirrorState(copies=0, connected=False, alone=False)


def figures_of_mirror(device: str, proc: Path = PROC) -> Iterator[Figure]:
    """Yield the mirror's figures, none for no device."""
    if seen := mirror_of(device, proc):
        yield Figure("mirror_copies", "Disks that are up to date.", seen.copies)
        yield Figure("mirror_connected", "1 while both hosts talk.", seen.connected)
        yield Figure("mirror_alone", "1 after a split brain, or when cut by order.", seen.alone)
