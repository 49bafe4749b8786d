"""The time until every consumer has attached to a new broker of the list."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from bench.faults import push_list
from bench.figures.form import Figure, below
from bench.processes import wait_until
from messagebus import BrokerList, BusConfig, Consumer, declare
from ops.local.cluster import LocalCluster

__all__ = ["attach_figures", "without"]

TOPIC, SUBSCRIPTION = "attach", "sink"
CONSUMERS = 10
TIMES = 5
START_S = 60.0
WITHIN_S = 60.0
GOAL_S = 2.0
REPEAT = "python -m bench figures way.attach"


def attach_figures(cluster: LocalCluster, say: Callable[[str], None]) -> Iterator[Figure]:
    """Remove the last broker from the list and add it again, TIMES times; make the figures."""
    bus = BusConfig.from_env(cluster.client_env())
    declare(bus, [f"{TOPIC}/{SUBSCRIPTION}"])
    broker = cluster.node(cluster.names[-1]).broker
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
            say(f"time {number + 1} of {TIMES}: all attached after {took_s[-1]:.3f} s")
    yield Figure(
        id="way.attach.s",
        what=f"New broker in the list until all of {CONSUMERS} consumers are attached, "
        f"slowest of {TIMES} times",
        value=max(took_s),
        unit="s",
        repeat=REPEAT,
        **below(GOAL_S, max(took_s), "s"),
    )


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
