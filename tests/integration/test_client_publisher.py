"""Promises of a publisher while nothing is broken, and of both clients on the caller's own loop."""

from __future__ import annotations

import copy
import dataclasses
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest

from messagebus import (
    AsyncConsumer,
    AsyncPublisher,
    BusConfig,
    Consumer,
    Durability,
    Message,
    NameInvalid,
    NotReady,
    Outcome,
    Published,
    Publisher,
    PublisherConfig,
    Queue,
    Secret,
    Stopped,
    Unroutable,
)
from messagebus.destination import Topic
from messagebus.errors import MessageInvalid
from ops.local.cluster import LocalCluster
from tests.support.eventually import FACTOR, eventually
from tests.support.faults import register
from tests.support.load import drain, publishing

READY_WITHIN_S = 60.0
MANY = 2_000
AT_ONCE = 500
THREADS = 8
MOVED_WITHIN_S = 60.0
REFUSED_PORT = "127.0.0.1:9"
INSIST_S = 1.0
# A refused destination is tried again after 5 s, at the cost of one link.
REFUSALS_IN_TEST = 3


def test_send_safe_returns_a_confirm_with_broker_and_durability(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    with Publisher(bus) as publisher:
        published = publisher.send_safe(Queue(topic, create=True), b"x")
    assert published.outcome is Outcome.CONFIRMED
    assert published.durability is Durability.FSYNC
    assert published.broker in {cluster.node(name).broker for name in cluster.names}
    assert 0 < published.sent_ns <= published.settled_ns
    assert drain(bus, f"queue:{topic}", expected={published.message_id}) == {
        published.message_id: 1
    }


def test_a_topic_without_subscriptions_is_unroutable(bus: BusConfig, topic: str) -> None:
    with Publisher(bus) as publisher, pytest.raises(Unroutable):
        publisher.send_safe(topic, b"nobody reads this")


def test_what_may_not_be_sent_is_a_typed_error_and_nothing_is_sent(bus: BusConfig) -> None:
    wrong: Any = 42
    with Publisher(bus) as publisher:
        with pytest.raises(NameInvalid):
            publisher.submit("not a name", b"x")
        with pytest.raises(MessageInvalid):
            publisher.submit("orders", wrong)
        with pytest.raises(MessageInvalid):
            publisher.submit("orders", b"x" * (16 * 1024 * 1024 + 1))
        stats = publisher.stats()
    assert stats.backlog + stats.window + stats.confirmed + stats.unknown == 0


@pytest.mark.guarantee("message-is-never-changed")
def test_the_callers_message_and_headers_are_never_changed(bus: BusConfig, topic: str) -> None:
    headers: dict[str, Any] = {"nested": {"list": [1, {"deep": b"x"}]}, "text": "y"}
    message = Message.json({"a": 1}, headers=headers, key="k", priority=3)
    before, headers_before = copy.deepcopy(message), copy.deepcopy(headers)
    with Publisher(bus) as publisher:
        first, second = publisher.send_many(Queue(topic, create=True), [message, message])
    assert message == before
    assert headers == headers_before
    assert message.message_id == ""
    assert first.message_id != second.message_id
    with Consumer(bus, f"queue:{topic}") as consumer:
        for _ in range(2):
            delivery = consumer.receive(READY_WITHIN_S)
            assert delivery is not None
            assert dict(delivery.message.headers) == headers
            assert delivery.message.key == "k"
            assert delivery.message.as_json() == {"a": 1}
            consumer.ack(delivery)


@pytest.mark.guarantee("one-outcome-per-publish")
def test_every_publish_of_many_threads_reaches_exactly_one_outcome(
    bus: BusConfig, topic: str
) -> None:
    ends: Counter[str] = Counter()
    futures: list[Future[Published]] = []
    with Publisher(bus) as publisher:

        def work() -> None:
            for _ in range(MANY // THREADS):
                future = publisher.submit(Queue(topic, create=True), b"x")
                future.add_done_callback(lambda done: ends.update([done.result().message_id]))
                futures.append(future)

        threads = [threading.Thread(target=work) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert publisher.flush(READY_WITHIN_S * FACTOR) == 0
        stats = publisher.stats()
    assert len(ends) == MANY
    assert set(ends.values()) == {1}
    assert {future.result().outcome for future in futures} == {Outcome.CONFIRMED}
    assert stats.confirmed == MANY
    got = drain(bus, f"queue:{topic}", expected=ends.keys())
    assert ends.keys() - got.keys() == set()
    assert sum(got.values()) == MANY


@pytest.mark.guarantee("exit-settles-or-says")
def test_stop_settles_what_is_in_flight(bus: BusConfig, topic: str) -> None:
    publisher = Publisher(bus)
    publisher.start(require="one", timeout_s=READY_WITHIN_S)
    futures = [publisher.submit(Queue(topic, create=True), b"x") for _ in range(MANY)]
    assert publisher.stop(timeout_s=READY_WITHIN_S) == 0
    assert {future.result(timeout=0).outcome for future in futures} == {Outcome.CONFIRMED}
    with pytest.raises(Stopped):
        publisher.submit(Queue(topic, create=True), b"too late")


@pytest.mark.guarantee("exit-settles-or-says")
def test_stop_says_how_much_it_could_not_settle(topic: str) -> None:
    publisher = Publisher(BusConfig(broker=REFUSED_PORT))
    publisher.start()
    futures = [publisher.submit(Queue(topic, create=True), b"x") for _ in range(10)]
    assert publisher.stop(timeout_s=0.2) == 10
    assert {future.result(timeout=0).outcome for future in futures} == {Outcome.REFUSED}


def test_start_insists_on_a_link_only_when_told_to() -> None:
    with Publisher(BusConfig(broker=REFUSED_PORT)) as publisher:
        assert publisher.stats().broker == ""
    began = time.monotonic()
    with pytest.raises(NotReady):
        Publisher(BusConfig(broker=REFUSED_PORT)).start(require="one", timeout_s=INSIST_S)
    assert time.monotonic() - began < 3 * INSIST_S * FACTOR


@pytest.mark.guarantee("publisher-changes-brokers")
def test_a_publisher_that_lives_long_visits_other_brokers_and_nothing_becomes_unknown(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    config = PublisherConfig(connection_lifetime_s=1)
    register(cluster, f"queue:{topic}")
    with publishing(bus, f"queue:{topic}", publishers=1, config=config) as load:
        eventually(
            lambda: {sent.published.broker for sent in load.confirmed()} == _brokers(cluster),
            within_s=MOVED_WITHIN_S,
            what="every broker took some",
        )
        assert load.publishers[0].stats().moves >= 2
    assert set(load.outcomes()) == {Outcome.CONFIRMED}
    assert {sent.published.attempts for sent in load.sent} == {1}
    assert load.links_lost == 0


def test_refresh_connection_moves_without_an_unknown_outcome(bus: BusConfig, topic: str) -> None:
    with publishing(bus, f"queue:{topic}", publishers=1, config=PublisherConfig()) as load:
        (publisher,) = load.publishers
        for moves in range(1, 4):
            publisher.refresh_connection()
            _wait_moved(publisher, moves)
    assert {sent.published.attempts for sent in load.sent} == {1}
    assert set(load.outcomes()) == {Outcome.CONFIRMED}


def test_each_subscription_of_a_topic_gets_every_message(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    register(cluster, f"{topic}/billing", f"{topic}/audit")
    with Publisher(bus) as publisher:
        ids = {each.message_id for each in publisher.send_many(topic, [b"x"] * 100)}
    for name in ("billing", "audit"):
        assert drain(bus, str(Topic(topic)), name, expected=ids) == dict.fromkeys(ids, 1)


def _wait_moved(publisher: Publisher, moves: int) -> None:
    eventually(lambda: publisher.stats().moves >= moves, within_s=MOVED_WITHIN_S)


def _brokers(cluster: LocalCluster) -> set[str]:
    return {cluster.node(name).broker for name in cluster.names}


@pytest.mark.guarantee("rights-taken-away")
def test_a_forbidden_destination_is_refused_and_costs_the_others_nothing(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    """A broker closes the whole channel for it, so it must not be tried with every publish."""
    register(cluster, f"{topic}/all", "forbidden/all")
    with limited_user(cluster, write=f"^mb\\.topic/{topic}$") as (user, password):
        limited = dataclasses.replace(bus, user=user, password=Secret(password), password_file="")
        with Publisher(limited) as publisher:
            allowed, forbidden = [], []
            for _ in range(50):
                allowed.append(publisher.submit(topic, b"allowed"))
                forbidden.append(publisher.submit("forbidden", b"forbidden"))
                allowed[-1].result()
            ends = [each.result() for each in forbidden]
            stats = publisher.stats()
    assert {each.result().outcome for each in allowed} == {Outcome.CONFIRMED}
    assert Outcome.CONFIRMED not in {each.outcome for each in ends}
    assert all("ACCESS_REFUSED" in each.reason for each in ends)
    assert stats.links_lost <= 1 + REFUSALS_IN_TEST


@contextmanager
def limited_user(cluster: LocalCluster, *, write: str) -> Iterator[tuple[str, str]]:
    """Give a user on all brokers who may publish to few exchanges."""
    name, password = "limited", "limited-password"
    rights = {"configure": "^$", "write": write, "read": "^$"}
    for broker in cluster.names:
        with cluster.management(broker) as api:
            api.put(f"/api/users/{name}", json={"password": password, "tags": ""})
            api.put(f"/api/permissions/%2F/{name}", json=rights).raise_for_status()
    try:
        yield name, password
    finally:
        for broker in cluster.names:
            with cluster.management(broker) as api:
                api.delete(f"/api/users/{name}")


async def test_what_asyncio_publishes_asyncio_consumes_by_ids(bus: BusConfig, topic: str) -> None:
    consumer = AsyncConsumer(bus, f"queue:{topic}")
    await consumer.start(require="all", timeout_s=READY_WITHIN_S * FACTOR)
    async with AsyncPublisher(bus) as publisher:
        done = await publisher.send_many(Queue(topic, create=True), [b"x"] * AT_ONCE)
    assert {each.outcome for each in done} == {Outcome.CONFIRMED}
    expected = {each.message_id for each in done}
    got: list[str] = []
    async for delivery in consumer:
        got.append(delivery.message_id)
        assert consumer.ack(delivery)
        if len(got) == AT_ONCE:
            break
    assert await consumer.stop() == 0
    assert sorted(got) == sorted(expected)


async def test_an_async_consumer_that_stops_gives_back_what_it_did_not_answer(
    bus: BusConfig, topic: str
) -> None:
    async with AsyncPublisher(bus) as publisher:
        sent = await publisher.send_safe(Queue(topic, create=True), b"x")
    consumer = AsyncConsumer(bus, f"queue:{topic}")
    await consumer.start(require="all", timeout_s=READY_WITHIN_S * FACTOR)
    first = await consumer.receive(READY_WITHIN_S)
    assert first is not None
    assert await consumer.stop(0) == 1
    async with AsyncConsumer(bus, f"queue:{topic}") as other:
        again = await other.receive(READY_WITHIN_S)
        assert again is not None
        assert (again.message_id, again.redelivered) == (sent.message_id, True)
        assert await other.ack_safe(again)
