"""CloudEvents and other codecs."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import fastavro
import httpx
import msgspec
import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_structured, to_binary, to_structured
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from google.protobuf.wrappers_pb2 import Int32Value, StringValue
from hypothesis import given
from hypothesis import strategies as st

from messagebus import App, Delivery, Message, MessageInvalid, Receipt, RetryPolicy, WrongPayload
from messagebus.destination import Subscription, Topic, parse_destination
from messagebus.integrations import cloudevents
from messagebus.integrations.codecs import (
    Avro,
    CloudEvents,
    Msgspec,
    Protobuf,
    Registry,
    RegistryUnavailable,
)
from messagebus.testing import MemoryBus
from tests.support.eventually import eventually_async


class Payment(msgspec.Struct):
    order: int
    cents: int = 0


@dataclass
class Order:
    number: int
    customer: str


SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "number", "type": "long"},
        {"name": "customer", "type": "string", "default": "nobody"},
    ],
}
EVENT = CloudEvent(
    {
        "id": "e-1",
        "source": "/shop",
        "type": "order.placed",
        "specversion": "1.0",
        "time": datetime(2026, 11, 23, 12, tzinfo=UTC),
        "datacontenttype": "application/json",
        "tenant": "blue",
    },
    {"number": 17},
)


class FakeRegistry:
    """Confluent's API as far as the client speaks it."""

    def __init__(self) -> None:
        self.schemas: dict[int, str] = {}
        self.asked: list[str] = []
        self.away = False
        self.other: httpx.Response | None = None

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(f"{request.method} {request.url.path}")
        if self.away:
            return httpx.Response(503)
        if self.other is not None:
            return self.other
        if request.method == "POST":
            self.schemas[len(self.schemas) + 1] = json.loads(request.content)["schema"]
            return httpx.Response(200, json={"id": len(self.schemas)})
        number = int(request.url.path.rpartition("/")[2])
        if number not in self.schemas:
            return httpx.Response(404, json={"error_code": 40403})
        return httpx.Response(200, json={"schema": self.schemas[number]})

    def client(self) -> Registry:
        transport = httpx.MockTransport(self.answer)
        return Registry("", client=httpx.Client(transport=transport, base_url="http://registry"))


async def there_and_back(codec: Any, kind: Any, *values: Any) -> tuple[list[Any], MemoryBus]:
    bus, app, found = MemoryBus(), App(codecs=[codec]), list[Any]()
    app.use(bus)

    async def handle(value: Any) -> None:
        found.append(value)

    handle.__annotations__["value"] = kind
    app.subscriber("things", subscription="all", retry=RetryPolicy(attempts_max=1))(handle)
    async with app:
        for each in values:
            await app.publish("things", each)
        await eventually_async(
            lambda: len(found) + len(bus.parked("things", "all")) == len(values), within_s=10
        )
    return found, bus


def avro() -> Avro:
    return Avro(FakeRegistry().client(), {Order: SCHEMA})


@pytest.mark.parametrize(
    ("make", "value", "content_type"),
    [
        (Msgspec, Payment(1, 250), "application/json"),
        (lambda: Msgspec("application/msgpack"), Payment(1, 250), "application/msgpack"),
        (Protobuf, StringValue(value="ann"), "application/x-protobuf"),
        (avro, Order(17, "ann"), "application/vnd.confluent.avro"),
    ],
)
async def test_a_value_comes_as_it_was_published_and_what_is_none_is_parked(
    make: Callable[[], Any], value: Any, content_type: str
) -> None:
    damaged = Message(body=b"\xff\xff{", content_type=content_type)
    found, bus = await there_and_back(make(), type(value), value, damaged)
    assert found == [value]
    assert bus.published("things")[0].content_type == content_type
    bus.assert_parked("things", "all", count=1)


async def test_an_event_of_the_sdk_keeps_its_attributes_and_its_data() -> None:
    binary = CloudEvent(
        {"id": "e-2", "source": "/shop", "type": "photo", "specversion": "1.0"}, b"\x00\xff"
    )
    (first, second), bus = await there_and_back(CloudEvents(), CloudEvent, EVENT, binary)
    assert first.get_attributes() == EVENT.get_attributes()
    assert first.get_data() == {"number": 17}
    assert second.get_data() == b"\x00\xff"
    assert [each.message_id for each in bus.published("things")] == ["e-1", "e-2"]


def test_a_codec_leaves_the_types_of_others() -> None:
    for codec in (Msgspec(), Protobuf(), avro(), CloudEvents()):
        assert codec.reader(dict) is None
        assert codec.message({"a": 1}) is None


