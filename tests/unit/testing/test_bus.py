"""The bus in memory: a test's acts, its questions, and the errors of its assertions."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from messagebus import (
    AsyncConsumer,
    AsyncPublisher,
    Batching,
    ConfigError,
    ConsumerConfig,
    Delivery,
    Message,
    NameInvalid,
    Outcome,
    Park,
    PublisherConfig,
    Refused,
    RetryPolicy,
    Status,
    Subscription,
    Topic,
    TopologyMismatch,
    Unroutable,
)
from messagebus._io.consume import copies
from messagebus.testing import MemoryBus
from tests.support.eventually import eventually

WITHIN_S = 60


class Clients:
    """Running clients on one bus; all are stopped at the end."""

    def __init__(self, bus: MemoryBus, stack: AsyncExitStack) -> None:
        self.bus, self._stack = bus, stack
        self._consumers: list[AsyncConsumer] = []

    def keep(self, work: asyncio.Task[Any]) -> None:
        """Await this work at the end, with the consumer that it belongs to."""
        self._stack.push_async_callback(asyncio.wait_for, work, WITHIN_S)
        self._stack.push_async_callback(self._stop_all)

    async def _stop_all(self) -> None:
        for consumer in self._consumers:
            await consumer.stop(0)

    async def publisher(self, **settings: Any) -> AsyncPublisher:
        publisher = self.bus.async_publisher(PublisherConfig(**settings))
        await publisher.start(require="one")
        self._stack.push_async_callback(publisher.stop, 0)
        return publisher

    async def consumer(self, source: Any = "orders/billing", **settings: Any) -> AsyncConsumer:
        topic, _, name = source.partition("/") if isinstance(source, str) else (source, "", "")
        consumer = self.bus.async_consumer(
            topic, subscription=name, config=ConsumerConfig(**settings)
        )
        await consumer.start(require="all")
        self._consumers.append(consumer)
        self._stack.push_async_callback(consumer.stop, 0)
        return consumer


@pytest.fixture
async def clients() -> AsyncIterator[Clients]:
    async with AsyncExitStack() as stack:
        yield Clients(MemoryBus(), stack)


async def take(consumer: AsyncConsumer) -> Delivery:
    delivery = await consumer.receive(WITHIN_S)
    assert delivery is not None
    return delivery


async def turns(count: int = 20) -> None:
    """Let everything happen that needs no clock."""
    for _ in range(count):
        await asyncio.sleep(0)


# The clock.
async def test_time_stands_still_until_it_is_moved(clients: Clients) -> None:
    bus, consumer, publisher = clients.bus, await clients.consumer(), await clients.publisher()
    for delay_s in (60, 1, 5):
        await publisher.send_safe("orders", str(delay_s), deliver_after_s=delay_s)
    assert bus.delayed() == 3
    bodies = []
    for seconds in (1, 4, 55):
        bus.advance(seconds)
        bodies.append((await take(consumer)).body)
        await turns()
        assert consumer.receive_immediate() is None
    assert bodies == [b"1", b"5", b"60"]
    assert bus.delayed() == 0


async def test_what_becomes_due_in_one_step_comes_in_the_order_of_its_time(
    clients: Clients,
) -> None:
    consumer, publisher = await clients.consumer(), await clients.publisher()
    for delay_s in (30, 2, 10):
        await publisher.send_safe("orders", str(delay_s), deliver_after_s=delay_s)
    clients.bus.advance(3_600)
    assert [(await take(consumer)).body for _ in range(3)] == [b"2", b"10", b"30"]


def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="does not go back"):
        MemoryBus().advance(-1)


async def test_deadlines_pass_with_the_clock_what_was_sent_is_unknown(clients: Clients) -> None:
    bus, publisher = clients.bus, await clients.publisher(deadline_s=30, window=1)
    bus.declare("orders/billing")
    await publisher.send_safe("orders", b"the destination is open")
    bus.freeze()
    sent, unsent = [await publisher.submit("orders", b"x") for _ in range(2)]
    await turns()
    bus.advance(29)
    assert not sent.done()
    bus.advance(1.1)
    assert (await sent).outcome is Outcome.UNKNOWN
    assert (await unsent).outcome is Outcome.REFUSED
    bus.thaw()
    await publisher.send_safe("orders", b"it goes on")
    # The one that was unknown had reached its broker.
    assert [each.body for each in bus.published("orders")][1:] == [b"x", b"it goes on"]


@pytest.mark.parametrize(("partitions", "redundant"), [(0, ()), (0, ("orders",)), (3, ())])
async def test_deadlines_pass_with_the_clock_whatever_way_a_publish_goes(
    partitions: int, redundant: tuple[str, ...]
) -> None:
    bus = MemoryBus(brokers=3)
    bus.declare(Topic("orders", partitions=partitions))
    bus.declare("orders/billing")
    config = PublisherConfig(deadline_s=3_600, redundant=redundant)
    async with bus.async_publisher(config) as publisher:
        await publisher.send_safe("orders", b"the destination is open")
        bus.stop_brokers()
        end = await publisher.submit("orders", b"x")
        bus.advance(3_601)
        await turns()
        assert end.done()
        assert end.result().outcome is Outcome.REFUSED


async def test_a_subscription_that_expires_goes_when_nobody_has_used_it_so_long(
    clients: Clients,
) -> None:
    bus, publisher = clients.bus, await clients.publisher()
    source = Subscription(Topic("orders"), "screen", expires_s=60)
    consumer = await clients.consumer(source)
    bus.advance(600)
    await publisher.send_safe("orders", b"used")
    consumer.ack(await take(consumer))
    await consumer.stop(0)
    bus.declare(source)
    bus.advance(59)
    await publisher.send_safe("orders", b"still there")
    bus.advance(2)
    with pytest.raises(Unroutable):
        await publisher.send_safe("orders", b"gone")


# Faults.
async def test_refused_are_the_next_ones_and_no_more(clients: Clients) -> None:
    bus, publisher = clients.bus, await clients.publisher()
    bus.declare("orders/billing", "queue:jobs")
    bus.refuse_next("orders", count=2)
    await publisher.send_safe("queue:jobs", b"another destination")
    ends = await publisher.send_many("orders", [b"1", b"2", b"3"])
    assert [end.outcome.value for end in ends] == ["refused", "refused", "confirmed"]
    bus.refuse_next("orders", 1)
    with pytest.raises(Refused):
        await publisher.send_safe("orders", b"4")
    assert [each.body for each in bus.published("orders")] == [b"3"]


async def test_a_refused_batch_is_refused_whole(clients: Clients) -> None:
    bus = clients.bus
    publisher = await clients.publisher(batch={"orders": Batching(count_max=3, linger_s=1)})
    bus.declare("orders/billing")
    bus.refuse_next("orders")
    ends = await publisher.send_many("orders", [b"1", b"2", b"3"])
    assert {end.outcome for end in ends} == {Outcome.REFUSED}
    ends = await publisher.send_many("orders", [b"4", b"5", b"6"])
    assert {end.outcome for end in ends} == {Outcome.CONFIRMED}
    assert [each.body for each in bus.published("orders")] == [b"4", b"5", b"6"]


async def test_a_duplicate_has_the_same_id_and_is_not_marked(clients: Clients) -> None:
    bus, consumer, publisher = clients.bus, await clients.consumer(), await clients.publisher()
    bus.duplicate_next("orders")
    published = await publisher.send_safe("orders", b"once")
    first, second = await take(consumer), await take(consumer)
    assert first.message_id == second.message_id == published.message_id
    assert (first.redelivered, second.redelivered) == (False, False)
    assert len(bus.published("orders")) == 1


async def test_a_slow_broker_answers_and_delivers_by_the_clock(clients: Clients) -> None:
    bus, consumer, publisher = clients.bus, await clients.consumer(), await clients.publisher()
    await publisher.send_safe("orders", b"quick")
    await take(consumer)
    bus.slow(2)
    slow = await publisher.submit("orders", b"slow")
    await turns()
    bus.advance(1.9)
    await turns()
    assert not slow.done()
    assert consumer.receive_immediate() is None
    bus.advance(0.1)
    assert (await slow).outcome is Outcome.CONFIRMED
    assert (await take(consumer)).body == b"slow"
    bus.slow(0)
    await publisher.send_safe("orders", b"quick again")


async def test_only_links_to_the_named_broker_are_lost() -> None:
    async with AsyncExitStack() as stack:
        clients = Clients(MemoryBus(brokers=3), stack)
        consumer = await clients.consumer()
        assert clients.bus.lose_connection(clients.bus.brokers[1]) == 1
        await turns()
        assert consumer.keep_alive()
        with pytest.raises(KeyError):
            clients.bus.lose_connection("elsewhere:5672")


async def test_frozen_brokers_deliver_nothing_and_lose_nothing(clients: Clients) -> None:
    bus, consumer, publisher = clients.bus, await clients.consumer(), await clients.publisher()
    await publisher.send_safe("orders", b"first")
    held = await take(consumer)
    bus.freeze()
    future = await publisher.submit("orders", b"second")
    consumer.ack(held)
    await turns()
    assert not future.done()
    assert bus.answers("orders", "billing") == []
    bus.thaw()
    assert (await future).outcome is Outcome.CONFIRMED
    assert (await take(consumer)).body == b"second"
    assert bus.answers("orders", "billing") == [(held.message_id, "ack")]


@pytest.mark.parametrize("batch", [{}, {"orders": Batching(count_max=2, linger_s=1)}])
async def test_what_comes_back_too_often_is_parked_by_its_broker(batch: Any) -> None:
    async with AsyncExitStack() as stack:
        clients = Clients(MemoryBus(delivery_limit=2), stack)
        consumer, publisher = await clients.consumer(), await clients.publisher(batch=batch)
        await publisher.send_many("orders", [b"poison", b"too"])
        for _ in range(3):
            await take(consumer)
            clients.bus.lose_connection()
        await turns()
        parked = clients.bus.assert_parked("orders", "billing", count=2)
        assert [each.body for each in parked] == [b"poison", b"too"]
        assert clients.bus.waiting("orders", "billing") == 0


async def test_deliveries_that_nobody_saw_are_not_parked_by_a_limit_of_the_whole_bus() -> None:
    bus, handled = MemoryBus(delivery_limit=3), set[bytes]()
    bus.declare("orders/billing")
    async with bus.async_publisher() as publisher:
        await publisher.send_many("orders", [b"%d" % number for number in range(12)])
    for _ in range(12):
        async with bus.async_consumer("orders", subscription="billing") as consumer:
            delivery = await consumer.receive()
            assert delivery is not None
            handled.add(delivery.body)
            consumer.ack(delivery)
    assert len(handled) == 12
    assert not bus.parked("orders", "billing")


# Questions.
async def test_answers_are_remembered_in_their_order(clients: Clients) -> None:
    bus, consumer, publisher = clients.bus, await clients.consumer(), await clients.publisher()
    ids = [end.message_id for end in await publisher.send_many("orders", [b"1", b"2", b"3"])]
    first, second, third = [await take(consumer) for _ in range(3)]
    consumer.ack(third)
    await turns()
    consumer.nack(first)
    await turns()
    consumer.nack(second, requeue=False)
    consumer.ack(await take(consumer))
    await bus.handled()
    assert bus.answers("orders", "billing") == bus.answers("orders/billing")
    assert bus.answers("orders/billing") == [
        (ids[2], "ack"),
        (ids[0], "requeue"),
        (ids[1], "reject"),
        (ids[0], "ack"),
    ]
    assert bus.assert_answered("orders/billing", answer="ack", count=2) == [ids[2], ids[0]]
    assert [each.message_id for each in bus.parked("orders", "billing")] == [ids[1]]


async def test_handled_waits_for_answers_and_says_what_has_none(clients: Clients) -> None:
    bus, consumer, publisher = clients.bus, await clients.consumer(), await clients.publisher()
    await bus.handled()
    await publisher.send_many("orders", [b"1", b"2"])
    waiting = asyncio.create_task(bus.handled())
    await turns()
    for _ in range(2):
        assert not waiting.done()
        consumer.ack(await take(consumer))
    await waiting
    await publisher.send_safe("orders", b"3")
    with pytest.raises(AssertionError, match=r"mb.sub/orders/billing: 0 waiting, 1 delivered"):
        await bus.handled(timeout_s=0)
    with pytest.raises(AssertionError, match=r"1 delivered without an answer") as blocked:
        bus.wait_handled(timeout_s=0)
    assert "use `await bus.handled()`" in str(blocked.value)
    with pytest.raises(AssertionError) as elsewhere:
        await asyncio.to_thread(bus.wait_handled, timeout_s=0)
    assert "await" not in str(elsewhere.value)


# Handlers.
class Failing:
    """Handler that fails this many times, then does its work. runs: the attempt of each."""

    def __init__(self, failures: int) -> None:
        self.failures, self.runs = failures, list[int]()

    async def __call__(self, delivery: Delivery) -> None:
        self.runs.append(delivery.attempt)
        if len(self.runs) <= self.failures:
            raise ValueError("not now")


POLICY = RetryPolicy(attempts_max=3, first_delay_s=5, factor=3, jitter=0)


async def handling(clients: Clients, failures: int) -> Failing:
    """Pass one message, whose handler runs for the first time; return the handler."""
    handler = Failing(failures)
    consumer = await clients.consumer()
    clients.keep(asyncio.create_task(consumer.run(handler, retry=POLICY)))
    publisher = await clients.publisher()
    await publisher.send_safe("orders", Message.text("x", message_id="one", key="k"))
    await clients.bus.handled()
    return handler


async def test_a_retry_waits_for_the_clock_and_is_an_answer(clients: Clients) -> None:
    bus, handler = clients.bus, await handling(clients, failures=2)
    assert (handler.runs, bus.delayed(), bus.due_in_s()) == ([1], 1, 5)
    bus.advance(4.9)
    await bus.handled()
    assert handler.runs == [1]
    assert bus.due_in_s() == pytest.approx(0.1)
    bus.advance(0.1)
    await bus.handled()
    assert (handler.runs, bus.due_in_s()) == ([1, 2], 20)
    bus.advance(20)
    await bus.handled()
    assert (handler.runs, bus.due_in_s()) == ([1, 2, 3], None)
    assert bus.answers("orders/billing") == [("one", "retry"), ("one", "retry"), ("one", "ack")]
    assert len(bus.published("orders")) == 1


async def test_a_retry_in_its_place_waits_for_the_clock_with_what_is_behind_it(
    clients: Clients,
) -> None:
    bus, handler = clients.bus, Failing(1)
    consumer = await clients.consumer(order="key")
    clients.keep(asyncio.create_task(consumer.run(handler, retry=POLICY)))
    publisher = await clients.publisher()
    for name in ("one", "two"):
        await publisher.send_safe("orders", Message.text("x", message_id=name, key="k"))
    await bus.handled()
    assert (handler.runs, bus.delayed()) == ([1], 1)
    due_in_s = bus.due_in_s()
    assert due_in_s is not None
    assert 0 < due_in_s <= 5
    bus.advance(5)
    await bus.handled()
    assert (handler.runs, bus.delayed(), bus.due_in_s()) == ([1, 2, 1], 0, None)


async def test_a_subscription_of_partitions_that_nobody_declared_is_refused_as_by_agents(
    clients: Clients,
) -> None:
    payments = Topic("payments", partitions=8)
    consumer = clients.bus.async_consumer(payments, subscription="ledger")
    with pytest.raises(TopologyMismatch, match="messagebus declare payments --partitions 8"):
        await consumer.start(require="all")
    clients.bus.declare("clicks")
    with pytest.raises(TopologyMismatch, match="wanted 8 and its topic exists with 0"):
        clients.bus.declare(Subscription(Topic("clicks", partitions=8), "counted"))
    clients.bus.declare(payments, "payments/ledger")


def test_a_thread_waits_for_no_retry_in_its_place() -> None:
    bus, runs = MemoryBus(), list[int]()

    def fail_once(delivery: Delivery) -> None:
        runs.append(delivery.attempt)
        if len(runs) == 1:
            raise ValueError("not now")

    config = ConsumerConfig(order="key")
    with (
        bus.consumer("orders", subscription="billing", config=config) as consumer,
        bus.publisher() as publisher,
    ):
        work = threading.Thread(target=consumer.run, args=(fail_once,), kwargs={"retry": POLICY})
        work.start()
        publisher.send_safe("orders", Message.text("x", key="k"))
        bus.wait_handled()
        assert (runs, bus.delayed()) == ([1], 1)
        bus.advance(5)
        bus.wait_handled()
        assert (runs, bus.delayed()) == ([1, 2], 0)
        consumer.stop()
    work.join(WITHIN_S)


async def test_a_batch_whose_open_messages_wait_for_a_retry_in_place_is_handled(
    clients: Clients,
) -> None:
    """It is one delivery of its broker, whatever the number of its messages without an answer."""
    bus, runs = clients.bus, list[bytes]()
    consumer = bus.async_consumer("orders", subscription="billing", order="key")
    await consumer.start()

    async def fail_once(delivery: Delivery) -> None:
        runs.append(delivery.body)
        if delivery.body == b"2" and runs.count(b"2") == 1:
            raise ValueError("not now")

    work = asyncio.create_task(consumer.run(fail_once, retry=POLICY))
    publisher = await clients.publisher(batch={"orders": Batching(linger_s=1)})
    for body in ("1", "2", "3"):
        await publisher.submit("orders", Message.text(body, key="k"))
    await publisher.flush()
    await bus.handled()
    assert (runs, bus.delayed()) == ([b"1", b"2"], 1)
    bus.advance(5)
    await bus.handled()
    assert (runs, bus.delayed()) == ([b"1", b"2", b"2", b"3"], 0)
    await consumer.stop()
    await work


async def test_a_refused_copy_for_a_retry_is_tried_again_and_nothing_is_lost(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "RETRY_FIRST_S", 0)
    bus = clients.bus
    bus.refuse_next("orders/billing")
    handler = await handling(clients, failures=1)
    assert bus.delayed() == 1
    bus.advance(5)
    await bus.handled()
    assert handler.runs == [1, 2]


# Assertions.
async def test_what_is_parked_is_told_apart_by_its_reason(clients: Clients) -> None:
    bus, consumer = clients.bus, await clients.consumer()

    async def fail(delivery: Delivery) -> None:
        raise Park("no such customer") if delivery.body == b"1" else ValueError("no such order")

    clients.keep(asyncio.create_task(consumer.run(fail, retry=RetryPolicy(attempts_max=1))))
    publisher = await clients.publisher()
    for body in ("1", "2"):
        await publisher.send_safe("orders", body)
    await bus.handled()
    bus.assert_parked("orders/billing", count=2)
    assert [m.body for m in bus.assert_parked("orders/billing", reason="no such customer")] == [
        b"1"
    ]
    assert [m.body for m in bus.assert_parked("orders/billing", reason="ValueError")] == [b"2"]
    with pytest.raises(
        AssertionError, match=r"(?s)because of 'KeyError', 0 found.*no such customer"
    ):
        bus.assert_parked("orders/billing", reason="KeyError")


async def test_what_matches_is_returned(clients: Clients) -> None:
    bus, publisher = clients.bus, await clients.publisher()
    bus.declare("orders/billing")
    await publisher.send_safe("orders", Message.json({"n": 1}, key="a", headers={"h": 1}))
    await publisher.send_safe("orders", Message.json({"n": 2}, key="b"))
    await publisher.send_safe("orders", "text")
    assert len(bus.assert_published("orders", count=3)) == 3
    (one,) = bus.assert_published("orders", json={"n": 1}, key="a", headers={"h": 1}, count=1)
    assert one.key == "a"
    assert len(bus.assert_published("orders", where=lambda each: bool(each.key))) == 2
    assert bus.assert_published("orders", text="text")[0].body == b"text"
    assert bus.assert_published("orders", key="c", count=0) == []
    with pytest.raises(TypeError, match="'kye' is no field of a message"):
        bus.assert_published("orders", kye="a")


async def test_what_does_not_match_is_shown(clients: Clients) -> None:
    bus, publisher = clients.bus, await clients.publisher()
    bus.declare("orders/billing")
    await publisher.send_safe("orders", Message.text("x" * 1_000, message_id="first", key="a"))
    with pytest.raises(Unroutable):
        await publisher.send_safe("invoices", b"nobody")
    with pytest.raises(AssertionError) as raised:
        bus.assert_published("orders", key="b", count=2)
    told = str(raised.value).splitlines()
    assert told[0] == "2 key='b' wanted on orders, 0 found"
    assert told[1] == "published to orders: 1"
    assert told[2].startswith("  first key='a' b'xxx")
    assert len(told[2]) < 200
    with pytest.raises(AssertionError) as raised:
        bus.assert_published("invoices")
    assert str(raised.value).splitlines() == [
        "at least 1 message(s) wanted on invoices, 0 found",
        "published to invoices: nothing",
        "1 more unroutable: no subscription: declare('invoices/test')",
        "published elsewhere: 2",
        "  invoices: 1 unroutable",
        "  orders: 1 confirmed",
    ]


async def test_answers_that_are_missing_are_told_with_those_that_are_there(
    clients: Clients,
) -> None:
    bus, consumer, publisher = clients.bus, await clients.consumer(), await clients.publisher()
    await publisher.send_safe("orders", Message.text("x", message_id="one"))
    with pytest.raises(AssertionError) as raised:
        bus.assert_answered("orders", "billing")
    assert str(raised.value).splitlines() == [
        "at least 1 ack(s) wanted from orders/billing, 0 found",
        "answers: nothing",
        "orders/billing: 0 waiting, 1 without an answer, 0 parked; 0 delayed on the whole bus",
    ]
    consumer.ack(await take(consumer))
    await bus.handled()
    with pytest.raises(AssertionError) as raised:
        bus.assert_parked("orders", "billing")
    assert str(raised.value).splitlines()[:3] == [
        "at least 1 parked message(s) wanted of orders/billing, 0 found",
        "parked: nothing",
        "answers: 1",
    ]
    with pytest.raises(ValueError, match="one of ack, requeue, reject, retry, park"):
        bus.assert_answered("orders", "billing", answer="acked")


def test_names_are_checked() -> None:
    bus = MemoryBus()
    for wrong in ("orders", "a b/c"):
        with pytest.raises(NameInvalid):
            bus.answers(wrong)
    with pytest.raises(NameInvalid):
        bus.refuse_next("a b")


LEAVES = """
from messagebus.testing import MemoryBus

