"""Options of one call, seen from the other end."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from messagebus import (
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
THREADS, MESSAGES = 64, 20_000


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
