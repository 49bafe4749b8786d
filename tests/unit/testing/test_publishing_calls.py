"""Every call that publishes takes the same payloads: those of Publisher, AsyncPublisher, App and Outbox."""

from __future__ import annotations

import asyncio
import dataclasses
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from messagebus import App, Message, MessageInvalid, Outbox, message
from messagebus.outbox.rows import to_publish
from messagebus.outbox.table import _READ_ALL
from messagebus.testing import MemoryBus


@dataclasses.dataclass(frozen=True)
class Order:
    number: int


WITHIN_S = 30
# Payload -> the body and content type that arrive.
PAYLOADS: list[tuple[Any, tuple[bytes, str]]] = [
    (b"\0\xff", (b"\0\xff", "application/octet-stream")),
    ("text", (b"text", "text/plain; charset=utf-8")),
    ({"n": 1}, (b'{"n":1}', "application/json")),
    ([1, "two"], (b'[1,"two"]', "application/json")),
    (Order(7), (b'{"number":7}', "application/json")),
    (17, (b"17", "application/json")),
    (None, (b"null", "application/json")),
    (Message(body=b"x", content_type="image/png"), (b"x", "image/png")),
]
Publish = Callable[[MemoryBus, Any, dict[str, Any]], Message]


def arrived(bus: MemoryBus) -> Message:
    with bus.consumer("orders", subscription="billing") as consumer:
        delivery = consumer.receive(timeout_s=WITHIN_S)
    assert delivery is not None
    return delivery.message


def blocking(call: str) -> Publish:
    def publish(bus: MemoryBus, payload: Any, options: dict[str, Any]) -> Message:
        with bus.publisher() as publisher:
            payloads = [payload] if call == "send_many" else payload
            getattr(publisher, call)("orders", payloads, **options)
        return arrived(bus)

    return publish


def on_a_loop(call: str) -> Publish:
    async def publish_on_it(bus: MemoryBus, payload: Any, options: dict[str, Any]) -> None:
        async with bus.async_publisher() as publisher:
            payloads = [payload] if call == "send_many" else payload
            await getattr(publisher, call)("orders", payloads, **options)

    def publish(bus: MemoryBus, payload: Any, options: dict[str, Any]) -> Message:
        asyncio.run(publish_on_it(bus, payload, options))
        return arrived(bus)

    return publish


def by_app(bus: MemoryBus, payload: Any, options: dict[str, Any]) -> Message:
    async def publish() -> None:
        app = App()
        app.use(bus)
        async with app:
            await app.publish("orders", payload, **options)

    asyncio.run(publish())
    return arrived(bus)


def by_outbox(_bus: MemoryBus, payload: Any, options: dict[str, Any]) -> Message:
    """Read the row as a relay does."""
    with closing(sqlite3.connect(":memory:")) as database:
        outbox = Outbox()
        for statement in outbox.ddl("sqlite"):
            database.execute(statement)
        outbox.add(database, "orders", payload, **options)
        rows = database.execute(f"SELECT {_READ_ALL} FROM {outbox.table}").fetchall()
    (row,) = rows
    return to_publish(row).message


CALLS: dict[str, Publish] = {
    **{
        f"Publisher.{call}": blocking(call) for call in ("send", "submit", "send_safe", "send_many")
    },
    **{
        f"AsyncPublisher.{call}": on_a_loop(call)
        for call in ("send", "submit", "send_safe", "send_many")
    },
    "App.publish": by_app,
    "Outbox.add": by_outbox,
}


@pytest.mark.parametrize("publish", CALLS.values(), ids=CALLS.keys())
def test_every_publishing_call_takes_every_payload(publish: Publish) -> None:
    for payload, expected in PAYLOADS:
        bus = MemoryBus()
        bus.declare("orders/billing")
        found = publish(bus, payload, {})
        assert (found.body, found.content_type) == expected, payload


@pytest.mark.parametrize("publish", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize("payload", [object(), bytearray(b"x"), {"n": float("nan")}])
def test_every_publishing_call_refuses_what_json_cannot_say(publish: Publish, payload: Any) -> None:
    with pytest.raises(MessageInvalid, match="is not JSON"):
        publish(MemoryBus(), payload, {})


# Option -> its value, and the field of the message that arrives.
OPTIONS: dict[str, tuple[Any, str, Any]] = {
    "headers": ({"a": 1}, "headers", {"a": 1}),
    "key": ("k", "key", "k"),
    "priority": (3, "priority", 3),
    "ttl_s": (600, "ttl_s", pytest.approx(600, abs=60)),  # a row's life has begun
    "correlation_id": ("c", "correlation_id", "c"),
    "reply_to": ("r", "reply_to", "r"),
    "message_id": ("m", "message_id", "m"),
    "type": ("t", "type", "t"),
    "content_encoding": ("gzip", "content_encoding", "gzip"),
    "app_id": ("a", "app_id", "a"),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_publishing_call_takes_every_option_and_it_arrives(name: str) -> None:
    taken = OPTIONS.keys() - ({"message_id"} if name.endswith("send_many") else set())
    for payload in (b"x", Message(body=b"x", key="other", headers={"b": 2}, priority=9)):
        bus = MemoryBus()
        bus.declare("orders/billing")
        found = CALLS[name](bus, payload, {option: OPTIONS[option][0] for option in taken})
        for option in taken:
            _, field, expected = OPTIONS[option]
            value = getattr(found, field)
            if field == "headers":  # a row has the library's own too
                value = {key: each for key, each in value.items() if not key.startswith("mb-")}
            assert value == expected, option


def test_all_options_that_a_message_shows_are_tried_here() -> None:
    elsewhere = {"deliver_after_s", "deliver_at", "redundant"}
    assert OPTIONS.keys() | elsewhere == set(message.OPTIONS)


def test_an_option_that_is_not_given_leaves_the_messages_own() -> None:
    own = Message(body=b"x", key="k", headers={"b": 2}, priority=9, ttl_s=60)
    for name, publish in CALLS.items():
        bus = MemoryBus()
        bus.declare("orders/billing")
        found = publish(bus, own, {"key": None, "priority": None, "type": "t"})
        assert (found.key, found.priority, found.type) == ("k", 9, "t"), name


@pytest.mark.parametrize("redundant", [True, "preferred"])
def test_a_redundant_publish_takes_every_payload(redundant: bool | str) -> None:
    for payload, (body, content_type) in PAYLOADS:
        bus = MemoryBus(brokers=2)
        bus.declare("queue:jobs")
        with bus.publisher() as publisher:
            publisher.send_safe("queue:jobs", payload, redundant=redundant)
        with bus.consumer("queue:jobs") as consumer:
            delivery = consumer.receive(timeout_s=WITHIN_S)
        assert delivery is not None
        assert (delivery.body, delivery.content_type) == (body, content_type), payload
