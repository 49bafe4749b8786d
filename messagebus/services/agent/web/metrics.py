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


# Name -> help. docs/reference/metrics.md has the same texts, and what is alarming.
GAUGES = {
    "ready": "1 while the agent reports the broker as ready for publishes.",
    "draining": "1 while operators drain the broker.",
    "alarm": "1 during a memory or disk alarm of the broker.",
    "losing": "1 while a policy of the broker can lose messages of the bus.",
    "linked": "1 while the agent has an AMQP connection to the broker.",
    "gate_open": "1 while the gate is open: the broker accepts publishes.",
    "settled": "1 while the broker has the whole topology on disk.",
    "refused": "Names that the broker has with other options than the topology.",
    "events_proven": "1 while the events of the broker reach the agent.",
    "queues_dead": "Queues that neither accept nor deliver messages.",
    "undelivered": "Delayed messages that were due and found no queue.",
    "intact": "1 while the topology on the disk of the agent counts for a majority.",
    "informed": "1 once the agent has read the topology of a majority.",
    "entries_alive": "Topics, queues and subscriptions of the topology.",
    "tombstones": "Deleted names that the topology still stores.",
    "list_generation": "Generation of the consumer list that the agent serves.",
    "clients": "Clients that fetch the consumer list from this agent.",
    "clients_behind": "Clients of this agent that use an older consumer list.",
    "queue_messages": "Messages in the queue, delivered ones without an ack included.",
    "queue_consumers": "Consumers of the queue.",
    "queue_oldest_age_seconds": "Age of the oldest message in the queue: too high where many messages are"
    " rejected or expire, too low for messages that are older than the agent.",
    "disk_free_bytes": "Free disk of the broker, as the broker reports it.",
    "disk_limit_bytes": "Free disk below which the broker raises its alarm.",
    "memory_used_bytes": "Memory of the broker, as the broker reports it.",
    "memory_limit_bytes": "Memory above which the broker raises its alarm.",
    "mirror_copies": "Disks of the mirror that are up to date, of two.",
    "mirror_connected": "1 while both hosts of the mirror are connected.",
    "mirror_alone": "1 after a split brain, or after an operator disconnected the mirror.",
    "certificate_seconds_left": "Time until the certificate of broker and agent, or its authority, expires.",
}
COUNTERS = {
    "task_faults": "Exceptions that ended a task of the agent; the task was started again.",
    "lost": "Queues, bindings and exchanges that vanished from the broker.",
    "dials": "AMQP connections that the agent tried to open.",
    "settles_fast": "Times that the agent forced new queues to disk, by erl_call.",
    "settles_slow": "Times that the agent waited until new queues were on disk.",
    "queues_revived": "Queues that were dead after a boot and that the agent revived.",
    "changes": "Changes of the topology that this agent coordinated.",
    "changes_incomplete": "Of these, changes that did not reach every broker in time.",
    "expired": "Expired subscriptions that the agent deleted.",
    "pulls": "Requests to other agents for their topology.",
    "pulls_failed": "Requests to other agents that failed.",
    "list_faults": "Invalid files of the consumer list.",
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One number. name: of GAUGES or COUNTERS. queue: the queue it is about, "" for none.

    Figures of one name must follow each other.
    """

    name: str
    value: float
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
            labels = ["broker", "queue"] if first.queue else ["broker"]
            family = _family(first.name, labels)
            for figure in (first, *more):
                values = [self._broker, figure.queue] if figure.queue else [self._broker]
                family.add_metric(values, figure.value)
            yield family


def _family(name: str, labels: list[str]) -> CounterMetricFamily | GaugeMetricFamily:
    if name in COUNTERS:
        return CounterMetricFamily(PREFIX + name, COUNTERS[name], labels=labels)
    return GaugeMetricFamily(PREFIX + name, GAUGES[name], labels=labels)


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
        yield Figure("mirror_copies", seen.copies)
        yield Figure("mirror_connected", seen.connected)
        yield Figure("mirror_alone", seen.alone)
