"""Promise: what a broker refuses for who we are, or what it calls itself, is told and costs little."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from messagebus import (
    AsyncConsumer,
    BusConfig,
    Consumer,
    LoginRefused,
    Outcome,
    Publisher,
    PublisherConfig,
    Secret,
)
from ops.local.cluster import LocalCluster
from tests.support.eventually import FACTOR, eventually, eventually_async
from tests.support.fake_amqp import FakeRabbit, Manners, fake_rabbits
from tests.support.fake_list import FakeList, serve_list
from tests.support.faults import register
from tests.support.orders import received

WITHIN_S = 20.0
USER, PASSWORD = "changing", "changing-password"
ALL_RIGHTS = {"configure": "^$", "write": ".*", "read": ".*"}
NO_RIGHTS = {"configure": "^$", "write": "^$", "read": "^$"}
TOPIC, SUBSCRIPTION, QUEUE = "orders", "billing", "mb.sub/orders/billing"


# -- a virtual host that is not there


def test_a_virtual_host_that_is_not_there_is_told_at_once(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    register(cluster, f"queue:{topic}")
    nowhere = dataclasses.replace(bus, vhost="nowhere")
    with pytest.raises(LoginRefused, match="nowhere"):
        Publisher(nowhere).start(require="one", timeout_s=WITHIN_S)
    with pytest.raises(LoginRefused, match="nowhere"):
        Consumer(nowhere, f"queue:{topic}").start(require="one", timeout_s=WITHIN_S)


# -- rights that change while clients run


def grant(cluster: LocalCluster, rights: dict[str, str]) -> None:
    for name in cluster.names:
        with cluster.management(name) as api:
            api.put(f"/api/permissions/%2F/{USER}", json=rights).raise_for_status()


@contextmanager
def changing_user(cluster: LocalCluster, bus: BusConfig) -> Iterator[BusConfig]:
    """Settings of a user with all rights of an application, to be taken away."""
    for name in cluster.names:
        with cluster.management(name) as api:
            user = {"password": PASSWORD, "tags": ""}
            api.put(f"/api/users/{USER}", json=user).raise_for_status()
    try:
        grant(cluster, ALL_RIGHTS)
        yield dataclasses.replace(bus, user=USER, password=Secret(PASSWORD), password_file="")
    finally:
        for name in cluster.names:
            with cluster.management(name) as api:
                api.delete(f"/api/users/{USER}")


def test_a_publisher_whose_right_is_taken_away_says_so_and_goes_on_when_it_is_back(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    register(cluster, f"{topic}/all")
    with (
        changing_user(cluster, bus) as changing,
        Publisher(changing, PublisherConfig(deadline_ms=5_000)) as publisher,
    ):
        publisher.send_safe(topic, b"x", timeout_s=WITHIN_S)
        grant(cluster, NO_RIGHTS)
        # A broker remembers for a channel what it has allowed.
        moves = publisher.stats().moves
        publisher.refresh_connection()
        eventually(lambda: publisher.stats().moves > moves, within_s=WITHIN_S)
        refused = publisher.submit(topic, b"y").result(WITHIN_S * FACTOR)
        assert refused.outcome is not Outcome.CONFIRMED
        assert "ACCESS_REFUSED" in refused.reason
        grant(cluster, ALL_RIGHTS)
        eventually(
            lambda: publisher.submit(topic, b"z").result().outcome is Outcome.CONFIRMED,
            within_s=2 * WITHIN_S,
        )


def test_a_consumer_whose_right_is_taken_away_is_attached_again_when_it_is_back(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    register(cluster, f"{topic}/all")
    with changing_user(cluster, bus) as changing, Publisher(bus) as publisher:
        consumer = Consumer(
            dataclasses.replace(changing, client_id=topic), topic, subscription="all"
        )
        consumer.start(require="all", timeout_s=WITHIN_S)
        try:
            grant(cluster, NO_RIGHTS)
            for name in cluster.names:
                close_all_of(cluster, name, USER)
            eventually(lambda: not consumer.keep_alive(), within_s=WITHIN_S)
            sent = publisher.send_safe(topic, b"x", timeout_s=WITHIN_S)
            assert consumer.receive(0.5) is None
            grant(cluster, ALL_RIGHTS)
            assert received(consumer).message_id == sent.message_id
            eventually(consumer.keep_alive, within_s=WITHIN_S)
        finally:
            consumer.stop(drain_s=0)


def close_all_of(cluster: LocalCluster, name: str, user: str) -> None:
    with cluster.management(name) as api:
        api.delete(f"/api/connections/username/{user}").raise_for_status()


# -- brokers that call themselves strangely


@pytest.mark.parametrize(
    "name",
    ["", "rabbit@host", "prod", "no port:", "::::", "other:5672 and more", "\ufffd:1", "x" * 5_000],
    ids=["none", "node", "word", "no-port", "colons", "text", "odd", "long"],
)
async def test_a_broker_whose_name_is_no_address_is_used_unidentified(name: str) -> None:
    rabbit = FakeRabbit(manners=Manners(cluster_name=name))
    with fake_rabbits(rabbit):
        rabbit.hold(TOPIC)
        rabbit.hold(f"{TOPIC}/{SUBSCRIPTION}")
        async with serve_list(FakeList([rabbit.name])) as listing:
            bus = BusConfig(broker=rabbit.name, list_urls=(listing.url,))
            async with AsyncConsumer(bus, TOPIC, subscription=SUBSCRIPTION) as consumer:
                rabbit.put(QUEUE, b"x")
                delivery = await consumer.receive(WITHIN_S)
                assert delivery is not None
                consumer.ack(delivery)


async def test_two_brokers_of_one_name_are_both_consumed_from() -> None:
    first, second = FakeRabbit(), FakeRabbit()
    with fake_rabbits(first, second):
        second.manners.cluster_name = first.name
        for rabbit in (first, second):
            rabbit.hold(f"{TOPIC}/{SUBSCRIPTION}")
            rabbit.put(QUEUE, rabbit.name.encode())
        async with serve_list(FakeList([first.name, second.name])) as listing:
            bus = BusConfig(broker=first.name, list_urls=(listing.url,))
            async with AsyncConsumer(bus, TOPIC, subscription=SUBSCRIPTION) as consumer:
                got = set()
                for _ in range(2):
                    delivery = await consumer.receive(WITHIN_S)
                    assert delivery is not None
                    consumer.ack(delivery)
                    got.add(delivery.body.decode())
                assert got == {first.name, second.name}


async def test_two_brokers_of_one_name_cost_the_first_nothing() -> None:
    first, second = FakeRabbit(), FakeRabbit()
    with fake_rabbits(first, second):
        second.manners.cluster_name = first.name
        for rabbit in (first, second):
            rabbit.hold(f"{TOPIC}/{SUBSCRIPTION}")
        async with serve_list(FakeList([first.name, second.name])) as listing:
            bus = BusConfig(broker=first.name, list_urls=(listing.url,))
            async with AsyncConsumer(bus, TOPIC, subscription=SUBSCRIPTION) as consumer:
                await eventually_async(lambda: second.connections > 0, within_s=WITHIN_S)
                first.put(QUEUE, b"x")
                delivery = await consumer.receive(WITHIN_S)
                assert delivery is not None
                consumer.ack(delivery)
                assert consumer.stats().brokers[first.name].state == "open"
