"""_io.wire: a message survives the wire, and nothing that arrives can raise."""

from __future__ import annotations

import copy
from datetime import datetime
from decimal import Decimal
from typing import Any

import pika
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messagebus._io.wire import KEY_HEADER, from_amqp, to_properties
from messagebus.message import Message

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=60)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(
    lambda name: not name.startswith("mb-")
)
WHOLE = st.integers(-(2**63), 2**63 - 1)
VALUES = st.recursive(
    st.none() | st.booleans() | WHOLE | TEXTS | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
MESSAGES = st.builds(
    Message,
    body=st.binary(max_size=50),
    content_type=st.sampled_from(["text/plain; charset=utf-8", "application/json", "x/é"]),
    message_id=TEXTS.filter(bool),
    headers=st.dictionaries(NAMES, VALUES, max_size=4),
    key=TEXTS,
    priority=st.none() | st.integers(0, 9),
    correlation_id=TEXTS,
    reply_to=TEXTS,
    type=TEXTS,
    expires_after_ms=st.none() | st.integers(0, 2**32 - 1),
)


def over_the_wire(properties: pika.BasicProperties) -> pika.BasicProperties:
    arrived = pika.BasicProperties()
    arrived.decode(b"".join(properties.encode()))
    return arrived


@given(MESSAGES)
@settings(max_examples=200, deadline=None)
def test_a_message_survives_the_wire_and_is_not_changed(message: Message) -> None:
    before = copy.deepcopy(message)
    arrived = from_amqp(over_the_wire(to_properties(message, message.message_id)), message.body)
    assert arrived == message == before
    assert to_properties(arrived, arrived.message_id).headers == (
        to_properties(message, message.message_id).headers
    )


def test_every_message_is_persistent_and_says_when_it_was_made() -> None:
    properties = to_properties(Message(body=b""), "id")
    assert properties.delivery_mode == 2
    assert properties.timestamp > 0
    assert properties.message_id == "id"


def test_what_is_not_said_is_not_sent() -> None:
    properties = to_properties(Message(body=b"", content_type=""), "id")
    absent = ("content_type", "headers", "priority", "correlation_id", "reply_to", "expiration")
    assert [getattr(properties, name) for name in absent] == [None] * len(absent)


def test_the_key_is_carried_in_a_header_that_the_application_does_not_see() -> None:
    properties = to_properties(Message(body=b"", key="k", headers={"a": 1}), "id")
    assert properties.headers == {"a": 1, KEY_HEADER: "k"}
    arrived = from_amqp(properties, b"")
    assert (arrived.key, arrived.headers) == ("k", {"a": 1})


HOSTILE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.just(Decimal(1)),
    st.just(datetime(2026, 1, 1)),
    st.lists(st.integers(), max_size=2),
)


@given(
    st.fixed_dictionaries(
        dict.fromkeys(
            (
                "content_type",
                "message_id",
                "correlation_id",
                "reply_to",
                "type",
                "expiration",
                "priority",
            ),
            HOSTILE,
        )
    ),
    st.none() | st.dictionaries(st.text(max_size=8) | st.binary(max_size=8), HOSTILE, max_size=4),
    HOSTILE,
)
@settings(max_examples=200, deadline=None)
def test_whatever_other_clients_set_arrives_as_far_as_it_makes_sense(
    fields: dict[str, Any], headers: dict[Any, Any] | None, key: Any
) -> None:
    properties = pika.BasicProperties(headers=headers)
    for name, value in fields.items():
        setattr(properties, name, value)
    if headers is not None:
        headers[KEY_HEADER] = key
    message = from_amqp(properties, b"body")
    for name in ("content_type", "message_id", "correlation_id", "reply_to", "type", "key"):
        assert isinstance(getattr(message, name), str)
    assert message.priority is None or message.priority in range(10)
    assert message.expires_after_ms is None or message.expires_after_ms >= 0
    assert all(isinstance(name, str) and not name.startswith("mb-") for name in message.headers)


@pytest.mark.parametrize(
    ("expiration", "expected"),
    [("0", 0), ("60000", 60_000), (b"7", 7), ("-1", None), ("1.5", None), ("", None), (None, None)],
)
def test_an_expiration_that_is_no_number_is_absent(expiration: Any, expected: int | None) -> None:
    properties = pika.BasicProperties()
    properties.expiration = expiration
    assert from_amqp(properties, b"").expires_after_ms == expected


def test_texts_that_are_not_utf_8_are_read_with_replacements() -> None:
    properties = pika.BasicProperties()
    properties.message_id = b"\xffid"
    assert from_amqp(properties, b"").message_id == "\ufffdid"
