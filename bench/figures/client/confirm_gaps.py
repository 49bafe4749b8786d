"""The time of a publisher without a confirm when its broker dies, freezes, or is in alarm.

One publisher at a steady rate, through HAProxy to three brokers. Each event affects the broker to which
the publisher is connected at that moment. Its gap is the time from the event to the next confirm, or the
longest one between two confirms after it, if that is longer. At the end an audit by id checks that
nothing is lost.
"""

from __future__ import annotations

import bisect
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.errors import BenchError
from bench.faults import fault_of
from bench.figures.figure import Figure, Maker, at_most
from bench.figures.groups import BEHIND_HAPROXY, Group, Setup, repeat_command
from bench.harness.workers import Workers, at_work, read_progress
from bench.processes import wait_until
from messagebus.recording.manifest import Incident
from ops.local.cluster import LocalCluster

NAME = "client.gap"
SUBSCRIPTION, PUBLISHER = "sink", "publisher-0"
EVENTS = 50
RATE_PER_S = 300.0
BODY_BYTES = 1024
# Seconds of work before an event, and of watching after it.
BEFORE_S, WATCHED_S = 1.0, 4.0
ALIVE_WITHIN_S = 30.0
WHOLE_WITHIN_S = 90.0
S = 1e9


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    what: str
    goal_s: float


KINDS = (
    Kind("kill", "Broker killed (SIGKILL)", 0.15),
    Kind("freeze", "Broker frozen (SIGSTOP)", 1.0),
    Kind("alarm", "Broker in memory alarm", 3.0),
)


def gap_figures(setup: Setup) -> Iterator[Figure]:
    events = setup.part(EVENTS, 3)
    repeat = repeat_command(NAME)
    lost = 0
    for kind in KINDS:
        topic = f"gap{kind.name}"
        gaps, result = _measure(setup, kind, topic, events)
        lost += result
        yield from figures_of(kind, gaps, repeat)
    what = f"Confirmed messages lost in all {len(KINDS)} x {events} events, by their ids"
    yield Maker(NAME, repeat)("lost", what, lost, "messages", (at_most, 0))


def figures_of(kind: Kind, gaps: Sequence[float], repeat: str) -> Iterator[Figure]:
    what = (
        f"{kind.what}: longest time of its publisher without a confirm, worst of {len(gaps)} events"
    )
    rounded = [round(gap, 4) for gap in gaps]
    yield Maker(NAME, repeat)(f"{kind.name}_s", what, rounded, "s", (at_most, kind.goal_s), max)


def gaps_s(confirmed_ns: Sequence[int], events_ns: Sequence[int], watched_s: float) -> list[float]:
    """Return the longest silence after each event. confirmed_ns: sorted.

    A silence that began while the publisher was watched counts whole, even if it ended later.
    Raises BenchError when one never ended.
    """
    found: list[float] = []
    for at_ns in events_ns:
        first = bisect.bisect_right(confirmed_ns, at_ns)
        last = bisect.bisect_right(confirmed_ns, at_ns + int(watched_s * S))
        marks = [at_ns, *confirmed_ns[first : last + 1]]
        if last >= len(confirmed_ns):
            raise BenchError("a publisher had no confirm any more after an event")
        found.append(max(later - earlier for earlier, later in itertools.pairwise(marks)) / S)
    return found


def _measure(setup: Setup, kind: Kind, topic: str, events: int) -> tuple[list[float], int]:
    """Return the gap of each event, and the number of confirmed messages that were never delivered."""
    cluster, incidents = setup.cluster, []
    load = at_work(
        cluster,
        setup.folder / kind.name,
        [f"{topic}/{SUBSCRIPTION}"],
        publishers=1,
        rate_per_s=RATE_PER_S,
        body_bytes=BODY_BYTES,
    )
    with load as clients:
        for number in range(events):
            incidents.append(_event(clients, cluster, kind.name))
            setup.say(f"{kind.what}: event {number + 1} of {events}")
        time.sleep(BEFORE_S)
        clients.finish()
    rows, result = clients.whole(cluster.brokers, incidents, may_lose=True)
    confirmed = sorted(row["confirmed_ns"] for row in rows.published if "confirmed_ns" in row)
    gaps = gaps_s(confirmed, [incident.at_ns for incident in incidents], WATCHED_S)
    return gaps, result.total("lost")


def _event(clients: Workers, cluster: LocalCluster, kind: str) -> Incident:
    """Cause the fault at the publisher's broker, watch the publisher, and end the fault."""
    clients.check()
    cluster.wait_ready(within_s=WHOLE_WITHIN_S)
    time.sleep(BEFORE_S)
    name = _at_broker(clients, cluster)
    fault, at_ns = fault_of(kind, cluster, name), time.monotonic_ns()
    fault.begin()
    time.sleep(WATCHED_S)
    fault.end()
    broker = cluster.node(name).broker
    return Incident(
        kind=fault.cuts or "cut", broker=broker, at_ns=at_ns, done_ns=time.monotonic_ns()
    )


def _at_broker(clients: Workers, cluster: LocalCluster) -> str:
    """Return the broker that confirms the publisher's messages at the moment."""
    before = read_progress(clients.folder)[PUBLISHER].brokers
    found: list[str] = []

    def confirmed_since() -> bool:
        now = read_progress(clients.folder)[PUBLISHER].brokers
        found[:] = [broker for broker, count in now.items() if count > before.get(broker, 0)]
        return len(found) > 0

    wait_until(confirmed_since, within_s=ALIVE_WITHIN_S, what="the publisher has a confirm")
    return next(name for name in cluster.names if cluster.node(name).broker == found[-1])


GROUP = Group(NAME, 3, BEHIND_HAPROXY, gap_figures)
