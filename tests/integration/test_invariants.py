"""Promises of the client that always hold: bounds of waits, links that only consume."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest

from messagebus import (
    BacklogFull,
    BusConfig,
    Consumer,
    ConsumerConfig,
    Delivery,
    MessageBusError,
    NotReady,
    Publisher,
    PublisherConfig,
    PublishError,
)
from tests.support.eventually import FACTOR
from tests.support.fake_amqp import FakeRabbit
from tests.support.orders import QUEUE, SUBSCRIPTION, TOPIC, WITHIN_S, received

BOUND_S = 0.3
MESSAGES = 200


PUBLISHER_WAITS: dict[str, Callable[[Publisher], object]] = {
    "send_safe": lambda p: p.send_safe(TOPIC, b"x", timeout_s=BOUND_S),
    "send_many": lambda p: p.send_many(TOPIC, [b"x"] * 3, timeout_s=BOUND_S),
    "submit": lambda p: p.submit(TOPIC, b"x", timeout_s=BOUND_S).result(),
    "no-room": lambda p: [p.submit(TOPIC, b"x" * 2000, timeout_s=BOUND_S) for _ in range(50)],
    "flush": lambda p: (p.submit(TOPIC, b"x"), p.flush(BOUND_S)),
    "stop": lambda p: (p.submit(TOPIC, b"x"), p.stop(BOUND_S)),
    "stats": lambda p: p.stats(),
}
CONSUMER_WAITS: dict[str, Callable[[Consumer, Delivery], object]] = {
    "receive": lambda c, _: c.receive(BOUND_S),
    "receive_immediate": lambda c, _: c.receive_immediate(),
    "ack_safe": lambda c, d: c.ack_safe(d, BOUND_S),
    "ack": lambda c, d: c.ack(d),
    "nack": lambda c, d: c.nack(d),
    "keep_alive": lambda c, _: c.keep_alive(),
    "stats": lambda c, _: c.stats(),
    "stop": lambda c, _: c.stop(BOUND_S),
}


@pytest.mark.guarantee("every-wait-is-bounded")
@pytest.mark.parametrize("wait", list(PUBLISHER_WAITS))
def test_no_wait_of_a_publisher_is_without_a_bound(rabbit: FakeRabbit, wait: str) -> None:
    config = PublisherConfig(window=1, backlog_bytes_max=10_000)
    publisher = Publisher(BusConfig(broker=rabbit.name), config)
    publisher.start(require="one", timeout_s=WITHIN_S)
    try:
        publisher.send_safe(TOPIC, b"x", timeout_s=WITHIN_S)
        rabbit.mute()
        began = time.monotonic()
        with contextlib.suppress(PublishError, BacklogFull):
            PUBLISHER_WAITS[wait](publisher)
        assert time.monotonic() - began < WITHIN_S * FACTOR
    finally:
        rabbit.drop_connections()
        publisher.stop(timeout_s=0)


@pytest.mark.guarantee("every-wait-is-bounded")
@pytest.mark.parametrize("wait", list(CONSUMER_WAITS))
def test_no_wait_of_a_consumer_is_without_a_bound(rabbit: FakeRabbit, wait: str) -> None:
    consumer = Consumer(BusConfig(broker=rabbit.name), TOPIC, subscription=SUBSCRIPTION)
    consumer.start(require="one", timeout_s=WITHIN_S)
    try:
        rabbit.put(QUEUE, b"x")
        delivery = received(consumer)
        rabbit.mute()
        began = time.monotonic()
        CONSUMER_WAITS[wait](consumer, delivery)
        assert time.monotonic() - began < WITHIN_S * FACTOR
    finally:
        rabbit.drop_connections()
        consumer.stop(timeout_s=0)


@pytest.mark.guarantee("every-wait-is-bounded")
def test_no_start_is_without_a_bound(rabbit: FakeRabbit) -> None:
    rabbit.mute()
    bus = BusConfig(broker=rabbit.name)
    starts: list[Callable[[], object]] = [
        lambda: Publisher(bus).start(require="one", timeout_s=BOUND_S),
        lambda: Consumer(bus, TOPIC, subscription=SUBSCRIPTION).start(
            require="all", timeout_s=BOUND_S
        ),
    ]
    for start in starts:
        began = time.monotonic()
        with pytest.raises((NotReady, MessageBusError)):
            start()
        assert time.monotonic() - began < WITHIN_S * FACTOR


@pytest.mark.guarantee("consuming-link-never-publishes")
def test_a_link_that_consumes_never_publishes(rabbit: FakeRabbit) -> None:
    """A connection that published is blocked under an alarm, and its acks with it."""
    for number in range(MESSAGES):
        rabbit.put(QUEUE, b"%d" % number)
    config = ConsumerConfig(prefetch=20)
    bus = BusConfig(broker=rabbit.name)
    with Consumer(bus, TOPIC, subscription=SUBSCRIPTION, config=config) as consumer:
        for number in range(MESSAGES):
            delivery = received(consumer)
            if number % 10 == 1:
                consumer.nack(delivery, requeue=False)
            elif number % 10 == 2:
                consumer.ack_safe(delivery)
            else:
                consumer.ack(delivery)
        rabbit.cancel_consumers(QUEUE)
        rabbit.put(QUEUE, b"once more")
        consumer.ack_safe(received(consumer))
    assert rabbit.published == 0
