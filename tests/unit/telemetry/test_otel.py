from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.propagators.textmap import CarrierT, Getter, Setter, TextMapPropagator
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    ParentBased,
    ParentBasedTraceIdRatio,
    Sampler,
)
from opentelemetry.trace import SpanKind, StatusCode

from messagebus._io.hooks import HookChain, Watched
from messagebus._io.publish.targets import Targets
from messagebus.core.deliveries import Receipt
from messagebus.core.ends import END_UNCONFIRMED
from messagebus.destination import Subscription, Topic
from messagebus.message import Delivery, Message
from messagebus.stats import Durability, Outcome, Published
from messagebus.telemetry import otel
from messagebus.telemetry.otel import OpenTelemetry

SHAPE = Targets().plain("orders")
BILLING = Subscription(Topic("orders"), "billing")
BROKER = "mb1.example:5672"
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
PARENT_IDS = (0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7)


class Bench:
    """One OpenTelemetry with everything in memory, as a client's chain of hooks."""

    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracers = TracerProvider(
            sampler=options.pop("sampler", None), id_generator=options.pop("ids", None)
        )
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        meters = MeterProvider([self._reader])
        self.telemetry = OpenTelemetry(
            tracer_provider=self.tracers, meter_provider=meters, **options
        )
        self.chain = HookChain([self.telemetry])

    def begin(self, message: Message | None = None) -> tuple[Message, Watched]:
        return self.chain.publishing(SHAPE, b"x", message, None)

    def publish(self, message: Message | None = None, **end: Any) -> Message:
        made, watched = self.begin(message)
        watched.set_result(published(made, **end))
        return made

    @contextlib.contextmanager
    def handling(self, delivery: Delivery, answer: str = "ack") -> Iterator[None]:
        error = None
        try:
            with self.chain.handling(delivery):
                yield
        except Exception as raised:
            error = raised
        self.chain.handled(delivery, answer, error)

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def one(self, name: str) -> ReadableSpan:
        (span,) = [span for span in self.spans if span.name == name]
        return span

    def points(self, name: str) -> list[Any]:
        data = self._reader.get_metrics_data()
        assert data is not None
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def published(message: Message, **fields: Any) -> Published:
    fields = {"outcome": Outcome.CONFIRMED, "broker": BROKER, **fields}
    return Published(message.message_id, durability=Durability.FSYNC, **fields)


def delivery(message: Message | None = None, **headers: Any) -> Delivery:
    message = message or Message(body=b"x", message_id="1", headers=headers)
    return Delivery(message, Receipt(BROKER, 1, 7), BILLING)


def ids(span: ReadableSpan | Any) -> tuple[int, int]:
    found: Any = span.get_span_context() if isinstance(span, ReadableSpan) else span.context
    return found.trace_id, found.span_id


def parent_of(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def written(span: ReadableSpan) -> str:
    found: Any = span.get_span_context()
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"


def fail(error: Exception) -> None:
    raise error


# Publishing.
def test_a_publish_is_one_producer_span_whose_context_travels(bench: Bench) -> None:
    message = bench.publish(Message(body=b"x", correlation_id="talk", headers={"own": 1}))
    span = bench.one("publish orders")
    assert span.kind is SpanKind.PRODUCER
    assert message.headers == {"own": 1, "traceparent": written(span)}
    assert dict(span.attributes or {}) == {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "mb.topic/orders",
        "messaging.destination.template": "orders",
        "messaging.message.id": message.message_id,
        "messaging.message.conversation_id": "talk",
        "server.address": "mb1.example",
        "server.port": 5672,
    }
    assert span.status.status_code is StatusCode.UNSET
    assert not span.links
    assert span.instrumentation_scope is not None
    assert span.instrumentation_scope.schema_url == "https://opentelemetry.io/schemas/1.44.0"


def test_a_publish_belongs_to_what_is_going_on(bench: Bench) -> None:
    tracer = bench.tracers.get_tracer("application")
    with tracer.start_as_current_span("request") as around:
        bench.publish()
    assert parent_of(bench.one("publish orders")) == ids(around)


@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.UNROUTABLE, Outcome.UNKNOWN])
def test_an_end_without_confirm_is_an_error(bench: Bench, outcome: Outcome) -> None:
    bench.publish(outcome=outcome, reason="at amqp://u:pw@h, " + "long" * 1000)
    span = bench.one("publish orders")
    assert (span.attributes or {})["error.type"] == outcome.value
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description is not None
    assert span.status.description.startswith("at amqp://u:***@h, long")
    assert len(span.status.description) <= 1024
    (point,) = bench.points("messaging.client.operation.duration")
    assert point.attributes["error.type"] == outcome.value


