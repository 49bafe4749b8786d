"""Promise: messages confirmed with durability page-cache are there after a kill -9, even of a new queue."""

from __future__ import annotations

import pytest

from messagebus import (
    BusConfig,
    Consumer,
    Durability,
    Outcome,
    Publisher,
    Queue,
    Subscription,
    Topic,
    declare,
)
from ops.local.cluster import LocalCluster
from tests.support.faults import bus_config, direct

MESSAGES = 100
DEADLINE_S = 30.0


@pytest.mark.guarantee("durability-by-name")
@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_a_confirm_of_page_cache_survives_a_kill_of_the_broker_at_once(
    broken: LocalCluster, topic: str, kind: str
) -> None:
    """Classic queues are not settled: nothing waits between their declaration and the kill."""
    weak = Topic(topic, Durability.PAGE_CACHE)
    bus, own = bus_config(broken), Queue(topic, Durability.PAGE_CACHE)
    with Publisher(direct(broken, "mb1")) as publisher:
        declare(bus, [own] if kind == "queue" else [weak, Subscription(weak, "all")])
        published = publisher.send_many(own if kind == "queue" else weak, [b"x"] * MESSAGES)
        broken.kill("mb1")
    promised = {
        each.message_id
        for each in published
        if each.outcome is Outcome.CONFIRMED and each.broker == broken.node("mb1").broker
    }
    assert promised
    broken.start("mb1")
    broken.wait_ready()
    assert promised - taken(bus, own if kind == "queue" else weak, len(promised)) == set()


def taken(bus: BusConfig, destination: Topic | Queue, count: int) -> set[str]:
    """Receive until this many different ids have come; return them."""
    ids = set[str]()
    name = "all" if isinstance(destination, Topic) else ""
    with Consumer(bus, destination, subscription=name) as consumer:
        while len(ids) < count:
            delivery = consumer.receive(DEADLINE_S)
            assert delivery is not None
            ids.add(delivery.message.message_id)
            consumer.ack(delivery)
    return ids