async def test_another_message_of_protobuf_is_parked() -> None:
    other = Int32Value(value=1)
    found, bus = await there_and_back(Protobuf(), StringValue, other)
    assert found == []
    bus.assert_parked("things", "all", count=1)


def test_the_writers_schema_is_resolved_and_asked_for_once() -> None:
    fake = FakeRegistry()
    older = {**SCHEMA, "fields": SCHEMA["fields"][:1]}
    old = Avro(fake.client(), {Order: older}).message(Order(3, "dropped"))
    assert old is not None
    assert old.body[:5] == b"\x00\x00\x00\x00\x01"
    bus = MemoryBus()
    with bus.publisher() as publisher, bus.consumer("things", subscription="all") as consumer:
        publisher.send_safe("things", old)
        delivery = consumer.receive(5)
        assert delivery is not None
        read = Avro(fake.client(), {Order: SCHEMA}).reader(Order)
        assert read is not None
        assert [read(delivery), read(delivery)] == [Order(3, "nobody")] * 2
        consumer.ack(delivery)
    assert fake.asked == ["POST /subjects/shop.Order/versions", "GET /schemas/ids/1"]


def test_a_registry_that_is_away_is_no_fault_of_the_message() -> None:
    fake = FakeRegistry()
    codec = Avro(fake.client(), {Order: SCHEMA})
    assert codec.message(Order(1, "a")) is not None
    fake.away = True
    with pytest.raises(RegistryUnavailable):
        Registry("", client=fake.client()._http).schema(1)
    assert codec.message(Order(2, "b")) is not None  # its number is known
    with pytest.raises(MessageInvalid, match="Order is not of its schema"):
        codec.message(Order("x", "a"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other",
    [
        httpx.Response(404, text="<html>"),
        httpx.Response(404, json={"message": "no route"}),
        httpx.Response(401, json={"error_code": 401}),
        httpx.Response(200, json=["x"]),
        httpx.Response(200, json={"schema": "{"}),
    ],
)
def test_an_answer_that_is_none_of_a_registry_parks_nothing(other: httpx.Response) -> None:
    fake = FakeRegistry()
    fake.other = other
    with pytest.raises(RegistryUnavailable):
        fake.client().schema(1)
    with pytest.raises(RegistryUnavailable):
        fake.client().register("shop.Order", SCHEMA)


def test_a_schema_that_the_registry_refuses_is_told_to_who_publishes() -> None:
    fake = FakeRegistry()
    fake.other = httpx.Response(409, json={"error_code": 409, "message": "incompatible"})
    with pytest.raises(MessageInvalid, match=r"refuses the schema of shop\.Order: 409"):
        Avro(fake.client(), {Order: SCHEMA}).message(Order(1, "a"))


FIELDS = {"cloudEvents_specversion": "1.0", "cloudEvents_type": "t", "cloudEvents_source": "s"}


@pytest.mark.parametrize(
    "message",
    [
        Message(body=b"x", headers={**FIELDS, "cloudEvents_fooBar": "1"}),
        Message(body=b"x", headers={"cloudEvents_specversion": "1.0"}),
        Message(body=b"x", headers={**FIELDS, "cloudEvents_time": "2020-01-01T00:00:00"}),
        Message(body=b"[" * 100_000, content_type="application/cloudevents+json"),
    ],
)
def test_what_is_no_event_is_a_wrong_payload(message: Message) -> None:
    read = CloudEvents().reader(CloudEvent)
    assert read is not None
    bus = MemoryBus()
    with bus.publisher() as publisher, bus.consumer("things", subscription="all") as consumer:
        publisher.send_safe("things", message)
        delivery = consumer.receive(5)
        assert delivery is not None
        with pytest.raises(WrongPayload):
            read(delivery)
        consumer.ack(delivery)


def test_what_is_written_is_avro() -> None:
    import io

    message = avro().message(Order(17, "ann"))
    assert message is not None
    read = fastavro.schemaless_reader(io.BytesIO(message.body[5:]), SCHEMA, None)
    assert read == {"number": 17, "customer": "ann"}


texts = st.text(
    st.characters(min_codepoint=0x20, exclude_categories=("Cs", "Cn", "Cc")),
    min_size=1,
    max_size=30,
)
attributes = st.fixed_dictionaries(
    {"id": texts, "type": texts, "source": st.just("/shop")},
    optional={"subject": texts, "myext": texts},
)
data = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), min_size=1)


def event(given_attributes: dict[str, Any], body: Any) -> CloudEvent:
    found = {"specversion": "1.0", "datacontenttype": "application/json"} | given_attributes
    return CloudEvent(found, body)