def test_a_redundant_publish_names_both_brokers(bench: Bench) -> None:
    bench.publish(brokers=(BROKER, "mb2:5672"))
    bench.publish(brokers=(BROKER,))
    two, one = bench.spans
    assert two.attributes is not None
    assert one.attributes is not None
    assert two.attributes["messagebus.brokers"] == (BROKER, "mb2:5672")
    assert "messagebus.brokers" not in one.attributes


def test_where_no_confirm_is_wanted_none_is_missed(bench: Bench) -> None:
    bench.publish(outcome=Outcome.UNKNOWN, reason=END_UNCONFIRMED.reason)
    assert bench.one("publish orders").status.status_code is StatusCode.UNSET


def test_a_message_that_carries_a_context_keeps_it_and_is_linked_to(bench: Bench) -> None:
    own = Message(body=b"x", headers={"traceparent": PARENT})
    assert bench.publish(own).headers == {"traceparent": PARENT}
    span = bench.one("publish orders")
    assert span.kind is SpanKind.CLIENT
    assert [ids(link) for link in span.links] == [PARENT_IDS]


def test_one_object_published_twice_at_once_has_two_spans(bench: Bench) -> None:
    own = Message(body=b"x", message_id="1", headers={"traceparent": PARENT})
    (first, first_end), (second, second_end) = bench.begin(own), bench.begin(own)
    second_end.set_result(published(second))
    assert len(bench.spans) == 1
    first_end.set_result(published(first, outcome=Outcome.UNKNOWN))
    assert [span.status.status_code for span in bench.spans] == [StatusCode.UNSET, StatusCode.ERROR]


def test_what_was_not_accepted_has_a_span_and_was_not_sent(bench: Bench) -> None:
    _, watched = bench.begin()
    watched.refused(TimeoutError("no room"))
    span = bench.one("publish orders")
    assert span.status.description == "TimeoutError: no room"
    assert bench.points("messaging.client.sent.messages") == []


def test_metrics_of_publishes(bench: Bench) -> None:
    for _ in range(3):
        bench.publish()
    bench.publish(outcome=Outcome.UNROUTABLE)
    plain = {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "publish",
        "messaging.destination.name": "mb.topic/orders",
        "server.address": "mb1.example",
        "server.port": 5672,
    }
    sent = {
        str(p.attributes.get("error.type")): p
        for p in bench.points("messaging.client.sent.messages")
    }
    assert (sent["None"].value, dict(sent["None"].attributes)) == (3, plain)
    assert (sent["unroutable"].value, dict(sent["unroutable"].attributes)) == (
        1,
        {**plain, "error.type": "unroutable"},
    )
    took = bench.points("messaging.client.operation.duration")
    assert sorted(point.count for point in took) == [1, 3]
    assert list(took[0].explicit_bounds)[:3] == [0.005, 0.01, 0.025]
    good = next(span for span in bench.spans if not span.status.is_unset)
    point = next(p for p in took if "error.type" in p.attributes)
    assert good.end_time is not None
    assert good.start_time is not None
    assert point.sum == pytest.approx((good.end_time - good.start_time) / 1e9)


