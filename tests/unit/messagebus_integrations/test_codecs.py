"""Codecs of the integrations: values out and in, over brokers in memory, and what cannot be read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import fastavro
import httpx
import msgspec
import pytest
from cloudevents.core.v1.event import CloudEvent
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

from messagebus import App, Message, MessageInvalid, RetryPolicy
from messagebus.testing import MemoryBus
from messagebus_integrations.codecs import (
    Avro,
    CloudEvents,
    Msgspec,
    Protobuf,
    Registry,
    RegistryUnavailable,
)
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

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(f"{request.method} {request.url.path}")
        if self.away:
            return httpx.Response(503)
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


def test_what_is_written_is_avro() -> None:
    import io

    message = avro().message(Order(17, "ann"))
    assert message is not None
    read = fastavro.schemaless_reader(io.BytesIO(message.body[5:]), SCHEMA, None)
    assert read == {"number": 17, "customer": "ann"}
