"""Publishes to the homes of partitions, over brokers in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from messagebus import (
    AsyncPublisher,
    BacklogFull,
    Batching,
    ConfigError,
    Message,
    Outcome,
    PublisherConfig,
    Spool,
    Topic,
)
from messagebus._io.publish import partitions
from messagebus.core.homes import partition_of, read_homes
from messagebus.testing import MemoryBus
from tests.support.eventually import eventually, eventually_async

WITHIN_S = 60
PARTITIONS = 6
ONE = "memory-1:5672"


@pytest.fixture
def memory() -> MemoryBus:
    made = MemoryBus(brokers=3)
    made.declare(Topic("orders", partitions=PARTITIONS))
    made.declare("orders/billing")
    return made


@pytest.fixture
async def publisher(memory: MemoryBus) -> AsyncIterator[AsyncPublisher]:
    async with memory.async_publisher(PublisherConfig(backlog_messages_max=80)) as made:
        yield made


def key_at(memory: MemoryBus, home: str) -> str:
    """Return a key whose home this broker is."""
    where = read_homes(" ".join(memory.brokers), PARTITIONS)
    keys = (f"k{number}" for number in range(1_000))
    return next(key for key in keys if where[partition_of(key, PARTITIONS)].broker == home)


async def test_a_home_that_is_away_stops_its_own_keys_only_and_is_named(
    memory: MemoryBus, publisher: AsyncPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "AWAY_MS", 50)
    own, other = key_at(memory, ONE), key_at(memory, "memory-2:5672")
    await publisher.send_safe("orders", b"x", key=own)
    memory.stop_brokers(ONE)
    first = await publisher.submit("orders", b"waits", key=own, timeout_s=60)
    waiting = [await publisher.submit("orders", b"x", key=own, timeout_s=60) for _ in range(9)]
    assert publisher._drivers is not None
    assert publisher._drivers.partitions is not None
    home = publisher._drivers.partitions.brokers[ONE]
    await eventually_async(
        lambda: home.is_away(time.monotonic_ns() // 1_000_000), within_s=WITHIN_S
    )
    more = [await publisher.submit("orders", b"x", key=own, timeout_s=60) for _ in range(3)]
    refused = await more[-1]  # more than its share of the backlog
    assert refused.outcome is Outcome.REFUSED
    assert (
        refused.reason
        == f"home {ONE} of partition {partition_of(own, PARTITIONS)} is away, and 10 wait"
    )
    for _ in range(200):  # more than the backlog: others have all of it
        assert (await publisher.send_safe("orders", b"y", key=other)).broker == "memory-2:5672"
    late = await (await publisher.submit("orders", b"late", key=other, timeout_s=5))
    assert late.outcome is Outcome.CONFIRMED
    memory.start_brokers(ONE)
    assert {(await end).outcome for end in (first, *waiting)} == {Outcome.CONFIRMED}


async def test_a_deadline_names_the_home(memory: MemoryBus, publisher: AsyncPublisher) -> None:
    own = key_at(memory, ONE)
    await publisher.send_safe("orders", b"x", key=own)
    memory.stop_brokers(ONE)
    end = await (await publisher.submit("orders", b"late", key=own, timeout_s=0.2))
    assert end.outcome is Outcome.REFUSED
    assert f"home {ONE} of its partition" in end.reason


async def test_messages_without_a_key_go_to_all_partitions(
    memory: MemoryBus, publisher: AsyncPublisher
) -> None:
    ends = await publisher.send_many("orders", [b"x"] * 30)
    assert {end.broker for end in ends} == set(memory.brokers)


async def test_what_was_accepted_before_the_partitions_were_known_keeps_its_order(
    memory: MemoryBus, publisher: AsyncPublisher
) -> None:
    futures = [
        await publisher.submit("orders", Message(body=b"%d" % number, key="k"))
        for number in range(20)
    ]
    await asyncio.gather(*futures)
    futures += [
        await publisher.submit("orders", Message(body=b"%d" % number, key="k"))
        for number in range(20, 40)
    ]
    await asyncio.gather(*futures)
    async with memory.async_consumer("orders", subscription="billing", order="key") as consumer:
        for number in range(40):
            delivery = await consumer.receive(WITHIN_S)
            assert delivery is not None
            assert int(delivery.body) == number
            consumer.ack(delivery)


def test_a_call_that_waits_for_room_waits_on_when_its_topic_turns_out_to_have_partitions(
    memory: MemoryBus,
) -> None:
    """Calls for topics without and with partitions wait in two queues: it must be found in its own."""
    memory.declare(Topic("plain"))
    memory.stop_brokers()
    with (
        memory.publisher(PublisherConfig(backlog_messages_max=1)) as publisher,
        ThreadPoolExecutor(1) as caller,
    ):
        publisher.submit("plain", b"x", timeout_s=WITHIN_S)
        late = caller.submit(publisher.submit, "plain", b"y", timeout_s=1)
        eventually(lambda: publisher._intake._queue, within_s=WITHIN_S)
        publisher._outgoing.partitioned("plain", 2)
        with pytest.raises(BacklogFull):
            late.result(WITHIN_S)
        assert not publisher._intake._queue
        publisher.stop(0)


async def test_a_spool_and_partitions_exclude_each_other(memory: MemoryBus, tmp_path: Path) -> None:
    async with memory.async_publisher(spool=tmp_path) as publisher:
        end = await (await publisher.submit("orders", b"x", timeout_s=5))
        assert (end.outcome, "without a spool" in end.reason) == (Outcome.REFUSED, True)
    async with memory.async_publisher(spool=Spool(tmp_path, always=True)) as publisher:
        with pytest.raises(ConfigError, match="published to without a spool"):
            await publisher.submit(Topic("orders", partitions=8), b"x")
        assert publisher.stats().spooled == 0


@pytest.mark.parametrize("key", ["k" * 255, "é" * 127, "hot"])
async def test_keys_at_their_bounds_and_a_hot_one_stay_in_one_partition_and_in_order(
    memory: MemoryBus, publisher: AsyncPublisher, key: str
) -> None:
    bodies = [str(number) for number in range(60)]
    ends = await publisher.send_many("orders", [Message.text(each, key=key) for each in bodies])
    assert {end.outcome for end in ends} == {Outcome.CONFIRMED}
    async with memory.async_consumer("orders", subscription="billing", order="key") as consumer:
        for body in bodies:
            delivery = await consumer.receive(WITHIN_S)
            assert delivery is not None
            told = (delivery.body.decode(), delivery.key, delivery.partition)
            assert told == (body, key, partition_of(key, PARTITIONS))
            consumer.ack(delivery)


async def test_a_partitioned_topic_that_a_publisher_batches_is_refused_and_no_other_one(
    memory: MemoryBus,
) -> None:
    memory.declare(Topic("others", partitions=PARTITIONS))
    memory.declare("others/billing")
    config = PublisherConfig(batch={"orders": Batching()})
    async with memory.async_publisher(config) as publisher:
        await publisher.send_safe("others", b"x")
        for _ in range(2):
            end = await (await publisher.submit("orders", b"x"))
            assert end.outcome is Outcome.REFUSED
            assert "batch is for topics without" in end.reason
        await publisher.send_safe("others", b"y")


async def test_an_application_that_cancels_all_tasks_ends_no_question_for_homes(
    memory: MemoryBus, publisher: AsyncPublisher
) -> None:
    def asking() -> set[asyncio.Task[Any]]:
        return {task for task in asyncio.all_tasks() if "follow_homes" in str(task.get_coro())}

    consumer = memory.async_consumer("orders", subscription="billing", order="key")
    await consumer.start(require="all")
    await publisher.send_safe("orders", b"x", key="k")
    before = asking()
    assert len(before) == 2
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await eventually_async(lambda: len(asking() - before) == 2, within_s=WITHIN_S)
    assert (delivery := await consumer.receive(WITHIN_S)) is not None
    assert consumer.ack(delivery)
    assert (await publisher.send_safe("orders", b"x", key="k")).broker
    await consumer.stop()
    await publisher.stop()
    assert not asking()
