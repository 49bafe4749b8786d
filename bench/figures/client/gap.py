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

from bench.errors import BenchError
from bench.faults import fault_of
from bench.figures.client.relay import Relay
from bench.figures.form import Figure, at_most
from bench.figures.scene import Group, Scene, repeat_command
from bench.harness.control import read_progress
from bench.harness.workers import Workers, at_work, open_ended
from bench.processes import wait_until
from messagebus import BusConfig, declare
from messagebus.broker import Broker
from messagebus.recording.manifest import Incident
from ops.local.cluster import LocalCluster

__all__ = ["GROUP", "KINDS", "Kind", "figures_of", "gaps_s"]

NAME = "client.gap"
SUBSCRIPTION, PUBLISHER = "sink", "publisher-0"
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
    place = f"{topic}/{SUBSCRIPTION}"
    profile = open_ended(topic, [place], publishers=1, rate_per_s=RATE_PER_S, body_bytes=BODY_BYTES)
    incidents = []
    with Relay(balancer.host, balancer.port) as relay:
        is_silence = kind.name == "silence"
        strike = partial(_silence, relay) if is_silence else partial(_strike, kind)
        env = {"MESSAGEBUS_BROKER": relay.address} if is_silence else {}
        with at_work(profile, scene.folder / kind.name, cluster.client_env() | env) as clients:
            for number in range(events):
                incidents.append(_event(clients, cluster, strike))
                scene.say(f"{kind.what}: event {number + 1} of {events}")
            time.sleep(BEFORE_S)
            clients.finish()
    return _judged(clients, cluster, incidents)


def _event(
    clients: Workers, cluster: LocalCluster, strike: Callable[[LocalCluster, str], Incident]
) -> Incident:
    """Cause the fault at the publisher's broker, watch the publisher, and end the fault."""
    clients.check()
    cluster.wait_ready(within_s=WHOLE_WITHIN_S)
    time.sleep(BEFORE_S)
    return strike(cluster, _at_broker(clients, cluster))


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


def _at_broker(clients: Workers, cluster: LocalCluster) -> str:
    """Return the broker that confirms the publisher's messages at the moment."""
    before = read_progress(clients.folder)[PUBLISHER].brokers
    found: list[str] = []

    def confirmed_since() -> bool:
        now = read_progress(clients.folder)[PUBLISHER].brokers
        found[:] = [broker for broker, count in now.items() if count > before.get(broker, 0)]
        return len(found) > 0

    wait_until(confirmed_since, within_s=FOUND_WITHIN_S, what="the publisher has a confirm")
    return next(name for name in cluster.names if cluster.node(name).broker == found[-1])


def _judged(
    clients: Workers, cluster: LocalCluster, incidents: Sequence[Incident]
) -> tuple[list[float], int]:
    """Return the gaps and the number of lost messages. Raises BenchError for any other fault of the audit."""
    brokers = [cluster.node(name).broker for name in cluster.names]
    _, rows, result = clients.judged(brokers, incidents)
    lost = result.total("lost")
    if not lost and not result.holds:
        raise BenchError(f"the audit of {clients.folder} does not hold: {'; '.join(result.faults)}")
    confirmed = sorted(row["confirmed_ns"] for row in rows.published if "confirmed_ns" in row)
    return gaps_s(confirmed, [incident.at_ns for incident in incidents], WATCHED_S), lost


GROUP = Group(NAME, 3, "HAProxy before three brokers", gap_figures)