# Several at once.
def test_send_many_has_a_span_for_each_message_and_one_that_links_to_them(bench: Bench) -> None:
    with bench.chain.publishing_many("orders"):
        messages = [bench.publish() for _ in range(3)]
    created = [span for span in bench.spans if span.name == "create orders"]
    assert {span.kind for span in created} == {SpanKind.PRODUCER}
    assert [message.headers["traceparent"] for message in messages] == [
        written(span) for span in created
    ]
    span = bench.one("publish orders")
    assert span.kind is SpanKind.CLIENT
    assert [ids(link) for link in span.links] == [ids(each) for each in created]
    assert [(link.attributes or {})["messaging.message.id"] for link in span.links] == [
        message.message_id for message in messages
    ]
    attributes = span.attributes or {}
    assert attributes["messaging.batch.message_count"] == 3
    assert attributes["server.address"] == "mb1.example"
    assert "messaging.message.id" not in attributes
    (took,) = bench.points("messaging.client.operation.duration")
    assert took.count == 1
    (sent,) = bench.points("messaging.client.sent.messages")
    assert sent.value == 3


def test_send_many_without_a_span_for_each_shares_the_one() -> None:
    bench = Bench(create_spans=False)
    with bench.chain.publishing_many("orders"):
        messages = [bench.publish() for _ in range(3)]
    (span,) = bench.spans
    assert (span.kind, len(span.links)) == (SpanKind.PRODUCER, 0)
    assert {message.headers["traceparent"] for message in messages} == {written(span)}


def test_send_many_links_to_contexts_that_messages_bring(bench: Bench) -> None:
    own = Message(body=b"x", message_id="1", headers={"traceparent": PARENT})
    with bench.chain.publishing_many("orders"):
        assert bench.publish(own).headers == {"traceparent": PARENT}
    (span,) = bench.spans
    assert [ids(link) for link in span.links] == [PARENT_IDS]


def test_send_many_fails_when_one_of_them_does(bench: Bench) -> None:
    with bench.chain.publishing_many("orders"):
        bench.publish()
        bench.publish(outcome=Outcome.REFUSED, reason="full")
    span = bench.one("publish orders")
    assert (span.attributes or {})["error.type"] == "refused"
    assert span.status.description == "full"


def test_send_many_that_raises_says_so(bench: Bench) -> None:
    with pytest.raises(TimeoutError), bench.chain.publishing_many("orders"):
        raise TimeoutError("no room")
    span = bench.one("publish orders")
    assert (span.attributes or {})["error.type"] == "TimeoutError"
    bench.publish()  # is no part of it any more
    assert [each.kind for each in bench.spans] == [SpanKind.CLIENT, SpanKind.PRODUCER]


# Handling.
def test_a_run_is_a_child_of_its_message_and_links_to_it(bench: Bench) -> None:
    message = bench.publish()
    with bench.handling(delivery(message)):
        inner = bench.publish()
    sent = next(span for span in bench.spans if span.kind is SpanKind.PRODUCER)
    run = bench.one("process orders/billing")
    assert run.kind is SpanKind.CONSUMER
    assert parent_of(run) == ids(sent)
    assert [ids(link) for link in run.links] == [ids(sent)]
    assert dict(run.attributes or {}) == {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "mb.topic/orders:mb.sub/orders/billing",
        "messaging.destination.template": "orders/billing",
        "messaging.message.id": message.message_id,
        "messaging.rabbitmq.message.delivery_tag": 7,
        "server.address": "mb1.example",
        "server.port": 5672,
    }
    made = next(span for span in bench.spans if written(span) == inner.headers["traceparent"])
    assert parent_of(made) == ids(run)


def test_all_runs_of_a_message_are_siblings(bench: Bench) -> None:
    arrived = delivery(traceparent=PARENT)
    for answer in ("retry", "retry", "ack"):
        with bench.handling(arrived, answer):
            pass
    runs = [span for span in bench.spans if span.name == "process orders/billing"]
    assert [parent_of(run) for run in runs] == [PARENT_IDS] * 3
    assert len({ids(run) for run in runs}) == 3


