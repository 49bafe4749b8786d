"""One RabbitMQ without agents: the library's own declarations, and existing queues with other options."""

from __future__ import annotations

import time
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from messagebus import (
    BusConfig,
    Consumer,
    Durability,
    Publisher,
    Queue,
    Subscription,
    Topic,
    TopologyMismatch,
    declare,
)
from messagebus._io.agents import registration as module
from messagebus.destination import delay_step
from ops.local.cluster import LocalCluster
from tests.support.eventually import eventually
from tests.support.faults import delete_queue, queue_exists
from tests.support.mismatch import costs_one_destination_and_not_the_link

DEADLINE_S = 60.0
EXPIRES_S = 2
WITHIN_S = 60


@pytest.fixture
def alone(cluster: LocalCluster) -> BusConfig:
    """A broker of the cluster as if it had no agent: the agent leaves alone what it was not asked for."""
    return BusConfig(
        broker=cluster.node("mb1").broker, user="admin", password=cluster.admin_password
    )


@pytest.fixture
def name(cluster: LocalCluster, topic: str) -> Iterator[str]:
    """A name of the test's own; queues and exchanges of it are deleted afterwards."""
    yield f"alone-{topic}"
    with cluster.management("mb1") as management:
        for kind in ("queues", "exchanges"):
            for each in management.get(f"/api/{kind}/%2F").raise_for_status().json():
                if f"alone-{topic}" in each["name"]:
                    management.delete(f"/api/{kind}/%2F/{quote(each['name'], safe='')}")


@pytest.mark.parametrize("durability", Durability)
def test_each_level_passes_messages_and_only_fsync_waits_to_be_settled(
    alone: BusConfig, name: str, durability: Durability
) -> None:
    destination = Topic(name, durability)
    began_s = time.monotonic()
    wanted: list[Subscription | Topic] = [Subscription(destination, "all"), destination]
    declared = declare(alone, wanted)
    took_s = time.monotonic() - began_s
    assert declared.complete
    assert (took_s >= module.SETTLE_MS / 1000) is (durability is Durability.FSYNC)
    if durability is Durability.FSYNC:
        assert (declared.created, declare(alone, wanted).created) == ((f"{name}/all",), ())
    with (
        Publisher(alone) as publisher,
        Consumer(alone, destination, subscription="all") as consumer,
    ):
        publisher.submit(destination, b"hello").result(DEADLINE_S)
        delivery = consumer.receive(DEADLINE_S)
        assert delivery is not None
        consumer.ack(delivery)


def test_what_exists_otherwise_is_told_with_both_values(alone: BusConfig, name: str) -> None:
    weak = Topic(name, Durability.PAGE_CACHE)
    declare(alone, [Queue(name, Durability.PAGE_CACHE), Subscription(weak, "all")])
    with pytest.raises(TopologyMismatch, match="x-queue-type is wanted 'quorum' and exists"):
        declare(alone, [Queue(name)])
    with pytest.raises(
        TopologyMismatch, match=r"x-single-active-consumer is wanted .* exists none"
    ):
        declare(alone, [Subscription(weak, "all", single_active=True)])
    with pytest.raises(TopologyMismatch, match="x-expires is wanted '5000' and exists none"):
        declare(alone, [Subscription(weak, "all", expires_s=5)])
    with pytest.raises(TopologyMismatch, match="wanted fsync and exists less than fsync"):
        declare(alone, [Topic(name)])
    declare(alone, [Queue(name, Durability.NONE)])  # needs the same queue


@pytest.mark.guarantee("mismatch-is-told")
def test_a_mismatch_costs_a_publisher_one_destination_and_not_its_link(
    alone: BusConfig, name: str
) -> None:
    weak = Topic(name, Durability.PAGE_CACHE)
    declare(alone, [Queue(name, Durability.PAGE_CACHE), weak, Subscription(weak, "all")])
    costs_one_destination_and_not_the_link(alone, weak, Queue(name), told="exists 'classic'")


def test_an_expiring_subscription_is_the_brokers_business(
    cluster: LocalCluster, alone: BusConfig, name: str
) -> None:
    weak = Topic(name, Durability.PAGE_CACHE)
    source = Subscription.ephemeral(weak, expires_s=EXPIRES_S)
    declare(alone, [source])
    assert queue_exists(cluster, "mb1", source.amqp_queue)
    eventually(
        lambda: not queue_exists(cluster, "mb1", source.amqp_queue), within_s=EXPIRES_S + WITHIN_S
    )


@pytest.mark.guarantee("ephemeral-goes-with-its-consumer")
def test_an_ephemeral_subscription_goes_with_its_consumer(
    cluster: LocalCluster, alone: BusConfig, name: str
) -> None:
    source = Subscription.ephemeral(Topic(name, Durability.PAGE_CACHE))
    with Consumer(alone, source) as consumer:
        assert consumer.receive_immediate() is None
        assert queue_exists(cluster, "mb1", source.amqp_queue)
    assert not queue_exists(cluster, "mb1", source.amqp_queue)


def test_a_delay_step_brings_messages_to_a_destination(
    cluster: LocalCluster, alone: BusConfig, name: str
) -> None:
    weak, step = Queue(name, Durability.PAGE_CACHE), delay_step(1_000)
    declare(alone, [weak, step])
    with cluster.management("mb1") as management:
        management.post(
            f"/api/exchanges/%2F/{quote(step.exchange, safe='')}/publish",
            json={
                "properties": {},
                "routing_key": weak.exchange,
                "payload": "later",
                "payload_encoding": "string",
            },
        ).raise_for_status()
    with Consumer(alone, weak) as consumer:
        delivery = consumer.receive(DEADLINE_S)
        assert delivery is not None
        assert delivery.body == b"later"
        consumer.ack(delivery)
    delete_queue(cluster, "mb1", step.amqp_queue)


def test_an_amqp_url_is_a_broker(cluster: LocalCluster, name: str) -> None:
    password = cluster.admin_password.reveal()
    bus = BusConfig(
        broker=f"amqp://admin:{quote(password, safe='')}@{cluster.node('mb1').broker}/%2F"
    )
    declare(bus, [f"queue:{name}"])
    with Publisher(bus) as publisher, Consumer(bus, f"queue:{name}") as consumer:
        publisher.send_safe(f"queue:{name}", {"n": 1}, timeout_s=DEADLINE_S)
        delivery = consumer.receive(timeout_s=WITHIN_S)
        assert delivery is not None
        assert delivery.message.as_json() == {"n": 1}
        consumer.ack(delivery)
    assert password not in repr(bus)
