"""Promises of `run` about handlers, on every kind of bus: acks, retries, parking, time limits, the end."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from messagebus import (
    ConfigError,
    Delivery,
    Hooks,
    Message,
    Park,
    Reject,
    RetryLater,
    RetryPolicy,
    Stopped,
)
from tests.contract.conftest import Bus, Client
from tests.support.eventually import eventually_async

WITHIN_S = 60
# Long enough for a message that should not come to come.
QUIET_S = 0.5
SOON = RetryPolicy(attempts_max=3, first_delay_s=0, jitter=0)


class Handler:
    """Handler that remembers its deliveries and ends as `end(delivery)` says: returns it, or raises it."""

    def __init__(self, end: Callable[[Delivery], object] = lambda _delivery: None) -> None:
        self.seen: list[Delivery] = []
        self._end = end

    def __call__(self, delivery: Delivery) -> object:
        self.seen.append(delivery)
        return self._end(delivery)

    async def coroutine(self, delivery: Delivery) -> object:
        return self(delivery)

    @property
    def runs(self) -> list[tuple[str, int]]:
        return [(delivery.body.decode(), delivery.attempt) for delivery in self.seen]


def raising(error: BaseException) -> Callable[[Delivery], object]:
    def end(_delivery: Delivery) -> object:
        raise error

    return end


def run(consumer: Client, handler: Any, count: int = 1, **how: Any) -> asyncio.Task[Any]:
    """Begin to handle, with `count` runs at once."""
    if isinstance(handler, Handler) and not consumer.blocks:
        handler = handler.coroutine
    return asyncio.create_task(consumer.call("run", handler, concurrency=count, **how))


async def ended(consumer: Client, work: asyncio.Task[Any]) -> int:
    """Stop, and return what `run` returned."""
    await consumer.call("stop")
    return int(await asyncio.wait_for(work, WITHIN_S))


async def publish(bus: Bus, *bodies: str, **fields: Any) -> None:
    publisher = await bus.publisher()
    for body in bodies:
        await publisher.call("send_safe", bus.topic, Message.text(body, **fields))


async def counted(consumer: Client, **wanted: int | str) -> None:
    """Wait until the statistics have these values."""
    until = time.monotonic() + WITHIN_S
    while True:
        stats = await consumer.call("stats")
        if all(getattr(stats, key) == value for key, value in wanted.items()):
            return
        assert time.monotonic() < until, f"{wanted} wanted, {stats}"
        await asyncio.sleep(0.02)


async def test_what_is_handled_is_acked_and_does_not_come_again(bus: Bus) -> None:
    consumer, handler = await bus.consumer(), Handler()
    work = run(consumer, handler, 3)
    await publish(bus, *(str(number) for number in range(20)))
    await counted(consumer, acked=20)
    assert await ended(consumer, work) == 0
    assert sorted(handler.runs) == sorted((str(number), 1) for number in range(20))
    assert await (await bus.consumer()).call("receive", timeout_s=QUIET_S) is None


async def test_a_handler_may_stop_its_consumer_and_has_its_answer(bus: Bus) -> None:
    """It does not wait for itself: the grace is so long that the test would show it."""
    consumer = await bus.consumer()
    stop: Any = consumer.inner.stop
    told: list[int] = []

    def handle(_delivery: Delivery) -> None:
        told.append(stop())

    async def handle_on_a_loop(_delivery: Delivery) -> None:
        told.append(await stop())

    work = run(consumer, handle if consumer.blocks else handle_on_a_loop, grace_s=10 * WITHIN_S)
    await publish(bus, "last")
    assert await asyncio.wait_for(work, WITHIN_S) == 0
    # Another call of stop waits until it has hung up.
    assert await asyncio.wait_for(consumer.call("stop"), WITHIN_S) == 0
    assert (told, consumer.status) == ([0], "stopped")
    assert await (await bus.consumer()).call("receive", timeout_s=QUIET_S) is None


@pytest.mark.guarantee("failed-runs-then-parked")
async def test_a_failed_run_is_followed_by_others_and_then_parked_with_the_reason(bus: Bus) -> None:
    consumer, handler = await bus.consumer(), Handler(raising(ValueError("not now")))
    work = run(consumer, handler, retry=SOON)
    await publish(bus, "a", key="k", headers={"tenant": "x"}, priority=3, correlation_id="c")
    await counted(consumer, failed=3, retried=2, parked=1, handed_out=0)
    assert await ended(consumer, work) == 0
    assert handler.runs == [("a", 1), ("a", 2), ("a", 3)]
    first, *others = handler.seen
    for other in others:
        assert other.message == first.message
        assert (other.key, dict(other.headers)) == ("k", {"tenant": "x"})
        assert other.first_ms == first.first_ms
    marks = dict((await parked(bus, "billing"))[0])
    assert marks.pop("mb-park-ms") >= marks["mb-park-first-ms"] == first.first_ms
    assert marks.pop("mb-park-broker") in {broker.broker for broker in handler.seen}
    assert {name: marks[name] for name in marks if name.startswith("mb-park")} == {
        "mb-park-reason": "3 of 3 attempts failed",
        "mb-park-exception": "ValueError: not now",
        "mb-park-attempts": 3,
        "mb-park-first-ms": first.first_ms,
    }


async def parked(bus: Bus, subscription: str) -> list[dict[str, Any]]:
    """Empty the parking queue; return the library's own headers of the messages there."""
    found: list[dict[str, Any]] = []

    async def look() -> bool:
        found.extend(await bus.take_parked(subscription))
        return bool(found)

    until = time.monotonic() + WITHIN_S
    while not await look():
        assert time.monotonic() < until, "nothing is parked"
        await asyncio.sleep(0.05)
    return found


