"""Durability, single active consumer, expiry, delay steps and mismatches, on real brokers with agents."""

from __future__ import annotations

import logging
import time
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from messagebus import (
    BusConfig,
    Consumer,
    Durability,
    Message,
    Publisher,
    Queue,
    RegistrationIncomplete,
    Subscription,
    Topic,
    TopologyMismatch,
    declare,
)
from messagebus.destination import delay_step
from ops.local.cluster import LocalCluster
from tests.support.eventually import eventually
from tests.support.faults import agent_answer, queue_exists, register
from tests.support.mismatch import costs_one_destination_and_not_the_link

WITHIN_S = 60
DEADLINE_S = 60.0
# RabbitMQ looks once a second here (quorum_tick_interval) whether a queue has expired.
EXPIRES_S = 3


def queue_of(cluster: LocalCluster, name: str, queue: str) -> dict[str, Any]:
    """Return a queue as the broker has it: type, arguments, ... {} when there is none."""
    with cluster.management(name) as management:
        answer = management.get(f"/api/queues/%2F/{quote(queue, safe='')}?disable_stats=true")
    return answer.json() if answer.status_code == httpx.codes.OK else {}


def declare_by_hand(cluster: LocalCluster, name: str, queue: str, **arguments: Any) -> None:
    with cluster.management(name) as management:
        management.put(
            f"/api/queues/%2F/{quote(queue, safe='')}",
            json={"durable": True, "arguments": arguments},
        ).raise_for_status()


def publish_by_hand(bus: BusConfig, cluster: LocalCluster, exchange: str, key: str) -> None:
    """Publish on the first broker, over HTTP, as an application may."""
    assert bus.password is not None
    node = cluster.node(cluster.names[0])
    answer = httpx.post(
        f"http://{node.management}/api/exchanges/%2F/{quote(exchange, safe='')}/publish",
        json={
            "properties": {"delivery_mode": 2, "message_id": key},
            "routing_key": key,
            "payload": key,
            "payload_encoding": "string",
        },
        auth=(bus.user, bus.password.reveal()),
        trust_env=False,
    )
    assert answer.raise_for_status().json() == {"routed": True}


def entry_of(cluster: LocalCluster, name: str, wanted: str) -> dict[str, Any]:
    entries = agent_answer(cluster, name, "/topology")["entries"]
    return next((entry for entry in entries if entry["wanted"] == wanted), {})


def delete_by_hand(cluster: LocalCluster, queue: str) -> None:
    for name in cluster.names:
        with cluster.management(name) as management:
            management.delete(f"/api/queues/%2F/{quote(queue, safe='')}")


@pytest.mark.guarantee("durability-by-name")
@pytest.mark.parametrize("durability", Durability)
def test_each_level_has_its_kind_of_queue_on_every_broker_and_passes_messages(
    cluster: LocalCluster, bus: BusConfig, topic: str, durability: Durability
) -> None:
    destination = Topic(topic, durability)
    assert declare(bus, [destination, Subscription(destination, "all")]).complete
    kind = "quorum" if durability is Durability.FSYNC else "classic"
    for name in cluster.names:
        for queue in (f"mb.sub/{topic}/all", f"mb.park/{topic}/all"):
            assert queue_of(cluster, name, queue)["arguments"]["x-queue-type"] == kind
    with Publisher(bus) as publisher, Consumer(bus, topic, subscription="all") as consumer:
        publisher.submit(destination, Message.text("hello")).result(DEADLINE_S)
        delivery = consumer.receive(DEADLINE_S)
        assert delivery is not None
        consumer.nack(delivery, requeue=False)
        eventually(lambda: parked(cluster, f"mb.park/{topic}/all") == 1, within_s=WITHIN_S)


def parked(cluster: LocalCluster, queue: str) -> int:
    total = 0
    for name in cluster.names:
        with cluster.management(name) as management:
            path = f"/api/queues/%2F/{quote(queue, safe='')}/get"
            body = {"count": 9, "ackmode": "ack_requeue_true", "encoding": "auto"}
            total += len(management.post(path, json=body).raise_for_status().json())
    return total


