"""The rate of safe publishes of one process, against pika's BlockingConnection with confirms.

Both publish persistent, mandatory messages of 1 KB through HAProxy into the same topic with one
subscription (a quorum queue). Both are counted at their confirms. They take turns in one process, so that
other load of the machine affects both. The queue is emptied before each turn.
"""

from __future__ import annotations

import concurrent.futures
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.errors import BenchError
from bench.figures.form import Figure, at_least
from bench.systems.pika_blocking import PikaBlocking
from messagebus import BusConfig, Outcome, Publisher, Subscription, Topic, declare
from ops.local.cluster import LocalCluster

__all__ = ["Turn", "measure", "publish_figures"]

BODY_BYTES = 1024
TOPIC, SUBSCRIPTION = "figures", "sink"
# A turn of each lasts some 2 s: long against the window, short against changes of the machine's load.
OURS_PER_TURN = 20_000
PEERS_PER_TURN = 1_500
WARM_UP = 500
TURNS = 5
GOAL_RATIO = 8.0
REPEAT = "python -m bench figures way.publish"


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn. rate_per_s: confirmed messages; cpu_us: CPU time of this process per message."""

    rate_per_s: float
    cpu_us: float


def measure(publish_all: Callable[[int], None], count: int) -> Turn:
    """Time the publishing of `count` messages, until the last is confirmed."""
    cpu_s, began_s = time.process_time(), time.perf_counter()
    publish_all(count)
    took_s = time.perf_counter() - began_s
    return Turn(count / took_s, (time.process_time() - cpu_s) / count * 1e6)


def publish_figures(cluster: LocalCluster, say: Callable[[str], None]) -> Iterator[Figure]:
    bus = BusConfig.from_env(cluster.client_env())
    subscription = Subscription(Topic(TOPIC), SUBSCRIPTION)
    declare(bus, [str(subscription)])
    body = os.urandom(BODY_BYTES)
    ours: list[Turn] = []
    peers: list[Turn] = []
    for number in range(TURNS):
        _purge(cluster, subscription)
        with Publisher(bus) as publisher:
            ours.append(_our_turn(publisher, body))
        _purge(cluster, subscription)
        with PikaBlocking(bus, subscription.topic) as peer:
            peers.append(_peer_turn(peer, body))
        say(
            f"turn {number + 1} of {TURNS}: ours {ours[-1].rate_per_s:,.0f}/s, "
            f"pika {peers[-1].rate_per_s:,.0f}/s"
        )
    _purge(cluster, subscription)
    yield from figures_of(ours, peers)


def figures_of(ours: list[Turn], peers: list[Turn]) -> Iterator[Figure]:
    """Make the figures: medians over the turns, and the ratio of the medians."""
    our_rate = statistics.median(turn.rate_per_s for turn in ours)
    peer_rate = statistics.median(turn.rate_per_s for turn in peers)
    ratio = our_rate / peer_rate
    yield Figure(
        id="way.publish.rate",
        what="Safe publishes of 1 KB through HAProxy, pipelined, one process",
        value=our_rate,
        unit="messages/s",
        repeat=REPEAT,
    )
    yield Figure(
        id="way.publish.pika_rate",
        what="The same with pika's BlockingConnection and confirms",
        value=peer_rate,
        unit="messages/s",
        repeat=REPEAT,
    )
    yield Figure(
        id="way.publish.ratio",
        what="How many times faster than pika's BlockingConnection",
        value=ratio,
        unit="times",
        repeat=REPEAT,
        **at_least(GOAL_RATIO, ratio, "times"),
    )
    for name, what, turns in (
        ("cpu_us", "CPU time of the publishing process per message", ours),
        ("pika_cpu_us", "The same with pika's BlockingConnection", peers),
    ):
        yield Figure(
            id=f"way.publish.{name}",
            what=what,
            value=statistics.median(turn.cpu_us for turn in turns),
            unit="us",
            repeat=REPEAT,
        )


def _our_turn(publisher: Publisher, body: bytes) -> Turn:
    def publish_all(count: int) -> None:
        futures = [publisher.submit(TOPIC, body) for _ in range(count)]
        concurrent.futures.wait(futures)
        bad = sum(future.result().outcome is not Outcome.CONFIRMED for future in futures)
        if bad:
            raise BenchError(f"{bad} of {count} publishes were not confirmed")

    publish_all(WARM_UP)
    return measure(publish_all, OURS_PER_TURN)


def _peer_turn(peer: PikaBlocking, body: bytes) -> Turn:
    def publish_all(count: int) -> None:
        for _ in range(count):
            peer.publish(body)

    publish_all(WARM_UP // 5)
    return measure(publish_all, PEERS_PER_TURN)


def _purge(cluster: LocalCluster, subscription: Subscription) -> None:
    """Empty the queue, so that it does not grow from turn to turn."""
    queue = subscription.amqp_queue.replace("/", "%2F")
    for name in cluster.names:
        with cluster.management(name) as management:
            management.delete(f"/api/queues/%2F/{queue}/contents").raise_for_status()
