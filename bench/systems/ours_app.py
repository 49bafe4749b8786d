"""Our asyncio consumer in several ways that do the same: note each id, ack each delivery.

receive: a loop over the consumer. run: `AsyncConsumer.run` with a coroutine function; run_threads: with a
plain one. app: the decorator, with the bytes; app_typed: with the JSON as a dataclass. run_otel, app_otel:
with OpenTelemetry's SDK, every message traced, spans exported nowhere; run_otel_few: one in a hundred.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from bench.systems.ours_async import consumer_config
from bench.systems.turn import Stopwatch, Task, Turn, run_on
from messagebus import App, AsyncConsumer, AsyncPublisher, Delivery, Hooks, Message

__all__ = ["BODY_BYTES", "Order", "fill", "order_message", "run", "telemetry"]

BODY_BYTES = 1024
FILL_SLICE = 20_000
# The fraction of messages that is traced.
FEW = 0.01


@dataclass(frozen=True, slots=True)
class Order:
    """The message that app_typed reads."""

    number: int
    customer: str
    tags: list[str]
    note: str | None = None


def order_message() -> Message:
    """Return BODY_BYTES of JSON, most of it in one text."""
    order = Order(17, "ann", ["new", "large"], "")
    short = len(Message.json(dataclasses.asdict(order)).body)
    return Message.json(dataclasses.asdict(order) | {"note": "x" * (BODY_BYTES - short)})


def telemetry(task: Task) -> list[Hooks]:
    """Return hooks for OpenTelemetry with its SDK, as in an application, and an exporter that sends nothing.

    Empty for a way without OpenTelemetry.
    """
    if "_otel" not in task.way:
        return []
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

    from messagebus.telemetry.otel import OpenTelemetry

    class Nowhere(SpanExporter):
        def export(self, spans: object) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    share = FEW if task.way.endswith("_few") else 1.0
    tracers = TracerProvider(sampler=ParentBasedTraceIdRatio(share))
    tracers.add_span_processor(BatchSpanProcessor(Nowhere()))
    meters = MeterProvider(metric_readers=[InMemoryMetricReader()])
    return [OpenTelemetry(tracer_provider=tracers, meter_provider=meters)]


async def fill(task: Task, count: int) -> None:
    """Publish `count` messages; traced, if the task is about tracing."""
    message = order_message()
    async with AsyncPublisher(task.bus, hooks=telemetry(task)) as publisher:
        for first in range(0, count, FILL_SLICE):
            slice_count = min(FILL_SLICE, count - first)
            await publisher.send_many(task.topic, [message] * slice_count)


def run(task: Task) -> Turn:
    ways: dict[str, Callable[[Task], Awaitable[Turn]]] = {
        "receive": _receive,
        "run": _run,
        "run_threads": _run_threads,
        "app": _app,
        "app_typed": _app_typed,
        "run_otel": _run_otel,
        "run_otel_few": _run_otel,
        "app_otel": _app_otel,
    }

    async def turn() -> Turn:
        return await ways[task.way](task)

    return run_on(task.loop, turn)


class _Count:
    """A counter that starts the stopwatch after the warm-up, and stops it with the last message."""

    def __init__(self, task: Task) -> None:
        self._warm_up, self._messages = task.warm_up, task.messages
        self._last = task.warm_up + task.messages
        self._seen: set[str] = set()
        self._watch: Stopwatch | None = None
        self._loop = asyncio.get_running_loop()
        self.turn: asyncio.Future[Turn] = self._loop.create_future()

    @property
    def is_complete(self) -> bool:
        return len(self._seen) == self._last

    def saw(self, message_id: str) -> None:
        self._seen.add(message_id)
        count = len(self._seen)
        if count == self._warm_up:
            self._watch = Stopwatch()
        elif count == self._last and self._watch is not None:
            turn = self._watch.turn(self._messages)
            self._loop.call_soon_threadsafe(self.turn.set_result, turn)


def _consumer(task: Task, hooks: Sequence[Hooks] = ()) -> AsyncConsumer:
    return AsyncConsumer(
        task.bus,
        task.topic,
        subscription=task.subscription,
        config=consumer_config(task),
        hooks=hooks,
    )


async def _receive(task: Task) -> Turn:
    count = _Count(task)
    async with _consumer(task) as consumer:
        async for delivery in consumer:
            count.saw(delivery.message_id)
            consumer.ack(delivery)
            if count.is_complete:
                break
        return await count.turn


async def _run(task: Task) -> Turn:
    count = _Count(task)

    async def handle(delivery: Delivery) -> None:
        count.saw(delivery.message_id)

    return await _run_with(task, count, handle)


async def _run_threads(task: Task) -> Turn:
    count = _Count(task)

    def handle(delivery: Delivery) -> None:
        count.saw(delivery.message_id)

    return await _run_with(task, count, handle)


async def _run_with(
    task: Task,
    count: _Count,
    handle: Callable[[Delivery], object],
    hooks: Sequence[Hooks] = (),
) -> Turn:
    async with _consumer(task, hooks) as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=1))
        turn = await count.turn
    await running
    return turn


async def _run_otel(task: Task) -> Turn:
    count = _Count(task)

    async def handle(delivery: Delivery) -> None:
        count.saw(delivery.message_id)

    return await _run_with(task, count, handle, telemetry(task))


async def _app_otel(task: Task) -> Turn:
    return await _app(task, telemetry(task))


async def _app(task: Task, hooks: Sequence[Hooks] = ()) -> Turn:
    app, count = App(task.bus, hooks=hooks), _Count(task)

    @app.subscriber(task.topic, subscription=task.subscription, config=consumer_config(task))
    async def handle(body: bytes, delivery: Delivery) -> None:
        count.saw(delivery.message_id)

    async with app:
        return await count.turn


async def _app_typed(task: Task) -> Turn:
    app, count = App(task.bus), _Count(task)

    @app.subscriber(task.topic, subscription=task.subscription, config=consumer_config(task))
    async def handle(order: Order, delivery: Delivery) -> None:
        count.saw(delivery.message_id)

    async with app:
        return await count.turn
