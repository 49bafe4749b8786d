"""Messages of other AMQP clients: their codings, their JSON, their events."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest

from messagebus import App, Message, WrongPayload
from messagebus._io.amqp.properties import (
    ALONE,
    IN_BATCH,
    decode,
    encode,
    encode_entry,
    read_stamp_ms,
)
from messagebus.envelope import as_envelope, read_envelope, write_envelope
from messagebus.integrations import cloudevents
from messagebus.message import Delivery
from messagebus.testing import MemoryBus
from tests.support.eventually import eventually_async

WITHIN_S = 60.0


@pytest.fixture
def memory_bus() -> Iterator[MemoryBus]:
    made = MemoryBus()
    yield made
    made.close()


PACKED = Message(
    body=gzip.compress(b"{}"),
    content_encoding="gzip",
    app_id="shop",
    type="order",
    headers={"a": 1},
)


def test_coding_and_application_are_carried_on_the_wire() -> None:
    raw = encode(PACKED, "1", 1_700_000_000)
    found = decode(raw, PACKED.body)
    assert (found.content_encoding, found.app_id, found.type) == ("gzip", "shop", "order")
    assert (ALONE.content_encoding(raw), read_stamp_ms(raw)) == ("gzip", 1_700_000_000_000)
    entry = encode_entry(PACKED, "1")
    assert IN_BATCH.message(entry, b"").app_id == "shop"
    assert IN_BATCH.content_encoding(encode_entry(Message(body=b""), "1")) == ""


async def test_a_message_that_is_consumed_and_published_again_is_the_same() -> None:
    line = write_envelope(as_envelope(PACKED, destination="orders", time_ms=0))
    assert json.loads(line)["content_encoding"] == "gzip"
    assert read_envelope(line).message == PACKED


async def test_a_publisher_and_a_consumer_carry_them(memory_bus: MemoryBus) -> None:
    memory_bus.declare("orders/a")
    async with (
        memory_bus.async_publisher() as publisher,
        memory_bus.async_consumer("orders", subscription="a") as consumer,
    ):
        await publisher.send_safe("orders", b"x", content_encoding="br", app_id="shop")
        delivery = await consumer.receive(WITHIN_S)
        assert delivery is not None
        assert (delivery.content_encoding, delivery.message.app_id) == ("br", "shop")
        consumer.ack(delivery)


JSON_TYPES = [
    *("", "application/json", "text/json; charset=utf-8", "application/vnd.masstransit+json"),
    "APPLICATION/JSON",
]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
@pytest.mark.parametrize("content_type", JSON_TYPES)
async def test_what_is_json_for_a_handler_is_json_for_as_json(
    memory_bus: MemoryBus, content_type: str, mark: bytes
) -> None:
    message = Message(body=mark + b'{"n": 1}', content_type=content_type)
    assert message.as_json() == {"n": 1}
    memory_bus.declare("orders/a")
    app, found = App(), list[Any]()
    app.use(memory_bus)

    @app.subscriber("orders", subscription="a")
    async def handle(order: dict[str, int]) -> None:
        found.append(order)

    async with app:
        await app.publish("orders", message)
        await eventually_async(lambda: found, within_s=WITHIN_S)
    assert found == [{"n": 1}]


IN_UTF_16 = [
    ("application/json; charset=utf-16", "", "utf-16"),
    ("application/vnd.masstransit+json; charset=UTF-16LE", "", "utf-16-le"),
    ("application/json", "utf-16", "utf-16"),
    ("application/json; charset=iso-8859-1", "", "iso-8859-1"),
    ("application/json", "gzip", "utf-8"),  # its body is none: what is readable is read
]


@pytest.mark.parametrize(("content_type", "content_encoding", "coding"), IN_UTF_16)
async def test_json_is_read_in_the_charset_that_it_says(
    memory_bus: MemoryBus, content_type: str, content_encoding: str, coding: str
) -> None:
    body = '{"name": "grün"}'.encode(coding)
    message = Message(body=body, content_type=content_type, content_encoding=content_encoding)
    assert message.as_json() == {"name": "grün"}
    memory_bus.declare("orders/a")
    app, found = App(), list[Any]()
    app.use(memory_bus)

    @app.subscriber("orders", subscription="a")
    async def handle(order: dict[str, str]) -> None:
        found.append(order)

    async with app:
        await app.publish("orders", message)
        await eventually_async(lambda: found, within_s=WITHIN_S)
    assert found == [{"name": "grün"}]


@pytest.mark.parametrize("charset", ["no-such", "utf-16"])
def test_json_that_is_not_in_its_charset_is_a_wrong_payload(charset: str) -> None:
    message = Message(body=b"{}x", content_type=f"application/json; charset={charset}")
    with pytest.raises(WrongPayload, match=f"not {charset}|no such charset"):
        message.as_json()


def test_a_charset_in_the_content_encoding_counts_where_the_type_has_none() -> None:
    text = "grün".encode("latin-1")
    assert (
        Message(body=text, content_type="text/plain", content_encoding="iso-8859-1").as_text()
        == "grün"
    )
    told = Message(
        body="grün".encode(), content_type="text/plain; charset=utf-8", content_encoding="latin-1"
    )
    assert told.as_text() == "grün"
    with pytest.raises(WrongPayload, match="unpack the body"):
        Message(
            body=gzip.compress(b"x"), content_type="text/plain", content_encoding="gzip"
        ).as_text()


# CloudEvents.
EVENT = {"specversion": "1.0", "id": "7", "source": "/shop", "type": "order.placed"}


async def delivered(bus: MemoryBus, message: Message) -> Delivery:
    bus.declare("events/a")
    async with bus.async_publisher() as publisher:
        await publisher.send_safe("events", message)
    async with bus.async_consumer("events", subscription="a") as consumer:
        delivery = await consumer.receive(WITHIN_S)
        assert delivery is not None
        consumer.ack(delivery)
        return delivery


@pytest.mark.parametrize("prefix", ["cloudEvents_", "cloudEvents:"])
async def test_events_of_both_prefixes_keep_their_attributes(
    memory_bus: MemoryBus, prefix: str
) -> None:
    headers = {f"{prefix}{name}": value for name, value in EVENT.items()}
    event = cloudevents.as_event(await delivered(memory_bus, Message(body=b"x", headers=headers)))
    assert {name: event[name] for name in EVENT} == EVENT


async def test_a_structured_event_passes_as_it_is(memory_bus: MemoryBus) -> None:
    event = {**EVENT, "data": {"n": 1}}
    body = json.dumps(event).encode()
    delivery = await delivered(
        memory_bus, Message(body=body, content_type="application/cloudevents+json; charset=utf-8")
    )
    assert cloudevents.as_event(delivery) == event
    assert cloudevents.binary_headers(delivery) == {"content-type": delivery.content_type}


async def test_an_event_has_an_id_and_no_control_characters(memory_bus: MemoryBus) -> None:
    delivery = await delivered(memory_bus, Message(body=b"x", type="a\x1b[31m"))
    object.__setattr__(delivery.message, "message_id", "")  # as of a client that gives none
    event = cloudevents.as_event(delivery)
    assert event["id"]
    assert event["type"] == "a\ufffd[31m"
