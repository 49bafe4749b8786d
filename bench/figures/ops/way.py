"""The times until clients have noticed a new broker, and a killed one.

way.attach: the last broker leaves the list and comes back, until every consumer has attached to it.
way.kill: four publisher and four consumer processes work at a steady rate, and each broker in turn is killed
and comes back. A publisher's gap is the longest time without a confirm while one was awaited. A consumer's
gap is the longest time without a delivery from any broker that was not killed.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack

from bench.audit import longest_gap
from bench.faults import push_list
from bench.figures.form import Figure, Maker, below
from bench.figures.scene import BEHIND_HAPROXY, Group, Scene, repeat_command
from bench.harness.workers import at_work
from bench.processes import wait_until
from bench.rows import Events
from messagebus import BrokerList, BusConfig, Consumer, declare
from messagebus.recording.manifest import Incident

ATTACHED = "way.attach"
TOPIC, SUBSCRIPTION = "attach", "sink"
CONSUMERS = 10
TIMES = 5
START_S = 60.0
WITHIN_S = 60.0
GOAL_S = 2.0


def attach_figures(scene: Scene) -> Iterator[Figure]:
    """Remove the last broker from the list and add it again, TIMES times; make the figures."""
    cluster = scene.cluster
    bus = BusConfig.from_env(cluster.client_env())
    declare(bus, [f"{TOPIC}/{SUBSCRIPTION}"])
    broker = cluster.brokers[-1]
    whole = cluster.consumer_list()
    took_s: list[float] = []
    with ExitStack() as stack:
        consumers = [_consumer(bus, number, stack) for number in range(CONSUMERS)]
        generation = whole.generation
        for number in range(TIMES):
            push_list(cluster, without(whole, broker, generation + 1))
            _wait(lambda: all(not _attached(each, broker) for each in consumers), "letting go")
            generation += 2
            began_s = time.monotonic()
            push_list(cluster, dataclasses.replace(whole, generation=generation))
            _wait(lambda: all(_attached(each, broker) for each in consumers), "attaching")
            took_s.append(time.monotonic() - began_s)
            scene.say(f"time {number + 1} of {TIMES}: all attached after {took_s[-1]:.3f} s")
    what = (
        f"New broker in the list until all of {CONSUMERS} consumers are attached, slowest of {TIMES} "
        "times"
    )
    make = Maker(ATTACHED, repeat_command(ATTACHED))
    yield make("s", what, max(took_s), "s", (below, GOAL_S))


def without(listed: BrokerList, broker: str, generation: int) -> BrokerList:
    """Return the list without one broker, with the given generation."""
    left = tuple(entry for entry in listed if entry.broker.name != broker)
    return dataclasses.replace(listed, listed=left, generation=generation)


def _consumer(bus: BusConfig, number: int, stack: ExitStack) -> Consumer:
    named = dataclasses.replace(bus, client_id=f"attach{number}")
    consumer = Consumer(named, TOPIC, subscription=SUBSCRIPTION)
    consumer.start(require="all", timeout_s=START_S)
    stack.callback(consumer.stop)
    return consumer


def _attached(consumer: Consumer, broker: str) -> bool:
    found = consumer.stats().brokers.get(broker)
    return found is not None and found.state == "open"


def _wait(condition: Callable[[], bool], what: str) -> None:
    wait_until(condition, within_s=WITHIN_S, what=what)


ATTACH = Group(ATTACHED, 3, BEHIND_HAPROXY, attach_figures)

KILLED = "way.kill"
PLACES = ("kill/billing", "kill/audit")
PUBLISHERS, READERS = 4, 2
RATE_PER_S = 600.0
BODY_BYTES = 1024
BEFORE_S, AFTER_S = 6.0, 6.0
GOAL_PUBLISHER_S = 1.0
# At 600/s a consumer gets a message every 5 ms. On two shared cores it has silences of 0.2 s without any
# kill (way.kill.consumer_gap_before_s); half a second would be the effect of the kill.
GOAL_CONSUMER_S = 0.5
S = 1_000_000_000


def kill_figures(scene: Scene) -> Iterator[Figure]:
    cluster = scene.cluster
    incidents: list[Incident] = []
    load = at_work(
        cluster,
        scene.folder / "load",
        PLACES * READERS,
        publishers=PUBLISHERS,
        rate_per_s=RATE_PER_S,
        body_bytes=BODY_BYTES,
    )
    with load as clients:
        for name, broker in zip(cluster.names, cluster.brokers, strict=True):
            time.sleep(BEFORE_S)
            at_ns = time.monotonic_ns()
            cluster.kill(name)
            scene.say(f"{name} killed")
            time.sleep(AFTER_S)
            done_ns = time.monotonic_ns()
            incidents.append(Incident(kind="kill", broker=broker, at_ns=at_ns, done_ns=done_ns))
            cluster.start(name)
            cluster.wait_ready([name])
            clients.check()
        clients.finish()
    events, _ = clients.whole(cluster.brokers, incidents)
    yield from figures_of(events, incidents)


def figures_of(events: Events, incidents: list[Incident]) -> Iterator[Figure]:
    """Make the figures: the worst over all kills and all clients."""
    make = Maker(KILLED, repeat_command(KILLED))
    publisher_s = max(_publisher_gap_s(events, incident) for incident in incidents)
    what = "Broker killed: longest time without a confirm, of any publisher"
    yield make("publisher_gap_s", what, publisher_s, "s", (below, GOAL_PUBLISHER_S))
    consumer_s = max(
        _consumer_gap_s(events, incident, incident.at_ns, incident.done_ns or 0)
        for incident in incidents
    )
    what = "Broker killed: longest time without a delivery from the others, of any consumer"
    yield make("consumer_gap_s", what, consumer_s, "s", (below, GOAL_CONSUMER_S))
    quiet_s = max(
        _consumer_gap_s(events, incident, incident.at_ns - int((BEFORE_S - 1) * S), incident.at_ns)
        for incident in incidents
    )
    what = "The same consumers and brokers in the seconds before the kills"
    yield make("consumer_gap_before_s", what, quiet_s, "s")


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
    others = [row for row in events.delivered if row["broker"] != incident.broker]
    gaps = []
    for name in {row["consumer"] for row in events.delivered}:
        times = (row["received_ns"] for row in others if row["consumer"] == name)
        gaps.append(longest_silence_ns(times, from_ns, until_ns))
    return max(gaps) / S


KILL = Group(KILLED, 3, BEHIND_HAPROXY, kill_figures)
