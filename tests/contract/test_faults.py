"""Promises of clients when connections end, messages come again, expire or are given up: on every bus."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from messagebus import (
    Batching,
    Durability,
    Message,
    Outcome,
    Queue,
    Subscription,
    Topic,
    TopologyMismatch,
)
from messagebus._io.amqp.properties import read_headers
from tests.contract.conftest import Bus, Client, end_of
from tests.contract.test_consuming import QUIET_S, WITHIN_S, receive


async def sent(bus: Bus, *bodies: str, **settings: Any) -> Client:
    """Publish in order, all in flight together."""
    publisher = await bus.publisher(**settings)
    await publisher.call("send_many", bus.topic, list(bodies))
    return publisher


async def parked(bus: Bus, broker: str, count: int) -> None:
    """Wait until this many messages are in the broker's parking queue."""
    until = time.monotonic() + WITHIN_S
    while (there := await bus.parked(broker, "billing")) != count:
        assert time.monotonic() < until, f"{there} parked, {count} wanted"
        await asyncio.sleep(0.1)


# A link ends.
async def test_what_a_lost_link_left_unanswered_comes_again_and_old_answers_go_nowhere(
    bus: Bus,
) -> None:
    consumer = await bus.consumer()
    await sent(bus, "a", "b", "c")
    first = await receive(consumer, 3)
    assert await consumer.call("ack_safe", first[0], timeout_s=WITHIN_S)
    await bus.cut(consumer)
    again = await receive(consumer, 2)
    assert sorted(each.body for each in again) == [b"b", b"c"]
    assert {each.redelivered for each in again} == {True}
    assert {each.message_id for each in again} == {each.message_id for each in first[1:]}
    assert await consumer.call("ack", first[1]) is False
    assert await consumer.call("nack", first[2]) is False
    for delivery in again:
        assert await consumer.call("ack_safe", delivery, timeout_s=WITHIN_S)
    stats = await consumer.call("stats")
    assert (stats.acked, stats.acks_stale, stats.handed_out) == (3, 2, 0)
    assert await consumer.call("receive", timeout_s=QUIET_S) is None


async def test_what_waits_in_a_consumer_is_not_handed_out_twice_when_its_link_ends(
    bus: Bus,
) -> None:
    consumer = await bus.consumer(handed_out_max=1, prefetch=10)
    await sent(bus, *map(str, range(8)))
    held = await receive(consumer, 1)
    await bus.cut(consumer)
    assert await consumer.call("ack", held[0]) is False
    bodies = []
    for _ in range(8):
        (delivery,) = await receive(consumer, 1)
        bodies.append(delivery.body)
        await consumer.call("ack", delivery)
    assert sorted(bodies) == sorted(str(n).encode() for n in range(8))
    assert await consumer.call("receive", timeout_s=QUIET_S) is None


async def test_publishes_that_a_lost_link_left_open_are_sent_again_under_their_ids(
    bus: Bus,
) -> None:
    consumer, publisher = await bus.consumer(), await bus.publisher(window=10)
    await publisher.call("send_safe", bus.topic, b"first", timeout_s=WITHIN_S)
    futures = []
    for number in range(100):
        futures.append(await publisher.call("submit", bus.topic, str(number)))
        if number == 50:
            await bus.cut(publisher)
    ends = [await end_of(future) for future in futures]
    assert {end.outcome for end in ends} == {Outcome.CONFIRMED}
    wanted = {end.message_id for end in ends}
    seen: set[str] = set()
    while not wanted <= seen:
        (delivery,) = await receive(consumer, 1)
        seen.add(delivery.message_id)
        await consumer.call("ack", delivery)
    assert (await publisher.call("stats")).links_lost >= 1


async def test_without_retries_a_lost_link_leaves_what_was_open_unknown(bus: Bus) -> None:
    await bus.consumer()
    publisher = await bus.publisher(retry_unknown=False, window=20)
    await publisher.call("send_safe", bus.topic, b"first", timeout_s=WITHIN_S)
    futures = [await publisher.call("submit", bus.topic, str(number)) for number in range(20)]
    await bus.cut(publisher)
    ends = [await end_of(future) for future in futures]
    assert {end.outcome for end in ends} <= {Outcome.CONFIRMED, Outcome.UNKNOWN}
    again = await publisher.call("send_safe", bus.topic, b"last", timeout_s=WITHIN_S)
    assert again.outcome is Outcome.CONFIRMED


# Coming again.
async def test_a_broker_says_how_often_it_has_delivered_before(bus: Bus) -> None:
    consumer = await bus.consumer()
    await sent(bus, "a")
    for before in range(3):
        (delivery,) = await receive(consumer, 1)
        assert delivery.redelivered is (before > 0)
        headers = read_headers(delivery._properties)
        # RabbitMQ 4.3 counts what was given back in a header of its own: it uses up no delivery limit.
        assert headers.get("x-acquired-count", headers.get("x-delivery-count", 0)) == before
        await consumer.call("nack", delivery)
    (delivery,) = await receive(consumer, 1)
    await consumer.call("ack", delivery)


async def test_what_is_given_back_comes_before_what_was_published_later(bus: Bus) -> None:
    consumer = await bus.consumer(prefetch=3)
    await sent(bus, *map(str, range(6)))
    first = await receive(consumer, 3)
    for delivery in first:
        await consumer.call("nack", delivery)
    bodies = []
    for _ in range(6):
        (delivery,) = await receive(consumer, 1)
        bodies.append(delivery.body)
        await consumer.call("ack", delivery)
    assert bodies == [b"%d" % number for number in range(6)]