@pytest.mark.guarantee("failed-runs-then-parked")
async def test_a_retry_comes_after_its_delay_and_to_its_own_subscription_only(bus: Bus) -> None:
    consumer, audit = await bus.consumer("billing"), await bus.consumer("audit")
    times: list[float] = []

    def end(delivery: Delivery) -> object:
        times.append(time.monotonic())
        return RetryLater(after_s=1, reason="later") if delivery.attempt == 1 else None

    handler, other = Handler(end), Handler()
    work, other_work = run(consumer, handler), run(audit, other)
    await publish(bus, "a")
    await counted(consumer, retried=1)
    assert handler.runs == [("a", 1)]
    bus.pass_time(1)
    await counted(consumer, acked=1)
    assert handler.runs == [("a", 1), ("a", 2)]
    assert bus.is_memory or times[1] - times[0] >= 1
    assert handler.seen[1]._library_headers["mb-retry-reason"] == "later"
    assert (await consumer.call("stats")).failed == 0
    await counted(audit, acked=1)
    await ended(consumer, work)
    await ended(audit, other_work)
    assert other.runs == [("a", 1)]


@pytest.mark.parametrize("asked", [Park("no such customer"), Reject("no such customer")])
@pytest.mark.parametrize("raises", [True, False])
async def test_what_a_handler_parks_or_rejects_is_parked_at_once(
    bus: Bus, asked: Exception, raises: bool
) -> None:
    handler = Handler(raising(asked) if raises else lambda _delivery: asked)
    consumer = await bus.consumer()
    work = run(consumer, handler)
    await publish(bus, "a")
    await counted(consumer, parked=1, failed=0)
    assert await ended(consumer, work) == 0
    assert handler.runs == [("a", 1)]
    assert (await parked(bus, "billing"))[0]["mb-park-reason"] == "no such customer"


async def test_what_is_not_worth_another_run_is_dropped_where_the_policy_says_so(bus: Bus) -> None:
    policy = RetryPolicy(first_delay_s=0, give_up_on=(KeyError,), then="drop")
    consumer, handler = await bus.consumer(), Handler(raising(KeyError("x")))
    work = run(consumer, handler, retry=policy)
    await publish(bus, "a")
    await counted(consumer, dropped=1, failed=1, acked=1, parked=0, retried=0)
    await ended(consumer, work)
    assert handler.runs == [("a", 1)]
    assert await bus.take_parked("billing") == []


