"""Promises of deduplication, on every kind of bus: each handler ends well once, and nothing is lost."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections import Counter
from typing import Any

import pytest

from messagebus import (
    App,
    ConfigError,
    ConsumerConfig,
    Dedup,
    Delivery,
    Hooks,
    Message,
    Once,
    Park,
    RetryPolicy,
    Subscription,
    Topic,
)
from messagebus.core.claims import Held, Turn, key_of
from messagebus.inbox import inbox_ddl
from messagebus.testing.store import FaultyStore
from tests.contract.conftest import Bus, Client
from tests.contract.test_handling import (
    QUIET_S,
    SOON,
    WITHIN_S,
    Handler,
    counted,
    ended,
    parked,
    raising,
    run,
)
from tests.support.eventually import eventually_async


def store() -> FaultyStore:
    """Return a store by the real clock: brokers of both buses and their consumers share it."""
    return FaultyStore(lambda: time.monotonic_ns() // 1_000_000)


async def publish(bus: Bus, *ids: str, times: int = 1, **fields: Any) -> None:
    """Publish each id so often."""
    publisher = await bus.publisher()
    for _ in range(times):
        for message_id in ids:
            await publisher.call(
                "send_safe", bus.topic, Message.text(message_id, message_id=message_id, **fields)
            )


async def total(wanted: int, count: str, *consumers: Client) -> None:
    """Wait until all of them together have counted so many."""
    until = time.monotonic() + WITHIN_S
    while True:
        found = sum([getattr(await each.call("stats"), count) for each in consumers])
        if found == wanted:
            return
        assert time.monotonic() < until, f"{count}: {found}, {wanted} wanted"
        await asyncio.sleep(0.02)


def ids(handler: Handler) -> Counter[str]:
    return Counter(delivery.message_id for delivery in handler.seen)


class Slow(Handler):
    """Handler that waits until `leave`, for both kinds of clients."""

    def __init__(self) -> None:
        super().__init__()
        self.leave = threading.Event()

    def __call__(self, delivery: Delivery) -> object:
        self.seen.append(delivery)
        self.leave.wait(WITHIN_S)
        return None

    async def coroutine(self, delivery: Delivery) -> object:
        self.seen.append(delivery)
        while not self.leave.is_set():  # noqa: ASYNC110 - of both kinds of clients
            await asyncio.sleep(0.01)
        return None


async def owed(consumer: Client) -> int:
    return sum(each.owed for each in (await consumer.call("stats")).brokers.values())


@pytest.mark.guarantee("handled-once")
async def test_what_comes_twice_is_handled_once_and_acked(bus: Bus) -> None:
    names = [f"m{number}" for number in range(20)]
    consumer, handler = await bus.consumer(dedup=store()), Handler()
    work = run(consumer, handler, 3)
    await publish(bus, *names, times=3)
    await counted(consumer, acked=20, duplicates=40)
    assert await ended(consumer, work) == 0
    assert ids(handler) == Counter(names)
    assert await (await bus.consumer()).call("receive", timeout_s=QUIET_S) is None


async def test_a_duplicate_is_never_received_and_done_is_stored_before_the_ack(bus: Bus) -> None:
    records = store()
    consumer = await bus.consumer(dedup=records)
    await publish(bus, "a", "b", times=2)
    for message_id in ("a", "b"):
        delivery = await consumer.call("receive", timeout_s=WITHIN_S)
        assert delivery.message_id == message_id
        assert await consumer.call("ack_safe", delivery)
        assert (await records.count()).done >= 1
    assert await consumer.call("receive", timeout_s=QUIET_S) is None
    await counted(consumer, acked=2, duplicates=2)


@pytest.mark.guarantee("handled-once")
async def test_a_failed_run_is_run_again_and_its_copy_is_no_duplicate(bus: Bus) -> None:
    def end(delivery: Delivery) -> None:
        if delivery.attempt < 3:
            raise ValueError("not now")

    consumer, handler = await bus.consumer(dedup=store()), Handler(end)
    work = run(consumer, handler, retry=SOON)
    await publish(bus, "a", times=2)
    await counted(consumer, acked=1, duplicates=1)
    assert await ended(consumer, work) == 0
    assert [delivery.attempt for delivery in handler.seen].count(3) == 1


async def test_what_is_parked_is_parked_once_and_its_copies_are_acked(bus: Bus) -> None:
    consumer, handler = await bus.consumer(dedup=store()), Handler(raising(ValueError("no")))
    work = run(consumer, handler, retry=SOON)
    await publish(bus, "a", times=2)
    await counted(consumer, parked=1, duplicates=1)
    assert await ended(consumer, work) == 0
    assert len(await parked(bus, "billing")) == 1


@pytest.mark.guarantee("handled-once")
async def test_a_run_that_outlives_its_link_ends_its_message(bus: Bus) -> None:
    """Without deduplication the redelivery runs beside it, and the ack goes nowhere."""
    consumer, handler = await bus.consumer(dedup=store()), Slow()
    work = run(consumer, handler, 5)
    await publish(bus, "a")
    await eventually_async(lambda: handler.seen, within_s=WITHIN_S)
    await bus.cut(consumer)
    await counted(consumer, delivered=2)
    handler.leave.set()
    await counted(consumer, duplicates=1, acks_stale=1)
    assert await ended(consumer, work) == 0
    assert ids(handler) == Counter(["a"])
    assert await (await bus.consumer()).call("receive", timeout_s=QUIET_S) is None


@pytest.mark.guarantee("handled-once")
async def test_a_copy_waits_for_the_run_of_another_consumer_and_takes_its_end(bus: Bus) -> None:
    records = store()
    first, slow = await bus.consumer(dedup=records), Slow()
    runs_first = run(first, slow)
    await publish(bus, "a")
    await eventually_async(lambda: slow.seen, within_s=WITHIN_S)
    second, other = await bus.consumer(dedup=records), Handler()
    runs_second = run(second, other)
    await publish(bus, "a", times=9)
    await total(10, "delivered", first, second)
    slow.leave.set()
    await total(9, "duplicates", first, second)
    assert await ended(first, runs_first) == await ended(second, runs_second) == 0
    assert (ids(slow), ids(other)) == (Counter(["a"]), Counter())


@pytest.mark.guarantee("unseen-is-anybodys")
async def test_a_stop_gives_claims_back_at_once(bus: Bus) -> None:
    """The lease is so long that the test would show it."""
    dedup = Dedup(store(), lease_s=600)
    first = await bus.consumer(dedup=dedup)
    names = [f"m{number}" for number in range(10)]
    await publish(bus, *names)
    assert await first.call("receive", timeout_s=WITHIN_S) is not None
    await counted(first, delivered=10)
    assert await first.call("stop", 0) == 1
    second, handler = await bus.consumer(dedup=dedup), Handler()
    work = run(second, handler)
    await counted(second, acked=10)
    assert await ended(second, work) == 0
    assert ids(handler) == Counter(names)


@pytest.mark.guarantee("unseen-is-anybodys")
async def test_a_stop_gives_the_claims_of_copies_back_too(bus: Bus) -> None:
    dedup = Dedup(store(), lease_s=600)
    first = await bus.consumer(dedup=dedup)
    names = [f"m{number}" for number in range(5)]
    await publish(bus, *names, times=3)
    assert await first.call("receive", timeout_s=WITHIN_S) is not None
    await counted(first, delivered=15)
    await first.call("stop", 0)
    assert isinstance(dedup.store, FaultyStore)
    assert (await dedup.store.count()).running == 0


@pytest.mark.guarantee("handled-once")
async def test_a_run_whose_link_is_lost_is_waited_for_by_a_stop_and_done_for_good(bus: Bus) -> None:
    records = store()
    consumer, handler = await bus.consumer(dedup=Dedup(records, lease_s=600)), Slow()
    work = run(consumer, handler)
    await publish(bus, "a")
    await eventually_async(lambda: handler.seen, within_s=WITHIN_S)
    await bus.cut(consumer)
    stopping = asyncio.create_task(consumer.call("stop"))
    await eventually_async(lambda: consumer.status == "stopped", within_s=WITHIN_S)
    handler.leave.set()
    await stopping
    await asyncio.wait_for(work, WITHIN_S)
    assert (await records.count()).done == 1


@pytest.mark.guarantee("claim-until-the-run-ends")
async def test_a_run_over_its_time_keeps_its_message_until_it_really_ends(bus: Bus) -> None:
    consumer, leave, ran = await bus.consumer(dedup=store()), threading.Event(), []

    def handle(delivery: Delivery) -> None:
        ran.append(delivery.attempt)
        if delivery.attempt == 1:
            leave.wait(WITHIN_S)
            raise ValueError("too late anyhow")

    work = run(consumer, handle, 3, retry=SOON, time_limit_s=0.1)
    await publish(bus, "a")
    # Its copy has come, and waits.
    await counted(consumer, retried=1, overrunning=1, delivered=2)
    assert ran == [1]
    leave.set()
    await counted(consumer, acked=1, overrunning=0)
    assert await ended(consumer, work) == 0
    assert ran == [1, 2]


async def test_a_thread_that_ends_well_after_its_time_has_done_its_message(bus: Bus) -> None:
    consumer, leave, ran = await bus.consumer(dedup=store()), threading.Event(), []

    def handle(delivery: Delivery) -> None:
        ran.append(delivery.attempt)
        leave.wait(WITHIN_S)

    work = run(consumer, handle, 3, retry=SOON, time_limit_s=0.1)
    await publish(bus, "a")
    await counted(consumer, retried=1, overrunning=1, delivered=2)
    leave.set()
    await counted(consumer, duplicates=1, overrunning=0)
    assert await ended(consumer, work) == 0
    assert ran == [1]


async def test_each_message_of_a_batch_is_handled_once(bus: Bus) -> None:
    if bus.face == "blocking":
        pytest.skip("batches are handled by AsyncConsumer")
    seen: list[str] = []

    async def handle(batch: list[Delivery]) -> None:
        seen.extend(delivery.message_id for delivery in batch)

    names = [f"m{number}" for number in range(30)]
    consumer = await bus.consumer(dedup=store())
    work = run(consumer, handle, batch=10, linger_s=0.05)
    await publish(bus, *names, times=2)
    await counted(consumer, acked=30, duplicates=30)
    assert await ended(consumer, work) == 0
    assert Counter(seen) == Counter(names)


@pytest.mark.guarantee("store-away")
async def test_while_its_store_is_away_a_consumer_hands_out_nothing_and_loses_nothing(
    bus: Bus,
) -> None:
    records, names = store(), [f"m{number}" for number in range(10)]
    consumer, handler = await bus.consumer(dedup=records), Slow()
    work = run(consumer, handler)
    await publish(bus, "first")
    await eventually_async(lambda: handler.seen, within_s=WITHIN_S)
    records.lose()
    handler.leave.set()
    await publish(bus, *names, times=2)
    await counted(consumer, dedup_state="waiting", acked=0, delivered=21)
    assert await owed(consumer) == 21
    assert await consumer.call("keep_alive")
    records.restore()
    await counted(consumer, dedup_state="ok", acked=11, duplicates=10)
    assert await ended(consumer, work) == 0
    assert ids(handler) == Counter(["first", *names])


@pytest.mark.guarantee("store-away")
async def test_a_consumer_that_may_runs_without_its_store_and_counts_it(bus: Bus) -> None:
    records = store()
    dedup = Dedup(records, on_store_away="run")
    consumer, handler = await bus.consumer(dedup=dedup), Handler()
    records.lose()
    work = run(consumer, handler)
    await publish(bus, "a", "b")
    await counted(consumer, acked=2, undeduplicated=2, dedup_state="open")
    records.restore()
    await counted(consumer, dedup_state="ok")
    # Their ends were told later.
    await publish(bus, "a", "b")
    await counted(consumer, duplicates=2)
    assert await ended(consumer, work) == 0
    assert ids(handler) == Counter(["a", "b"])


@pytest.mark.guarantee("store-away")
async def test_what_waits_for_the_store_is_given_back_before_the_consumer_timeout(bus: Bus) -> None:
    records, names = store(), [f"m{number}" for number in range(5)]
    consumer, handler = await bus.consumer(dedup=records, consumer_timeout_s=1), Handler()
    records.lose()
    work = run(consumer, handler)
    await publish(bus, *names)
    until = time.monotonic() + WITHIN_S
    while not (await consumer.call("stats")).given_back:
        assert time.monotonic() < until
        await asyncio.sleep(0.02)
    records.restore()
    await counted(consumer, acked=5)
    assert await ended(consumer, work) == 0
    assert ids(handler) == Counter(names)


@pytest.mark.parametrize("named", ["in full", "by text"])
async def test_a_single_active_consumer_waits_with_what_is_behind_a_run_elsewhere(
    bus: Bus, named: str
) -> None:
    """Its order holds: what another one runs is in front, also where only its agents know of the order."""
    source = Subscription(Topic(bus.topic), "billing", single_active=True)
    records = store()
    dedup = Dedup(records, lease_s=600, deferred_max=0)
    consumer = await bus.consumer("", destination=source, dedup=dedup)
    if named == "by text":
        await consumer.call("stop")
        consumer = await bus.consumer(dedup=dedup)
    rule, token = Dedup(records, lease_s=600).rule, b"another."
    held = Held(key_of(str(source), "b"), token)
    await records.turn(Turn(claim=[held.key], token=token), rule)
    broker_of_all = await bus.publisher()
    for name in ("a", "b", "c"):
        await broker_of_all.call("send_safe", source.topic, Message.text(name, message_id=name))
    first = await consumer.call("receive", timeout_s=WITHIN_S)
    assert first.message_id == "a"
    assert await consumer.call("receive", timeout_s=QUIET_S) is None
    await records.turn(Turn(release=[held]), rule)
    for name in ("b", "c"):
        assert (await consumer.call("receive", timeout_s=WITHIN_S)).message_id == name


async def killed_twice(records: FaultyStore, source: str, *ids: str, lease_ms: int = 1) -> None:
    """Leave what two processes that were killed with these messages in their hands leave.

    lease_ms: the claims of the second one stand for this time yet.
    """
    claim = [key_of(source, message_id) for message_id in ids]
    for token, its_ms in ((b"killed 1", 1), (b"killed 2", lease_ms)):
        rule = Dedup(records).rule._replace(lease_ms=its_ms)
        await records.turn(Turn(claim=claim, token=token), rule)
        await asyncio.sleep(0.002)


@pytest.mark.guarantee("suspects-run-alone")
@pytest.mark.parametrize("order", ["key", "partition", "single active"])
async def test_a_run_that_fails_in_its_place_holds_up_no_message_that_was_in_killed_processes(
    bus: Bus, order: str
) -> None:
    """Also not those behind it in its lane: the last one that may run alone is the first of them."""
    is_single = order == "single active"
    source = Subscription(Topic(bus.topic), "billing", single_active=is_single)
    records = store()
    await killed_twice(records, str(source), "m2", "m3")
    await killed_twice(records, str(source), "m1", lease_ms=500)
    how: dict[str, Any] = {} if is_single else {"order": order}
    dedup = Dedup(records, lease_s=600)
    consumer = await bus.consumer("", destination=source, dedup=dedup, **how)
    failed = list[str]()

    def end(delivery: Delivery) -> None:
        if delivery.message_id == "m1" and not failed:
            failed.append(delivery.message_id)
            raise ValueError("not now")

    handler = Handler(end)
    work = run(consumer, handler, 10, retry=SOON)
    publisher = await bus.publisher()
    for message_id, key in (("m1", "a"), ("m2", "a"), ("m3", "b")):
        message = Message.text("", message_id=message_id, key=key)
        await publisher.call("send_safe", source.topic, message)
    await counted(consumer, acked=3)
    assert await ended(consumer, work) == 0
    assert ids(handler) == {"m1": 2, "m2": 1, "m3": 1}


@pytest.mark.guarantee("endless-handler")
@pytest.mark.parametrize("limit", ["time limit", "lease"])
async def test_a_handler_that_never_returns_holds_up_no_message_that_was_in_killed_processes(
    bus: Bus, limit: str
) -> None:
    records, leave = store(), threading.Event()
    names = [f"m{number}" for number in range(5)]
    await killed_twice(records, f"{bus.topic}/billing", *names)
    dedup = Dedup(records, lease_s=600 if limit == "time limit" else 1)
    consumer, ran = await bus.consumer(dedup=dedup), list[str]()

    def handle(delivery: Delivery) -> None:
        ran.append(delivery.message_id)
        if delivery.message_id == "m0":
            leave.wait(WITHIN_S)

    work = run(consumer, handle, 5, time_limit_s=0.2 if limit == "time limit" else None)
    await publish(bus, *names)
    await counted(consumer, acked=4)
    assert sorted(ran) == names
    leave.set()
    await ended(consumer, work)


async def test_a_message_that_was_redriven_runs_again(bus: Bus) -> None:
    consumer, handler = await bus.consumer(dedup=store()), Handler()
    handler._end = lambda _delivery: Park("first") if len(handler.seen) == 1 else None
    work = run(consumer, handler)
    await publish(bus, "a")
    await counted(consumer, parked=1)
    assert await bus.redrive(f"{bus.topic}/billing") == 1
    await counted(consumer, acked=1, duplicates=0)
    assert [(each.message_id, each.attempt) for each in handler.seen] == [("a", 1)] * 2
    assert await ended(consumer, work) == 0


async def test_a_corrected_message_under_the_id_of_a_parked_one_is_logged_and_does_not_run(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    consumer, handler = await bus.consumer(dedup=store()), Handler(raising(ValueError("no")))
    work = run(consumer, handler, retry=RetryPolicy(attempts_max=1))
    await publish(bus, "a", "b")
    await counted(consumer, parked=2)
    await publish(bus, "a", "b")
    await counted(consumer, parked=2, duplicates=2)
    (line,) = [each for each in caplog.messages if "copy of a parked message" in each]
    assert "message='a'" in line or "message='b'" in line
    assert f"{bus.topic}/billing" in line
    assert await ended(consumer, work) == 0
    assert ids(handler) == Counter(["a", "b"])


async def test_a_handler_is_given_what_notes_its_message_in_a_database(bus: Bus) -> None:
    if not bus.is_memory or bus.face == "blocking":
        pytest.skip("an app is the same on every bus")
    database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
    database.execute(inbox_ddl("sqlite"))
    database.execute("CREATE TABLE effects (id TEXT)")
    app = App()

    @app.subscriber(bus.topic, subscription="billing")
    async def handle(text: str, once: Once) -> None:
        database.execute("BEGIN")
        if once.begin(database):
            database.execute("INSERT INTO effects VALUES (?)", (text,))
        database.execute("COMMIT")

    app.use(bus.in_memory)
    async with app:
        bus.in_memory.duplicate_next(bus.topic, 2)
        for text in ("a", "b"):
            await app.publish(bus.topic, text)
        await bus.in_memory.handled()
    bus.in_memory.assert_answered(bus.topic, "billing", count=4)
    assert sorted(database.execute("SELECT id FROM effects")) == [("a",), ("b",)]


@pytest.mark.guarantee("lost-reply-costs-nothing")
async def test_a_lost_reply_of_the_store_costs_no_run(bus: Bus) -> None:
    records, names = store(), [f"m{number}" for number in range(5)]
    consumer, handler = await bus.consumer(dedup=records), Handler()
    records.reply_lost(3)
    work = run(consumer, handler)
    await publish(bus, *names, times=2)
    await counted(consumer, acked=5, duplicates=5)
    assert await ended(consumer, work) == 0
    assert ids(handler) == Counter(names)


async def test_hooks_are_told_of_duplicates(bus: Bus) -> None:
    told: list[tuple[str, str]] = []

    class Told(Hooks):
        def deduplicated(self, delivery: Delivery, verdict: str) -> None:
            told.append((delivery.message_id, verdict))

    consumer, handler = await bus.consumer(dedup=store(), hooks=[Told()]), Handler()
    work = run(consumer, handler)
    await publish(bus, "a", times=2)
    await counted(consumer, acked=1, duplicates=1)
    assert await ended(consumer, work) == 0
    assert told == [("a", "duplicate")]


async def test_at_most_once_has_no_deduplication(bus: Bus) -> None:
    with pytest.raises(ConfigError, match="at_most_once"):
        await bus.consumer(dedup=store(), at_most_once=True)
    with pytest.raises(ConfigError, match="at_most_once"):
        ConsumerConfig(dedup="memory:", at_most_once=True)  # type: ignore[arg-type]