bus = MemoryBus()
bus.declare("orders/billing")
with bus.publisher() as publisher:
    publisher.send_safe("orders", b"x")
consumer = bus.consumer("orders", subscription="billing")
consumer._grace_s = 3600
with consumer:
    assert consumer.receive(timeout_s=5) is not None
print(bus.waiting("orders", "billing"))
"""


def test_who_leaves_a_consumer_and_is_alone_waits_for_no_answer() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LEAVES], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == "1\n"


def test_who_leaves_a_consumer_waits_for_the_answers_of_other_threads() -> None:
    bus = MemoryBus()
    bus.declare("orders/billing")
    with bus.publisher() as publisher:
        publisher.send_safe("orders", b"x")
    consumer = bus.consumer("orders", subscription="billing")
    with consumer:
        delivery = consumer.receive(timeout_s=WITHIN_S)
        assert delivery is not None

        def answer() -> None:
            eventually(lambda: consumer.status is Status.STOPPED, within_s=WITHIN_S)
            consumer.ack(delivery)

        answering = threading.Thread(target=answer)
        answering.start()
    answering.join(WITHIN_S)
    assert [answer for _, answer in bus.answers("orders", "billing")] == ["ack"]


def test_a_publish_that_may_not_wait_so_long_is_refused_before_it_is_sent() -> None:
    bus = MemoryBus()
    with bus.publisher() as publisher:
        for publish in (publisher.send_safe, publisher.submit):
            with pytest.raises(ConfigError, match="timeout_s -1: seconds, 0 or more"):
                publish("orders", b"x", timeout_s=-1)
    assert bus.published("orders") == []


def test_an_unroutable_message_is_told_with_its_topic() -> None:
    with (
        MemoryBus().publisher() as publisher,
        pytest.raises(Unroutable, match=r"^message m to odrers unroutable: ") as told,
    ):
        publisher.send_safe("odrers", b"x", message_id="m")
    assert told.value.destination == "odrers"


async def test_a_publisher_that_would_batch_to_a_plain_subscription_is_refused_with_its_name() -> (
    None
):
    bus = MemoryBus()
    config = PublisherConfig(batch={"orders": Batching()})
    with bus.consumer(Subscription(Topic("orders"), "go", plain=True)) as consumer:
        assert consumer.registered
        with pytest.raises(ConfigError, match="orders/go take no batches"):
            bus.publisher(config).start()
        with pytest.raises(ConfigError, match="orders/go take no batches"):
            await bus.async_publisher(config).start()
        with bus.publisher(PublisherConfig(batch={"clicks": Batching()})) as publisher:
            publisher.send_safe("orders", b"plain")


@pytest.mark.parametrize(
    "fails",
    [
        lambda bus: bus.assert_published("orders", count=1),
        lambda bus: bus.assert_answered("orders", "billing"),
        lambda bus: bus.assert_parked("orders", "billing"),
    ],
)
def test_pytest_shows_the_test_that_failed_and_none_of_our_lines(
    fails: Callable[[MemoryBus], object],
) -> None:
    bus = MemoryBus()
    bus.declare("orders/billing")
    with pytest.raises(AssertionError) as raised:
        fails(bus)
    ours = [each for each in raised.traceback if "messagebus/testing" in str(each.path)]
    assert ours
    assert all(each.ishidden(raised) for each in ours)


def test_brokers_that_stop_together_are_all_gone_before_a_client_looks_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bus, gone = MemoryBus(brokers=3), list[int]()
    monkeypatch.setattr(bus._brokers, "lose", lambda _name: gone.append(len(bus._brokers.stopped)))
    bus.stop_brokers()
    assert gone == [3, 3, 3]
