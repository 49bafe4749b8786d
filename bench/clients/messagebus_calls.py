"""The calls to publish and to consume with messagebus, each for a turn at full speed.

All publishes have an outcome of their own, and all deliveries an ack. Every way that receives notes each id.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from bench.clients.messagebus import (
    RECEIVE_MAX,
    START_S,
    bus_of,
    consumer_config,
    publisher_config,
)
from bench.errors import BenchError
from bench.harness import timed_turn as turns
from bench.harness.timed_turn import Task, Turn, body, slices, timed
from messagebus import (
    App,
    AsyncConsumer,
    AsyncPublisher,
    Consumer,
    Dedup,
    Delivery,
    Hooks,
    Message,
    Outcome,
    Published,
    Publisher,
    PublisherConfig,
)
from messagebus.stores.memory import MemoryStore

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.trace import TracerProvider

SUBMIT_SLICE, SEND_MANY_SLICE = 10_000, 50_000
RECEIVE_S = 30.0
Content: TypeAlias = bytes | Message


@dataclass(frozen=True, slots=True)
class Order:
    """The message that the way app_typed reads; `bench.harness.timed_turn.body` makes it."""

    number: int
    customer: str
    tags: list[str]
    note: str | None = None


async def turn(task: Task) -> Turn:
    """Take a turn in one of our ways."""
    return await WAYS[task.way](task)


def check(ends: Iterable[Published]) -> None:
    """Check the outcomes. Raises BenchError unless all are confirmed."""
    turns.check(end.outcome is Outcome.CONFIRMED for end in ends)


def _hooks(task: Task) -> list[Hooks]:
    """Return hooks for OpenTelemetry with its SDK, as in an application."""
    if not task.traced or task.way == "run_by_hand":
        return []
    from messagebus.telemetry.otel import OpenTelemetry

    return [OpenTelemetry(tracer_provider=_tracers(task), meter_provider=_meters())]


def _meters() -> MeterProvider:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    return MeterProvider(metric_readers=[InMemoryMetricReader()])


def _tracers(task: Task) -> TracerProvider:
    """Return a provider of the SDK whose spans are exported nowhere."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

    class Nowhere(SpanExporter):
        def export(self, spans: object) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    tracers = TracerProvider(sampler=ParentBasedTraceIdRatio(task.traced))
    tracers.add_span_processor(BatchSpanProcessor(Nowhere()))
    return tracers


def content_of(task: Task) -> Content:
    """Return what is published; app_typed reads it as an `Order` if the task is typed."""
    plain = body(task.body_bytes)
    return Message(body=plain, content_type="application/json") if task.typed else plain


def _config(task: Task) -> PublisherConfig:
    config = publisher_config(task.profile.load, task.topic)
    return replace(config, redundant=(task.topic,)) if task.redundant else config


async def _publish(
    send: Callable[[AsyncPublisher, Task, Content, int], Awaitable[None]], task: Task
) -> Turn:
    config, content = _config(task), content_of(task)
    publisher = AsyncPublisher(bus_of(task.where), config, hooks=_hooks(task))
    await publisher.start(require="one", timeout_s=START_S)
    found = await timed(task, lambda count: send(publisher, task, content, count))
    await publisher.stop()
    return found


async def _submit(publisher: AsyncPublisher, task: Task, content: Content, count: int) -> None:
    """Submit the messages; outcomes of one slice are checked while the next one is under way."""
    earlier: list[asyncio.Future[Published]] = []
    for size in slices(count, SUBMIT_SLICE):
        futures = [await publisher.submit(task.topic, content) for _ in range(size)]
        check([await future for future in earlier])
        earlier = futures
    check([await future for future in earlier])


async def _send_many(publisher: AsyncPublisher, task: Task, content: Content, count: int) -> None:
    for size in slices(count, SEND_MANY_SLICE):
        check(await publisher.send_many(task.topic, [content] * size))


async def _publish_blocking(
    send: Callable[[Publisher, Task, bytes, int], None], task: Task
) -> Turn:
    config, content = _config(task), body(task.body_bytes)
    publisher = Publisher(bus_of(task.where), config)
    publisher.start(require="one", timeout_s=START_S)

    async def work(count: int) -> None:
        send(publisher, task, content, count)

    found = await timed(task, work)
    publisher.stop()
    return found


def _submit_blocking(publisher: Publisher, task: Task, content: bytes, count: int) -> None:
    futures = [publisher.submit(task.topic, content) for _ in range(count)]
    concurrent.futures.wait(futures)
    check(future.result() for future in futures)


def _send_safe(publisher: Publisher, task: Task, content: bytes, count: int) -> None:
    """Publish from several threads; each waits for the confirm of one message before it sends the next."""

    def work(number: int) -> None:
        for _ in range(number, count, task.threads):
            publisher.send_safe(task.topic, content)

    with ThreadPoolExecutor(task.threads) as pool:
        list(pool.map(work, range(task.threads)))


def _consumer(task: Task, hooks: Iterable[Hooks] = ()) -> AsyncConsumer:
    config = consumer_config(task.profile.load)
    return AsyncConsumer(
        bus_of(task.where),
        task.topic,
        subscription=task.subscription,
        config=config,
        hooks=[*hooks],
        dedup=Dedup(MemoryStore()) if task.way == "receive_dedup" else None,
    )


def _acknowledge(
    consumer: AsyncConsumer | Consumer, ids: set[str], deliveries: Iterable[Delivery]
) -> None:
    for delivery in deliveries:
        ids.add(delivery.message_id)
        consumer.ack(delivery)