@pytest.mark.guarantee("exceptions-end-no-worker")
@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), RecursionError(), MemoryError()])
async def test_whatever_a_handler_raises_ends_no_worker(bus: Bus, error: BaseException) -> None:
    def end(delivery: Delivery) -> object:
        if delivery.body == b"bad":
            raise error
        return None

    consumer, handler = await bus.consumer(), Handler(end)
    policy = RetryPolicy(attempts_max=2, first_delay_s=0, retry_on=(BaseException,))
    work = run(consumer, handler, retry=policy)
    await publish(bus, "bad", "good")
    await counted(consumer, parked=1, acked=1, failed=2)
    assert await ended(consumer, work) == 0


@pytest.mark.guarantee("exceptions-end-no-worker")
@pytest.mark.parametrize("where", ["handling", "handled"])
async def test_a_hook_that_exits_ends_no_worker_and_fails_no_run(bus: Bus, where: str) -> None:
    class Exiting(Hooks):
        def handling(self, delivery: Delivery) -> contextlib.AbstractContextManager[None]:
            return contextlib.nullcontext() if where != "handling" else sys.exit(3)

        def handled(self, delivery: Delivery, answer: str, error: BaseException | None) -> None:
            if where == "handled":
                sys.exit(3)

    consumer, handler = await bus.consumer(hooks=[Exiting()]), Handler()
    work = run(consumer, handler)
    await publish(bus, "a", "b")
    await counted(consumer, acked=2, failed=0, parked=0)
    assert await ended(consumer, work) == 0


@pytest.mark.guarantee("exceptions-end-no-worker")
async def test_a_run_over_its_time_is_answered_and_others_go_on(bus: Bus) -> None:
    leave = threading.Event()

    def handle(delivery: Delivery) -> None:
        if delivery.body == b"slow" and delivery.attempt == 1:
            leave.wait(WITHIN_S)

    async def handle_async(delivery: Delivery) -> None:
        if delivery.body == b"slow" and delivery.attempt == 1:
            await asyncio.sleep(WITHIN_S)

    consumer = await bus.consumer()
    work = run(consumer, handle if consumer.blocks else handle_async, retry=SOON, time_limit_s=0.2)
    await publish(bus, "slow", "next")
    await counted(consumer, acked=2, retried=1, failed=1)
    stats = await consumer.call("stats")
    if consumer.blocks:  # a thread cannot be ended
        assert (stats.handling, stats.overrunning) == (1, 1)
        assert stats.oldest_run_s >= 0.2
    leave.set()
    await counted(consumer, handling=0, overrunning=0)
    assert await ended(consumer, work) == 0
    assert (await consumer.call("stats")).acks_stale == 0


@pytest.mark.guarantee("endless-handler")
async def test_a_handler_that_never_returns_stalls_no_other_and_is_seen(bus: Bus) -> None:
    leave, left = threading.Event(), asyncio.Event()

    def handle(delivery: Delivery) -> None:
        if delivery.body == b"stuck":
            leave.wait(WITHIN_S)

    async def handle_async(delivery: Delivery) -> None:
        if delivery.body == b"stuck":
            await left.wait()

    consumer = await bus.consumer()
    work = run(consumer, handle if consumer.blocks else handle_async, 2, grace_s=0.1)
    await publish(bus, "stuck", *(str(number) for number in range(10)))
    await counted(consumer, acked=10, handling=1, handed_out=1)
    await asyncio.sleep(0.1)
    assert (await consumer.call("stats")).oldest_run_s >= 0.1
    assert await consumer.call("keep_alive")
    assert await consumer.call("stop") == 1
    assert await asyncio.wait_for(work, WITHIN_S) == 1
    leave.set()
    left.set()
    again = await (await bus.consumer()).call("receive", timeout_s=WITHIN_S)
    assert again.body == b"stuck"
    assert again.redelivered
    assert again.attempt == 1