# Batches.
async def test_each_message_of_a_batch_has_its_own_answer(bus: Bus) -> None:
    consumer = await bus.consumer()
    batch = {bus.topic: Batching(count_max=4, linger_s=0.05)}
    await sent(bus, "ack", "again", "reject", "ack too", batch=batch)
    got = {each.body: each for each in await receive(consumer, 4)}
    assert len({each.receipt.tag for each in got.values()}) == 1
    assert await consumer.call("ack", got[b"ack"])
    assert await consumer.call("nack", got[b"again"])
    assert await consumer.call("nack", got[b"reject"], requeue=False)
    assert await consumer.call("ack", got[b"ack too"])
    (again,) = await receive(consumer, 1)
    assert (again.body, again.message_id) == (b"again", got[b"again"].message_id)
    assert await consumer.call("ack_safe", again, timeout_s=WITHIN_S)
    await parked(bus, again.broker, 1)
    assert await consumer.call("stop", 5) == 0
    assert await (await bus.consumer()).call("receive", timeout_s=QUIET_S) is None


# Time.
async def test_a_delay_is_rounded_up_to_the_next_step(bus: Bus) -> None:
    consumer, publisher = await bus.consumer(), await bus.publisher()
    begin_ns = time.monotonic_ns()
    message = Message.text("later", headers={"a": 1}, key="k", message_id="mine")
    await publisher.call("send_safe", bus.topic, message, deliver_after_s=1.2)
    bus.pass_time(1.9)
    assert await consumer.call("receive", timeout_s=QUIET_S) is None
    bus.pass_time(0.1)
    (delivery,) = await receive(consumer, 1)
    assert bus.is_memory or delivery.received_ns - begin_ns >= 2 * 10**9
    assert (delivery.message_id, delivery.message.key) == ("mine", "k")
    assert delivery.message.headers["a"] == 1
    assert not delivery.redelivered


async def test_what_is_due_and_has_no_queue_is_kept_and_holds_up_nobody(bus: Bus) -> None:
    publisher = await bus.publisher()
    consumer = await bus.consumer("", destination=f"queue:{bus.topic}")
    for _ in range(40):  # RabbitMQ lets 32 wait that it cannot hand on, and then no more
        await publisher.call("submit", bus.topic, b"unread", deliver_after_s=1)
    await publisher.call("send_safe", f"queue:{bus.topic}", b"read", deliver_after_s=1)
    await publisher.call("flush", WITHIN_S)
    bus.pass_time(1)
    (delivery,) = await receive(consumer, 1)
    assert delivery.body == b"read"
    await consumer.call("ack", delivery)
    until = time.monotonic() + WITHIN_S
    while await bus.undelivered() < 40:
        assert time.monotonic() < until


@pytest.mark.guarantee("delayed-time-to-live")
async def test_the_life_of_a_delayed_message_begins_when_it_is_due(bus: Bus) -> None:
    consumer, publisher = await bus.consumer(), await bus.publisher()
    begin_ns = time.monotonic_ns()
    await publisher.call("send_safe", bus.topic, b"later", deliver_after_s=2, ttl_s=1)
    bus.pass_time(1.9)
    assert await consumer.call("receive", timeout_s=QUIET_S) is None
    bus.pass_time(0.1)
    (delivery,) = await receive(consumer, 1)
    assert bus.is_memory or delivery.received_ns - begin_ns >= 2 * 10**9
    assert (delivery.body, delivery.message.ttl_s) == (b"later", 1)
    await consumer.call("ack_safe", delivery, timeout_s=WITHIN_S)
    await consumer.call("stop", 5)
    await publisher.call("send_safe", bus.topic, b"late", deliver_after_s=1, ttl_s=0.5)
    bus.pass_time(4)
    await asyncio.sleep(0 if bus.is_memory else 4)
    again, until = await bus.consumer(), time.monotonic() + WITHIN_S
    while not (found := await bus.take_parked("billing")):  # as a copy, on whichever broker
        assert time.monotonic() < until
        await asyncio.sleep(0.1)
    assert len(found) == 1
    assert await again.call("receive", timeout_s=QUIET_S) is None


async def test_what_nobody_reads_in_its_time_is_parked(bus: Bus) -> None:
    consumer = await bus.consumer(prefetch=1, handed_out_max=1)
    publisher = await bus.publisher()
    held_end = await publisher.call("send_safe", bus.topic, b"held", timeout_s=WITHIN_S)
    (held,) = await receive(consumer, 1)
    published = await publisher.call("send_safe", bus.topic, b"late", ttl_s=0.5)
    assert published.broker == held_end.broker
    bus.pass_time(0.6)
    await parked(bus, published.broker, 1)
    await consumer.call("ack", held)
    assert await consumer.call("receive", timeout_s=QUIET_S) is None


# Subscriptions.
@pytest.mark.guarantee("single-active-consumer")
async def test_of_a_single_active_consumer_one_is_served_until_it_goes(bus: Bus) -> None:
    source = Subscription(Topic(bus.topic), "billing", single_active=True)
    first = await bus.consumer("", destination=source)
    second = await bus.consumer("", destination=source)
    await sent(bus, "a", "b")
    for delivery in await receive(first, 2):
        await first.call("ack", delivery)
    assert await second.call("receive", timeout_s=QUIET_S) is None
    await first.call("stop", 0)
    await sent(bus, "c")
    (delivery,) = await receive(second, 1)
    assert delivery.body == b"c"


async def test_what_exists_otherwise_is_told_with_both_values(bus: Bus) -> None:
    await bus.consumer("", destination=f"queue:{bus.topic}")
    wanted = f"queue:{bus.topic}: durability is wanted page-cache and exists fsync"
    other = Queue(bus.topic, Durability.PAGE_CACHE)
    with pytest.raises(TopologyMismatch, match=wanted):
        await bus.consumer("", destination=other)
