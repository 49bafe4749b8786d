"""Promises of a consumer while nothing is broken but single connections."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from messagebus import (
    AlreadySettled,
    BusConfig,
    Consumer,
    ConsumerConfig,
    Delivery,
    NotReady,
    Publisher,
)
from ops.local.cluster import LocalCluster
from tests.support.eventually import FACTOR, eventually
from tests.support.faults import close_connections, direct
from tests.support.load import created

READY_WITHIN_S = 60.0
NOTHING_WITHIN_S = 1.0
EACH = 30
HANDED_OUT_MAX = 10


@pytest.mark.guarantee("ack-to-its-own-link")
def test_an_ack_goes_to_the_link_that_delivered_once_or_nowhere(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    _publish(cluster, f"queue:{topic}", ["mb1"], 1)
    bus = replace(bus, client_id=f"stale-{topic}")
    consumer = _started(bus, f"queue:{topic}")
    first = consumer.receive(READY_WITHIN_S)
    assert first is not None
    close_connections(cluster, "mb1", bus.client_id)
    second = consumer.receive(READY_WITHIN_S)
    assert second is not None
    assert second.message_id == first.message_id
    assert second.receipt.tag == first.receipt.tag  # the same number on another link
    assert second.receipt.epoch == first.receipt.epoch + 1
    assert consumer.ack(first) is False
    eventually(lambda: consumer.stats().acks_stale == 1, within_s=READY_WITHIN_S)
    assert consumer.stats().acked == 0
    consumer.stop(timeout_s=0)
    with _attached(bus, f"queue:{topic}") as other:
        third = other.receive(READY_WITHIN_S)
        assert third is not None, "the stale ack was taken for one of the new link"
        assert other.ack(third) is True
        with pytest.raises(AlreadySettled):
            other.ack(third)


@pytest.mark.guarantee("handed-out-limit")
def test_the_limit_of_handed_out_deliveries_holds_over_all_brokers_and_none_starves(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    ids = set(_publish(cluster, f"queue:{topic}", cluster.names, EACH))
    config = ConsumerConfig(handed_out_max=HANDED_OUT_MAX)
    with _attached(bus, f"queue:{topic}", config) as consumer:
        eventually(
            lambda: consumer.stats().delivered == len(ids),
            within_s=READY_WITHIN_S,
            what="all are buffered",
        )
        got: list[str] = []
        left = dict.fromkeys(_brokers(cluster), EACH)
        while len(got) < len(ids):
            held = _receive_all(consumer)
            assert len(held) == min(HANDED_OUT_MAX, len(ids) - len(got))
            assert consumer.stats().handed_out == len(held)
            # The first deliveries may all be of the broker that was attached first.
            if got:
                assert {d.broker for d in held} == {broker for broker in left if left[broker]}
            for delivery in held:
                left[delivery.broker] -= 1
                consumer.ack(delivery)
            got += [delivery.message_id for delivery in held]
            _wait_acked(consumer, len(got))
    assert sorted(got) == sorted(ids)


@pytest.mark.guarantee("every-wait-is-bounded")
def test_start_all_means_every_broker_and_one_that_cannot_be_is_told_in_time(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    with _attached(bus, f"queue:{topic}") as consumer:
        states = consumer.stats().brokers
    assert {broker: each.state for broker, each in states.items()} == dict.fromkeys(
        _brokers(cluster), "open"
    )
    nowhere = replace(bus, list_urls=("http://127.0.0.1:9/consumer-list",))
    began = time.monotonic()
    with pytest.raises(NotReady):
        Consumer(nowhere, f"queue:{topic}").start(require="all", timeout_s=NOTHING_WITHIN_S)
    assert time.monotonic() - began < 3 * NOTHING_WITHIN_S * FACTOR


def _started(bus: BusConfig, source: str, config: ConsumerConfig | None = None) -> Consumer:
    """Return a consumer that is attached to every broker."""
    consumer = Consumer(bus, source, config=config)
    consumer.start(require="all", timeout_s=READY_WITHIN_S * FACTOR)
    return consumer


@contextmanager
def _attached(
    bus: BusConfig, source: str, config: ConsumerConfig | None = None
) -> Iterator[Consumer]:
    """Give a consumer that is attached to every broker."""
    consumer = _started(bus, source, config)
    try:
        yield consumer
    finally:
        consumer.stop(timeout_s=0)


def _publish(
    cluster: LocalCluster, destination: str, names: Iterable[str], count: int
) -> list[str]:
    """Publish this many messages to each of these brokers; return their ids."""
    ids = []
    for name in names:
        with Publisher(direct(cluster, name)) as publisher:
            done = publisher.send_many(created(destination), [b"x"] * count)
        assert {each.broker for each in done} == {cluster.node(name).broker}
        ids += [each.message_id for each in done]
    return ids


def _wait_acked(consumer: Consumer, count: int) -> None:
    eventually(lambda: consumer.stats().acked == count, within_s=READY_WITHIN_S)


def _receive_all(consumer: Consumer) -> list[Delivery]:
    held = []
    while (delivery := consumer.receive(0.2)) is not None:
        held.append(delivery)
    return held


def _brokers(cluster: LocalCluster) -> set[str]:
    return {cluster.node(name).broker for name in cluster.names}
