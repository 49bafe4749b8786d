"""Promises of an app, on every kind of bus."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from messagebus import (
    App,
    BusConfig,
    Delivery,
    Hooks,
    Message,
    NotReady,
    Park,
    Published,
    RetryLater,
    RetryPolicy,
    Status,
    Stopped,
    Unroutable,
)
from messagebus.testing import MemoryBus
from messagebus.worker.pulse import look
from tests.contract.conftest import NOWHERE, READY_WITHIN_S
from tests.support.eventually import eventually_async

WITHIN_S = 60


@dataclass(frozen=True)
class Order:
    number: int
    note: str = ""


class Heard(Hooks):
    """Hooks that record ends of publishes and answers, in order of arrival."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def published(self, destination: str, message: Message, published: Published) -> None:
        self.told.append(("published", destination))

    def handled(self, delivery: Delivery, answer: str, error: BaseException | None) -> None:
        self.told.append((answer, str(delivery.source)))


class Stage:
    """An app, names of its own, and a clock that passes."""

    def __init__(self, bus: BusConfig | None) -> None:
        self.memory = MemoryBus(brokers=3) if bus is None else None
        self.heard = Heard()
        self.app = App(bus, hooks=[self.heard])
        self.app.use(self.memory)
        self.topic = f"contract-app-{uuid.uuid4().hex[:12]}"
        self.queue = f"queue:{self.topic}"

    async def start(self) -> App:
        await self.app.start(require="all", timeout_s=READY_WITHIN_S)
        return self.app

    async def until(self, condition: Callable[[], Any], *, step_s: float = 0) -> None:
        """Wait until the condition holds. step_s: time that passes at each look, in memory."""

        def look() -> Any:
            if step_s and self.memory is not None:
                self.memory.advance(step_s)
            return condition()

        await eventually_async(look, within_s=WITHIN_S)


@pytest.fixture
async def stage(bus_config: BusConfig | None) -> AsyncIterator[Stage]:
    made = Stage(bus_config)
    yield made
    await made.app.stop(0)


async def test_payloads_come_as_annotated_and_go_as_they_are(stage: Stage) -> None:
    app = stage.app
    got: list[object] = []

    @app.subscriber(stage.topic, subscription="billing", concurrency=4)
    async def bill(order: Order, delivery: Delivery) -> None:
        got.append((order, delivery.key, delivery.attempt))

    @app.subscriber(stage.topic, subscription="raw")
    async def raw(body: bytes) -> None:
        got.append(body)

    async with stage_started(stage):
        published = await app.publish(stage.topic, Order(5, "ä"), key="k")
        await stage.until(lambda: len(got) == 2)
    assert published.broker
    assert sorted(got, key=str) == sorted(
        [(Order(5, "ä"), "k", 1), '{"number":5,"note":"ä"}'.encode()], key=str
    )


async def test_handlers_publish_coroutines_and_plain_functions_alike(stage: Stage) -> None:
    app, got, threads = stage.app, [], set()

    @app.subscriber(stage.topic, subscription="first")
    async def first(order: Order) -> None:
        await app.publish(f"{stage.queue}-second", order)

    @app.subscriber(f"{stage.queue}-second", concurrency=3)
    def second(order: Order) -> None:
        threads.add(threading.get_ident())
        app.publish_blocking(f"{stage.queue}-third", f"{order.number}")

    @app.subscriber(f"{stage.queue}-third")
    async def third(text: str) -> None:
        got.append(int(text))

    async with stage_started(stage):
        await asyncio.gather(*(app.publish(stage.topic, Order(n)) for n in range(20)))
        await stage.until(lambda: len(got) == 20)
    assert sorted(got) == list(range(20))
    assert threading.get_ident() not in threads


