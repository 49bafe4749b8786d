"""Promises of partitioned topics on every kind of bus: homes, groups, and what is refused by its name."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest

from messagebus import (
    Batching,
    ConfigError,
    Delivery,
    Message,
    Outcome,
    Subscription,
    Topic,
    TopologyMismatch,
    declare,
)
from messagebus.stores import Dedup
from messagebus.stores.memory import MemoryStore
from messagebus.topology import Wanted
from tests.contract.conftest import Bus, Client, end_of
from tests.contract.test_consuming import WITHIN_S
from tests.contract.test_handling import counted, ended, run
from tests.contract.test_order import COUNT, KEYS, SOON, Recorder, fails, mixed
from tests.support.eventually import eventually_async

PARTITIONS = 6
PAUSE_S = 0.05  # between looks at who has which partitions


class Placed(Recorder):
    """Recorder that notes the brokers of each partition, too."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.homes: dict[int, set[str]] = defaultdict(set)

    def begin(self, delivery: Delivery) -> None:
        self.homes[delivery.partition].add(delivery.broker)
        super().begin(delivery)


async def declared(bus: Bus, partitions: int = PARTITIONS, *, ordered: bool = True) -> None:
    wanted: list[Wanted] = [
        Topic(bus.topic, partitions=partitions),
        Subscription(Topic(bus.topic), "billing", ordered=ordered),
    ]
    if bus.is_memory:
        for each in wanted:
            bus.in_memory.declare(each)
    else:
        await asyncio.to_thread(declare, bus.config, wanted, timeout_s=WITHIN_S)


async def publish(bus: Bus, bodies: list[str]) -> None:
    publisher = await bus.publisher()
    messages = [Message.text(each, key=each.partition(":")[0]) for each in bodies]
    ends = await publisher.call("send_many", bus.topic, messages)
    assert {end.outcome for end in ends} == {Outcome.CONFIRMED}, ends


def in_order(handler: Recorder) -> bool:
    """Return whether all has completed, each key in its order by first completions."""
    firsts = {key: list(dict.fromkeys(bodies)) for key, bodies in handler.well.items()}
    return firsts == {
        f"k{key}": [f"k{key}:{number}" for number in range(COUNT)] for key in range(KEYS)
    }


@pytest.mark.guarantee("accepted-before-a-stop")
async def test_what_was_accepted_before_a_stop_goes_to_its_home(bus: Bus) -> None:
    """The stop comes while the topic is looked up."""
    await declared(bus)
    publisher = await bus.publisher()
    ends = [await publisher.call("submit", bus.topic, Message.text(body)) for body in mixed()]
    assert await publisher.call("stop") == 0
    outcomes = [(await end_of(end)).outcome for end in ends]
    assert outcomes == [Outcome.CONFIRMED] * len(ends)
    consumer = await bus.consumer(order="key")
    await counted(consumer, delivered=len(ends))


@pytest.mark.guarantee("key-order-across-brokers")
async def test_each_partition_has_one_home_and_each_key_its_order(bus: Bus) -> None:
    await declared(bus)
    handler = Placed(fails("k1:3", "k4:0", until=3))
    consumer = await bus.consumer(order="key")
    await publish(bus, mixed())
    work = run(consumer, handler.of(consumer), 10, retry=SOON)
    await eventually_async(lambda: in_order(handler), within_s=WITHIN_S)
    assert handler.beside == []
    assert all(len(homes) == 1 for homes in handler.homes.values())
    assert 0 <= min(handler.homes) <= max(handler.homes) < PARTITIONS
    await ended(consumer, work)


@pytest.mark.guarantee("key-order-across-brokers")
async def test_what_a_stopped_consumer_held_comes_first_to_the_next_one(bus: Bus) -> None:
    await declared(bus)
    handler = Placed(fails("k1:3", until=3))
    first = await bus.consumer(order="key")
    work = run(first, handler.of(first), 4, retry=SOON)
    second = await bus.consumer(order="key")
    await publish(bus, mixed())
    await eventually_async(lambda: len(handler.runs) > 10, within_s=WITHIN_S)
    await bus.cut(first)
    await ended(first, work)
    work = run(second, handler.of(second), 10, retry=SOON)
    await eventually_async(lambda: in_order(handler), within_s=WITHIN_S)
    await ended(second, work)


@pytest.mark.guarantee("fence-refuses-who-was-cut-off")
async def test_each_consumer_that_is_served_a_partition_has_a_larger_fence(bus: Bus) -> None:
    await declared(bus, 1)
    dedup, fences = Dedup(MemoryStore(), fence=True), list[int]()
    for turn in range(2):
        consumer = await bus.consumer(order="key", dedup=dedup)
        await publish(bus, [f"k:{turn}a", f"k:{turn}b"])
        for _ in range(2):
            delivery = await consumer.call("receive", timeout_s=WITHIN_S)
            fences.append(delivery.fence)
            assert await consumer.call("ack_safe", delivery)
        await consumer.call("stop")
    assert fences == [1, 1, 2, 2]


