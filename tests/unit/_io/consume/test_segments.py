"""The segments of one consumer, over brokers in memory."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict

from messagebus import AsyncConsumer, Message, Topic
from messagebus._io.consume.segments import broker_of
from messagebus.core.group import SEGMENT_PREFETCH
from messagebus.testing import MemoryBus
from tests.support.eventually import eventually_async

WITHIN_S = 60


def memory() -> MemoryBus:
    made = MemoryBus(brokers=2)
    made.declare(Topic("orders", partitions=2))
    made.declare("orders/billing")
    return made


async def test_every_consumer_may_hold_the_same_number_of_a_segment() -> None:
    """Whatever its prefetch: what it returns would come behind the rest otherwise."""
    bus = memory()
    async with bus.async_publisher() as publisher:
        messages = [Message.text(str(n), key="k") for n in range(3 * SEGMENT_PREFETCH)]
        await publisher.send_many("orders", messages)
        async with bus.async_consumer("orders", subscription="billing", order="key") as consumer:
            first = await consumer.receive(WITHIN_S)
            assert first is not None
            await eventually_async(
                lambda: (
                    sum(each.owed for each in consumer.stats().brokers.values()) == SEGMENT_PREFETCH
                ),
                within_s=WITHIN_S,
            )
            consumer.rest(prefetch=3)
            assert consumer._driver is not None
            assert consumer._driver.links.prefetch == SEGMENT_PREFETCH


async def test_a_lost_channel_of_one_segment_leaves_the_others_alone() -> None:
    bus = memory()
    async with bus.async_consumer("orders", subscription="billing", order="key") as consumer:
        driver = consumer._driver
        assert driver is not None
        await eventually_async(lambda: len(driver.links.links) == 2, within_s=WITHIN_S)
        name, other = sorted(driver.links.links)
        assert broker_of(name) != broker_of(other)
        kept, link = driver.links.links[other], driver.links.links[name]
        link.abort()
        await eventually_async(
            lambda: driver.links.links.get(name) not in (None, link), within_s=WITHIN_S
        )
        assert driver.links.links[other] is kept


async def test_a_member_lets_go_what_is_more_than_its_share_and_loses_no_order() -> None:
    bus = memory()
    got: list[list[int]] = [[], []]
    by_key: dict[str | None, list[int]] = defaultdict(list)
    numbers, published = itertools.count(), 0

    async def take(number: int, consumer: AsyncConsumer) -> None:
        async for delivery in consumer:
            got[number].append(int(delivery.body))
            by_key[delivery.message.key].append(int(delivery.body))
            consumer.ack(delivery)

    async with (
        bus.async_publisher() as publisher,
        asyncio.timeout(WITHIN_S),
        asyncio.TaskGroup() as tasks,
    ):

        async def publish() -> None:
            nonlocal published
            messages = [Message.text(str(next(numbers)), key=f"k{n}") for n in range(20)]
            await publisher.send_many("orders", messages)
            published += len(messages)
            await eventually_async(
                lambda: len(got[0]) + len(got[1]) == published, within_s=WITHIN_S
            )

        async with bus.async_consumer("orders", subscription="billing", order="key") as first:
            taking = tasks.create_task(take(0, first))
            async with bus.async_consumer("orders", subscription="billing", order="key") as second:
                also = tasks.create_task(take(1, second))
                while not got[1]:
                    await publish()
                also.cancel()
            taking.cancel()
    assert sorted(got[0] + got[1]) == list(range(published))
    assert all(of_key == sorted(of_key) for of_key in by_key.values())