async def _receive(task: Task) -> Turn:
    """Receive by iteration, or several together."""
    seen: set[str] = set()
    async with _consumer(task) as consumer:

        async def take(count: int) -> None:
            goal = len(seen) + count
            async for delivery in consumer:
                seen.add(delivery.message_id)
                consumer.ack(delivery)
                if len(seen) == goal:
                    return

        async def take_many(count: int) -> None:
            goal = len(seen) + count
            while (left := goal - len(seen)) > 0:
                _acknowledge(consumer, seen, await consumer.receive_many(min(left, RECEIVE_MAX)))

        return await timed(task, take_many if task.way == "receive_many" else take)


async def _receive_blocking(task: Task) -> Turn:
    """Receive one by one, or several together."""
    seen, config = set[str](), consumer_config(task.profile.load)
    with Consumer(
        bus_of(task.where), task.topic, subscription=task.subscription, config=config
    ) as consumer:

        async def take(count: int) -> None:
            goal = len(seen) + count
            while len(seen) < goal:
                if (delivery := consumer.receive(RECEIVE_S)) is None:
                    raise BenchError(f"{goal - len(seen)} messages have not arrived")
                seen.add(delivery.message_id)
                consumer.ack(delivery)

        async def take_many(count: int) -> None:
            goal = len(seen) + count
            while (left := goal - len(seen)) > 0:
                if not (found := consumer.receive_many(min(left, RECEIVE_MAX), RECEIVE_S)):
                    raise BenchError(f"{left} messages have not arrived")
                _acknowledge(consumer, seen, found)

        return await timed(task, take if task.way == "receive_blocking" else take_many)


class _Handled:
    """The distinct messages that a handler has had."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._goal = 0
        self._reached = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def saw(self, message_id: str) -> None:
        self._ids.add(message_id)
        if len(self._ids) == self._goal:
            self._loop.call_soon_threadsafe(self._reached.set)

    async def more(self, count: int) -> None:
        """Wait until there are `count` more than at the end of the last call."""
        self._reached.clear()
        self._goal += count
        if len(self._ids) < self._goal:
            await self._reached.wait()


async def _run(task: Task) -> Turn:
    handled = _Handled()

    async def handle(delivery: Delivery) -> None:
        handled.saw(delivery.message_id)

    def handle_in_thread(delivery: Delivery) -> None:
        handled.saw(delivery.message_id)

    handler: Callable[[Delivery], object] = handle
    if task.way == "run_threads":
        handler = handle_in_thread
    if task.way == "run_by_hand":
        handler = _by_hand(task, handled)
    async with _consumer(task, _hooks(task)) as consumer:
        running = asyncio.create_task(consumer.run(handler, concurrency=1))
        found = await timed(task, handled.more)
    await running
    return found


def _by_hand(task: Task, handled: _Handled) -> Callable[[Delivery], Awaitable[None]]:
    """Return a handler with the telemetry of our hooks, as an application writes it with the SDK alone."""
    from opentelemetry import trace
    from opentelemetry.propagate import extract

    tracer = _tracers(task).get_tracer(__name__)
    meter = _meters().get_meter(__name__)
    duration = meter.create_histogram("messaging.process.duration", unit="s")
    consumed = meter.create_counter("messaging.client.consumed.messages")
    of_all = {
        "messaging.system": "rabbitmq",
        "messaging.destination.name": f"{task.topic}:{task.subscription}",
        "messaging.destination.template": f"{task.topic}/{task.subscription}",
        "messaging.operation.name": "process",
    }

    async def handle(delivery: Delivery) -> None:
        began_s = time.perf_counter()
        host, _, port = delivery.broker.rpartition(":")
        known: dict[str, str | int] = {**of_all, "server.address": host, "server.port": int(port)}
        came_with = extract(delivery.headers)
        with tracer.start_as_current_span(
            "process",
            came_with,
            kind=trace.SpanKind.CONSUMER,
            attributes={
                **known,
                "messaging.operation.type": "process",
                "messaging.message.id": delivery.message_id,
                "messaging.rabbitmq.message.delivery_tag": delivery.receipt.tag,
            },
            links=[trace.Link(trace.get_current_span(came_with).get_span_context())],
        ):
            handled.saw(delivery.message_id)
        duration.record(time.perf_counter() - began_s, known)
        consumed.add(1, known)

    return handle


async def _app(task: Task) -> Turn:
    app, handled = App(bus_of(task.where), hooks=_hooks(task)), _Handled()
    subscriber = app.subscriber(
        task.topic, subscription=task.subscription, config=consumer_config(task.profile.load)
    )
    if task.way == "app_typed":

        @subscriber
        async def handle_order(order: Order, delivery: Delivery) -> None:
            handled.saw(delivery.message_id)

    else:

        @subscriber
        async def handle(body: bytes, delivery: Delivery) -> None:
            handled.saw(delivery.message_id)

    async with app:
        return await timed(task, handled.more)


WAYS: Mapping[str, Callable[[Task], Awaitable[Turn]]] = {
    "submit": partial(_publish, _submit),
    "send_many": partial(_publish, _send_many),
    "submit_blocking": partial(_publish_blocking, _submit_blocking),
    "send_safe": partial(_publish_blocking, _send_safe),
    "receive": _receive,
    "receive_dedup": _receive,
    "receive_many": _receive,
    "receive_blocking": _receive_blocking,
    "receive_many_blocking": _receive_blocking,
    "run": _run,
    "run_threads": _run,
    "run_by_hand": _run,
    "app": _app,
    "app_typed": _app,
}
"""Way -> a turn in it."""