def test_a_run_within_something_else_is_its_child_and_links_to_its_message(bench: Bench) -> None:
    tracer = bench.tracers.get_tracer("application")
    with (
        tracer.start_as_current_span("request") as around,
        bench.handling(delivery(traceparent=PARENT)),
    ):
        pass
    run = bench.one("process orders/billing")
    assert parent_of(run) == ids(around)
    assert [ids(link) for link in run.links] == [PARENT_IDS]


def test_a_run_that_only_links_starts_a_trace_of_its_own() -> None:
    bench = Bench(link_only=True)
    with bench.handling(delivery(traceparent=PARENT)):
        pass
    run = bench.one("process orders/billing")
    assert run.parent is None
    assert [ids(link) for link in run.links] == [PARENT_IDS]


@pytest.mark.guarantee("context-per-run")
@pytest.mark.parametrize("link_only", [True, False])
def test_baggage_comes_with_a_message_that_is_only_linked_to(link_only: bool) -> None:
    bench = Bench(link_only=link_only)
    tracer = bench.tracers.get_tracer("application")
    with (
        tracer.start_as_current_span("request") if not link_only else contextlib.nullcontext(),
        bench.handling(delivery(traceparent=PARENT, baggage="tenant=acme")),
    ):
        assert baggage.get_baggage("tenant") == "acme"
    assert baggage.get_baggage("tenant") is None


def test_a_run_of_a_batch_is_one_span_that_links_to_each_message(bench: Bench) -> None:
    batch = [delivery(traceparent=PARENT), delivery(), delivery(traceparent=PARENT)]
    with bench.chain.handling_many(batch):
        inner = bench.publish()
    for each in batch:
        bench.chain.handled(each, "retry", None)
    run = bench.one("process orders/billing")
    assert run.parent is None
    assert [ids(link) for link in run.links] == [PARENT_IDS] * 2
    assert (run.attributes or {})["messaging.batch.message_count"] == 3
    traceparent = inner.headers["traceparent"]
    assert isinstance(traceparent, str)
    assert traceparent.split("-")[1] == f"{ids(run)[0]:032x}"
    retries = [span for span in bench.spans if span.name == "retry orders/billing"]
    assert [parent_of(each) for each in retries] == [ids(run)] * 3
    assert bench.telemetry._runs == {}
    (consumed,) = bench.points("messaging.client.consumed.messages")
    assert consumed.value == 3
    (took,) = bench.points("messaging.process.duration")
    assert took.count == 1


@pytest.mark.parametrize("headers", [{}, {"traceparent": "nonsense"}, {"traceparent": 7}])
def test_a_message_without_context_starts_a_trace(bench: Bench, headers: dict[str, Any]) -> None:
    with bench.handling(delivery(**headers)):
        pass
    run = bench.one("process orders/billing")
    assert (run.parent, len(run.links)) == (None, 0)


def test_the_state_of_a_trace_goes_with_it(bench: Bench) -> None:
    with bench.handling(delivery(traceparent=PARENT, tracestate="vendor=1")):
        inner = bench.publish()
    assert inner.headers["tracestate"] == "vendor=1"


def test_nothing_is_left_behind_in_the_context(bench: Bench) -> None:
    before = context.get_current()
    with bench.handling(delivery(traceparent=PARENT)):
        assert trace.get_current_span().get_span_context().is_valid
    assert context.get_current() == before
    assert (bench.telemetry._runs, bench.telemetry._open) == ({}, {})


def test_a_run_that_fails_says_why_without_passwords(bench: Bench) -> None:
    with bench.handling(delivery(), "retry"):
        fail(ValueError("db password=hunter2 " + "x" * 10_000_000))
    run = bench.one("process orders/billing")
    assert (run.attributes or {})["error.type"] == "ValueError"
    assert run.status.description is not None
    assert run.status.description.startswith("db password=*** xxx")
    (event,) = run.events
    attributes = event.attributes or {}
    assert attributes["exception.type"] == "ValueError"
    assert "test_a_run_that_fails" in str(attributes["exception.stacktrace"])
    assert "hunter2" not in str(run.to_json())
    assert len(str(run.to_json())) < 20_000


