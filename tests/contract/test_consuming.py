"""Promises of a consumer, on every kind of bus."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import pytest

from messagebus import (
    AlreadySettled,
    AsyncConsumer,
    BusConfig,
    ConfigError,
    Consumer,
    NameInvalid,
    NotReady,
    Stopped,
    Subscription,
)
from tests.contract.conftest import NOWHERE, Bus, Client
from tests.support.eventually import eventually_async

WITHIN_S = 60
# Long enough for a message that should not come to come.
QUIET_S = 0.5


async def publish(bus: Bus, count: int) -> Client:
    publisher = await bus.publisher()
    await publisher.call("send_many", bus.topic, [str(number) for number in range(count)])
    return publisher


async def receive(consumer: Client, count: int) -> list[Any]:
    """Receive this many deliveries, unanswered."""
    got: list[Any] = []
    for _ in range(count):
        delivery = await consumer.call("receive", timeout_s=WITHIN_S)
        assert delivery is not None, f"{len(got)} of {count} arrived"
        got.append(delivery)
    return got


def numbers(deliveries: list[Any]) -> list[int]:
    return [int(delivery.body) for delivery in deliveries]


async def test_every_subscription_gets_a_copy(bus: Bus) -> None:
    billing, audit = await bus.consumer("billing"), await bus.consumer("audit")
    await publish(bus, 20)
    assert sorted(numbers(await receive(billing, 20))) == list(range(20))
    assert sorted(numbers(await receive(audit, 20))) == list(range(20))


async def test_competing_consumers_get_each_message_once(bus: Bus) -> None:
    consumers = [await bus.consumer(prefetch=2, handed_out_max=2) for _ in range(2)]
    await publish(bus, 60)
    got: list[list[int]] = [[], []]

    async def work(who: int) -> None:
        while delivery := await consumers[who].call("receive", timeout_s=QUIET_S):
            got[who].append(int(delivery.body))
            await consumers[who].call("ack", delivery)
            await asyncio.sleep(0.002)

    await asyncio.gather(work(0), work(1))
    assert sorted(got[0] + got[1]) == list(range(60))
    assert got[0]
    assert got[1]


@pytest.mark.guarantee("ephemeral-goes-with-its-consumer")
async def test_an_ephemeral_subscription_goes_with_its_consumer(bus: Bus) -> None:
    source = Subscription.ephemeral(bus.topic)
    first = await bus.consumer("", destination=source)
    await publish(bus, 3)
    await receive(first, 1)
    assert await first.call("stop", 0) == 1
    again = await bus.consumer("", destination=source)
    assert await again.call("receive", timeout_s=QUIET_S) is None


async def test_what_is_given_back_comes_again_in_its_place_marked(bus: Bus) -> None:
    consumer = await bus.consumer(prefetch=1)
    await publish(bus, 3)
    (first,) = await receive(consumer, 1)
    assert not first.redelivered
    assert await consumer.call("nack", first)
    (again,) = await receive(consumer, 1)
    assert (again.body, again.redelivered, again.message_id) == (
        first.body,
        True,
        first.message_id,
    )
    assert again.receipt != first.receipt
    await consumer.call("ack", again)
    assert (await consumer.call("stats")).nacked == 1


async def test_what_is_given_back_comes_again_in_that_order(bus: Bus) -> None:
    consumer = await bus.consumer(prefetch=4)
    await publish(bus, 5)
    held = await receive(consumer, 4)
    for number in (3, 1):
        assert await consumer.call("nack", held[number])
    for number in (0, 2):
        assert await consumer.call("ack", held[number])
    assert numbers(await receive(consumer, 3)) == [3, 1, 4]


async def test_what_a_consumer_leaves_comes_again_before_the_rest(bus: Bus) -> None:
    first = await bus.consumer(prefetch=3)
    await publish(bus, 5)
    held = await receive(first, 3)
    assert await first.call("nack", held[0])
    await receive(first, 1)
    await first.call("stop", 0)
    again = await receive(await bus.consumer(), 5)
    assert numbers(again) == [1, 2, 0, 3, 4]
    assert [each.redelivered for each in again] == [True, True, True, False, False]


async def test_what_may_wait_for_nobody_is_for_who_has_room_now(bus: Bus) -> None:
    consumer = await bus.consumer(prefetch=1)
    publisher = await bus.publisher()
    for number in range(2):
        await publisher.call("send_safe", bus.topic, str(number), ttl_s=0)
        bus.pass_time(0.01)
    await publisher.call("send_safe", bus.topic, "2")
    (held,) = await receive(consumer, 1)
    await consumer.call("ack", held)
    assert [numbers([held]), numbers(await receive(consumer, 1))] == [[0], [2]]


async def test_what_is_rejected_is_parked_and_does_not_come_again(bus: Bus) -> None:
    consumer = await bus.consumer()
    await publish(bus, 1)
    (delivery,) = await receive(consumer, 1)
    assert await consumer.call("nack", delivery, requeue=False)
    assert await consumer.call("receive", timeout_s=QUIET_S) is None
    until = time.monotonic() + WITHIN_S
    while await bus.parked(delivery.broker, "billing") != 1:
        assert time.monotonic() < until, "nothing was parked"
        await asyncio.sleep(0.1)


@pytest.mark.guarantee("acked-after-the-handler")
async def test_nothing_is_acked_before_the_application_says_so(bus: Bus) -> None:
    consumer = await bus.consumer()
    await publish(bus, 3)
    await receive(consumer, 3)
    stats = await consumer.call("stats")
    assert (stats.delivered, stats.acked, stats.handed_out) == (3, 0, 3)
    assert sum(broker.owed for broker in stats.brokers.values()) == 3


@pytest.mark.guarantee("exit-settles-or-says")
async def test_stop_gives_back_what_has_no_answer_and_says_how_many(bus: Bus) -> None:
    consumer = await bus.consumer()
    await publish(bus, 10)
    got = await receive(consumer, 5)
    await consumer.call("ack", got[0])
    assert await consumer.call("stop", 0) == 4
    again = await receive(await bus.consumer(), 9)
    assert sorted([got[0].body, *[d.body for d in again]]) == sorted(
        str(number).encode() for number in range(10)
    )
    redelivered = {delivery.body for delivery in again if delivery.redelivered}
    assert {delivery.body for delivery in got[1:]} <= redelivered


async def test_stop_waits_for_answers(bus: Bus) -> None:
    consumer = await bus.consumer()
    await publish(bus, 1)
    (delivery,) = await receive(consumer, 1)
    stopping = asyncio.create_task(consumer.call("stop", WITHIN_S))
    await eventually_async(lambda: consumer.status == "stopped", within_s=60)
    assert await consumer.call("ack", delivery)
    assert await stopping == 0
    assert await (await bus.consumer()).call("receive", timeout_s=QUIET_S) is None


async def test_an_answer_after_stop_goes_nowhere(bus: Bus) -> None:
    consumer = await bus.consumer()
    await publish(bus, 3)
    ack, nack, ack_safe = await receive(consumer, 3)
    await consumer.call("stop", 0)
    assert await consumer.call("ack", ack) is False
    assert await consumer.call("nack", nack) is False
    assert await consumer.call("ack_safe", ack_safe) is False
    assert (await consumer.call("stats")).acked == 0


async def test_a_second_answer_is_told(bus: Bus) -> None:
    consumer = await bus.consumer()
    await publish(bus, 1)
    (delivery,) = await receive(consumer, 1)
    assert await consumer.call("ack", delivery) is True
    for method in ("ack", "nack", "ack_safe"):
        with pytest.raises(AlreadySettled, match="was answered before"):
            await consumer.call(method, delivery)
    assert (await consumer.call("stats")).acks_stale == 0


async def test_a_delivery_is_answered_by_the_consumer_that_received_it_and_by_no_other(
    bus: Bus,
) -> None:
    consumer, other = await bus.consumer(handed_out_max=2), await bus.consumer("audit")
    await publish(bus, 4)
    for delivery in await receive(consumer, 2):
        for method, how in (
            ("ack", {}),
            ("nack", {}),
            ("ack_safe", {}),
            ("retry", {"after_s": 1}),
            ("park", {"reason": "not mine"}),
        ):
            with pytest.raises(AlreadySettled, match="another consumer, which alone can answer"):
                await other.call(method, delivery, **how)
        assert await consumer.call("ack", delivery) is True
    assert len(await receive(consumer, 2)) == 2  # it has lost no place


@pytest.mark.parametrize("timeout_s", [math.inf, math.nan, "5"])
async def test_a_wait_that_is_no_number_of_seconds_is_refused_in_words(
    bus: Bus, timeout_s: Any
) -> None:
    consumer, publisher = await bus.consumer(), await bus.publisher()
    with pytest.raises(ConfigError, match="timeout_s"):
        await consumer.call("receive", timeout_s)
    with pytest.raises(ConfigError, match="timeout_s"):
        await publisher.call("send_safe", bus.topic, b"", timeout_s=timeout_s)
    assert await consumer.call("receive", -1) is None
    await publish(bus, 1)
    assert await consumer.call("receive", 1e10)


async def test_ack_safe_says_that_the_broker_has_it(bus: Bus) -> None:
    consumer = await bus.consumer()
    await publish(bus, 2)
    for delivery in await receive(consumer, 2):
        assert await consumer.call("ack_safe", delivery, timeout_s=WITHIN_S) is True
    assert (await consumer.call("stats")).acked == 2


@pytest.mark.guarantee("acked-after-the-handler")
async def test_at_most_once_answers_before_the_application_sees_it(bus: Bus) -> None:
    consumer = await bus.consumer(at_most_once=True, prefetch=5, handed_out_max=5)
    await publish(bus, 20)
    (delivery,) = await receive(consumer, 1)
    assert await consumer.call("ack", delivery) is True
    assert await consumer.call("ack", delivery) is True
    assert await consumer.call("nack", delivery) is False
    await asyncio.sleep(QUIET_S)
    stats = await consumer.call("stats")
    assert stats.acks_stale == 0
    assert stats.delivered <= 10, "nothing is taken that nobody asked for"
    await consumer.call("stop", 0)
    left = numbers(await receive(await bus.consumer(), 19))
    assert sorted([*left, int(delivery.body)]) == list(range(20))


async def test_the_limit_of_handed_out_deliveries_holds_and_an_answer_makes_room(
    bus: Bus,
) -> None:
    consumer = await bus.consumer(handed_out_max=3)
    await publish(bus, 10)
    held = await receive(consumer, 3)
    assert await consumer.call("receive", timeout_s=QUIET_S) is None
    assert await consumer.call("receive_immediate") is None
    await consumer.call("ack", held[0])
    assert len(await receive(consumer, 1)) == 1
    assert await consumer.call("receive", timeout_s=QUIET_S) is None


@pytest.mark.parametrize("timeout_s", [0, 0.3])
async def test_receive_returns_nothing_after_its_time(bus: Bus, timeout_s: float) -> None:
    consumer = await bus.consumer()
    begin = time.monotonic()
    assert await consumer.call("receive", timeout_s=timeout_s) is None
    assert timeout_s - 0.05 <= time.monotonic() - begin < timeout_s + 2
    assert await consumer.call("receive_immediate") is None


async def test_a_receive_that_waits_ends_with_stop(bus: Bus) -> None:
    consumer = await bus.consumer()
    waiting = asyncio.create_task(consumer.call("receive"))
    await asyncio.sleep(0.1)
    await consumer.call("stop", 0)
    assert await asyncio.wait_for(waiting, 60) is None


async def test_iteration_ends_with_stop(bus: Bus) -> None:
    consumer = await bus.consumer()
    await publish(bus, 5)
    got: list[Any] = []

    def blocking(inner: Consumer) -> None:
        for delivery in inner:
            got.append(delivery.body)
            inner.ack(delivery)

    async def asynchronous(inner: AsyncConsumer) -> None:
        async for delivery in inner:
            got.append(delivery.body)
            inner.ack(delivery)

    if isinstance(consumer.inner, Consumer):
        work = asyncio.create_task(asyncio.to_thread(blocking, consumer.inner))
    else:
        assert isinstance(consumer.inner, AsyncConsumer)
        work = asyncio.create_task(asynchronous(consumer.inner))
    await eventually_async(lambda: len(got) == 5, within_s=WITHIN_S)
    assert await consumer.call("stop") == 0
    await asyncio.wait_for(work, 60)


async def test_a_handler_that_outlives_stop_ends_without_noise(bus: Bus) -> None:
    consumer = await bus.consumer()
    await publish(bus, 1)
    entered, leave = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def handle(_delivery: Any) -> None:
        loop.call_soon_threadsafe(entered.set)
        asyncio.run_coroutine_threadsafe(leave.wait(), loop).result(WITHIN_S)

    async def handle_async(_delivery: Any) -> None:
        entered.set()
        await leave.wait()

    handler = handle if consumer.blocks else handle_async
    work = asyncio.create_task(consumer.call("run", handler))
    await asyncio.wait_for(entered.wait(), WITHIN_S)
    assert await consumer.call("stop", 0.1) == 1
    leave.set()
    await asyncio.wait_for(work, 60)
    (again,) = await receive(await bus.consumer(), 1)
    assert again.redelivered


async def test_stats_count_what_happened(bus: Bus) -> None:
    consumer = await bus.consumer()
    await publish(bus, 6)
    got = await receive(consumer, 6)
    for delivery in got[:4]:
        await consumer.call("ack", delivery)
    await asyncio.sleep(0.1)
    stats = await consumer.call("stats")
    assert (stats.delivered, stats.acked, stats.nacked, stats.handed_out) == (6, 4, 0, 2)
    assert sum(broker.delivered for broker in stats.brokers.values()) == 6
    assert sum(broker.owed for broker in stats.brokers.values()) == 2
    assert {broker.state for broker in stats.brokers.values()} == {"open"}
    assert await consumer.call("keep_alive") is True


@pytest.mark.parametrize(
    ("destination", "subscription"), [("orders", ""), ("queue:jobs", "x"), ("a b", "x"), ("o", "/")]
)
async def test_a_source_that_makes_no_sense_is_told_at_once(
    bus: Bus, destination: str, subscription: str
) -> None:
    with pytest.raises(NameInvalid):
        await bus.consumer(subscription, destination=destination, start=False)


async def test_a_consumer_is_used_between_start_and_stop(bus: Bus) -> None:
    consumer = await bus.consumer(start=False)
    assert consumer.status == "initialized"
    for method in ("receive", "receive_immediate", "stats", "keep_alive"):
        with pytest.raises(Stopped):
            await consumer.call(method)
    assert await consumer.call("start", timeout_s=30) is None
    assert isinstance(consumer.inner, Consumer | AsyncConsumer)
    assert consumer.inner.registered
    assert consumer.status == "running"
    with pytest.raises(Stopped):
        await consumer.call("start")
    assert await consumer.call("stop", 0) == 0
    assert await consumer.call("stop", 0) == 0
    assert consumer.status == "stopped"
    assert await consumer.call("receive") is None
    with pytest.raises(Stopped):
        await consumer.call("start")


async def test_a_wish_that_is_unknown_is_told(bus: Bus) -> None:
    consumer = await bus.consumer(start=False)
    with pytest.raises(ValueError, match="require"):
        await consumer.call("start", require="some")


async def test_a_start_that_reaches_no_broker_says_why() -> None:
    told = rf"brokers {NOWHERE} \w+ \(.*Connection refused\)"
    with pytest.raises(NotReady, match=told):
        await AsyncConsumer(BusConfig(broker=NOWHERE), "queue:jobs").start(
            require="one", timeout_s=0.3
        )


async def test_receive_many_returns_what_is_there_in_order_and_no_more_than_asked(bus: Bus) -> None:
    consumer = await bus.consumer()
    assert await consumer.call("receive_many", 5, QUIET_S) == []
    await publish(bus, 7)
    found: list[Any] = []
    while len(found) < 7:
        some = await consumer.call("receive_many", 3, WITHIN_S)
        assert 1 <= len(some) <= 3
        found += some
        for delivery in some:
            await consumer.call("ack", delivery)
    assert [each.body for each in found] == [b"%d" % number for number in range(7)]


async def test_a_paused_consumer_hands_out_nothing_until_it_is_resumed(bus: Bus) -> None:
    consumer = await bus.consumer()
    await consumer.call("pause")
    await publish(bus, 1)
    assert await consumer.call("receive", timeout_s=QUIET_S) is None
    assert await consumer.call("receive_immediate") is None
    await consumer.call("resume")
    (delivery,) = await receive(consumer, 1)
    assert await consumer.call("ack", delivery)


async def test_a_delayed_message_comes_after_its_delay(bus: Bus) -> None:
    consumer, publisher = await bus.consumer(), await bus.publisher()
    await publisher.call("send_safe", bus.topic, b"later", deliver_after_s=1)
    assert await consumer.call("receive", timeout_s=QUIET_S) is None
    bus.pass_time(1)
    (delivery,) = await receive(consumer, 1)
    assert delivery.body == b"later"