async def test_what_a_coroutine_handler_returns_to_await_is_a_part_of_its_run(stage: Stage) -> None:
    """``return work()`` counts like ``return await work()``: an ack before its end would lose the message."""
    done: list[str] = []

    async def work(body: str) -> object:
        await asyncio.sleep(0)
        done.append(body)
        return Park("not now") if body == "bad" else None

    @stage.app.subscriber(stage.topic, subscription="billing")
    async def handle(body: str) -> object:
        return work(body)

    async with stage_started(stage) as app:
        for body in ("good", "bad"):
            await app.publish(stage.topic, body)
        await stage.until(lambda: len(stage.heard.told) == 4)
    assert sorted(done) == ["bad", "good"]
    assert {answer for answer, _ in stage.heard.told} == {"published", "ack", "park"}


@pytest.mark.guarantee("payload-that-does-not-fit")
async def test_what_does_not_fit_is_parked_and_the_rest_goes_on(stage: Stage) -> None:
    app, got = stage.app, []

    @app.subscriber(stage.topic, subscription="billing")
    async def bill(order: Order) -> None:
        got.append(order.number)

    async with stage_started(stage):
        await app.publish(stage.topic, {"number": "5"})
        await app.publish(stage.topic, Message(body=b"<a/>", content_type="text/xml"))
        await app.publish(stage.topic, Order(6))
        await stage.until(lambda: got == [6])
        await stage.until(lambda: app.stats().consumers[f"{stage.topic}/billing"].parked == 2)


async def test_a_failed_run_is_repeated_by_the_policy(stage: Stage) -> None:
    app, attempts = stage.app, []

    @app.subscriber(stage.queue, retry=RetryPolicy(attempts_max=3, first_delay_s=1, jitter=0))
    async def work(order: Order, delivery: Delivery) -> RetryLater | None:
        attempts.append(delivery.attempt)
        if delivery.attempt == 1:
            raise ValueError("not yet")
        return RetryLater(1) if delivery.attempt == 2 else None

    async with stage_started(stage):
        await app.publish(stage.queue, Order(1))
        await stage.until(lambda: attempts == [1, 2, 3], step_s=0.5)
        stats = app.stats().consumers[stage.queue]
    assert (stats.retried, stats.parked) == (2, 0)


async def test_hooks_hear_of_publishes_and_of_handlers(stage: Stage) -> None:
    @stage.app.subscriber(stage.queue)
    async def work(text: str) -> None: ...

    async with stage_started(stage):
        await stage.app.publish(stage.queue, "x")
        await stage.until(lambda: len(stage.heard.told) == 2)
    assert sorted(stage.heard.told) == [("ack", stage.queue), ("published", stage.queue)]


async def test_an_app_may_be_started_again(stage: Stage) -> None:
    app, got = stage.app, []

    @app.subscriber(stage.queue)
    async def work(text: str) -> None:
        got.append(text)

    for round in ("a", "b"):
        async with stage_started(stage):
            assert is_running(app)
            await app.publish(stage.queue, round)
            await stage.until(lambda: len(got) == ("a", "b").index(round) + 1)  # noqa: B023
        assert not is_running(app)
        with pytest.raises(Stopped):
            await app.publish(stage.queue, "c")
    assert got == ["a", "b"]


async def test_stop_waits_for_handlers_and_counts_what_it_cannot_wait_for(stage: Stage) -> None:
    app, ended, begun = stage.app, [], asyncio.Event()

    @app.subscriber(stage.queue, concurrency=2)
    async def work(text: str) -> None:
        begun.set()
        await (asyncio.sleep(0.3) if text == "short" else asyncio.Event().wait())
        ended.append(text)

    await stage.start()
    await app.publish(stage.queue, "short")
    await begun.wait()
    assert await app.stop() == 0
    assert ended == ["short"]
    begun.clear()
    await stage.start()
    await app.publish(stage.queue, "endless")
    await begun.wait()
    assert list(await asyncio.gather(app.stop(0.2), app.stop(0.2))) == [1, 1]
    assert app.unanswered == {stage.queue: 1}


async def test_run_ends_when_it_is_asked_to(stage: Stage) -> None:
    app, got = stage.app, []

    @app.subscriber(stage.queue)
    def work(text: str) -> None:
        got.append(text)
        app.request_stop()

    running = asyncio.create_task(app.run(require="all", timeout_s=READY_WITHIN_S))
    await stage.until(lambda: app.status is Status.RUNNING)
    await app.publish(stage.queue, "x")
    assert await running == 0
    assert got == ["x"]


