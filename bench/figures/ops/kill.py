"""The longest gaps of publishers and consumers when a broker is killed, from recorded events.

Four publisher and four consumer processes work at a steady rate. Each broker in turn is killed and comes
back. A publisher's gap is the longest time without a confirm while one was awaited. A consumer's gap is the
longest time without a delivery from any broker that was not killed.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from bench.audit import longest_gap
from bench.errors import BenchError
from bench.figures.form import Figure, below
from bench.harness.workers import at_work, open_ended
from bench.rows import Events
from messagebus import BusConfig, declare
from messagebus.recording.manifest import Incident
from ops.local.cluster import LocalCluster

__all__ = ["kill_figures", "longest_silence_ns"]

TOPIC = "kill"
SUBSCRIPTIONS = ("billing", "audit")
PUBLISHERS, READERS = 4, 2
RATE_PER_S = 600.0
BODY_BYTES = 1024
BEFORE_S, AFTER_S = 6.0, 6.0
GOAL_PUBLISHER_S = 1.0
# At 600/s a consumer gets a message every 5 ms. On two shared cores it has silences of 0.2 s without any
# kill (way.kill.consumer_gap_before_s); half a second would be the effect of the kill.
GOAL_CONSUMER_S = 0.5
S = 1_000_000_000
REPEAT = "python -m bench figures way.kill"


def kill_figures(
    cluster: LocalCluster, folder: Path, say: Callable[[str], None]
) -> Iterator[Figure]:
    places = [f"{TOPIC}/{name}" for name in SUBSCRIPTIONS]
    declare(BusConfig.from_env(cluster.client_env()), places)
    profile = open_ended(
        "kill",
        places * READERS,
        publishers=PUBLISHERS,
        rate_per_s=RATE_PER_S,
        body_bytes=BODY_BYTES,
    )
    incidents: list[Incident] = []
    with at_work(profile, folder, cluster.client_env()) as clients:
        for name in cluster.names:
            time.sleep(BEFORE_S)
            at_ns = time.monotonic_ns()
            cluster.kill(name)
            say(f"{name} killed")
            time.sleep(AFTER_S)
            incidents.append(
                Incident(
                    kind="kill",
                    broker=cluster.node(name).broker,
                    at_ns=at_ns,
                    done_ns=time.monotonic_ns(),
                )
            )
            cluster.start(name)
            cluster.wait_ready([name])
            clients.check()
        clients.finish()
    brokers = [cluster.node(name).broker for name in cluster.names]
    _, events, result = clients.judged(brokers, incidents)
    if not result.holds:
        raise BenchError(f"the audit of {folder} does not hold: {'; '.join(result.faults)}")
    yield from figures_of(events, incidents)


def figures_of(events: Events, incidents: list[Incident]) -> Iterator[Figure]:
    """Make the figures: the worst over all kills and all clients."""
    publisher_s = max(_publisher_gap_s(events, incident) for incident in incidents)
    yield Figure(
        id="way.kill.publisher_gap_s",
        what="Broker killed: longest time without a confirm, of any publisher",
        value=publisher_s,
        unit="s",
        repeat=REPEAT,
        **below(GOAL_PUBLISHER_S, publisher_s, "s"),
    )
    consumer_s = max(
        _consumer_gap_s(events, incident, incident.at_ns, incident.done_ns or 0)
        for incident in incidents
    )
    yield Figure(
        id="way.kill.consumer_gap_s",
        what="Broker killed: longest time without a delivery from the others, of any consumer",
        value=consumer_s,
        unit="s",
        repeat=REPEAT,
        **below(GOAL_CONSUMER_S, consumer_s, "s"),
    )
    quiet_s = max(
        _consumer_gap_s(events, incident, incident.at_ns - int((BEFORE_S - 1) * S), incident.at_ns)
        for incident in incidents
    )
    yield Figure(
        id="way.kill.consumer_gap_before_s",
        what="The same consumers and brokers in the seconds before the kills",
        value=quiet_s,
        unit="s",
        repeat=REPEAT,
    )


def longest_silence_ns(times_ns: Iterable[int], from_ns: int, until_ns: int) -> int:
    """Return the longest time between from and until without any of these instants."""
    inside = sorted(at for at in times_ns if from_ns < at < until_ns)
    marks = [from_ns, *inside, until_ns]
    return max(later - earlier for earlier, later in itertools.pairwise(marks))


def _publisher_gap_s(events: Events, incident: Incident) -> float:
    """Return the longest gap from the kill until the broker is started again, with or without a confirm."""
    until_ns = incident.done_ns or incident.at_ns
    gaps = []
    for name in {row["publisher"] for row in events.published}:
        rows = [row for row in events.published if row["publisher"] == name]
        gaps.append(longest_gap(rows, until_ns, incident.at_ns).length_ns)
    return max(gaps) / S


def _consumer_gap_s(events: Events, incident: Incident, from_ns: int, until_ns: int) -> float:
    names = {row["consumer"] for row in events.delivered}
    return (
        max(
            longest_silence_ns(
                (
                    row["received_ns"]
                    for row in events.delivered
                    if row["consumer"] == name and row["broker"] != incident.broker
                ),
                from_ns,
                until_ns,
            )
            for name in names
        )
        / S
    )
