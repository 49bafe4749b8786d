"""Redeliveries, their number and order, when consumers rest, stop or are slow, on every kind of bus."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from messagebus import Batching, Delivery, Subscription, Topic
from tests.contract.conftest import Bus, Client
from tests.contract.test_consuming import QUIET_S, WITHIN_S, receive
from tests.contract.test_faults import sent
from tests.contract.test_handling import Handler, counted, ended, run

RESTARTS, LIMIT = 50, 20
UNSEEN = 3


def ordered(bus: Bus, **options: Any) -> Subscription:
    return Subscription(Topic(bus.topic), "billing", single_active=True, **options)


async def owed(consumer: Client, count: int) -> None:
    """Wait until the brokers have sent it this many deliveries."""
    until = time.monotonic() + WITHIN_S
    while (there := await _owed(consumer)) != count:
        assert time.monotonic() < until, f"{there} owed, {count} wanted"
        await asyncio.sleep(0.01)


async def _owed(consumer: Client) -> int:
    stats = await consumer.call("stats")
    return sum(each.owed for each in stats.brokers.values())


async def bodies(consumer: Client, count: int) -> list[str]:
    """Receive and ack this many deliveries; return their bodies."""
    found = []
    for _ in range(count):
        (delivery,) = await receive(consumer, 1)
        found.append(delivery.body.decode())
        await consumer.call("ack", delivery)
    return found


# The delivery limit.
@pytest.mark.guarantee("unseen-is-not-parked")
async def test_what_no_handler_has_seen_is_not_parked_however_often_its_consumer_restarts(
    bus: Bus,
) -> None:
    source = Subscription(Topic(bus.topic), "billing", delivery_limit=LIMIT)
    await sent_to(bus, source, *map(str, range(UNSEEN)))
    for _ in range(RESTARTS):
        consumer = await bus.consumer("", destination=source)
        await owed(consumer, UNSEEN)
        assert await consumer.call("stop", 0) == 0
    last = await bus.consumer("", destination=source)
    assert sorted(await bodies(last, UNSEEN)) == [str(number) for number in range(UNSEEN)]
    for broker in (await last.call("stats")).brokers:
        assert await bus.parked(broker, "billing") == 0


@pytest.mark.guarantee("unseen-is-not-parked")
async def test_what_waits_for_a_slow_handler_is_not_parked_however_often_it_is_given_back(
    bus: Bus,
) -> None:
    """Two runs in a row last longer than the share of the consumer timeout that may be waited for."""
    source, slow_s, count = Subscription(Topic(bus.topic), "billing", delivery_limit=3), 0.6, 12
    handler = Handler()

    def handle(delivery: Delivery) -> None:
        time.sleep(slow_s)
        handler(delivery)

    consumer = await bus.consumer("", destination=source, consumer_timeout_s=1)
    await sent(bus, *map(str, range(count)))
    work = run(consumer, handle)
    await counted(consumer, acked=count, acks_stale=0)
    assert sorted({body for body, _attempt in handler.runs}) == sorted(map(str, range(count)))
    for broker in (await consumer.call("stats")).brokers:
        assert await bus.parked(broker, "billing") == 0
    await ended(consumer, work)


# Batches.
@pytest.mark.guarantee("batch-is-finished")
async def test_a_batch_that_waits_for_a_thread_is_given_back_whole_and_handled_once(
    bus: Bus,
) -> None:
    """While the first run lasts, the rest of its batch and another batch grow old."""
    consumer, handler, leave = (
        await bus.consumer(consumer_timeout_s=4),
        Handler(),
        threading.Event(),
    )

    def handle(delivery: Delivery) -> None:
        handler(delivery)
        if len(handler.seen) == 1:
            assert leave.wait(WITHIN_S)

    await sent(bus, *map(str, range(20)), batch={bus.topic: Batching(count_max=10, linger_s=0.05)})
    work = run(consumer, handle)
    try:
        await counted(consumer, given_back=19)
    finally:
        leave.set()
    await counted(consumer, acked=20, handed_out=0, acks_stale=0)
    assert sorted(handler.runs) == sorted((str(number), 1) for number in range(20))
    assert await ended(consumer, work) == 0
    assert await (await bus.consumer()).call("receive", timeout_s=QUIET_S) is None


@pytest.mark.guarantee("batch-is-finished")
async def test_a_batch_that_takes_longer_than_the_consumer_timeout_is_finished(bus: Bus) -> None:
    """On a busy machine one part is still held when the timeout is near: it is copied, and comes again."""
    consumer, handler = await bus.consumer(consumer_timeout_s=3), Handler()

    def handle(delivery: Delivery) -> None:
        time.sleep(0.2)
        handler(delivery)

    await sent(bus, *map(str, range(20)), batch={bus.topic: Batching(count_max=20, linger_s=0.05)})
    work = run(consumer, handle)
    await counted(consumer, acked=20, handed_out=0)
    again = (await consumer.call("stats")).acks_stale
    assert {body for body, _attempt in handler.runs} == set(map(str, range(20)))
    assert len(handler.runs) - 20 == again <= 1
    assert await ended(consumer, work) == 0
    assert await (await bus.consumer()).call("receive", timeout_s=QUIET_S) is None


# Order.
@pytest.mark.guarantee("single-active-keeps-order")
@pytest.mark.parametrize("says", [True, False])
async def test_a_polite_stop_of_a_single_active_consumer_keeps_the_order(
    bus: Bus, says: bool
) -> None:
    """Nobody else gets anything until the consumer that stops has finished its deliveries.

    says: the consumers ask for a single active one, or take the subscription as it is.
    """
    source = ordered(bus)
    await sent_to(bus, source)
    if not says:
        source = Subscription(Topic(bus.topic), "billing")
    first = await bus.consumer("", destination=source)
    second = await bus.consumer("", destination=source)
    publisher = await sent(bus, *map(str, range(6)))
    held = await receive(first, 2)
    stopping = asyncio.create_task(first.call("stop", WITHIN_S))
    await publisher.call("send_many", bus.topic, ["6", "7"])
    assert await second.call("receive", timeout_s=QUIET_S) is None
    for delivery in held:
        assert await first.call("ack", delivery)
    assert await stopping == 0
    assert [each.body for each in held] + [body.encode() for body in await bodies(second, 6)] == [
        b"%d" % number for number in range(8)
    ]


@pytest.mark.guarantee("single-active-keeps-order")
async def test_what_a_single_active_consumer_holds_at_the_end_of_its_grace_comes_again_first(
    bus: Bus,
) -> None:
    first = await bus.consumer("", destination=ordered(bus))
    second = await bus.consumer("", destination=ordered(bus))
    await sent(bus, *map(str, range(6)))
    held = await receive(first, 3)
    assert await first.call("ack", held[1])
    assert await first.call("stop", 0) == 2
    assert await bodies(second, 5) == ["0", "2", "3", "4", "5"]


@pytest.mark.guarantee("single-active-keeps-order")
async def test_a_single_active_consumer_that_rests_keeps_the_order(bus: Bus) -> None:
    """It finishes what it holds; all other messages come again behind that, here or at the next consumer."""
    first = await bus.consumer("", destination=ordered(bus), consumer_timeout_s=2)
    await sent(bus, *map(str, range(6)))
    held = await receive(first, 2)
    await counted(first, buffered=0, handed_out=2)
    second = await bus.consumer("", destination=ordered(bus), consumer_timeout_s=2)
    assert await second.call("receive", timeout_s=QUIET_S) is None
    for delivery in held:
        assert await first.call("ack", delivery)
    assert await bodies(second, 4) == ["2", "3", "4", "5"]


async def test_a_single_active_consumer_that_rested_goes_on_where_it_was(bus: Bus) -> None:
    only = await bus.consumer("", destination=ordered(bus), consumer_timeout_s=2)
    await only.call("pause")
    await sent(bus, *map(str, range(6)))
    await owed(only, 6)
    await owed(only, 0)
    await asyncio.sleep(QUIET_S)
    assert (await only.call("stats")).delivered == 6  # not taken again at once
    await only.call("resume")
    assert await bodies(only, 6) == [str(number) for number in range(6)]


async def test_a_batch_of_a_single_active_consumer_is_finished_in_order_and_once(bus: Bus) -> None:
    """It takes longer than the consumer timeout: the parts that are done are not done again."""
    consumer = await bus.consumer("", destination=ordered(bus), consumer_timeout_s=3)
    handler = Handler()

    def handle(delivery: Delivery) -> None:
        time.sleep(0.2)
        handler(delivery)

    await sent(bus, *map(str, range(20)), batch={bus.topic: Batching(count_max=20, linger_s=0.05)})
    work = run(consumer, handle)
    await counted(consumer, acked=20, handed_out=0, acks_stale=0)
    assert handler.runs == [(str(number), 1) for number in range(20)]
    assert await ended(consumer, work) == 0


async def sent_to(bus: Bus, source: Subscription, *texts: str) -> None:
    """Publish when the subscription is there."""
    consumer = await bus.consumer("", destination=source)
    await consumer.call("stop", 0)
    if texts:
        await sent(bus, *texts)


# The time to live of a subscription.
@pytest.mark.guarantee("waiting-too-long-is-parked")
async def test_what_waits_longer_than_its_subscription_allows_is_parked(bus: Bus) -> None:
    source = Subscription(Topic(bus.topic), "billing", ttl_s=1)
    first = await bus.consumer("", destination=source)
    await first.call("stop")
    publisher = await bus.publisher()
    names = {name: await publisher.call("send_safe", bus.topic, name) for name in ("1", "2", "3")}
    bus.pass_time(1.5)
    brokers = {published.broker for published in names.values()}
    until = time.monotonic() + WITHIN_S
    while sum([await bus.parked(broker, "billing") for broker in brokers]) < 3:
        assert time.monotonic() < until
        await asyncio.sleep(0.05)
    consumer = await bus.consumer("", destination=source)
    assert await bus.redrive(f"{bus.topic}/billing") == 3
    assert sorted(await bodies(consumer, 3)) == ["1", "2", "3"]
