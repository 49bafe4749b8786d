"""The time of a publisher without a confirm when its broker dies, freezes, is in alarm, or goes silent.

One publisher at a steady rate, through HAProxy to three brokers. Each event affects the broker to which
the publisher is connected at that moment. Its gap is the time from the event to the next confirm, or the
longest one between two confirms after it, if that is longer. For packets that vanish without a reset, a
relay before HAProxy keeps the connection open and passes nothing. At the end an audit by id checks that
nothing is lost.
"""

from __future__ import annotations

import bisect
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.audit import ALLOWED, audit
from bench.errors import BenchError
from bench.faults import fault_of
from bench.figures.client.relay import Relay
from bench.figures.crew import Crew, crew, wait_until
from bench.figures.form import Figure, at_most
from bench.figures.scene import Group, Scene, repeat_command
from bench.load.control import read_progress
from bench.manifest import ConsumerEntry, Incident, Manifest
from bench.rows import read_events
from messagebus import BusConfig, declare
from messagebus.broker import Broker
from messagebus.recording.files import anchor_now
from ops.local.cluster import LocalCluster

__all__ = ["GROUP", "KINDS", "Kind", "figures_of", "gaps_s"]

NAME = "client.gap"
SUBSCRIPTION, PUBLISHER, CONSUMER = "sink", "p1", "c1"
EVENTS = 50
RATE_PER_S = 300.0
BODY_BYTES = 1024
# Seconds of work before an event, and of watching after it.
BEFORE_S, WATCHED_S = 1.0, 4.0
FOUND_WITHIN_S = 30.0
WHOLE_WITHIN_S = 90.0
S = 1e9


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    what: str
    goal_s: float


KINDS = (
    Kind("kill", "Broker killed (SIGKILL)", 0.25),
    Kind("freeze", "Broker frozen (SIGSTOP)", 3.0),
    Kind("alarm", "Broker in memory alarm", 3.0),
    Kind("silence", "Packets of the link dropped without a reset", 3.0),
)


def gap_figures(scene: Scene) -> Iterator[Figure]:
    events = scene.part(EVENTS, 3)
    repeat = repeat_command(NAME)
    lost = 0
    for kind in KINDS:
        topic = f"gap{kind.name}"
        declare(BusConfig.from_env(scene.cluster.client_env()), [f"{topic}/{SUBSCRIPTION}"])
        gaps, result = _measure(scene, kind, topic, events)
        lost += result
        yield from figures_of(kind, gaps, repeat)
    yield Figure(
        id=f"{NAME}.lost",
        what=f"Confirmed messages lost in all {len(KINDS)} x {events} events, by their ids",
        value=lost,
        unit="messages",
        repeat=repeat,
        **at_most(0, lost, "messages"),
    )


def figures_of(kind: Kind, gaps: Sequence[float], repeat: str) -> Iterator[Figure]:
    yield Figure(
        id=f"{NAME}.{kind.name}_s",
        what=f"{kind.what}: longest time of its publisher without a confirm, "
        f"worst of {len(gaps)} events",
        value=max(gaps),
        unit="s",
        repeat=repeat,
        samples=tuple(round(gap, 4) for gap in gaps),
        **at_most(kind.goal_s, max(gaps), "s"),
    )


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


def _measure(scene: Scene, kind: Kind, topic: str, events: int) -> tuple[list[float], int]:
    """Return the gap of each event, and the number of confirmed messages that were never delivered."""
    cluster = scene.cluster
    balancer = Broker.parse(cluster.broker)
    with Relay(balancer.host, balancer.port) as relay:
        clients = Crew(
            cluster,
            scene.folder / kind.name,
            run_id=topic,
            topic=topic,
            publishers=(PUBLISHER,),
            consumers={CONSUMER: SUBSCRIPTION},
            size=BODY_BYTES,
            env={"MESSAGEBUS_BROKER": relay.address} if kind.name == "silence" else {},
        )
        with crew(clients):
            start_ns = time.monotonic_ns()
            clients.set_rate(RATE_PER_S)
            strike = partial(_silence, relay) if kind.name == "silence" else partial(_strike, kind)
            incidents = []
            for number in range(events):
                incidents.append(_event(clients, cluster, strike))
                scene.say(f"{kind.what}: event {number + 1} of {events}")
            time.sleep(BEFORE_S)
            clients.finish()
    return _judged(clients.folder, cluster, topic, start_ns, incidents)


def _event(
    clients: Crew, cluster: LocalCluster, strike: Callable[[LocalCluster, str], Incident]
) -> Incident:
    """Cause the fault at the publisher's broker, watch the publisher, and end the fault."""
    clients.check()
    cluster.wait_ready(within_s=WHOLE_WITHIN_S)
    time.sleep(BEFORE_S)
    return strike(cluster, _at_broker(clients.folder, cluster))


def _strike(kind: Kind, cluster: LocalCluster, name: str) -> Incident:
    fault = fault_of(kind.name, cluster, name)
    at_ns = time.monotonic_ns()
    fault.begin()
    time.sleep(WATCHED_S)
    fault.end()
    return _incident(cluster, name, at_ns, fault.cuts or "cut")


def _silence(relay: Relay, cluster: LocalCluster, name: str) -> Incident:
    at_ns = time.monotonic_ns()
    relay.swallow()
    time.sleep(WATCHED_S)
    relay.heal()
    return _incident(cluster, name, at_ns, "cut")


def _incident(cluster: LocalCluster, name: str, at_ns: int, kind: str) -> Incident:
    broker = cluster.node(name).broker
    return Incident(kind=kind, broker=broker, at_ns=at_ns, done_ns=time.monotonic_ns())


def _at_broker(folder: Path, cluster: LocalCluster) -> str:
    """Return the broker that confirms the publisher's messages at the moment."""
    before = read_progress(folder)[PUBLISHER].brokers
    found: list[str] = []

    def confirmed_since() -> bool:
        now = read_progress(folder)[PUBLISHER].brokers
        found[:] = [broker for broker, count in now.items() if count > before.get(broker, 0)]
        return len(found) > 0

    wait_until(confirmed_since, within_s=FOUND_WITHIN_S, what="the publisher has a confirm")
    return next(name for name in cluster.names if cluster.node(name).broker == found[-1])


def _judged(
    folder: Path, cluster: LocalCluster, topic: str, start_ns: int, incidents: Sequence[Incident]
) -> tuple[list[float], int]:
    """Return the gaps and the number of lost messages. Raises BenchError for any other fault of the audit."""
    manifest = Manifest(
        run_id=topic,
        topics={topic: (SUBSCRIPTION,)},
        brokers=tuple(cluster.node(name).broker for name in cluster.names),
        start_ns=start_ns,
        end_ns=time.monotonic_ns(),
        anchor=anchor_now("coordinator"),
        publishers=(PUBLISHER,),
        consumers=(ConsumerEntry(name=CONSUMER, subscription=SUBSCRIPTION),),
        incidents=tuple(incidents),
        complete=True,
    )
    manifest.save(folder)
    rows = read_events(folder, manifest)
    result = audit(manifest, rows, ALLOWED)
    lost = result.total("lost")
    if not lost and not result.holds:
        raise BenchError(f"the audit of {folder} does not hold: {'; '.join(result.faults)}")
    confirmed = sorted(row["confirmed_ns"] for row in rows.published if "confirmed_ns" in row)
    return gaps_s(confirmed, [incident.at_ns for incident in incidents], WATCHED_S), lost


GROUP = Group(NAME, 3, "HAProxy before three brokers", gap_figures)