async def test_stop_waits_for_runs_and_for_their_copies(bus: Bus) -> None:
    consumer = await bus.consumer()
    entered, leave = threading.Event(), threading.Event()

    def handle(_delivery: Delivery) -> None:
        entered.set()
        leave.wait(WITHIN_S)
        raise ValueError

    async def handle_async(delivery: Delivery) -> None:
        entered.set()
        await asyncio.to_thread(leave.wait, WITHIN_S)
        raise ValueError

    policy = RetryPolicy(attempts_max=1)
    work = run(consumer, handle if consumer.blocks else handle_async, retry=policy)
    await publish(bus, "a")
    await eventually_async(entered.is_set, within_s=WITHIN_S)
    stopping = asyncio.create_task(consumer.call("stop"))
    await eventually_async(lambda: consumer.status == "stopped", within_s=WITHIN_S)
    leave.set()
    assert await stopping == 0
    assert await asyncio.wait_for(work, WITHIN_S) == 0
    assert len(await parked(bus, "billing")) == 1


async def test_with_at_most_once_a_failed_run_is_the_last(bus: Bus) -> None:
    consumer, handler = await bus.consumer(at_most_once=True), Handler(raising(ValueError()))
    with pytest.raises(
        ConfigError, match=r"^retry: with at_most_once a run that fails is the last"
    ):
        await run(consumer, handler, retry=SOON)
    work = run(consumer, handler, retry=RetryPolicy(attempts_max=1, then="drop"))
    await publish(bus, "a", "b")
    await counted(consumer, dropped=2, failed=2, retried=0, parked=0)
    await ended(consumer, work)
    assert sorted(handler.runs) == [("a", 1), ("b", 1)]


async def test_a_handler_that_answers_by_itself_is_let_be(bus: Bus) -> None:
    consumer = await bus.consumer()

    def handle(delivery: Delivery) -> None:
        consumer.inner.nack(delivery, requeue=False)  # type: ignore[union-attr]

    async def handle_async(delivery: Delivery) -> None:
        handle(delivery)

    work = run(consumer, handle if consumer.blocks else handle_async)
    await publish(bus, "a", "b")
    await counted(consumer, nacked=2)
    assert await ended(consumer, work) == 0


async def test_retry_and_park_by_hand_return_when_the_copy_is_stored(bus: Bus) -> None:
    consumer = await bus.consumer()
    await publish(bus, "a", key="k")
    first = await consumer.call("receive", timeout_s=WITHIN_S)
    assert await consumer.call("retry", first, after_s=0, reason="again")
    second = await consumer.call("receive", timeout_s=WITHIN_S)
    assert (second.body, second.attempt, second.key) == (b"a", 2, "k")
    assert second.message_id == first.message_id
    assert not second.redelivered
    assert await consumer.call("park", second, reason="bad", error=KeyError("x"))
    marks = (await parked(bus, "billing"))[0]
    assert marks["mb-park-reason"] == "bad"
    assert marks["mb-park-exception"] == "KeyError: 'x'"
    assert marks["mb-park-attempts"] == 2
    stats = await consumer.call("stats")
    assert (stats.retried, stats.parked, stats.handed_out) == (1, 1, 0)


async def test_a_retry_or_a_park_after_stop_goes_nowhere_and_the_delivery_comes_again(
    bus: Bus,
) -> None:
    consumer = await bus.consumer()
    await publish(bus, "a", "b")
    first = await consumer.call("receive", timeout_s=WITHIN_S)
    second = await consumer.call("receive", timeout_s=WITHIN_S)
    await consumer.call("stop", 0)
    assert await consumer.call("retry", first, after_s=0) is False
    assert await consumer.call("park", second, reason="x") is False
    other = await bus.consumer()
    again = {(await other.call("receive", timeout_s=WITHIN_S)).body for _ in range(2)}
    assert again == {b"a", b"b"}


async def test_a_plain_function_runs_in_threads_also_for_asyncio(bus: Bus) -> None:
    consumer, handler, threads = await bus.consumer(), Handler(), set[int]()

    def handle(delivery: Delivery) -> object:
        threads.add(threading.get_ident())
        handler(delivery)
        if delivery.body == b"3" and delivery.attempt == 1:
            raise ValueError
        return None

    work = run(consumer, handle, 3, retry=SOON)
    await publish(bus, *(str(number) for number in range(20)))
    await counted(consumer, acked=20, retried=1, handed_out=0)
    assert await ended(consumer, work) == 0
    assert threading.get_ident() not in threads
    assert sorted(set(handler.runs)) == sorted([("3", 2), *((str(n), 1) for n in range(20))])


