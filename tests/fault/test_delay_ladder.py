"""Promise: a due message without a queue leaves its step, is kept, counted and reported; others go on."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pika
import pytest

from messagebus import BusConfig, Consumer, Publisher, Queue, Topic, declare
from messagebus.admin import count_parked, purge_parked, redrive_parked
from messagebus.destination import DELAY_STEPS_MS, Delay
from ops.local.cluster import LocalCluster
from tests.support.eventually import eventually
from tests.support.faults import delete_queue, direct, metric, register, unregister
from tests.support.raw import Raw, publish_raw

DEADLINE_S = 60.0
WITHIN_S = 60
MANY = 2_000
# Messages that RabbitMQ's dead-letter worker could not hand on and holds; then it takes no more.
HELD = 32
UNDELIVERED = "mb.park/mb.due"


@pytest.fixture
def bus(broken: LocalCluster) -> Iterator[BusConfig]:
    """Settings of a publisher to the first broker, without undelivered messages before and afterwards."""
    purge_parked(direct(broken, "mb1"), ["undelivered"])
    yield direct(broken, "mb1")
    purge_parked(direct(broken, "mb1"), ["undelivered"])


def raw(cluster: LocalCluster, messages: Sequence[Raw]) -> None:
    publish_raw(cluster.node("mb1").broker, "bus", cluster.password, messages)


def retries(subscription: str, step_ms: int, count: int) -> list[Raw]:
    """Publish retries as consumers of a subscription do, docs/WIRE.md."""
    step = Delay(step_ms).exchange
    return [
        Raw(
            step,
            f"mb.sub/{subscription}",
            pika.BasicProperties(message_id=f"r{n}", delivery_mode=2),
        )
        for n in range(count)
    ]


def undelivered(bus: BusConfig) -> dict[str, int]:
    """Count undelivered messages on the first broker, by reason."""
    found = [c for c in count_parked(bus, ["undelivered"]).counts if c.broker == bus.address.name]
    return dict(found[0].reasons) if found else {}


@contextmanager
def quick(cluster: LocalCluster, *queues: str) -> Iterator[None]:
    """Have these steps let go of everything after one second."""
    with cluster.management("mb1") as management:
        for number, queue in enumerate(queues):
            policy = {
                "pattern": f"^{queue}$",
                "apply-to": "queues",
                "priority": 1,
                "definition": {"message-ttl": 1_000},
            }
            management.put(f"/api/policies/%2F/quick{number}", json=policy).raise_for_status()
        yield
        for number in range(len(queues)):
            management.delete(f"/api/policies/%2F/quick{number}").raise_for_status()


@pytest.mark.guarantee("undelivered-leaves-its-step")
def test_two_thousand_delayed_messages_without_a_queue_hold_up_none_that_has_one(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    declare(bus, [Queue(topic), Topic(f"{topic}-unread")])
    with Publisher(bus) as publisher, Consumer(bus, f"queue:{topic}") as consumer:
        bodies = [b"unread"] * MANY
        publisher.send_many(f"{topic}-unread", bodies, deliver_after_s=1)
        published = publisher.send_safe(f"queue:{topic}", b"read", deliver_after_s=1)
        delivery = consumer.receive(DEADLINE_S)
        assert delivery is not None
        assert delivery.message_id == published.message_id
        consumer.ack(delivery)
    reason = f"no queue: mb.topic/{topic}-unread"
    # Retries of tests before may become due meanwhile, and count too.
    eventually(lambda: undelivered(bus).get(reason, 0) >= MANY, within_s=WITHIN_S)
    assert undelivered(bus)[reason] == MANY
    eventually(
        lambda: metric(broken, "mb1", "undelivered") == sum(undelivered(bus).values()),
        within_s=WITHIN_S,
    )
    unregister(broken, f"{topic}-unread")


@pytest.mark.guarantee("undelivered-leaves-its-step")
def test_through_every_step_what_has_a_queue_passes_what_has_none(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    steps = [Delay(ms) for ms in DELAY_STEPS_MS]
    register(broken, f"queue:{topic}", *map(str, steps))
    with (
        quick(broken, *(step.amqp_queue for step in steps)),
        Consumer(bus, Queue(topic)) as consumer,
    ):
        for step in steps:
            raw(broken, [Raw(step.exchange, f"mb.queue/{topic}-gone")] * (3 * HELD))
            raw(broken, [Raw(step.exchange, f"mb.queue/{topic}", body=str(step).encode())])
        came = set[bytes]()
        while len(came) < len(steps):
            delivery = consumer.receive(DEADLINE_S)
            assert delivery is not None
            came.add(delivery.body)
            consumer.ack(delivery)
    expected = {f"no queue: mb.queue/{topic}-gone": 3 * HELD * len(steps)}
    eventually(lambda: undelivered(bus) == expected, within_s=WITHIN_S)


@pytest.mark.guarantee("undelivered-leaves-its-step")
def test_a_subscription_deleted_with_a_thousand_retries_waiting_stops_nobody(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    register(broken, f"{topic}/doomed", f"{topic}/alive", "delay:2000")
    raw(broken, retries(f"{topic}/doomed", 2_000, 1_000))
    unregister(broken, f"{topic}/doomed")
    raw(broken, retries(f"{topic}/alive", 2_000, 1))
    with Consumer(bus, topic, subscription="alive") as consumer:
        delivery = consumer.receive(DEADLINE_S)
        assert delivery is not None
        consumer.ack(delivery)
    reason = f"no queue: mb.sub/{topic}/doomed"
    eventually(lambda: undelivered(bus) == {reason: 1_000}, within_s=WITHIN_S)
    # They stay, and the next command finds them again.
    told = redrive_parked(bus, ["undelivered"], rate_per_s=1e6)
    assert not told.total
    assert "1000 left where they are" in " ".join(told.faults.values())
    register(broken, f"{topic}/doomed")
    assert redrive_parked(bus, ["undelivered"], rate_per_s=1e6, count_max=100).total == 100
    with Consumer(bus, topic, subscription="doomed") as consumer:
        ids = set[str]()
        while len(ids) < 100:
            delivery = consumer.receive(DEADLINE_S)
            assert delivery is not None
            ids.add(delivery.message_id)
            consumer.ack(delivery)
    assert undelivered(bus) == {reason: 900}


@pytest.mark.guarantee("delayed-time-to-live")
def test_a_foreign_clients_expiration_lets_no_delayed_message_come_early(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    register(broken, f"queue:{topic}", "delay:2000")
    with Consumer(bus, Queue(topic)) as consumer:
        properties = pika.BasicProperties(message_id="m", expiration="200", delivery_mode=2)
        began_s = time.monotonic()
        raw(broken, [Raw("mb.delay/2000", f"mb.queue/{topic}", properties)])
        delivery = consumer.receive(DEADLINE_S)
        assert delivery is not None
        assert time.monotonic() - began_s >= 2
        assert (delivery.message_id, delivery.message.ttl_s) == ("m", 0.2)
        consumer.ack(delivery)


@pytest.mark.guarantee("undelivered-leaves-its-step")
def test_the_undelivered_survive_a_kill_and_their_way_is_open_again_after_it(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    register(broken, f"{topic}/all", "delay:1000", "delay:5000")
    raw(broken, retries(f"{topic}/gone", 1_000, 2 * HELD))
    reason = f"no queue: mb.sub/{topic}/gone"
    eventually(lambda: undelivered(bus) == {reason: 2 * HELD}, within_s=WITHIN_S)
    raw(broken, retries(f"{topic}/gone", 5_000, 2 * HELD))
    raw(broken, retries(f"{topic}/all", 5_000, 1))
    broken.kill("mb1")
    broken.start("mb1")
    broken.wait_ready()
    with Consumer(bus, topic, subscription="all") as consumer:
        delivery = consumer.receive(DEADLINE_S)
        assert delivery is not None
        consumer.ack(delivery)
    eventually(lambda: undelivered(bus) == {reason: 4 * HELD}, within_s=WITHIN_S)


def test_without_agents_what_has_no_queue_leaves_its_step_too(
    broken: LocalCluster, topic: str
) -> None:
    """The broker is one that no agent has ever set up."""
    broken.stop("mb1", agent=True)
    alone = BusConfig(
        broker=broken.node("mb1").broker, user="admin", password=broken.admin_password
    )
    with broken.management("mb1") as management:
        for name in ("mb.due", "mb.out", "mb.undelivered"):
            management.delete(f"/api/exchanges/%2F/{name}").raise_for_status()
        delete_queue(broken, "mb1", UNDELIVERED)
    declare(alone, [Queue(topic), Delay(1_000)])
    raw(broken, retries(f"{topic}/gone", 1_000, 2 * HELD))
    with Publisher(alone) as publisher, Consumer(alone, Queue(topic)) as consumer:
        publisher.send_safe(Queue(topic), b"due", deliver_after_s=1)
        delivery = consumer.receive(DEADLINE_S)
        assert delivery is not None
        consumer.ack(delivery)
    reason = f"no queue: mb.sub/{topic}/gone"
    eventually(lambda: undelivered(alone) == {reason: 2 * HELD}, within_s=WITHIN_S)
    purge_parked(alone, ["undelivered"])
    broken.start("mb1", agent=True)