async def test_the_consumers_of_a_group_share_the_partitions(bus: Bus) -> None:
    await declared(bus)
    seen: list[set[int]] = [set(), set()]
    members = [await bus.consumer(order="key") for _ in seen]
    publisher = await bus.publisher()
    over = asyncio.Event()

    async def take(member: Client, partitions: set[int]) -> None:
        while not over.is_set():
            delivery = await member.call("receive", timeout_s=0.2)
            if delivery is not None:
                partitions.add(delivery.partition)
                await member.call("ack", delivery)

    taking = [asyncio.create_task(take(*each)) for each in zip(members, seen, strict=True)]

    async def shared() -> bool:
        for partitions in seen:
            partitions.clear()
        for number in range(5):
            messages = [Message.text("m", key=f"k{number}-{n}") for n in range(40)]
            await publisher.call("send_many", bus.topic, messages)
        await asyncio.sleep(PAUSE_S)
        return all(len(partitions) == PARTITIONS // 2 for partitions in seen)

    try:
        async with asyncio.timeout(WITHIN_S):
            while not await shared():
                pass
    finally:
        over.set()
        await asyncio.gather(*taking)


async def test_a_consumer_says_an_order_and_the_number_of_partitions_never_changes(
    bus: Bus,
) -> None:
    await declared(bus)
    consumer = await bus.consumer(start=False)
    with pytest.raises(TopologyMismatch, match="its topic has partitions; consume it with order="):
        await consumer.call("start", require="one", timeout_s=WITHIN_S)
    with pytest.raises(
        TopologyMismatch, match="wanted 7 and exists 6, for ever: make a topic of another name"
    ):
        await declared(bus, 7)
    with pytest.raises(TopologyMismatch, match="ordered is wanted False and exists True"):
        await declared(bus, ordered=False)


@pytest.mark.parametrize(
    ("settings", "options", "told"),
    [
        ({}, {"redundant": True}, "redundant is for topics without"),
        ({}, {"deliver_after_s": 5}, "a delayed message has no place in their order"),
        ({"batch": Batching(count_max=5)}, {}, "batch is for topics without"),
    ],
)
async def test_what_cannot_keep_an_order_is_refused_by_its_name(
    bus: Bus, settings: dict[str, Any], options: dict[str, Any], told: str
) -> None:
    await declared(bus)
    given: dict[str, Any] = {"batch": {bus.topic: settings["batch"]}} if settings else {}
    publisher = await bus.publisher(**given)
    end = await end_of(await publisher.call("submit", bus.topic, b"m", **options))
    assert (end.outcome, told in end.reason) == (Outcome.REFUSED, True), end
    if options:
        await publisher.call("send_safe", bus.topic, b"m")
        with pytest.raises(ConfigError, match=told):  # now it is known to have partitions
            await publisher.call("submit", bus.topic, b"m", **options)


async def test_a_message_with_a_priority_is_refused_by_a_topic_with_partitions(bus: Bus) -> None:
    """Quorum queues of RabbitMQ 4 deliver a higher priority first: its key would lose its order."""
    await declared(bus)
    publisher = await bus.publisher()
    for message in (Message(body=b"m", priority=9), Message(body=b"m", key="k", priority=0)):
        end = await end_of(await publisher.call("submit", bus.topic, message))
        assert end.outcome is Outcome.REFUSED
        assert "a message with a priority has no place in the order of" in end.reason
    await publisher.call("send_safe", bus.topic, Message(body=b"m", key="k"))


async def test_a_subscription_without_order_gets_everything_of_every_partition_by_any_consumer(
    bus: Bus,
) -> None:
    await declared(bus, ordered=False)
    # In memory a retry waits for a clock that the test would have to put forward.
    handler = Recorder() if bus.is_memory else Recorder(fails("k1:3", until=3))
    members = [await bus.consumer() for _ in range(2)]
    works = [run(member, handler.of(member), 10, retry=SOON) for member in members]
    await publish(bus, mixed())
    await eventually_async(
        lambda: sum(map(len, handler.well.values())) == COUNT * KEYS, within_s=WITHIN_S
    )
    assert {each: set(bodies) for each, bodies in handler.well.items()} == {
        f"k{key}": {f"k{key}:{number}" for number in range(COUNT)} for key in range(KEYS)
    }
    for member, work in zip(members, works, strict=True):
        await ended(member, work)


@pytest.mark.guarantee("key-order-across-brokers")
async def test_what_was_parked_goes_back_into_its_partition(bus: Bus) -> None:
    await declared(bus)
    handler = Placed(fails("k1:3", until=99))
    consumer = await bus.consumer(order="key")
    await publish(bus, ["k1:2", "k1:3", "k1:4", "k2:0"])
    work = run(consumer, handler.of(consumer), 10, retry=SOON)
    await eventually_async(lambda: sum(map(len, handler.well.values())) == 3, within_s=WITHIN_S)
    handler._end = lambda _delivery: None
    await counted(consumer, parked=1)
    assert await bus.redrive(f"{bus.topic}/billing") == 1
    await eventually_async(lambda: handler.well["k1"][-1] == "k1:3", within_s=WITHIN_S)
    await ended(consumer, work)