@pytest.mark.guarantee("signals-stop-all-apps")
@pytest.mark.parametrize("kind", ["coroutine", "plain", "in another task"])
async def test_a_handler_may_stop_its_app_and_its_own_message_is_answered(
    stage: Stage, kind: str
) -> None:
    app, loop = stage.app, asyncio.get_running_loop()

    async def stopping(text: str) -> None:
        stop = app.stop() if kind == "coroutine" else asyncio.create_task(app.stop())
        assert await stop == 0

    def stopping_plainly(text: str) -> None:
        asyncio.run_coroutine_threadsafe(app.stop(), loop).result(WITHIN_S)

    app.subscriber(stage.queue)(stopping_plainly if kind == "plain" else stopping)
    await stage.start()
    await app.publish(stage.queue, "x")
    await stage.until(lambda: ("ack", stage.queue) in stage.heard.told)
    assert await app.stop() == 0
    assert app.unanswered.get(stage.queue, 0) == 0
    if stage.memory is not None:
        stage.memory.assert_answered(stage.queue, count=1)


@pytest.mark.guarantee("run-ends-only-itself")
async def test_a_runner_that_ends_by_itself_is_told_and_not_ready_and_ends_run(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = stage.app
    app.subscriber(stage.queue)(print_text)
    app.subscriber(f"{stage.queue}-other")(print_text)
    running = asyncio.create_task(app.run(require="all", timeout_s=READY_WITHIN_S))
    await stage.until(lambda: look(app)["ready"])

    async def broken(*_args: object, **_how: object) -> int:
        raise AttributeError("a fault of ours")

    def cancel() -> None:
        for task in asyncio.all_tasks():
            if task.get_coro().__name__ == "_handle":  # type: ignore[union-attr]
                task.cancel()
                return

    cancel()
    await stage.until(lambda: app.ended or running.done())
    assert [record for record in caplog.records if record.levelname == "ERROR"]
    with pytest.raises(Stopped, match="ended by itself: CancelledError"):
        await running
    monkeypatch.setattr("messagebus.aio.AsyncConsumer.run", broken)
    async with stage_started(stage):
        await stage.until(lambda: app.ended)
        assert dict(app.ended) == dict.fromkeys(app.handlers, "AttributeError")
        assert not look(app)["ready"]
        assert set(look(app)["ended"]) == set(app.handlers)
    assert app.ended == {}


async def test_publish_blocking_would_stop_its_own_loop(stage: Stage) -> None:
    async with stage_started(stage):
        with pytest.raises(Stopped, match="await publish"):
            stage.app.publish_blocking(stage.queue, "x")


async def test_publish_raises_when_no_queue_takes_it(stage: Stage) -> None:
    async with stage_started(stage):
        with pytest.raises(Unroutable):
            await stage.app.publish(stage.topic, "x")


async def test_a_start_that_fails_leaves_nothing_behind() -> None:
    app = App(BusConfig(broker=NOWHERE))
    app.subscriber("queue:jobs")(print_text)
    told = rf"no link to {NOWHERE} within 0.3 s; last fault: .*Connection refused"
    with pytest.raises(NotReady, match=told):
        await app.start(require="one", timeout_s=0.3)
    with pytest.raises(Stopped):
        app.stats()
    app.use(MemoryBus())
    async with app:
        assert app.stats().consumers.keys() == {"queue:jobs"}


# Batches.
@pytest.mark.guarantee("batch-answers-per-message")
@pytest.mark.parametrize("kind", ["coroutine", "plain"])
async def test_each_message_of_a_batch_has_an_answer_of_its_own(stage: Stage, kind: str) -> None:
    app, sizes, runs = stage.app, [], dict[str, list[int]]()
    policy = RetryPolicy(attempts_max=2, first_delay_s=0, jitter=0)

    def work(orders: list[Order], deliveries: list[Delivery]) -> object:
        sizes.append(len(orders))
        answers: dict[Delivery, object] = {}
        for order, delivery in zip(orders, deliveries, strict=True):
            runs.setdefault(order.note, []).append(delivery.attempt)
            match order.note:
                case "park":
                    answers[delivery] = Park("no such customer")
                case "later" if delivery.attempt == 1:
                    answers[delivery] = RetryLater(0)
                case "fails":
                    answers[delivery] = ValueError("x")
                case "good":
                    answers[delivery] = "whatever it is"
        return answers

    async def work_async(orders: list[Order], deliveries: list[Delivery]) -> object:
        return work(orders, deliveries)

    app.subscriber(stage.queue, batch=6, linger_s=0.05, retry=policy)(
        work if kind == "plain" else work_async
    )
    async with stage_started(stage):
        notes = ("park", "later", "fails", "good", "")
        await app.publisher.send_many(
            stage.queue,
            [*(Order(1, note) for note in notes), {"number": "no"}],
        )
        await stage.until(
            lambda: (
                (
                    app.stats().consumers[stage.queue].acked,
                    app.stats().consumers[stage.queue].parked,
                )
                == (3, 3)
            )
        )
        stats = app.stats().consumers[stage.queue]
    assert runs == {"park": [1], "later": [1, 2], "fails": [1, 2], "good": [1], "": [1]}
    assert (stats.retried, stats.failed, stats.handed_out) == (2, 2, 0)
    answers = [answer for answer, _ in stage.heard.told if answer != "published"]
    assert sorted(answers) == ["ack"] * 3 + ["park"] * 3 + ["retry"] * 2
    assert max(sizes) > 1


@pytest.mark.guarantee("batch-answers-per-message")
@pytest.mark.parametrize("kind", ["coroutine", "plain"])
async def test_a_batch_that_fails_or_takes_too_long_has_the_policys_answers(
    stage: Stage, kind: str
) -> None:
    app, left = stage.app, threading.Event()
    policy = RetryPolicy(attempts_max=2, first_delay_s=0, jitter=0)

    async def work_async(deliveries: list[Delivery]) -> None:
        if deliveries[0].body == b"slow":
            await asyncio.sleep(WITHIN_S)
        raise ValueError

    def work(deliveries: list[Delivery]) -> None:
        if deliveries[0].body == b"slow":
            left.wait(WITHIN_S)
        raise ValueError

    app.subscriber(stage.queue, batch=5, linger_s=0.05, retry=policy, time_limit_s=0.3)(
        work if kind == "plain" else work_async
    )
    async with stage_started(stage):
        for text in ("fails", "slow"):
            before = app.stats().consumers[stage.queue].parked
            await app.publisher.send_many(stage.queue, [text] * 5)
            await stage.until(lambda: app.stats().consumers[stage.queue].parked == before + 5)  # noqa: B023
        stats = app.stats().consumers[stage.queue]
        left.set()
    assert (stats.retried, stats.failed, stats.acked) == (10, 20, 0)


@pytest.mark.guarantee("batch-answers-per-message")
async def test_a_stop_handles_what_was_gathered_and_what_makes_no_sense_is_a_failed_run(
    stage: Stage,
) -> None:
    app, sizes = stage.app, []

    @app.subscriber(stage.queue, batch=100, linger_s=60, retry=RetryPolicy(attempts_max=1))
    async def work(deliveries: list[Delivery]) -> object:
        sizes.append(len(deliveries))
        return {deliveries[0].message_id: Park("ids are not what answers go by")}

    await stage.start()
    await app.publisher.send_many(stage.queue, ["x"] * 3)
    await stage.until(lambda: app.stats().consumers[stage.queue].handed_out == 3)
    assert sizes == []
    assert await app.stop() == 0
    assert sum(sizes) == 3
    answers = [answer for answer, _ in stage.heard.told if answer != "published"]
    assert answers == ["park"] * 3


def is_running(app: App) -> bool:
    return app.status is Status.RUNNING


def print_text(text: str) -> None:
    time.sleep(0)


class stage_started:
    """Context of an app that is attached to all brokers."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def __aenter__(self) -> App:
        return await self._stage.start()

    async def __aexit__(self, *_: object) -> None:
        await self._stage.app.stop()