@pytest.mark.parametrize("answer", ["retry", "park", "drop", "stale"])
def test_an_answer_that_is_no_ack_is_a_span_below_the_run(bench: Bench, answer: str) -> None:
    with bench.handling(delivery(traceparent=PARENT), answer):
        pass
    span = bench.one(f"{answer} orders/billing")
    assert span.kind is SpanKind.CLIENT
    assert parent_of(span) == ids(bench.one("process orders/billing"))
    attributes = span.attributes or {}
    assert attributes["messaging.operation.type"] == "settle"
    assert attributes["messaging.operation.name"] == answer
    assert ("error.type" in attributes) == (answer == "stale")


def test_acks_have_spans_on_request_only(bench: Bench) -> None:
    with bench.handling(delivery()):
        pass
    assert len(bench.spans) == 1
    asked = Bench(ack_spans=True)
    with asked.handling(delivery()):
        pass
    assert [span.name for span in asked.spans] == ["process orders/billing", "ack orders/billing"]


def test_metrics_of_runs(bench: Bench) -> None:
    for _ in range(2):
        with bench.handling(delivery()):
            pass
    with bench.handling(delivery(), "park"):
        fail(KeyError("x"))
    plain = {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "process",
        "messaging.destination.name": "mb.topic/orders:mb.sub/orders/billing",
        "server.address": "mb1.example",
        "server.port": 5672,
    }
    (consumed,) = bench.points("messaging.client.consumed.messages")
    assert (consumed.value, dict(consumed.attributes)) == (3, plain)
    took = bench.points("messaging.process.duration")
    assert {p.attributes.get("error.type"): p.count for p in took} == {None: 2, "KeyError": 1}


# Contexts, bounds.
def test_baggage_goes_along_and_comes_out_where_the_handler_runs(bench: Bench) -> None:
    token = context.attach(baggage.set_baggage("customer", "7"))
    try:
        message = bench.publish()
    finally:
        context.detach(token)
    assert message.headers["baggage"] == "customer=7"
    with bench.handling(delivery(message)):
        assert baggage.get_baggage("customer") == "7"
    run = bench.one("process orders/billing")
    assert parent_of(run) == ids(bench.one("publish orders"))


class Other(TextMapPropagator):
    """Propagator with one header of its own."""

    def extract(
        self,
        carrier: CarrierT,
        context: Any = None,
        getter: Getter[CarrierT] = None,  # type: ignore[assignment]
    ) -> Any:
        text = carrier.get("x-trace")  # type: ignore[attr-defined]
        if not text:
            return context
        trace_id, span_id = (int(part, 16) for part in text.split("."))
        made = trace.SpanContext(trace_id, span_id, True, trace.TraceFlags(1))
        return trace.set_span_in_context(trace.NonRecordingSpan(made), context)

    def inject(
        self,
        carrier: CarrierT,
        context: Any = None,
        setter: Setter[CarrierT] = None,  # type: ignore[assignment]
    ) -> None:
        found = trace.get_current_span(context).get_span_context()
        carrier["x-trace"] = f"{found.trace_id:x}.{found.span_id:x}"  # type: ignore[index]

    @property
    def fields(self) -> set[str]:
        return {"x-trace"}


def test_contexts_are_written_as_the_application_says() -> None:
    bench = Bench(propagator=Other())
    message = bench.publish()
    assert list(message.headers) == ["x-trace"]
    with bench.handling(delivery(message)):
        pass
    assert parent_of(bench.one("process orders/billing")) == ids(bench.one("publish orders"))


def test_what_is_not_sampled_carries_its_context_all_the_same() -> None:
    bench = Bench(sampler=ALWAYS_OFF)
    message = bench.publish()
    assert str(message.headers["traceparent"]).endswith(("-00", "-02"))
    with bench.handling(delivery(message), "park"):
        fail(ValueError("x"))
    assert bench.spans == []
    assert len(bench.points("messaging.process.duration")) == 1