async def test_what_makes_no_sense_is_told_at_once(bus: Bus) -> None:
    consumer = await bus.consumer()
    for wrong in (
        {"concurrency": 0},
        {"concurrency": 1.5},
        {"time_limit_s": 0},
        {"time_limit_s": -1},
    ):
        with pytest.raises(ConfigError):
            await consumer.call("run", Handler(), **wrong)
    with pytest.raises(Stopped):
        await (await bus.consumer(start=False)).call("run", Handler())
    if consumer.blocks:
        with pytest.raises(TypeError, match="AsyncConsumer"):
            await consumer.call("run", Handler().coroutine)


# Consumer timeout, blocked loops.
async def test_what_nobody_receives_is_given_back_before_the_consumer_timeout(bus: Bus) -> None:
    """The first consumer never asks; the other one gets all that the first had in its buffers."""
    first = await bus.consumer(consumer_timeout_s=4)
    await publish(bus, *(str(number) for number in range(10)))
    until = time.monotonic() + WITHIN_S
    while sum(each.owed for each in (await first.call("stats")).brokers.values()) < 10:
        assert time.monotonic() < until
        await asyncio.sleep(0.02)
    other, handler = await bus.consumer(), Handler()
    work = run(other, handler)
    await counted(other, acked=10)
    # More where the first one had some, gave them back, and had them again before all were published.
    assert (await first.call("stats")).given_back >= 10
    assert sorted(handler.runs) == sorted((str(number), 1) for number in range(10))
    await ended(other, work)


@pytest.mark.parametrize("rests", ["paused", "idle"])
async def test_a_consumer_that_gave_back_goes_on_when_it_is_asked(bus: Bus, rests: str) -> None:
    consumer = await bus.consumer(consumer_timeout_s=2)
    if rests == "paused":
        await consumer.call("pause")
    await publish(bus, *(str(number) for number in range(10)))
    await counted(consumer, given_back=10, buffered=0, handed_out=0)
    await asyncio.sleep(QUIET_S)
    assert (await consumer.call("stats")).delivered == 10  # not taken again at once
    if rests == "paused":
        await consumer.call("resume")
    got = [await consumer.call("receive", timeout_s=WITHIN_S) for _ in range(10)]
    assert [each for each in got if each is None] == []
    for each in got:
        assert each.redelivered
        assert await consumer.call("ack", each)
    await counted(consumer, acked=10, acks_stale=0)


