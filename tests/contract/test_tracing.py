"""One trace from the publish to the last retry and to what handlers publish, on every kind of bus."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from messagebus import Delivery, Hooks, Message, Park, Publisher, RetryPolicy
from messagebus.telemetry.otel import OpenTelemetry
from messagebus.telemetry.tracecontext import TraceContext
from tests.contract.conftest import Bus, Client
from tests.support.eventually import eventually_async

WITHIN_S = 60
RETRY = RetryPolicy(attempts_max=5, first_delay_s=1, jitter=0)
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Telemetry:
    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        meters = MeterProvider([InMemoryMetricReader()])
        self.hooks = OpenTelemetry(tracer_provider=self.tracers, meter_provider=meters, **options)

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


def ids(span: Any) -> tuple[int, int]:
    found = span.get_span_context()
    return found.trace_id, found.span_id


def parent(span: ReadableSpan) -> tuple[int, int]:
    assert span.parent is not None, span.name
    return span.parent.trace_id, span.parent.span_id


class Work:
    """Handler that fails at a message's first run, then publishes to the second topic; parks on request."""

    def __init__(self, bus: Bus, publisher: Client) -> None:
        self.bus, self.publisher = bus, publisher
        self.headers: list[dict[str, Any]] = []

    def before(self, delivery: Delivery) -> None:
        self.headers.append(dict(delivery.message.headers))
        if delivery.body == b"park":
            raise Park("asked to")
        if delivery.attempt == 1:
            raise ValueError("not yet")

    def __call__(self, delivery: Delivery) -> None:
        self.before(delivery)
        assert isinstance(self.publisher.inner, Publisher)
        self.publisher.inner.send("queue:traced-invoices", b"invoice")

    async def coroutine(self, delivery: Delivery) -> None:
        self.before(delivery)
        await self.publisher.call("send", "queue:traced-invoices", b"invoice")


async def handled(bus: Bus, hooks: Hooks, publishing: list[Hooks], message: Any, runs: int) -> Work:
    """Pass one message through a consumer that retries, until it has had this many runs."""
    publisher = await bus.publisher(hooks=publishing)
    inner = await bus.publisher(hooks=[hooks])
    consumer = await bus.consumer(hooks=[hooks])
    work = Work(bus, inner)
    handler = work if consumer.blocks else work.coroutine
    running = asyncio.create_task(consumer.call("run", handler, retry=RETRY))
    await publisher.call("send_safe", bus.topic, message, timeout_s=WITHIN_S)

    def has_had_them() -> bool:
        bus.pass_time(1)
        return len(work.headers) >= runs

    await eventually_async(has_had_them, within_s=WITHIN_S)
    await inner.call("flush")
    await consumer.call("stop")
    await asyncio.wait_for(running, WITHIN_S)
    return work


async def test_a_retry_and_what_the_handler_publishes_are_in_the_trace_of_the_publish(
    bus: Bus,
) -> None:
    telemetry = Telemetry()
    work = await handled(bus, telemetry.hooks, [telemetry.hooks], b"work", runs=2)
    assert work.headers[0] == work.headers[1]
    (sent,) = telemetry.spans(f"publish {bus.topic}")
    first, second = telemetry.spans(f"process {bus.topic}/billing")
    assert parent(first) == parent(second) == ids(sent)
    assert (first.attributes or {})["error.type"] == "ValueError"
    assert "error.type" not in (second.attributes or {})
    (retry,) = telemetry.spans(f"retry {bus.topic}/billing")
    assert parent(retry) == ids(first)
    (invoice,) = telemetry.spans("publish queue:traced-invoices")
    assert parent(invoice) == ids(second)
    assert len({span[0] for span in map(ids, (sent, first, second, retry, invoice))}) == 1


async def test_what_is_parked_keeps_its_trace(bus: Bus) -> None:
    telemetry = Telemetry()
    await handled(bus, telemetry.hooks, [telemetry.hooks], b"park", runs=1)
    (run,) = telemetry.spans(f"process {bus.topic}/billing")
    (park,) = telemetry.spans(f"park {bus.topic}/billing")
    assert parent(park) == ids(run)
    if bus.is_memory:
        (parked,) = bus.in_memory.parked(bus.topic, "billing")
        (sent,) = telemetry.spans(f"publish {bus.topic}")
        assert f"{ids(sent)[0]:032x}" in str(parked.headers["traceparent"])


@pytest.mark.parametrize("carried", [True, False])
async def test_trace_context_goes_on_without_any_package(bus: Bus, carried: bool) -> None:
    invoices = await bus.consumer("", destination="queue:traced-invoices")
    while await invoices.call("receive", timeout_s=0.2):  # of the tests before, on a real broker
        pass
    headers = {"traceparent": PARENT, "tracestate": "a=b"} if carried else {}
    message = Message(body=b"work", headers=headers)
    work = await handled(bus, TraceContext(), [], message, runs=2)
    assert work.headers == [headers, headers]
    invoice = await invoices.call("receive", timeout_s=WITHIN_S)
    assert invoice is not None
    await invoices.call("ack", invoice)
    assert dict(invoice.message.headers) == headers


@pytest.mark.guarantee("context-per-run")
async def test_what_goes_on_around_the_start_is_nobodys_parent(bus: Bus) -> None:
    telemetry = Telemetry()
    publisher = await bus.publisher(hooks=[telemetry.hooks])
    consumer = await bus.consumer(hooks=[telemetry.hooks])
    with telemetry.tracers.get_tracer("application").start_as_current_span("startup"):
        running = asyncio.create_task(consumer.call("run", handle if consumer.blocks else ahandle))
        await asyncio.sleep(0)
    await publisher.call("send_safe", bus.topic, b"work", timeout_s=WITHIN_S)
    await eventually_async(
        lambda: telemetry.spans(f"process {bus.topic}/billing"), within_s=WITHIN_S
    )
    await consumer.call("stop")
    await asyncio.wait_for(running, WITHIN_S)
    (sent,) = telemetry.spans(f"publish {bus.topic}")
    (run,) = telemetry.spans(f"process {bus.topic}/billing")
    assert parent(run) == ids(sent)


def handle(_delivery: Delivery) -> None: ...


async def ahandle(_delivery: Delivery) -> None: ...