def test_without_an_sdk_messages_are_left_as_they_are() -> None:
    chain = HookChain([OpenTelemetry()])
    message, watched = chain.publishing(SHAPE, b"x", None, None)
    assert message.headers == {}
    watched.set_result(published(message))
    with chain.publishing_many("orders"), chain.handling(delivery()):
        pass
    chain.handled(delivery(), "park", None)


def test_series_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otel, "SERIES_MAX", 2)
    for number in range(5):
        bench.publish(broker=f"mb{number}:5672")
    found = {
        point.attributes.get("server.address", "overflow"): point.value
        for point in bench.points("messaging.client.sent.messages")
    }
    assert found == {"mb0": 1, "mb1": 1, "overflow": 3}


def test_runs_without_an_answer_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otel, "RUNS_MAX", 2)
    for _ in range(5):
        with bench.chain.handling(delivery()):
            pass
    assert len(bench.telemetry._runs) <= 2


UNSAMPLED = f"{PARENT[:-2]}00"


class NoIds(RandomIdGenerator):
    """Generator for an application whose spans are all counted: none may be made."""

    def generate_span_id(self) -> int:
        raise AssertionError("a span was made, only to be dropped")


@pytest.mark.parametrize("sampler", [None, ParentBasedTraceIdRatio(1.0)])
def test_what_its_publisher_did_not_sample_is_counted_and_costs_no_span(sampler: Any) -> None:
    bench = Bench(sampler=sampler, ids=NoIds())
    with bench.handling(delivery(traceparent=UNSAMPLED)):
        here = trace.get_current_span().get_span_context()
        assert (here.trace_id, here.span_id, here.trace_flags.sampled) == (*PARENT_IDS, False)
    assert bench.spans == []
    (point,) = bench.points("messaging.client.consumed.messages")
    assert point.value == 1
    (duration,) = bench.points("messaging.process.duration")
    assert duration.count == 1


def test_what_fails_is_not_sampled_either() -> None:
    bench = Bench()
    with bench.handling(delivery(traceparent=UNSAMPLED), "retry"):
        fail(ValueError("no"))
    assert bench.spans == []
    (duration,) = bench.points("messaging.process.duration")
    assert duration.attributes["error.type"] == "ValueError"


def test_what_is_published_while_one_is_handled_that_is_not_sampled_is_not_sampled() -> None:
    bench = Bench()
    with bench.handling(delivery(traceparent=UNSAMPLED)):
        message = bench.publish()
    assert str(message.headers["traceparent"]).startswith(PARENT[:35])
    assert str(message.headers["traceparent"]).endswith(("-00", "-02"))
    assert bench.spans == []


class Own(Sampler):
    """Sampler of an application, which samples all spans."""

    def should_sample(self, *args: Any, **named: Any) -> Any:
        return ALWAYS_ON.should_sample(*args, **named)

    def get_description(self) -> str:
        return Bench().tracers.sampler.get_description()


class OwnChild(ParentBased):
    def should_sample(self, *args: Any, **named: Any) -> Any:
        return ALWAYS_ON.should_sample(*args, **named)


@pytest.mark.parametrize(
    "sampler",
    [
        ALWAYS_ON,
        Own(),
        OwnChild(ALWAYS_ON),
        ParentBased(ALWAYS_ON, remote_parent_not_sampled=ALWAYS_ON),
    ],
)
def test_whoever_samples_otherwise_is_asked(sampler: Sampler) -> None:
    bench = Bench(sampler=sampler)
    with bench.handling(delivery(traceparent=UNSAMPLED)):
        pass
    assert bench.one("process orders/billing").kind is SpanKind.CONSUMER


def test_a_trace_of_its_own_for_each_handling_does_not_go_by_the_publisher() -> None:
    bench = Bench(link_only=True)
    with bench.handling(delivery(traceparent=UNSAMPLED)):
        pass
    assert parent_of(bench.one("process orders/billing")) is None
