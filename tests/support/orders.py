"""A fake broker that holds one topic with one subscription; deliveries that must arrive."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from messagebus import Consumer, Delivery
from tests.support.eventually import FACTOR
from tests.support.fake_amqp import FakeRabbit, fake_rabbit

TOPIC, SUBSCRIPTION, QUEUE = "orders", "billing", "mb.sub/orders/billing"
WITHIN_S = 60.0


@contextmanager
def orders_rabbit() -> Iterator[FakeRabbit]:
    with fake_rabbit() as rabbit:
        rabbit.hold(TOPIC)
        rabbit.hold(f"{TOPIC}/{SUBSCRIPTION}")
        yield rabbit


def received(consumer: Consumer) -> Delivery:
    """Receive the next delivery, unanswered."""
    delivery = consumer.receive(WITHIN_S * FACTOR)
    assert delivery is not None, "nothing arrived"
    return delivery


def taken(consumer: Consumer) -> Delivery:
    """Receive the next delivery and ack it; the broker knows."""
    delivery = received(consumer)
    assert consumer.ack_safe(delivery)
    return delivery