def test_a_subscription_takes_the_level_of_its_topic(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    declare(bus, [Topic(topic, Durability.PAGE_CACHE)])
    declare(bus, [f"{topic}/all"])
    for name in cluster.names:
        assert entry_of(cluster, name, f"{topic}/all")["durability"] == "page-cache"
        arguments = queue_of(cluster, name, f"mb.sub/{topic}/all")["arguments"]
        assert arguments["x-queue-type"] == "classic"


@pytest.mark.guarantee("mismatch-is-told")
def test_two_clients_that_ask_for_different_durability_are_told_both_values(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    assert declare(bus, [Queue(topic, Durability.PAGE_CACHE)]).complete
    for _ in cluster.names:  # whichever agent the balancer chooses
        with pytest.raises(TopologyMismatch, match="wanted fsync and exists page-cache"):
            declare(bus, [Queue(topic)])
    with pytest.raises(TopologyMismatch, match="wanted page-cache and its topic exists fsync"):
        declare(bus, [topic, Subscription(Topic(topic, Durability.PAGE_CACHE), "all")])
    assert not entry_of(cluster, cluster.names[0], topic)


@pytest.mark.guarantee("mismatch-is-told")
@pytest.mark.parametrize("where", ["mb1", "mb3"])
def test_what_somebody_declared_by_hand_otherwise_is_told_and_nothing_changes(
    cluster: LocalCluster, bus: BusConfig, topic: str, where: str
) -> None:
    queue = f"mb.queue/{topic}"
    declare_by_hand(cluster, where, queue, **{"x-queue-type": "classic"})
    try:
        with pytest.raises(TopologyMismatch) as raised:
            declare(bus, [Queue(topic)])
        told = str(raised.value)
        assert cluster.node(where).broker in told
        assert "x-queue-type is wanted 'quorum' and exists 'classic'" in told
        assert not entry_of(cluster, where, f"queue:{topic}")
    finally:
        delete_by_hand(cluster, queue)
    assert declare(bus, [Queue(topic)]).complete


@pytest.mark.guarantee("mismatch-is-told")
def test_a_mismatch_costs_a_publisher_one_destination_and_not_its_link(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    declare(bus, [Queue(topic, Durability.PAGE_CACHE), f"{topic}/all"])
    costs_one_destination_and_not_the_link(
        bus, Topic(topic), Queue(topic), told="wanted fsync and exists page-cache"
    )


def test_a_broker_that_holds_a_queue_otherwise_is_named_and_hinders_nobody(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    """Its disk might have been exchanged for one that has a queue of that name with other options."""
    cluster, queue, broker = broken, f"mb.queue/{topic}", broken.node("mb2").broker
    cluster.kill("mb2", agent=True)
    cluster.kill("mb2")
    eventually(lambda: register(cluster, f"queue:{topic}")["complete"], within_s=WITHIN_S)
    cluster.start("mb2", wait=False)
    eventually(lambda: answers(cluster, "mb2"), within_s=2 * WITHIN_S)
    declare_by_hand(cluster, "mb2", queue, **{"x-queue-type": "classic"})
    cluster.start("mb2", agent=True, wait=False)
    try:
        cluster.wait_ready(["mb2"])  # with its gate shut it could have the queue later
        with pytest.raises(RegistrationIncomplete, match=f"{broker}.*is wanted"):
            declare(bus, [f"queue:{topic}"])
        assert declare(bus, [f"{topic}/all"]).complete
        assert queue_exists(cluster, "mb1", f"mb.sub/{topic}/all")
        eventually(lambda: queue_exists(cluster, "mb2", f"mb.sub/{topic}/all"), within_s=WITHIN_S)
        assert agent_answer(cluster, "mb2", "/settled")["gate"]
    finally:
        delete_by_hand(cluster, queue)
    eventually(lambda: queue_exists(cluster, "mb2", queue), within_s=WITHIN_S)
    assert declare(bus, [f"queue:{topic}"]).complete


def answers(cluster: LocalCluster, name: str) -> bool:
    try:
        with cluster.management(name) as management:
            return management.get("/api/overview").status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def expiring(topic: str) -> Subscription:
    return Subscription(Topic(topic), "fleeting", expires_s=EXPIRES_S)


def is_deleted(cluster: LocalCluster, source: Subscription) -> bool:
    """Return whether the queues are gone and tombstones are there, so that nobody makes the queues again."""
    return all(
        not entry_of(cluster, name, str(source)).get("alive", True)
        and not queue_exists(cluster, name, source.amqp_queue)
        for name in cluster.names
    )


@pytest.mark.guarantee("expiring-lives-while-used")
def test_an_expiring_subscription_lives_as_long_as_it_is_used_and_then_goes_everywhere(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    source = expiring(topic)
    assert declare(bus, [source]).complete
    used_until_s = time.monotonic() + 2 * EXPIRES_S
    with Publisher(bus) as publisher, Consumer(bus, topic, subscription=source.name) as consumer:
        while time.monotonic() < used_until_s:
            publisher.send_safe(topic, b"hello", timeout_s=DEADLINE_S)
            delivery = consumer.receive(DEADLINE_S)
            assert delivery is not None
            consumer.ack(delivery)
        assert entry_of(cluster, "mb1", str(source))["alive"]
    eventually(lambda: is_deleted(cluster, source), within_s=EXPIRES_S + WITHIN_S)
    for name in cluster.names:
        lost = agent_answer(cluster, name, "/topology")["lost"]
        assert not [loss for loss in lost if loss["wanted"] == str(source)]
    # A consumer that comes late begins anew.
    assert declare(bus, [source]).complete
    assert queue_exists(cluster, "mb3", source.amqp_queue)


@pytest.mark.guarantee("expiring-lives-while-used")
def test_an_expiring_subscription_goes_from_a_broker_that_was_down_too(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    cluster, source = broken, expiring(topic)
    assert declare(bus, [source]).complete
    cluster.kill("mb2", agent=True)
    cluster.kill("mb2")
    eventually(
        lambda: not entry_of(cluster, "mb1", str(source)).get("alive", True),
        within_s=EXPIRES_S + WITHIN_S,
    )
    cluster.start("mb2")
    cluster.start("mb2", agent=True)
    cluster.wait_ready(["mb2"])
    assert is_deleted(cluster, source)


@pytest.mark.guarantee("expiring-lives-while-used")
def test_a_queue_that_expires_on_one_broker_while_used_on_others_is_made_again_and_told(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    """The consumer reaches all brokers but one, which its list does not name."""
    cluster, source = broken, expiring(topic)
    declare(bus, [source])
    one = BusConfig(
        broker=cluster.node("mb1").broker, user="admin", password=cluster.admin_password
    )
    with Consumer(one, source):

        def told() -> bool:
            lost = agent_answer(cluster, "mb2", "/topology")["lost"]
            return any(loss["wanted"] == str(source) and loss["repaired_at_ms"] for loss in lost)

        eventually(told, within_s=EXPIRES_S + WITHIN_S)
        assert entry_of(cluster, "mb1", str(source))["alive"]
    eventually(lambda: is_deleted(cluster, source), within_s=2 * EXPIRES_S + WITHIN_S)


@pytest.mark.guarantee("ephemeral-goes-with-its-consumer")
def test_without_agents_an_ephemeral_subscription_is_left_to_expire(
    broken: LocalCluster, bus: BusConfig, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    source = Subscription.ephemeral(topic, expires_s=EXPIRES_S)
    consumer = Consumer(bus, source)
    consumer.start(require="all", timeout_s=DEADLINE_S)
    for name in broken.names:
        broken.kill(name, agent=True)
    assert consumer.stop() == 0
    assert "left to expire" in caplog.text
    for name in broken.names:
        broken.start(name, agent=True)
    broken.wait_ready(broken.names)
    eventually(lambda: is_deleted(broken, source), within_s=2 * EXPIRES_S + WITHIN_S)


@pytest.mark.guarantee("delayed-in-time")
def test_a_delayed_message_comes_out_in_time_where_it_was_addressed(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    step = delay_step(1_000)
    sources: list[Subscription | Queue] = [
        *(Subscription(Topic(topic), name) for name in "ab"),
        Queue(topic),
    ]
    assert declare(bus, [*sources, Topic(topic), step]).complete
    began_s = time.monotonic()
    keys = [f"mb.topic/{topic}", f"mb.queue/{topic}", f"mb.sub/{topic}/b"]
    for key in keys:
        publish_by_hand(bus, cluster, step.exchange, key)
    wanted = {
        f"{topic}/a": {keys[0]},
        f"{topic}/b": {keys[0], keys[2]},
        f"queue:{topic}": {keys[1]},
    }
    for source in sources:
        parts = (source, "") if isinstance(source, Queue) else (topic, source.name)
        with Consumer(bus, parts[0], subscription=parts[1]) as consumer:
            got = set[str]()
            while got != wanted[str(source)]:
                delivery = consumer.receive(DEADLINE_S)
                assert delivery is not None
                got.add(delivery.message.message_id)
                consumer.ack(delivery)
    assert time.monotonic() - began_s >= step.ms / 1000


@pytest.mark.guarantee("delayed-in-time")
def test_a_delay_survives_the_kill_of_its_broker(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    cluster, step = broken, delay_step(2_000)
    declare(bus, [f"{topic}/all", topic, step])
    publish_by_hand(bus, cluster, step.exchange, f"mb.topic/{topic}")
    cluster.kill(cluster.names[0])
    cluster.start(cluster.names[0])
    with Consumer(bus, topic, subscription="all") as consumer:
        delivery = consumer.receive(DEADLINE_S)
        assert delivery is not None
        consumer.ack(delivery)