async def test_a_run_near_the_consumer_timeout_is_told_once_and_may_still_answer(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = await bus.consumer(consumer_timeout_s=1)
    leave = asyncio.Event()
    loop = asyncio.get_running_loop()

    def handle(_delivery: Delivery) -> None:
        asyncio.run_coroutine_threadsafe(leave.wait(), loop).result(WITHIN_S)

    async def handle_async(_delivery: Delivery) -> None:
        await leave.wait()

    work = run(consumer, handle if consumer.blocks else handle_async)
    await publish(bus, "a")

    def told() -> list[str]:
        return [line for line in caplog.messages if "near the consumer timeout" in line]

    await eventually_async(told, within_s=WITHIN_S)
    await asyncio.sleep(1)
    assert len(told()) == 1
    assert "handle" in told()[0]
    leave.set()
    await counted(consumer, acked=1)
    await ended(consumer, work)


@pytest.mark.guarantee("exceptions-end-no-worker")
async def test_a_handler_that_blocks_the_loop_is_named(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = await bus.consumer()
    if consumer.blocks:
        return  # its loop runs no handlers

    async def computes_for_long(_delivery: Delivery) -> None:
        time.sleep(1.6)  # noqa: ASYNC251 - the fault that is looked for

    work = run(consumer, computes_for_long)
    await publish(bus, "a")
    await counted(consumer, acked=1)
    await ended(consumer, work)
    (told,) = [line for line in caplog.messages if "loop blocked" in line]
    assert "computes_for_long message=" in told
    assert "test_handling.py" in told


# What only asyncio has.
async def test_a_run_that_is_cancelled_gives_back_what_it_had_not_finished(bus: Bus) -> None:
    consumer, left = await bus.consumer(), asyncio.Event()
    if consumer.blocks:
        return  # threads cannot be cancelled

    async def handle(_delivery: Delivery) -> None:
        await left.wait()

    work = run(consumer, handle, 2)
    await publish(bus, "a", "b", "c")
    await counted(consumer, handling=2)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    await counted(consumer, nacked=2, handling=0, handed_out=0)
    handler = Handler()
    work = run(consumer, handler)
    await counted(consumer, acked=3)
    assert sorted(handler.runs) == [("a", 1), ("b", 1), ("c", 1)]
    await ended(consumer, work)


async def test_a_coroutine_that_does_not_end_when_cancelled_is_replaced(
    bus: Bus, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("messagebus._io.consume.run_on_loop.CANCELLED_NS", 200_000_000)
    consumer, left = await bus.consumer(), asyncio.Event()
    if consumer.blocks:
        return

    async def handle(delivery: Delivery) -> None:
        while delivery.body == b"stubborn" and delivery.attempt == 1 and not left.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await left.wait()

    work = run(consumer, handle, retry=SOON, time_limit_s=0.2)
    await publish(bus, "stubborn", "next")
    await counted(consumer, acked=2, retried=1, handling=1, overrunning=1)
    assert [line for line in caplog.messages if "does not end when cancelled" in line]
    left.set()
    await counted(consumer, handling=0, overrunning=0)
    assert await ended(consumer, work) == 0


async def test_handlers_that_never_wait_let_the_loop_turn_and_are_never_more_than_asked_for(
    bus: Bus,
) -> None:
    """Most never wait, some do; all the while others have turns of the loop."""
    consumer, count = await bus.consumer(), 120
    if consumer.blocks:
        return
    turns, running, most = 0, 0, 0

    async def turning() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def handle(delivery: Delivery) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        until_s = time.monotonic() + 0.002
        while time.monotonic() < until_s:
            pass
        if delivery.body == b"waits":
            await asyncio.sleep(0)
        running -= 1

    await publish(bus, *[*["never waits"] * 11, "waits"] * (count // 12))
    await counted(consumer, buffered=count)
    other = asyncio.create_task(turning())
    work = run(consumer, handle, 2)
    await counted(consumer, acked=count, handling=0)
    other.cancel()
    assert most <= 2
    assert turns >= count / 4
    await ended(consumer, work)


async def test_a_handler_that_cancels_itself_or_raises_so_has_failed(bus: Bus) -> None:
    consumer = await bus.consumer()
    if consumer.blocks:
        return

    async def handle(delivery: Delivery) -> None:
        if delivery.body == b"raises":
            raise asyncio.CancelledError
        if delivery.body == b"awaits":
            task = asyncio.ensure_future(asyncio.sleep(60))
            task.cancel()
            await task

    work = run(consumer, handle, retry=RetryPolicy(attempts_max=2, first_delay_s=0))
    await publish(bus, "raises", "awaits", "good")
    await counted(consumer, acked=1, retried=2, parked=2, failed=4)
    await ended(consumer, work)


async def test_what_a_plain_function_gives_to_await_is_awaited(bus: Bus) -> None:
    consumer, handler = await bus.consumer(), Handler()
    if consumer.blocks:
        work = run(consumer, lambda delivery: handler.coroutine(delivery))
        await publish(bus, "a")
        await counted(consumer, failed=1, retried=1)
        assert handler.runs == []
    else:
        work = run(consumer, lambda delivery: handler.coroutine(delivery))
        await publish(bus, "a")
        await counted(consumer, acked=1)
        assert handler.runs == [("a", 1)]
    await ended(consumer, work)


async def test_a_generator_that_a_handler_returns_is_a_failed_run(bus: Bus) -> None:
    def lazily(delivery: Delivery) -> Any:
        yield delivery

    consumer = await bus.consumer()
    work = run(consumer, Handler(lazily), retry=RetryPolicy(attempts_max=1))
    await publish(bus, "a")
    await counted(consumer, failed=1, parked=1)
    await ended(consumer, work)
    assert "generator" in (await parked(bus, "billing"))[0]["mb-park-exception"]


# No run ends anything but itself.
class TryAgain(RetryLater):
    """Subclass of `RetryLater` as an application writes it, without a call of ours."""

    def __init__(self) -> None:
        pass


class Unprintable(Park):
    def __str__(self) -> str:
        raise TypeError("no text")


class Unjudgeable(type(Exception)):  # type: ignore[misc]
    """Metaclass of an exception that cannot even be looked at."""

    def __subclasscheck__(cls, _other: type) -> bool:
        raise TypeError("no subclass")

    def __instancecheck__(cls, _other: object) -> bool:
        raise TypeError("no instance")


class Strange(Exception, metaclass=Unjudgeable):
    pass


@pytest.mark.guarantee("run-ends-only-itself")
async def test_an_exception_that_cannot_be_judged_or_printed_ends_no_worker(bus: Bus) -> None:
    ends: dict[bytes, Callable[[], BaseException]] = {
        b"later": TryAgain,
        b"park": lambda: Unprintable("x"),
    }

    def end(delivery: Delivery) -> object:
        if delivery.attempt == 1 and delivery.body in ends:
            raise ends[delivery.body]()
        return None

    consumer, handler = await bus.consumer(), Handler(end)
    work = run(consumer, handler, 2, retry=SOON)
    await publish(bus, "later", "park", "later", "park", "good")
    await counted(consumer, acked=3, retried=2, parked=2, handling=0)
    assert await ended(consumer, work) == 0
    reasons = {marks["mb-park-reason"] for marks in await parked(bus, "billing")}
    assert reasons == {"(its text fails: TypeError)"}


@pytest.mark.guarantee("run-ends-only-itself")
async def test_what_a_policy_fails_to_judge_is_parked_with_that_reason(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    consumer, handler = await bus.consumer(), Handler(raising(ValueError("x")))
    work = run(consumer, handler, retry=RetryPolicy(give_up_on=(Strange,)))
    await publish(bus, "a", "b", "c")
    await counted(consumer, parked=3, handling=0)
    assert await ended(consumer, work) == 0
    assert (await parked(bus, "billing"))[0]["mb-park-reason"] == "cannot be judged: ValueError"
    assert [each for each in caplog.messages if "run cannot be judged" in each]


@pytest.mark.guarantee("run-ends-only-itself")
async def test_a_run_that_is_cancelled_by_the_application_ends_nothing_but_itself(bus: Bus) -> None:
    """Each run is cancelled by itself, by the code that keeps its task, before its first step, and with the
    cancel swallowed.
    """
    consumer = await bus.consumer()
    if consumer.blocks:
        return
    tasks: list[asyncio.Task[Any]] = []

    async def handle(delivery: Delivery) -> None:
        task = asyncio.current_task()
        assert task is not None
        for old in tasks:
            old.cancel()  # of runs that ended: of no others
        tasks.append(task)
        if delivery.attempt > 1:
            return
        match delivery.body:
            case b"itself":
                task.cancel()
                await asyncio.sleep(60)
            case b"swallowed":
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(60)
            case b"others":
                asyncio.get_running_loop().call_soon(task.cancel)
                await asyncio.sleep(60)
            case b"all":
                for each in asyncio.all_tasks():
                    if each.get_coro().__name__ in ("_work", "_feed"):  # type: ignore[union-attr]
                        each.cancel()
                await asyncio.sleep(60)

    work = run(consumer, handle, 3, retry=SOON)
    kinds = ["itself", "swallowed", "others", "all"] * 5 + ["good"] * 5
    await publish(bus, *kinds)
    await counted(consumer, acked=len(kinds), handling=0, handed_out=0)
    assert await ended(consumer, work) == 0


@pytest.mark.guarantee("run-ends-only-itself")
async def test_a_run_that_is_cancelled_before_its_first_step_is_followed_by_another(
    bus: Bus,
) -> None:
    consumer, seen = await bus.consumer(), list[str]()
    if consumer.blocks:
        return

    def cancel_all() -> None:
        for each in asyncio.all_tasks():
            if each.get_coro().__name__ == "_work":  # type: ignore[union-attr]
                each.cancel()

    async def handle(delivery: Delivery) -> None:
        seen.append(delivery.body.decode())
        if delivery.body == b"first" and delivery.attempt == 1:
            asyncio.get_running_loop().call_soon(
                cancel_all
            )  # before the next run, which is begun now

    await publish(bus, "first", "next")
    await counted(consumer, buffered=2)
    work = run(consumer, handle, retry=SOON)
    await counted(consumer, acked=2, handling=0, handed_out=0)
    assert await ended(consumer, work) == 0
    assert set(seen) == {"first", "next"}


@pytest.mark.guarantee("context-per-run")
async def test_each_run_has_context_variables_of_its_own(bus: Bus) -> None:
    variable: ContextVar[str] = ContextVar("tenant", default="none")
    seen: list[str] = []

    def end(delivery: Delivery) -> None:
        seen.append(variable.get())
        variable.set(delivery.body.decode())

    consumer, handler = await bus.consumer(), Handler(end)
    variable.set("of who started it")
    work = run(consumer, handler)
    await publish(bus, "a", "b", "c")
    await counted(consumer, acked=3)
    await ended(consumer, work)
    assert seen == ["none"] * 3


async def test_no_time_limit_is_infinite(bus: Bus) -> None:
    consumer = await bus.consumer()
    with pytest.raises(ConfigError, match="time_limit_s inf"):
        await consumer.call("run", Handler(), time_limit_s=float("inf"))


async def test_a_group_of_exceptions_is_judged_by_what_is_in_it(bus: Bus) -> None:
    def end(delivery: Delivery) -> None:
        inner: dict[bytes, list[Exception]] = {
            b"park": [ValueError(), Park("no such customer")],
            b"fails": [ValueError("x"), ExceptionGroup("more", [ValueError("y")])],
            b"given up": [KeyError("x")],
        }
        raise ExceptionGroup("all", inner[delivery.body])

    policy = RetryPolicy(attempts_max=2, first_delay_s=0, give_up_on=(KeyError,))
    consumer, handler = await bus.consumer(), Handler(end)
    work = run(consumer, handler, retry=policy)
    await publish(bus, "park", "fails", "given up")
    await counted(consumer, parked=3, retried=1)
    await ended(consumer, work)
    assert sorted(handler.runs) == [("fails", 1), ("fails", 2), ("given up", 1), ("park", 1)]


async def test_what_a_plain_function_gives_to_await_is_a_part_of_its_run(bus: Bus) -> None:
    """It is a coroutine function behind a plain wrapper: it is cancelled at its limit and at the end."""
    consumer = await bus.consumer()
    if consumer.blocks:
        return
    began, cancelled = [], []

    async def inner(delivery: Delivery) -> None:
        began.append(delivery.attempt)
        try:
            if delivery.attempt == 1 or delivery.body == b"endless":
                await asyncio.sleep(WITHIN_S)
        except asyncio.CancelledError:
            cancelled.append(delivery.body)
            raise

    work = run(
        consumer, lambda delivery: inner(delivery), time_limit_s=0.2, retry=SOON, grace_s=0.1
    )
    await publish(bus, "a")
    await counted(consumer, acked=1, failed=1, retried=1, handling=0, overrunning=0)
    assert (began, cancelled) == ([1, 2], [b"a"])
    await ended(consumer, work)

    consumer = await bus.consumer()
    work = run(consumer, lambda delivery: inner(delivery), grace_s=0.1)
    await publish(bus, "endless")
    await counted(consumer, handling=1)
    assert await consumer.call("stop", 0.1) == 1
    assert await asyncio.wait_for(work, WITHIN_S) == 1
    await eventually_async(lambda: cancelled == [b"a", b"endless"], within_s=WITHIN_S)
