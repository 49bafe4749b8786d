"""Promises of a batch on real brokers, through our own codec and through plain pika."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from messagebus import (
    AsyncConsumer,
    AsyncPublisher,
    Batching,
    BusConfig,
    Delivery,
    Message,
    Outcome,
    Payload,
    PublisherConfig,
)
from messagebus._io.amqp.batch import BATCH_TYPE
from messagebus._io.consume.copies import PARK_REASON
from ops.local.cluster import LocalCluster
from tests.support.eventually import FACTOR
from tests.support.faults import direct
from tests.support.load import created
from tests.support.queues import take_raw

WITHIN_S = 60 * FACTOR
COUNT = 20


pytestmark = pytest.mark.usefixtures("hot_path")


@pytest.fixture
def queue(topic: str) -> str:
    return f"queue:{topic}"


async def publish(bus: BusConfig, queue: str) -> list[str]:
    """Publish one batch; return the ids."""
    config = PublisherConfig(batch={queue: Batching(count_max=COUNT, linger_s=0.05)})
    async with AsyncPublisher(bus, config) as publisher:
        published = await publisher.send_many(created(queue), [b"%d" % n for n in range(COUNT)])
        assert {each.outcome for each in published} == {Outcome.CONFIRMED}
        return [each.message_id for each in published]


async def attached(bus: BusConfig, queue: str) -> AsyncConsumer:
    consumer = AsyncConsumer(bus, queue)
    await consumer.start(require="all", timeout_s=WITHIN_S)
    return consumer


async def received(consumer: AsyncConsumer, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    while len(found) < count:
        delivery = await consumer.receive(WITHIN_S)
        assert delivery is not None, f"{len(found)} of {count}"
        found.append(delivery)
    return found


async def batch_received(
    cluster: LocalCluster, bus: BusConfig, queue: str, count: int = COUNT
) -> tuple[list[str], AsyncConsumer, list[Delivery]]:
    """Return the ids of one batch, and the first `count` deliveries of it, unanswered."""
    ids = await publish(direct(cluster, "mb1"), queue)
    consumer = await attached(bus, queue)
    return ids, consumer, await received(consumer, count)


async def test_what_send_many_is_given_together_travels_together(
    cluster: LocalCluster, bus: BusConfig, queue: str
) -> None:
    too_large = b"x" * 1000
    batching = Batching(count_max=COUNT, bytes_max=len(too_large))
    config = PublisherConfig(batch={queue: batching}, backlog_messages_max=2 * COUNT)
    given: list[Payload] = [b"%d" % n for n in range(5 * COUNT)]
    given += [too_large, "text", b"last"]
    async with AsyncPublisher(direct(cluster, "mb1"), config) as publisher:
        published = await publisher.send_many(created(queue), given)
        assert publisher.stats().confirmed == len(given)
    assert {each.outcome for each in published} == {Outcome.CONFIRMED}
    consumer = await attached(bus, queue)
    found = await received(consumer, len(given))
    assert [each.message_id for each in found] == [each.message_id for each in published]
    assert [each.body for each in found] == [
        each.encode() if isinstance(each, str) else each for each in given
    ]
    sizes = Counter(each.receipt.tag for each in found)
    assert sorted(sizes.values(), reverse=True)[:5] == [COUNT] * 5
    await consumer.stop(0)


async def test_a_damaged_batch_is_parked_whole_with_its_reason_and_harms_nobody(
    cluster: LocalCluster, bus: BusConfig, queue: str, topic: str
) -> None:
    consumer = await attached(bus, queue)
    async with AsyncPublisher(direct(cluster, "mb1")) as publisher:
        damaged = Message(
            body=b"\x00\x00\x00\x09abc", content_type=BATCH_TYPE, message_id="damaged"
        )
        await publisher.send_safe(queue, damaged)
        await publisher.send_safe(queue, b"good")
    (good,) = await received(consumer, 1)
    assert good.body == b"good"
    consumer.ack(good)
    parked = await take_raw(cluster, f"mb.park/{topic}", within_s=WITHIN_S)
    assert (parked.message_id, parked.body) == ("damaged", damaged.body)
    assert "entry 1 at byte 0 of 7" in parked.headers[PARK_REASON]
    assert consumer.stats().batches_damaged == 1
    await consumer.stop()


async def test_a_stop_in_the_middle_of_a_batch_gives_back_the_rest_and_doubles_nothing(
    cluster: LocalCluster, bus: BusConfig, queue: str
) -> None:
    ids, first, found = await batch_received(cluster, bus, queue, COUNT // 2)
    for each in found:
        first.ack(each)
    assert await first.stop(timeout_s=0) == 0
    second = await attached(bus, queue)
    rest = await received(second, COUNT - COUNT // 2)
    for each in rest:
        second.ack(each)
    assert await second.receive(0.5) is None
    assert Counter(each.message_id for each in found + rest) == Counter(ids)
    await second.stop()


async def test_messages_larger_than_a_batch_and_with_a_priority_go_alone_in_order(
    cluster: LocalCluster, bus: BusConfig, queue: str
) -> None:
    config = PublisherConfig(batch={queue: Batching(count_max=10, bytes_max=100)})
    sent = [b"a", b"x" * 200, b"b", b"c"]
    async with AsyncPublisher(direct(cluster, "mb1"), config) as publisher:
        await publisher.send_safe(created(queue), b"first")
        futures = [await publisher.submit(queue, body) for body in sent]
        futures.append(await publisher.submit(queue, b"p", priority=3))
        assert {each.outcome for each in await asyncio.gather(*futures)} == {Outcome.CONFIRMED}
    consumer = await attached(bus, queue)
    found = await received(consumer, 6)
    assert [each.body for each in found] == [b"first", *sent, b"p"]
    assert found[-1].message.priority == 3
    for each in found:
        consumer.ack(each)
    await consumer.stop()
