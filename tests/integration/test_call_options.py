"""Options of one call, seen from the other end."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import ExitStack

import pytest

from messagebus import (
    BusConfig,
    ConfigError,
    Consumer,
    Durability,
    Outcome,
    Publisher,
    PublisherConfig,
    Queue,
)
from ops.local.cluster import LocalCluster
from tests.support.eventually import FACTOR, eventually
from tests.support.faults import direct
from tests.support.orders import taken

WITHIN_S = 60 * FACTOR
DELAY_S = 1.0
THREADS, MESSAGES = 64, 20_000


def test_what_a_call_says_arrives_with_the_message(bus: BusConfig, topic: str) -> None:
    with Publisher(bus) as publisher, Consumer(bus, topic, subscription="s") as consumer:
        publisher.send_safe(
            topic,
            "text",
            headers={"n": 1, "deep": {"list": [True, None, "x"]}},
            key="customer-7",
            priority=4,
            ttl_s=600,
            correlation_id="c-1",
            reply_to="answers",
            message_id="my-own",
            type="order.placed",
        )
        message = taken(consumer).message
    assert (message.as_text(), message.message_id, message.key) == ("text", "my-own", "customer-7")
    assert message.headers == {"n": 1, "deep": {"list": [True, None, "x"]}}
    assert (message.priority, message.ttl_ms) == (4, 600_000)
    assert (message.correlation_id, message.reply_to) == ("c-1", "answers")
    assert message.type == "order.placed"


@pytest.mark.parametrize("way", ["after", "at"])
def test_a_delayed_message_reaches_every_subscription_and_not_before_its_time(
    bus: BusConfig, topic: str, way: str
) -> None:
    with ExitStack() as stack:
        consumers = [
            stack.enter_context(Consumer(bus, topic, subscription=name)) for name in ("a", "b")
        ]
        publisher = stack.enter_context(Publisher(bus))
        publisher.send_safe(topic, b"now")
        began = time.monotonic()
        if way == "after":
            done = publisher.send_safe(topic, b"later", deliver_after_s=DELAY_S)
        else:
            done = publisher.send_safe(topic, b"later", deliver_at=time.time() + DELAY_S)
        assert (done.outcome, done.durability) == (Outcome.CONFIRMED, Durability.FSYNC)
        for consumer in consumers:
            assert taken(consumer).body == b"now"
            delivery = taken(consumer)
            assert (delivery.body, delivery.message_id) == (b"later", done.message_id)
            assert delivery.received_ns / 1e9 - began >= DELAY_S


def test_where_nothing_is_promised_nothing_is_waited_for(cluster: LocalCluster, topic: str) -> None:
    queue = Queue(topic, Durability.NONE)
    bus = direct(cluster, "mb1")
    with Publisher(bus) as publisher, Consumer(bus, queue) as consumer:
        done = publisher.submit(queue, b"x").result(WITHIN_S)
        assert (done.outcome, done.durability) == (Outcome.UNKNOWN, Durability.NONE)
        assert done.reason == "no confirm is waited for"
        assert taken(consumer).body == b"x"
        with pytest.raises(ConfigError, match="nothing is confirmed"):
            publisher.send_safe(queue, b"y")
        eventually(lambda: publisher.stats().unconfirmed == 1, within_s=WITHIN_S)
        assert publisher.stats().unknown == 0


def test_64_threads_get_even_shares_of_a_full_backlog(cluster: LocalCluster, topic: str) -> None:
    bus = direct(cluster, "mb1")
    sent: Counter[int] = Counter()
    enough = threading.Event()

    def run(number: int) -> None:
        while not enough.is_set():
            publisher.submit(Queue(topic, create=True), b"x")
            sent[number] += 1

    with Publisher(bus, PublisherConfig(backlog_messages_max=THREADS // 2)) as publisher:
        publisher.send_safe(Queue(topic, create=True), b"first")
        threads = [threading.Thread(target=run, args=(n,)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        eventually(lambda: sum(sent.values()) >= MESSAGES, within_s=4 * WITHIN_S)
        enough.set()
        for thread in threads:
            thread.join()
        assert publisher.flush(WITHIN_S) == 0
        assert publisher.stats().confirmed == sum(sent.values()) + 1
    even = sum(sent.values()) / THREADS
    assert min(sent.values()) >= even / 2, sorted(sent.values())
