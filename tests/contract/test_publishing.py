"""Promises of a publisher, on every kind of bus."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from messagebus import (
    AsyncPublisher,
    BacklogFull,
    Batching,
    BusConfig,
    Durability,
    Message,
    MessageInvalid,
    NameInvalid,
    NotReady,
    Outcome,
    Published,
    Publisher,
    PublisherConfig,
    Queue,
    Refused,
    Spool,
    Stopped,
    Topic,
    Unroutable,
)
from messagebus._io.amqp.batch import BatchDamaged
from messagebus._io.amqp.packed import packed
from messagebus._io.publish.admission import Lane
from messagebus.core.ends import FULL_TOO_LONG
from messagebus.testing import MemoryBus
from tests.contract.conftest import NOWHERE, Bus, Client, end_of, receive_and_ack
from tests.support.eventually import FACTOR, eventually_async

WITHIN_S = 60


async def test_send_safe_returns_a_confirmed_and_fsynced_publish(bus: Bus) -> None:
    await bus.consumer()
    publisher = await bus.publisher()
    before_ns = time.monotonic_ns()
    published = await publisher.call("send_safe", bus.topic, b"one", timeout_s=WITHIN_S)
    assert (published.outcome, published.durability) == (Outcome.CONFIRMED, Durability.FSYNC)
    assert published.attempts == 1
    assert before_ns <= published.sent_ns <= published.settled_ns <= time.monotonic_ns()
    assert published.broker
    assert published.reason == ""


async def test_a_topic_without_subscription_is_unroutable(bus: Bus) -> None:
    publisher = await bus.publisher()
    message = Message(body=b"one", message_id="mine")
    with pytest.raises(Unroutable) as raised:
        await publisher.call("send_safe", bus.topic, message, timeout_s=WITHIN_S)
    assert raised.value.message_id == "mine"
    published = await end_of(await publisher.call("submit", bus.topic, message))
    assert (published.outcome, published.durability) == (Outcome.UNROUTABLE, Durability.NONE)
    assert (await publisher.call("stats")).unroutable == 2


async def test_an_unroutable_publish_hides_no_other_of_the_same_id(bus: Bus) -> None:
    await bus.consumer()
    publisher = await bus.publisher()
    message = Message(body=b"one", message_id="mine")
    await publisher.call("send_safe", bus.topic, message, timeout_s=WITHIN_S)
    futures = [
        await publisher.call("submit", to, message)
        for to in (bus.topic, f"{bus.topic}-nobody", bus.topic, f"{bus.topic}-nobody")
    ]
    outcomes = [(await end_of(future)).outcome for future in futures]
    assert outcomes == [Outcome.CONFIRMED, Outcome.UNROUTABLE] * 2


async def test_ids_are_made_once_and_the_callers_are_kept(bus: Bus) -> None:
    consumer, publisher = await bus.consumer(), await bus.publisher()
    made = await publisher.call("send_safe", bus.topic, b"one", timeout_s=WITHIN_S)
    kept = await publisher.call(
        "send_safe", bus.topic, Message(body=b"two", message_id="order-7"), timeout_s=WITHIN_S
    )
    assert len(bytes.fromhex(made.message_id)) == 16
    assert kept.message_id == "order-7"
    arrived = {
        delivery.body: delivery.message_id for delivery in await receive_and_ack(consumer, 2)
    }
    assert arrived == {b"one": made.message_id, b"two": "order-7"}


async def test_a_message_arrives_as_it_was_sent(bus: Bus) -> None:
    consumer, publisher = await bus.consumer(), await bus.publisher()
    message = Message.json(
        {"n": 1, "text": "é"},
        message_id="id-1",
        headers={"a": 1, "b": "é", "c": [1, {"d": None}], "e": True, "f": b"\xff", "g": -(2**63)},
        key="customer-7",
        priority=3,
        correlation_id="c",
        reply_to="r",
        type="t",
        ttl_s=60,
    )
    await publisher.call("send_safe", bus.topic, message, timeout_s=WITHIN_S)
    (delivery,) = await receive_and_ack(consumer, 1)
    assert delivery.message == message
    assert str(delivery.source) == f"{bus.topic}/billing"
    assert not delivery.redelivered


@pytest.mark.guarantee("message-is-never-changed")
async def test_the_callers_message_and_headers_are_never_mutated(bus: Bus) -> None:
    consumer, publisher = await bus.consumer(), await bus.publisher()
    headers: dict[str, Any] = {"list": [1], "dict": {"a": 1}}
    message = Message(body=b"one", headers=headers, key="k")
    await publisher.call("send_safe", bus.topic, message, timeout_s=WITHIN_S)
    (delivery,) = await receive_and_ack(consumer, 1)
    delivery.message.headers["list"].append(2)
    assert headers == {"list": [1], "dict": {"a": 1}}
    assert message.message_id == ""


@pytest.mark.parametrize("payload", [b"", b"bytes", "text é", Message.text("text")])
async def test_payloads_are_messages_bytes_or_texts(bus: Bus, payload: Any) -> None:
    consumer, publisher = await bus.consumer(), await bus.publisher()
    await publisher.call("send_safe", bus.topic, payload, timeout_s=WITHIN_S)
    (delivery,) = await receive_and_ack(consumer, 1)
    sent = payload.body if isinstance(payload, Message) else payload
    assert delivery.body == (sent.encode() if isinstance(sent, str) else sent)


async def test_send_many_returns_ends_in_order(bus: Bus) -> None:
    consumer, publisher = await bus.consumer(), await bus.publisher()
    sent = [Message(body=str(n).encode(), message_id=f"id-{n}") for n in range(300)]
    ends = await publisher.call("send_many", bus.topic, sent)
    assert [end.message_id for end in ends] == [message.message_id for message in sent]
    assert {end.outcome for end in ends} == {Outcome.CONFIRMED}
    assert len(await receive_and_ack(consumer, 300)) == 300


async def test_one_publisher_keeps_its_order_on_a_broker(bus: Bus) -> None:
    consumer, publisher = await bus.consumer(), await bus.publisher()
    for number in range(400):
        await publisher.call("send", bus.topic, str(number))
    by_broker: dict[str, list[int]] = {}
    for delivery in await receive_and_ack(consumer, 400):
        by_broker.setdefault(delivery.broker, []).append(int(delivery.body))
    assert all(numbers == sorted(numbers) for numbers in by_broker.values())
    assert sorted(n for numbers in by_broker.values() for n in numbers) == list(range(400))


async def test_send_is_counted_and_flush_waits_for_it(bus: Bus) -> None:
    await bus.consumer()
    publisher = await bus.publisher()
    for _ in range(50):
        await publisher.call("send", bus.topic, b"x")
    assert await publisher.call("flush", timeout_s=WITHIN_S) == 0
    stats = await publisher.call("stats")
    assert (stats.confirmed, stats.unknown, stats.backlog, stats.window) == (50, 0, 0, 0)


async def test_a_renewed_connection_goes_on_in_good_order(bus: Bus) -> None:
    consumer, publisher = await bus.consumer(), await bus.publisher()
    await publisher.call("send_safe", bus.topic, b"first", timeout_s=WITHIN_S)
    futures = []
    for number in range(100):
        if number == 50:
            await publisher.call("refresh_connection")
        futures.append(await publisher.call("submit", bus.topic, str(number)))
    assert {(await end_of(future)).outcome for future in futures} == {Outcome.CONFIRMED}
    assert len(await receive_and_ack(consumer, 101)) == 101
    assert (await publisher.call("stats")).unknown == 0


async def test_a_publish_may_wait_for_a_queue_of_its_own(bus: Bus) -> None:
    publisher = await bus.publisher()
    queue = Queue(bus.topic, create=True)
    published = await publisher.call("send_safe", queue, b"job", timeout_s=30)
    assert published.outcome is Outcome.CONFIRMED
    consumer = await bus.consumer("", destination=str(queue))
    (delivery,) = await receive_and_ack(consumer, 1)
    assert (delivery.body, delivery.source) == (b"job", queue)


@pytest.mark.guarantee("mistyped-name-swallows-nothing")
async def test_a_queue_that_nobody_declared_swallows_nothing(bus: Bus) -> None:
    """A mistyped name is reported, at once and after a delay, and other publishes go on."""
    publisher, typo = await bus.publisher(), f"queue:{bus.topic}-typo"
    for options in ({}, {"deliver_after_s": 1}):
        with pytest.raises(Unroutable, match=f"{typo} was never declared"):
            await publisher.call("send_safe", typo, b"x", timeout_s=WITHIN_S, **options)
    ended = [await publisher.call("submit", typo, b"x") for _ in range(3)]
    assert {(await end_of(each)).outcome for each in ended} == {Outcome.UNROUTABLE}
    assert (await publisher.call("stats")).links_lost == 0
    # A client that declares it, or asks for it to be made, may publish to it.
    made = Queue(f"{bus.topic}-typo", create=True)
    published = await publisher.call("send_safe", made, b"x", timeout_s=WITHIN_S)
    assert published.outcome is Outcome.CONFIRMED
    published = await publisher.call("send_safe", typo, b"y", timeout_s=WITHIN_S)
    assert published.outcome is Outcome.CONFIRMED
    consumer = await bus.consumer("", destination=typo)
    assert sorted(each.body for each in await receive_and_ack(consumer, 2)) == [b"x", b"y"]


@pytest.mark.parametrize("name", ["", "a b", "amq.topic", "mb.x", "x" * 121, "a/b", "ü"])
async def test_a_name_that_is_not_allowed_is_told_before_anything_is_sent(
    bus: Bus, name: str
) -> None:
    publisher = await bus.publisher()
    with pytest.raises(NameInvalid):
        await publisher.call("submit", name, b"x")
    assert (await publisher.call("stats")).backlog == 0


@pytest.mark.parametrize(
    "payload", [object(), {"n": float("nan")}, [b"x"], bytearray(b"x")], ids=type
)
async def test_a_payload_that_json_cannot_say_is_refused_before_anything_is_sent(
    bus: Bus, payload: Any
) -> None:
    publisher = await bus.publisher()
    with pytest.raises(MessageInvalid):
        await publisher.call("submit", bus.topic, payload)


async def test_what_slips_through_and_cannot_be_encoded_harms_no_other_publish(bus: Bus) -> None:
    consumer, publisher = await bus.consumer(), await bus.publisher()
    await publisher.call("send_safe", bus.topic, b"first", timeout_s=WITHIN_S)
    poison = Message(body=b"poison", headers={"a": "b"})
    dict.__setitem__(poison.headers, "a", object())  # type: ignore[index]
    futures = [await publisher.call("submit", bus.topic, each) for each in (b"1", poison, b"2")]
    outcomes = [(await end_of(future)).outcome for future in futures]
    assert outcomes == [Outcome.CONFIRMED, Outcome.REFUSED, Outcome.CONFIRMED]
    # Publishes in flight on the link that was lost with it are sent again, and may come twice.
    bodies: set[bytes] = set()
    while bodies != {b"first", b"1", b"2"}:
        bodies |= {delivery.body for delivery in await receive_and_ack(consumer, 1)}


async def test_a_start_that_reaches_no_broker_says_why() -> None:
    publisher = AsyncPublisher(BusConfig(broker=NOWHERE))
    told = rf"no link to {NOWHERE} within 0.3 s; last fault: {NOWHERE}: .*Connection refused"
    with pytest.raises(NotReady, match=told):
        await publisher.start(require="one", timeout_s=0.3)


async def test_a_full_backlog_says_so_within_its_time(bus: Bus) -> None:
    publisher = await bus.deaf_publisher(backlog_messages_max=5, window=1)
    for _ in range(5):
        await publisher.call("submit", bus.topic, b"x")
    begin = time.monotonic()
    told = "no room for 1 bytes within 500 ms: the limit is backlog_messages_max=5"
    with pytest.raises(BacklogFull, match=told):
        await publisher.call("submit", bus.topic, b"x", timeout_s=0.5)
    assert 0.4 < time.monotonic() - begin < 3


async def test_a_full_backlog_tells_the_ends_of_those_that_it_took(bus: Bus) -> None:
    publisher = await bus.deaf_publisher(backlog_bytes_max=1_000, window=1)
    # They stay: when the others' time is over, there is still no room for the last payload.
    for _ in range(3):
        await publisher.call("submit", bus.topic, bytes(200), timeout_s=60)
    payloads = [Message(body=bytes(n), message_id=f"m{n}") for n in (1, 2, 900)]
    with pytest.raises(BacklogFull, match="the limit is backlog_bytes_max=1000") as full:
        await publisher.call("send_many", bus.topic, payloads, timeout_s=0.5)
    told = {end.message_id: end.outcome for end in full.value.ends}
    assert [*told] == ["m1", "m2"]
    assert Outcome.CONFIRMED not in told.values()


async def test_a_stop_tells_the_ends_of_those_that_were_accepted(bus: Bus) -> None:
    publisher = await bus.deaf_publisher(backlog_messages_max=5, window=1)
    inner = publisher.inner
    assert isinstance(inner, Publisher | AsyncPublisher)
    payloads = [Message(body=b"x", message_id=f"m{n}") for n in range(7)]
    sending = asyncio.create_task(publisher.call("send_many", bus.topic, payloads, timeout_s=60))
    await eventually_async(lambda: inner.stats().backlog >= 4, within_s=WITHIN_S)
    await publisher.call("stop", timeout_s=0.1)
    with pytest.raises(Stopped) as stopped:
        await sending
    told = {end.message_id: end.outcome for end in stopped.value.ends}
    assert 1 <= len(told) < 7
    assert list(told) == [f"m{n}" for n in range(len(told))]
    assert set(told.values()) <= {Outcome.REFUSED, Outcome.UNKNOWN}


async def test_a_payload_that_is_none_tells_the_ends_of_those_before_it(bus: Bus) -> None:
    await bus.consumer()
    publisher = await bus.publisher()
    payloads = [Message(body=b"1"), Message(body=b"2"), object(), Message(body=b"3")]
    with pytest.raises(MessageInvalid) as invalid:
        await publisher.call("send_many", bus.topic, payloads)
    assert [end.outcome for end in invalid.value.ends] == [Outcome.CONFIRMED] * 2


async def test_an_iterable_that_raises_tells_the_ends_of_those_before_it(bus: Bus) -> None:
    await bus.consumer()
    publisher = await bus.publisher()
    pair = [Message(body=b"1"), Message(body=b"2")]

    def lines() -> Iterator[Message]:
        yield from pair
        raise OSError("the disk went away")

    with pytest.raises(OSError, match="disk") as failed:
        await publisher.call("send_many", bus.topic, lines())
    ends: list[Published] = failed.value.ends  # type: ignore[attr-defined]
    assert [end.outcome for end in ends] == [Outcome.CONFIRMED] * 2
    assert await publisher.call("flush") == 0


async def test_a_publish_ends_by_its_deadline(bus: Bus) -> None:
    publisher = await bus.deaf_publisher()
    begin = time.monotonic()
    with pytest.raises(Refused):
        await publisher.call("send_safe", bus.topic, b"x", timeout_s=0.3)
    assert 0.2 < time.monotonic() - begin < 3
    assert await publisher.call("flush", timeout_s=5) == 0
    assert time.monotonic() - begin < 4


async def test_a_turn_for_room_is_the_next_ones_when_its_waiter_is_cancelled_just_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    woken = Lane.wake
    first: list[asyncio.Task[Any]] = []

    def wake_and_cancel(lane: Lane) -> None:
        turns = list(lane.tickets)
        woken(lane)
        if first and turns and turns[0][1].done():
            first.pop().cancel()

    monkeypatch.setattr(Lane, "wake", wake_and_cancel)
    memory, jobs = MemoryBus(), Queue("jobs", create=True)
    async with memory.async_publisher(PublisherConfig(backlog_messages_max=1, window=1)) as made:
        await made.send_safe(jobs, b"opens the destination")
        memory.freeze()  # so that no confirm ever makes room
        await made.submit(jobs, b"in flight")
        await asyncio.sleep(0)
        await made.submit(jobs, b"expires", timeout_s=0.1)
        first.append(asyncio.create_task(made.submit(jobs, b"cancelled")))
        second = asyncio.create_task(made.submit(jobs, b"next"))
        await asyncio.wait_for(second, WITHIN_S)
        memory.thaw()


async def test_flush_says_how_many_are_open(bus: Bus) -> None:
    publisher = await bus.deaf_publisher()
    for _ in range(3):
        await publisher.call("submit", bus.topic, b"x")
    assert await publisher.call("flush", timeout_s=0.1) == 3


@pytest.mark.parametrize("end", ["flush", "stop"])
async def test_a_flush_and_a_stop_do_not_wait_for_the_company_of_a_batch(
    bus: Bus, end: str
) -> None:
    await bus.consumer()
    batch = {bus.topic: Batching(linger_s=25)}
    publisher = await bus.publisher(batch=batch)
    future = await publisher.call("submit", bus.topic, b"x")
    assert await publisher.call(end, timeout_s=WITHIN_S) == 0
    assert (await end_of(future)).outcome is Outcome.CONFIRMED


@pytest.mark.guarantee("exit-settles-or-says")
async def test_stop_settles_what_is_open_and_says_how_many(bus: Bus) -> None:
    publisher = await bus.deaf_publisher()
    futures = [await publisher.call("submit", bus.topic, b"x") for _ in range(3)]
    assert await publisher.call("stop", 0.1) == 3
    ends = [await end_of(future) for future in futures]
    assert {end.outcome for end in ends} == {Outcome.REFUSED}
    assert (await publisher.call("stats")).refused == 3


async def test_a_cancelled_future_harms_no_other_publish(bus: Bus) -> None:
    await bus.consumer()
    publisher = await bus.publisher()
    futures = [await publisher.call("submit", bus.topic, b"x") for _ in range(20)]
    futures[10].cancel()
    for number, future in enumerate(futures):
        if number != 10:
            assert (await end_of(future)).outcome is Outcome.CONFIRMED


async def test_a_callback_may_publish_again(bus: Bus) -> None:
    consumer, publisher = await bus.consumer(), await bus.publisher()
    inner = publisher.inner
    if isinstance(inner, Publisher):
        blocking = inner
        inner.submit(bus.topic, b"1").add_done_callback(lambda _: blocking.send(bus.topic, b"2"))
    else:
        assert isinstance(inner, AsyncPublisher)
        sends = [asyncio.create_task(inner.send(bus.topic, b"1"))]
        sends[0].add_done_callback(
            lambda _: sends.append(asyncio.create_task(inner.send(bus.topic, b"2")))
        )
    assert {delivery.body for delivery in await receive_and_ack(consumer, 2)} == {b"1", b"2"}


async def test_a_publisher_is_used_between_start_and_stop(bus: Bus) -> None:
    publisher = await bus.publisher(start=False)
    assert publisher.status == "initialized"
    with pytest.raises(Stopped):
        await publisher.call("submit", bus.topic, b"x")
    await publisher.call("start")
    assert publisher.status == "running"
    with pytest.raises(Stopped):
        await publisher.call("start")
    assert await publisher.call("stop", 0) == 0
    assert await publisher.call("stop", 0) == 0
    for method, arguments in {"submit": (bus.topic, b"x"), "flush": ()}.items():
        with pytest.raises(Stopped):
            await publisher.call(method, *arguments)
    assert publisher.status == "stopped"
    assert (await publisher.call("stats")).confirmed == 0


@pytest.mark.guarantee("spooled-is-sent-later")
async def test_what_was_spooled_without_a_broker_is_delivered_by_the_next_publisher(
    bus: Bus, tmp_path: Path
) -> None:
    consumer = await bus.consumer()
    away = await bus.away_publisher(spool=Spool(tmp_path, after_s=0.05))
    messages = [Message.text(f"{number}", headers={"n": number}) for number in range(20)]
    ends = await away.call("send_many", bus.topic, messages)
    assert {end.outcome for end in ends} == {Outcome.SPOOLED}
    await away.call("stop")
    bus.brokers_are_back()
    publisher = await bus.publisher(spool=Spool(tmp_path))
    await publisher.call("flush")
    await publisher.call("send_safe", bus.topic, b"last", timeout_s=WITHIN_S)
    got = await receive_and_ack(consumer, 21)
    assert [each.body for each in got] == [b"%d" % number for number in range(20)] + [b"last"]
    assert [each.message_id for each in got[:20]] == [end.message_id for end in ends]
    assert [each.headers["n"] for each in got[:20]] == list(range(20))


@pytest.mark.guarantee("full-refuses-and-drops-nothing")
async def test_a_full_subscription_refuses_and_drops_nothing(bus: Bus) -> None:
    consumer = await bus.consumer(prefetch=1, handed_out_max=1)
    await consumer.call("stop")
    publisher = await bus.publisher()
    held = await ends_of(publisher, bus.topic, count=60)
    assert {end.outcome for end in held} == {Outcome.CONFIRMED}
    await bus.set_quota("billing", 5)  # less than a broker may have
    await eventually_refused(publisher, bus.topic)
    ends = await ends_of(publisher, bus.topic, count=60)
    assert {end.outcome for end in ends} <= {Outcome.CONFIRMED, Outcome.REFUSED}
    stored = {end.message_id for end in (*held, *ends) if end.outcome is Outcome.CONFIRMED}
    await bus.set_quota("billing", 0)
    got = await received(await bus.consumer(), len(stored))
    assert stored <= got


@pytest.mark.guarantee("full-makes-publishers-wait")
async def test_publishers_that_wait_when_full_get_everything_in_as_consumers_make_room(
    bus: Bus,
) -> None:
    first = await bus.consumer()
    await first.call("stop")
    await bus.set_quota("billing", 5)
    publisher = await bus.publisher(on_full="wait", deadline_s=60, window=20)
    sending = asyncio.create_task(ends_of(publisher, bus.topic, count=60))
    await eventually_full(publisher)
    assert not sending.done()
    got = await received(await bus.consumer(), 60)
    ends = await sending
    assert {end.outcome for end in ends} == {Outcome.CONFIRMED}
    assert {end.message_id for end in ends} <= got


@pytest.mark.guarantee("full-makes-publishers-wait")
async def test_a_publisher_that_waits_when_full_waits_until_its_deadline(bus: Bus) -> None:
    consumer = await bus.consumer()
    await consumer.call("stop")
    await bus.set_quota("billing", 1)
    publisher = await bus.publisher(on_full="wait", deadline_s=1, window=20)
    refused: list[Published] = []
    async with asyncio.timeout(30 * FACTOR):  # RabbitMQ applies a policy a little later
        while not refused:
            ends = await ends_of(publisher, bus.topic, count=50)
            refused = [end for end in ends if end.outcome is Outcome.REFUSED]
    assert {end.reason for end in refused} == {FULL_TOO_LONG}


async def ends_of(publisher: Client, topic: str, *, count: int) -> list[Published]:
    bodies = [b"%d" % number for number in range(count)]
    ends: list[Published] = await publisher.call("send_many", topic, bodies)
    return ends


async def eventually_refused(publisher: Client, topic: str) -> None:
    """Publish until a broker refuses: RabbitMQ applies a policy a little later."""
    async with asyncio.timeout(30 * FACTOR):
        while all(
            end.outcome is Outcome.CONFIRMED for end in await ends_of(publisher, topic, count=1)
        ):
            pass


async def eventually_full(publisher: Client) -> None:
    """Wait until publishes of this publisher were refused and wait."""
    drivers = publisher.inner._drivers  # type: ignore[union-attr]
    assert drivers is not None
    await eventually_async(lambda: bool(drivers.own.pending.full), within_s=30)


async def received(consumer: Client, count: int) -> set[str]:
    """Receive and ack until there are so many ids. Returns them."""
    found: set[str] = set()
    while len(found) < count:
        delivery = await consumer.call("receive", timeout_s=30 * FACTOR)
        assert delivery is not None
        found.add(delivery.message_id)
        await consumer.call("ack", delivery)
    return found


async def batched(bus: Bus, count: int) -> Client:
    """Publish a batch of this many rows to a topic that is declared to be compressed. Returns a consumer."""
    topic = Topic(bus.topic, deflate=True)
    publisher = await bus.publisher(batch={bus.topic: Batching(linger_s=1)})
    consumer = await bus.consumer(destination=topic)
    rows = [{"number": number, "text": "a row of some length"} for number in range(count)]
    ends = await publisher.call("send_many", topic, rows)
    assert {end.outcome for end in ends} == {Outcome.CONFIRMED}
    return consumer


async def until_parked(bus: Bus, consumer: Client) -> None:
    """Wait until a message is parked."""
    brokers = (await consumer.call("stats")).brokers
    until = time.monotonic() + WITHIN_S
    while not sum([await bus.parked(broker, "billing") for broker in brokers]):
        assert time.monotonic() < until
        await asyncio.sleep(0.05)


async def test_batches_of_a_topic_that_is_declared_so_are_compressed(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[tuple[int, int]] = []

    def watched(body: bytes, *given: Any, **named: Any) -> tuple[bytes, bytes]:
        made = packed(body, *given, **named)
        sizes.append((len(body), len(made[1])))
        return made

    monkeypatch.setattr("messagebus._io.publish.sender.packed", watched)
    consumer = await batched(bus, 40)
    got = await receive_and_ack(consumer, 40)
    assert {json.loads(delivery.body)["number"] for delivery in got} == set(range(40))
    assert any(after < 0.4 * before for before, after in sizes)


@pytest.mark.guarantee("damaged-batch-is-parked")
async def test_a_batch_with_a_wrong_checksum_is_parked_whole_and_readable_again_later(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(raw: bytes, body: bytes) -> list[tuple[bytes, bytes]]:
        raise BatchDamaged("checksum: its bytes are not those that were published")

    monkeypatch.setattr("messagebus._io.consume.inbox.entries_of", broken)
    consumer = await batched(bus, 40)
    await until_parked(bus, consumer)
    monkeypatch.undo()
    assert await bus.redrive(f"{bus.topic}/billing") >= 1
    got = await receive_and_ack(consumer, 40)
    assert {json.loads(delivery.body)["number"] for delivery in got} == set(range(40))


@pytest.mark.guarantee("altered-message-is-parked")
async def test_a_message_with_a_checksum_arrives_and_one_that_was_altered_is_parked(
    bus: Bus,
) -> None:
    publisher, consumer = await bus.publisher(), await bus.consumer()
    good = Message.text("whole").with_checksum()
    altered = Message.text("whole").with_checksum()
    object.__setattr__(altered, "body", b"hole!")
    ends = [await publisher.call("send_safe", bus.topic, each) for each in (altered, good)]
    assert {end.outcome for end in ends} == {Outcome.CONFIRMED}
    (got,) = await receive_and_ack(consumer, 1)
    assert (got.message_id, got.body) == (ends[1].message_id, b"whole")
    await until_parked(bus, consumer)
