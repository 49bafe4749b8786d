"""Promises of `order=` on every kind of bus: each key one after the other, in place, and others go on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from messagebus import (
    Batching,
    ConfigError,
    Dedup,
    Delivery,
    Message,
    Queue,
    RetryLater,
    RetryPolicy,
    Subscription,
    Topic,
    TopologyMismatch,
)
from tests.contract.conftest import Bus, Client
from tests.contract.test_consuming import QUIET_S, WITHIN_S, receive
from tests.contract.test_dedup import store
from tests.contract.test_handling import counted, ended, run
from tests.support.eventually import eventually_async

SOON = RetryPolicy(attempts_max=3, first_delay_s=0.05, jitter=0)
KEYS, COUNT = 5, 12


class Recorder:
    """Handler that notes each run by key, and finds two of one key that run at once.

    end: raises or returns for the delivery, after the run is noted.
    """

    def __init__(self, end: Callable[[Delivery], object] = lambda _delivery: None) -> None:
        self.runs: list[tuple[str, int]] = []
        self.well: dict[str, list[str]] = defaultdict(list)
        self.beside: list[str] = []
        self.most = 0
        self._end, self._running, self._lock = end, set[str](), threading.Lock()

    def begin(self, delivery: Delivery) -> None:
        with self._lock:
            if delivery.key in self._running:
                self.beside.append(delivery.body.decode())
            self._running.add(delivery.key)
            self.most = max(self.most, len(self._running))
            self.runs.append((delivery.body.decode(), delivery.attempt))

    def finish(self, delivery: Delivery) -> object:
        with self._lock:
            self._running.discard(delivery.key)
        found = self._end(delivery)
        with self._lock:
            self.well[delivery.key].append(delivery.body.decode())
        return found

    def __call__(self, delivery: Delivery) -> object:
        self.begin(delivery)
        time.sleep(0.002)
        return self.finish(delivery)

    async def coroutine(self, delivery: Delivery) -> object:
        self.begin(delivery)
        await asyncio.sleep(0.002)
        return self.finish(delivery)

    def of(self, consumer: Client) -> Any:
        return self if consumer.blocks else self.coroutine


def fails(*bodies: str, until: int = 99) -> Callable[[Delivery], object]:
    """Return an end that raises for these, at each attempt below `until`."""

    def end(delivery: Delivery) -> object:
        if delivery.body.decode() in bodies and delivery.attempt < until:
            raise ValueError("not now")
        return None

    return end


async def publish(bus: Bus, *bodies: str, **settings: Any) -> None:
    """Publish ``key:number`` in order, all in flight together, to one broker."""
    publisher = await bus.publisher(**settings)
    messages = [Message.text(body, key=body.partition(":")[0]) for body in bodies]
    await publisher.call("send_many", bus.topic, messages)


def mixed() -> list[str]:
    return [f"k{key}:{number}" for number in range(COUNT) for key in range(KEYS)]


def in_order(handler: Recorder) -> bool:
    """Return whether all of `mixed` ended well, of each key in order."""
    wanted = {f"k{key}": [f"k{key}:{number}" for number in range(COUNT)] for key in range(KEYS)}
    return handler.well == wanted


# Runs.
@pytest.mark.guarantee("key-order-inside-a-consumer")
@pytest.mark.parametrize("batching", [False, True])
async def test_a_keys_runs_are_one_after_the_other_and_keys_run_side_by_side(
    bus: Bus, batching: bool
) -> None:
    handler = Recorder(fails("k1:3", "k4:0", "k2:11", until=3))
    consumer = await bus.consumer(order="key")
    batch = {bus.topic: Batching(count_max=7, linger_s=0.02)} if batching else {}
    await publish(bus, *mixed(), batch=batch)
    work = run(consumer, handler.of(consumer), 10, retry=SOON)
    await counted(consumer, acked=KEYS * COUNT, retried=6, handed_out=0, order_waiting=0)
    assert (in_order(handler), handler.beside) == (True, [])
    assert 1 < handler.most <= KEYS
    assert ("k1:3", 1) in handler.runs
    assert ("k1:3", 3) in handler.runs
    assert await ended(consumer, work) == 0


@pytest.mark.guarantee("key-order-inside-a-consumer")
async def test_without_an_order_nothing_of_this_happens(bus: Bus) -> None:
    handler = Recorder()
    consumer = await bus.consumer()
    await publish(bus, *[f"k0:{number}" for number in range(COUNT * KEYS)])
    work = run(consumer, handler.of(consumer), 10)
    await counted(consumer, acked=KEYS * COUNT, order_waiting=0)
    assert handler.beside
    await ended(consumer, work)


@pytest.mark.guarantee("key-order-inside-a-consumer")
async def test_a_partition_is_handled_one_after_the_other_whatever_its_keys(bus: Bus) -> None:
    handler = Recorder(fails("k1:3", until=2))
    consumer = await bus.consumer(order="partition")
    await publish(bus, *mixed())
    work = run(consumer, handler.of(consumer), 10, retry=SOON)
    await counted(consumer, acked=KEYS * COUNT)
    assert (in_order(handler), handler.most) == (True, 1)
    firsts = [body for body, attempt in handler.runs if attempt == 1]
    assert firsts == mixed()
    await ended(consumer, work)


@pytest.mark.guarantee("key-order-inside-a-consumer")
async def test_who_receives_gets_the_next_of_a_key_when_the_last_one_is_answered(bus: Bus) -> None:
    consumer = await bus.consumer(order="key")
    await publish(bus, "a:0", "a:1", "b:0", "b:1")
    first, other = await receive(consumer, 2)
    assert [each.body for each in (first, other)] == [b"a:0", b"b:0"]
    assert await consumer.call("receive", timeout_s=QUIET_S) is None
    await consumer.call("nack", first)  # back into its place
    (again,) = await receive(consumer, 1)
    assert (again.body, again.attempt) == (b"a:0", 1)
    assert await consumer.call("retry", again, after_s=0.05)
    (again,) = await receive(consumer, 1)
    assert (again.body, again.attempt) == (b"a:0", 2)
    await consumer.call("ack", again)
    (second,) = await receive(consumer, 1)
    assert second.body == b"a:1"
    with pytest.raises(ConfigError, match="after_s 61: at most 60 with order='key'"):
        await consumer.call("retry", second, after_s=61)


@pytest.mark.guarantee("key-order-inside-a-consumer")
async def test_a_lost_link_and_a_stop_keep_the_order_of_each_key(bus: Bus) -> None:
    """By first completions; the subscription is served by one consumer at a time."""
    source = Subscription(Topic(bus.topic), "billing", single_active=True)
    handler = Recorder(fails("k1:3", "k3:6", until=3))
    consumer = await bus.consumer("", destination=source, order="key", prefetch=20)
    work = run(consumer, handler.of(consumer), 10, retry=SOON)
    await publish(bus, *mixed())
    await eventually_async(lambda: len(handler.runs) > 10, within_s=WITHIN_S)
    await bus.cut(consumer)
    await eventually_async(lambda: len(handler.runs) > 25, within_s=WITHIN_S)
    await ended(consumer, work)
    second = await bus.consumer("", destination=source, order="key")
    work = run(second, handler.of(second), 10, retry=SOON)
    await eventually_async(
        lambda: sum(len(set(each)) for each in handler.well.values()) == KEYS * COUNT,
        within_s=WITHIN_S,
    )
    await counted(second, handed_out=0, order_waiting=0)
    firsts = {key: list(dict.fromkeys(bodies)) for key, bodies in handler.well.items()}
    assert firsts == {
        f"k{key}": [f"k{key}:{number}" for number in range(COUNT)] for key in range(KEYS)
    }
    await ended(second, work)


@pytest.mark.guarantee("key-order-inside-a-consumer")
async def test_with_deduplication_each_ends_well_once_and_in_order(bus: Bus) -> None:
    handler = Recorder(fails("k1:3", "k4:0", until=3))
    consumer = await bus.consumer(order="key", dedup=Dedup(store()))
    publisher = await bus.publisher()
    for body in mixed():
        message = Message.text(body, key=body.partition(":")[0], message_id=body)
        await publisher.call("send_many", bus.topic, [message] * (2 if body.endswith("5") else 1))
    work = run(consumer, handler.of(consumer), 10, retry=SOON)
    await counted(consumer, acked=KEYS * COUNT, duplicates=KEYS, order_waiting=0)
    assert (in_order(handler), handler.beside) == (True, [])
    await ended(consumer, work)


async def test_a_run_behind_its_limit_keeps_its_key_and_no_other(bus: Bus) -> None:
    leave = threading.Event()
    began: list[tuple[str, int]] = []

    def handle(delivery: Delivery) -> None:
        began.append((delivery.body.decode(), delivery.attempt))
        if began[-1] == ("a:0", 1):
            assert leave.wait(WITHIN_S)

    consumer = await bus.consumer(order="key")
    work = run(consumer, handle, 4, retry=SOON, time_limit_s=0.5)
    await publish(bus, "a:0", "a:1", "b:0", "b:1")
    await counted(consumer, acked=2, overrunning=1, retried=1)
    assert sorted(began) == [("a:0", 1), ("b:0", 1), ("b:1", 1)]
    leave.set()
    await counted(consumer, acked=4, overrunning=0)
    assert [each for each in began if each[0][0] == "a"] == [("a:0", 1), ("a:0", 2), ("a:1", 1)]
    await ended(consumer, work)


async def test_batches_of_a_handler_hold_one_message_of_a_key_at_most(bus: Bus) -> None:
    found: list[list[str]] = []

    async def handle(deliveries: list[Delivery]) -> None:
        found.append([each.body.decode() for each in deliveries])

    consumer = await bus.consumer(order="key")
    if consumer.blocks:
        return
    work = run(consumer, handle, 2, batch=10, linger_s=0.05)
    await publish(bus, *mixed())
    await counted(consumer, acked=KEYS * COUNT)
    assert all(len({each[:2] for each in some}) == len(some) for some in found)
    flat = [each for some in found for each in some]
    assert sorted(flat, key=lambda each: (each[:2], int(each[3:]))) == sorted(
        flat, key=lambda each: each[:2]
    )
    await ended(consumer, work)


# What follows a failed key.
@pytest.mark.guarantee("retry-in-place")
async def test_after_the_last_run_a_message_is_parked_and_the_gap_is_told(bus: Bus) -> None:
    handler = Recorder(fails("a:0"))
    consumer = await bus.consumer(order="key")
    work = run(consumer, handler.of(consumer), 4, retry=SOON)
    await publish(bus, "a:0", "a:1", "b:0")
    await counted(consumer, acked=2, parked=1, order_gaps=1, handed_out=0)
    assert [run for run in handler.runs if run[0][0] == "a"] == [
        ("a:0", 1),
        ("a:0", 2),
        ("a:0", 3),
        ("a:1", 1),
    ]
    (headers,) = await bus.take_parked("billing")
    assert headers["mb-park-attempts"] == 3
    await ended(consumer, work)


@pytest.mark.guarantee("retry-in-place")
async def test_what_follows_a_parked_key_is_parked_in_order_and_others_go_on(bus: Bus) -> None:
    handler = Recorder(fails("a:0"))
    consumer = await bus.consumer(order="key")
    policy = RetryPolicy(attempts_max=2, first_delay_s=0, then="park-key")
    work = run(consumer, handler.of(consumer), 4, retry=policy)
    await publish(bus, *[f"{key}:{number}" for number in range(4) for key in "ab"])
    await counted(consumer, acked=4, parked=4, order_gaps=4, keys_parked=1, handed_out=0)
    assert handler.well == {"b": [f"b:{number}" for number in range(4)]}
    reasons = [each["mb-park-reason"] for each in await bus.take_parked("billing")]
    assert reasons == ["2 of 2 attempts failed", *["its key was parked before"] * 3]
    await ended(consumer, work)


@pytest.mark.guarantee("retry-in-place")
async def test_with_deduplication_too_nothing_of_a_parked_key_runs(bus: Bus) -> None:
    handler = Recorder(fails("a:0"))
    consumer = await bus.consumer(order="key", dedup=Dedup(store()))
    policy = RetryPolicy(attempts_max=2, first_delay_s=0, then="park-key")
    work = run(consumer, handler.of(consumer), 4, retry=policy)
    await publish(bus, "a:0", "a:1", "b:0")
    await counted(consumer, acked=1, parked=2, keys_parked=1, handed_out=0)
    later = [f"a:{number}" for number in range(2, 2 + COUNT)]
    await publish(bus, *later, "b:1")
    await counted(consumer, acked=2, parked=2 + COUNT, order_gaps=2 + COUNT, handed_out=0)
    assert {body for body, _attempt in handler.runs} == {"a:0", "b:0", "b:1"}
    reasons = [each["mb-park-reason"] for each in await bus.take_parked("billing")]
    assert reasons == ["2 of 2 attempts failed", *["its key was parked before"] * (COUNT + 1)]
    await ended(consumer, work)


@pytest.mark.guarantee("retry-in-place")
async def test_a_stopped_key_stays_and_comes_again_in_order_to_the_next_consumer(bus: Bus) -> None:
    handler = Recorder(fails("a:1"))
    consumer = await bus.consumer(order="key")
    policy = RetryPolicy(attempts_max=2, first_delay_s=0, then="stop")
    work = run(consumer, handler.of(consumer), 4, retry=policy)
    await publish(bus, *[f"{key}:{number}" for number in range(3) for key in "ab"])
    await counted(consumer, acked=4, parked=0, keys_stopped=1, order_waiting=2, handed_out=0)
    assert await ended(consumer, work) == 0
    second, again = await bus.consumer(order="key"), Recorder()
    work = run(second, again.of(second), 4)
    await counted(second, acked=2)
    assert again.well == {"a": ["a:1", "a:2"]}
    await ended(second, work)


async def test_a_handler_that_asks_for_too_long_a_delay_is_told_and_waits_as_its_policy_says(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    def end(delivery: Delivery) -> object:
        if delivery.body == b"a:0" and delivery.attempt == 1:
            raise RetryLater(after_s=120)
        return None

    handler, consumer = Recorder(end), await bus.consumer(order="key")
    work = run(consumer, handler.of(consumer), 4, retry=SOON)
    await publish(bus, "a:0", "a:1")
    await counted(consumer, acked=2, retried=1)
    assert handler.well == {"a": ["a:0", "a:1"]}
    assert "after_s 120.0: at most 60 with order='key'" in caplog.text
    await ended(consumer, work)


# Bad input.
async def test_what_cannot_be_ordered_is_refused_by_name(bus: Bus) -> None:
    plain, ordered = await bus.consumer(), await bus.consumer("ledger", order="key")
    strict = await bus.consumer("strict", order="partition")
    for consumer, how, told in (
        (
            plain,
            {"retry": RetryPolicy(then="stop")},
            "then='stop' wants a consumer with order='key'",
        ),
        (plain, {"retry": RetryPolicy(where="place")}, "where='place' wants a consumer with"),
        (
            ordered,
            {"retry": RetryPolicy(where="ladder")},
            "where='ladder' overtakes with order='key'",
        ),
        (
            ordered,
            {"retry": RetryPolicy(first_delay_s=61)},
            "first_delay_s 61: at most 60 with order",
        ),
        (strict, {"batch": 10}, "batch 10: with order='partition' one message"),
    ):
        if "batch" in how and consumer.blocks:
            continue
        with pytest.raises(ConfigError, match=told):
            await consumer.call("run", Recorder().of(consumer), **how)
    with pytest.raises(ConfigError, match="order: without meaning with at_most_once"):
        await bus.consumer(order="key", at_most_once=True)
    with pytest.raises(ConfigError, match="order 'keys': none, key, partition; did you mean"):
        await bus.consumer(order="keys")


@pytest.mark.guarantee("single-active-consumer")
async def test_a_queue_may_have_a_single_active_consumer_and_tells_who_wants_it_otherwise(
    bus: Bus,
) -> None:
    name = f"{bus.topic}-jobs"
    first = await bus.consumer("", destination=Queue(name, single_active=True), order="key")
    second = await bus.consumer("", destination=Queue(name, single_active=True))
    publisher = await bus.publisher()
    await publisher.call("send_many", f"queue:{name}", ["0", "1", "2"])
    assert [each.body for each in await receive(first, 3)] == [b"0", b"1", b"2"]
    assert await second.call("receive", timeout_s=QUIET_S) is None
    other = f"{bus.topic}-others"
    await bus.consumer("", destination=Queue(other))
    with pytest.raises(TopologyMismatch, match="single_active is wanted True and exists False"):
        await bus.consumer("", destination=Queue(other, single_active=True))
