"""messagebus.message: messages to send, and deliveries."""

from __future__ import annotations

import dataclasses
import json
from datetime import date
from decimal import Decimal
from typing import Any

import pika.data
import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus._io.amqp.properties import ALONE
from messagebus.core.deliveries import Ledger, Receipt
from messagebus.core.headers import OF_BROKERS
from messagebus.destination import Queue
from messagebus.errors import MessageInvalid, WrongPayload
from messagebus.handling import retry_headers
from messagebus.message import BODY_BYTES_MAX, Delivery, Message

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(blacklist_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(blacklist_categories=["Cs"]), max_size=5), inner)
    ),
    max_leaves=10,
)


@given(st.text(st.characters(blacklist_categories=["Cs"])))
def test_a_text_arrives_as_it_was(text: str) -> None:
    assert Message.text(text).as_text() == text


@given(json_values)
def test_a_json_value_arrives_as_it_was(value: Any) -> None:
    assert Message.json(value).as_json() == value


@given(st.binary())
def test_bytes_arrive_as_they_were(body: bytes) -> None:
    assert Message.binary(body).as_binary() == body


@pytest.mark.parametrize("content_type", ["application/json", "Application/JSON; charset=utf-8"])
def test_json_of_others_is_json(content_type: str) -> None:
    assert Message(body=b"[1]", content_type=content_type).as_json() == [1]


@pytest.mark.parametrize(
    ("message", "getter"),
    [
        (Message.text("x"), "as_json"),
        (Message.text("x"), "as_binary"),
        (Message.json("x"), "as_text"),
        (Message.json("x"), "as_binary"),
        (Message.binary(b"x"), "as_text"),
        (Message.binary(b"x"), "as_json"),
        (Message(body=b"{}\n", content_type="application/json-seq"), "as_json"),
        (Message(body=b"\xff", content_type="text/plain"), "as_text"),
        (Message(body=b"\xff", content_type="application/json"), "as_json"),
        (Message(body=b"{", content_type="application/json"), "as_json"),
        (Message(body=b"[" * 200_000, content_type="application/json"), "as_json"),
    ],
)
def test_a_wrong_getter_raises(message: Message, getter: str) -> None:
    with pytest.raises(WrongPayload):
        getattr(message, getter)()


def _nested(depth: int) -> dict[str, Any]:
    return {} if depth == 0 else {"x": _nested(depth - 1)}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"body": "text"}, "body is str, not bytes"),
        ({"body": bytearray(b"x")}, "body is bytearray"),
        ({"body": bytes(BODY_BYTES_MAX + 1)}, f"at most {BODY_BYTES_MAX}"),
        ({"message_id": "x" * 256}, "message_id of 256 bytes: at most 255"),
        ({"message_id": "ü" * 128}, "message_id of 256 bytes"),
        ({"message_id": 7}, "message_id is int, not str"),
        ({"key": "\ud800"}, "key is not Unicode text"),
        ({"priority": 10}, "priority 10: a whole number from 0 to 9"),
        ({"priority": -1}, "priority -1"),
        ({"priority": True}, "priority True"),
        ({"priority": 1.0}, "priority 1.0"),
        ({"ttl_s": -1}, "ttl_s -1"),
        ({"ttl_s": 4_294_968}, "ttl_s: at most 4,294,967 s"),
        ({"headers": 7}, "headers is int, not a mapping"),
        ({"headers": {"mb-key": 1}}, "'mb-' belongs to the library"),
        *(
            ({"headers": {name: ["a"]}}, f"header '{name}': brokers route or count by it")
            for name in sorted(OF_BROKERS)
        ),
        ({"headers": {7: 1}}, "header name is int"),
        ({"headers": {"x": 1.5}}, "header 'x': float"),
        ({"headers": {"x": 1 << 63}}, "header 'x': int of that value"),
        ({"headers": {"x": object()}}, "header 'x': object"),
        ({"headers": {"x": ["\ud800"]}}, "is not Unicode text"),
        ({"headers": {"x": "y" * 70_000}}, "at most 65536"),
        ({"headers": _nested(30)}, "nested more than 16 deep"),
    ],
)
def test_what_cannot_be_sent_is_refused_with_the_reason(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(MessageInvalid, match=told):
        Message(**{"body": b"", **fields})


@pytest.mark.parametrize(
    "make",
    [
        lambda: Message.text("\ud800"),
        lambda: Message.text(7),  # type: ignore[arg-type]
        lambda: Message.json(object()),
        lambda: Message.json(float("nan")),
        lambda: Message.json("\ud800"),
        lambda: Message.json(_deep()),
        lambda: Message.binary("x"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_payload_is_refused(make: Any) -> None:
    with pytest.raises(MessageInvalid):
        make()


def _deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(20_000):
        value = [value]
    return value


def test_the_largest_of_everything_is_accepted() -> None:
    Message(
        body=bytes(BODY_BYTES_MAX),
        message_id="ü" * 127,
        key="x" * 255,
        priority=9,
        ttl_s=((1 << 32) - 1) / 1000,
        headers={"x": [None, True, (1 << 63) - 1, -(1 << 63), b"y", {"z": "y" * 60_000}]},
    )


def test_headers_are_not_changed() -> None:
    headers: dict[str, Any] = {"x": {"y": [1]}}
    message = Message(body=b"", headers=headers)
    assert message.headers == headers == {"x": {"y": [1]}}


def test_a_message_is_a_value() -> None:
    assert Message.text("x", key="k") == Message.text("x", key="k")
    with pytest.raises(dataclasses.FrozenInstanceError):
        Message.text("x").body = b"y"  # type: ignore[misc]


def test_json_is_compact_and_readable() -> None:
    assert Message.json({"ü": [1, 2]}).body == '{"ü":[1,2]}'.encode()
    assert json.loads(Message.json({"ü": [1, 2]}).body) == {"ü": [1, 2]}


def test_a_delivery_says_where_it_is_from() -> None:
    delivery = Delivery(
        message=Message.text("x", message_id="id"),
        receipt=Receipt("mb1:5672", 3, 7),
        source=Queue("jobs"),
        received_ns=1,
    )
    assert (delivery.broker, delivery.message_id, delivery.body) == ("mb1:5672", "id", b"x")
    assert delivery.receipt == Receipt("mb1:5672", 3, 7)
    assert "id" in repr(delivery)


@pytest.mark.parametrize(
    ("forged", "attempt"),
    [((1 << 63) - 1, 1_000_000), (-(1 << 63), 1), (0, 1), (True, 1), ("7", 1), (7, 7)],
)
def test_forged_marks_give_numbers_that_can_be_written_again(forged: object, attempt: int) -> None:
    table: list[bytes] = []
    pika.data.encode_table(table, {"mb-attempt": forged, "mb-first-ms": forged})
    raw = (1 << 13).to_bytes(2) + b"".join(table)
    ledger = Ledger("mb1:5672", 1)
    delivery = Delivery._arrived(ledger, 1, 0, Queue("jobs"), False, 0, raw, b"", ALONE)
    assert delivery.attempt == attempt
    assert 0 < delivery.first_ms < 1 << 51
    pika.data.encode_table([], retry_headers(delivery, delivery.attempt + 1, "why"))


def test_json_takes_the_values_that_an_app_publishes() -> None:
    value = {"price": Decimal("1.50"), "day": date(2030, 1, 31), "tags": {"a"}}
    assert Message.json(value).body == b'{"price":"1.50","day":"2030-01-31","tags":["a"]}'
