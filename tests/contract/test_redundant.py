"""Promises of redundant publishing, on every kind of bus: two confirms of two brokers, one end."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest

from messagebus import (
    Batching,
    ConfigError,
    Durability,
    Hooks,
    Message,
    Outcome,
    Published,
    Refused,
    Topic,
    Unroutable,
)
from tests.contract.conftest import Bus, end_of, receive_and_ack

pytestmark = pytest.mark.skipif(
    "MESSAGEBUS_CONTRACT_BROKER" in os.environ, reason="one broker is not two"
)

WITHIN_S = 60
COUNT = 60


@pytest.mark.guarantee("two-copies-two-brokers")
async def test_a_redundant_message_lies_on_two_brokers_alike(bus: Bus) -> None:
    consumer = await bus.consumer()
    publisher = await bus.publisher()
    message = Message(body=b"one", headers={"a": 1}, key="k", content_type="text/x")
    published = await publisher.call(
        "send_safe", bus.topic, message, redundant=True, timeout_s=WITHIN_S
    )
    assert published.outcome is Outcome.CONFIRMED
    assert published.durability is Durability.FSYNC
    assert published.broker == published.brokers[0]
    one, two = await receive_and_ack(consumer, 2)
    assert {one.broker, two.broker} == set(published.brokers)
    assert one.broker != two.broker
    for each in (one, two):
        assert each.message_id == published.message_id
        assert (each.body, each.key, dict(each.headers)) == (b"one", "k", {"a": 1})
    assert one.message == two.message
    stats = await publisher.call("stats")
    assert (stats.confirmed, stats.redundant, stats.downgraded) == (1, 1, 0)


async def test_a_plain_publish_names_its_one_broker(bus: Bus) -> None:
    await bus.consumer()
    publisher = await bus.publisher()
    published = await publisher.call("send_safe", bus.topic, b"one", timeout_s=WITHIN_S)
    assert published.brokers == (published.broker,)


async def test_the_configuration_names_destinations_and_a_call_decides(bus: Bus) -> None:
    await bus.consumer()
    publisher = await bus.publisher(redundant=(bus.topic,))
    send = publisher.call
    assert len((await send("send_safe", bus.topic, b"one", timeout_s=WITHIN_S)).brokers) == 2
    one = await send("send_safe", bus.topic, b"one", redundant=False, timeout_s=WITHIN_S)
    assert len(one.brokers) == 1
    two = await send("send_safe", bus.topic, b"x", redundant="preferred", timeout_s=WITHIN_S)
    assert len(two.brokers) == 2
    with pytest.raises(ConfigError, match="redundant='twice'"):
        await send("send_safe", bus.topic, b"one", redundant="twice")


async def test_many_are_redundant_together_and_end_in_their_order(bus: Bus) -> None:
    consumer = await bus.consumer()
    publisher = await bus.publisher(redundant=(bus.topic,))
    bodies = [b"%d" % number for number in range(COUNT)]
    ends = await publisher.call("send_many", bus.topic, bodies, timeout_s=WITHIN_S)
    assert {(end.outcome, len(set(end.brokers))) for end in ends} == {(Outcome.CONFIRMED, 2)}
    got = await receive_and_ack(consumer, 2 * COUNT)
    assert Counter(each.body for each in got) == dict.fromkeys(bodies, 2)
    ids = {each.body: each.message_id for each in got}
    assert [ids[body] for body in bodies] == [end.message_id for end in ends]


async def test_batches_are_redundant_and_each_message_has_its_end(bus: Bus) -> None:
    consumer = await bus.consumer()
    batch = {bus.topic: Batching(count_max=10, linger_s=0.005)}
    publisher = await bus.publisher(redundant=(bus.topic,), batch=batch)
    bodies: list[Any] = [b"%d" % number for number in range(COUNT)]
    bodies += [Message(body=b"own", headers={"n": 1}), Message(body=b"first", priority=3)]
    ends = await publisher.call("send_many", bus.topic, bodies, timeout_s=WITHIN_S)
    assert {(end.outcome, len(set(end.brokers))) for end in ends} == {(Outcome.CONFIRMED, 2)}
    got = await receive_and_ack(consumer, 2 * len(bodies))
    assert set(Counter(each.message_id for each in got).values()) == {2}
    assert len({each.message_id for each in got}) == len(bodies)


async def test_both_copies_of_a_delayed_message_come_when_it_is_due(bus: Bus) -> None:
    consumer = await bus.consumer()
    publisher = await bus.publisher()
    published = await publisher.call(
        "send_safe", bus.topic, b"later", deliver_after_s=1, redundant=True, timeout_s=WITHIN_S
    )
    assert len(set(published.brokers)) == 2
    bus.pass_time(2)
    one, two = await receive_and_ack(consumer, 2)
    assert {one.message_id, two.message_id} == {published.message_id}


async def test_without_a_reader_it_is_unroutable(bus: Bus) -> None:
    publisher = await bus.publisher(redundant=(bus.topic,))
    with pytest.raises(Unroutable):
        await publisher.call("send_safe", bus.topic, b"one", timeout_s=WITHIN_S)
    assert (await publisher.call("stats")).unroutable == 1


async def test_without_a_broker_it_is_refused_in_time_and_once(bus: Bus) -> None:
    told: list[Published] = []

    class Told(Hooks):
        def published(self, destination: str, message: Message, published: Published) -> None:
            told.append(published)

    publisher = await bus.deaf_publisher(redundant=(bus.topic,), hooks=[Told()])
    if bus.is_memory:
        future = await publisher.call("submit", bus.topic, b"one", timeout_s=WITHIN_S)
        bus.pass_time(WITHIN_S + 1)
        assert (await end_of(future)).outcome is not Outcome.CONFIRMED
    else:
        with pytest.raises(Refused):
            await publisher.call("send_safe", bus.topic, b"one", timeout_s=0.5)
    assert len(told) == 1
    assert told[0].brokers == ()


async def test_a_cut_of_all_links_ends_every_publish_once(bus: Bus) -> None:
    consumer = await bus.consumer()
    publisher = await bus.publisher(redundant=(bus.topic,))
    await publisher.call("send_safe", bus.topic, b"first", timeout_s=WITHIN_S)
    futures = [await publisher.call("submit", bus.topic, b"%d" % n) for n in range(COUNT)]
    await bus.cut(publisher)
    ends = [await end_of(future) for future in futures]
    assert {(end.outcome, len(set(end.brokers))) for end in ends} == {(Outcome.CONFIRMED, 2)}
    ids = {end.message_id for end in ends}
    # A copy whose confirm was cut off is stored again: there may be more than two of a message.
    got: set[str] = set()
    while not ids <= got:
        got |= {each.message_id for each in await receive_and_ack(consumer, 1)}


async def test_flush_and_stop_wait_for_both_copies(bus: Bus) -> None:
    await bus.consumer()
    publisher = await bus.publisher(redundant=(bus.topic,))
    futures = [await publisher.call("submit", bus.topic, b"x") for _ in range(COUNT)]
    assert await publisher.call("flush", WITHIN_S) == 0
    assert all(future.done() for future in futures)
    futures = [await publisher.call("submit", bus.topic, b"x") for _ in range(COUNT)]
    assert await publisher.call("stop", WITHIN_S) == 0
    assert {(await end_of(future)).outcome for future in futures} == {Outcome.CONFIRMED}


async def test_what_needs_no_confirm_cannot_be_redundant(bus: Bus) -> None:
    publisher = await bus.publisher()
    with pytest.raises(ConfigError, match="durability none"):
        await publisher.call("send", Topic(bus.topic, Durability.NONE), b"x", redundant=True)