def delivered(message: Message) -> Delivery:
    source = Subscription(Topic("orders"), "billing")
    assert parse_destination("orders") == source.topic
    return Delivery(message, Receipt("mb1:5672", 1, 1), source)


def plain(found: Any) -> dict[str, Any]:
    return {k: v for k, v in found.get_attributes().items() if v is not None}


@given(attributes, data)
def test_what_the_official_library_writes_comes_back_as_the_same_event(
    named: dict[str, str], body: dict[str, Any]
) -> None:
    sent = event(named, body)
    binary = to_binary(sent, JSONFormat())
    headers = [(name.lower(), value) for name, value in binary.headers.items()]
    kind = dict(headers)["content-type"]
    for message in (
        cloudevents.of_headers(headers, bytes(binary.body), kind),
        cloudevents.of_json(json.loads(to_structured(sent, JSONFormat()).body)),
    ):
        back = json.dumps(cloudevents.as_event(delivered(message))).encode()
        read = from_structured(
            HTTPMessage({"content-type": cloudevents.STRUCTURED}, back), JSONFormat()
        )
        assert plain(read) == plain(sent)
        assert read.get_data() == body


def test_the_id_is_the_messages_where_it_may_be_one() -> None:
    good = cloudevents.of_json(
        {"specversion": "1.0", "id": "a-1", "type": "t", "source": "/s", "partitionkey": "c7"}
    )
    assert (good.message_id, good.key) == ("a-1", "c7")
    assert "cloudEvents_id" not in good.headers
    other = cloudevents.of_json({"specversion": "1.0", "id": "ä 1", "type": "t", "source": "/s"})
    assert (other.message_id, other.headers["cloudEvents_id"]) == ("", "ä 1")


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"specversion": "0.3", "id": "1", "type": "t", "source": "s"},
        {"specversion": "1.0", "id": "", "type": "t", "source": "s"},
        {"specversion": "1.0", "id": "1", "type": "t", "source": "s", "Upper": "x"},
        {"specversion": "1.0", "id": "1", "type": "t", "source": "s", "ext": {}},
        {"specversion": "1.0", "id": "1", "type": "t", "source": "s", "ext": 1 << 40},
        {"specversion": "1.0", "id": "1", "type": "t", "source": "s", "data_base64": "?"},
        {"specversion": "1.0", "id": "1", "type": "t", "source": "s", "datacontenttype": 1},
        [],
        "x",
    ],
)
def test_what_is_no_event_is_refused(wrong: Any) -> None:
    with pytest.raises(MessageInvalid):
        cloudevents.of_json(wrong)


def test_a_message_that_was_no_event_becomes_one() -> None:
    found = cloudevents.as_event(delivered(Message(body=b"\xff", message_id="7", key="k")))
    assert found["source"] == "/orders/billing"
    assert (found["id"], found["partitionkey"], found["data_base64"]) == ("7", "k", "/w==")


@pytest.mark.parametrize(
    "body",
    [b"NaN", b'{"a": [Infinity]}', b"1" * 5_000, b"{", b"\xff", b"[" * 100_000],
    ids=["nan", "infinity", "digits", "cut off", "binary", "deep"],
)
def test_a_body_that_no_reader_of_json_takes_travels_as_bytes(body: bytes) -> None:
    message = Message(body=body, content_type="application/json")
    event = cloudevents.as_event(delivered(message))
    assert (base64.b64decode(event["data_base64"]), "data" in event) == (body, False)


def deep(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.parametrize(
    "data", [math.nan, [[math.inf]], deep(10_000)], ids=["nan", "infinity", "deep"]
)
def test_data_that_no_json_has_is_refused(data: Any) -> None:
    event = {"specversion": "1.0", "id": "1", "type": "t", "source": "/s", "data": data}
    with pytest.raises(MessageInvalid, match="data: "):
        cloudevents.of_json(event)


def test_half_of_a_pair_stays_json() -> None:
    event = {"specversion": "1.0", "id": "1", "type": "t", "source": "/s", "data": {"a": "\ud800"}}
    assert json.loads(cloudevents.of_json(event).body) == event["data"]


def test_however_deep_a_body_is_an_event_can_be_written_among_others() -> None:
    for depth in (10, 290, *range(600, 1_000, 10), 10_000):
        body = b"[" * depth + b"]" * depth
        message = Message(body=body, content_type="application/json")
        event = cloudevents.as_event(delivered(message))
        assert json.dumps({"deliveries": [{"lease": "x", "event": event}]})
        assert "data" in event or base64.b64decode(event["data_base64"]) == body
