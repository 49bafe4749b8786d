"""_io.amqp.properties: a message survives the wire, and nothing that arrives can raise."""

from __future__ import annotations

import copy
from datetime import datetime
from decimal import Decimal
from typing import Any

import pika
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messagebus._io.amqp.properties import (
    ALONE,
    IN_BATCH,
    KEY_HEADER,
    OF_DEAD_LETTERING,
    bare_entry_shape,
    bare_shape,
    decode,
    encode,
    encode_entry,
    is_bare,
    is_batch,
    read_content_type,
    read_key,
    read_message_id,
    with_headers,
)
from messagebus.message import Message
from tests.support.examples import examples

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=60)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(
    lambda name: not name.startswith(("mb-", *OF_DEAD_LETTERING))
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
    ttl_ms=st.none() | st.integers(0, 2**32 - 1),
)


def as_pika_reads(raw: bytes) -> pika.BasicProperties:
    properties = pika.BasicProperties()
    properties.decode(raw)
    return properties


def as_pika_writes(properties: pika.BasicProperties) -> bytes:
    return b"".join(properties.encode())


@given(MESSAGES)
@settings(max_examples=examples(200), deadline=None)
def test_a_message_survives_the_wire_and_is_not_changed(message: Message) -> None:
    before = copy.deepcopy(message)
    raw = encode(message, message.message_id, 17)
    assert decode(raw, message.body) == message == before
    assert read_message_id(raw) == message.message_id
    assert read_content_type(raw) == message.content_type
    assert read_key(raw) in (message.key, None if message.headers else message.key)
    entry = encode_entry(message, message.message_id)
    assert IN_BATCH.message(entry, message.body) == message
    assert IN_BATCH.message_id(entry) == message.message_id


@given(MESSAGES, st.integers(0, 2**33), st.booleans())
@settings(max_examples=examples(200), deadline=None)
def test_the_bytes_are_those_that_pika_writes(
    message: Message, stamp_s: int, persistent: bool
) -> None:
    headers: dict[str, Any] = dict(message.headers)
    if message.key:
        headers[KEY_HEADER] = message.key
    expires = message.ttl_ms
    pikas = pika.BasicProperties(
        content_type=message.content_type,
        headers=headers or None,
        delivery_mode=2 if persistent else 1,
        priority=message.priority,
        correlation_id=message.correlation_id or None,
        reply_to=message.reply_to or None,
        expiration=None if expires is None else str(expires),
        message_id=message.message_id,
        timestamp=stamp_s,
        type=message.type or None,
    )
    raw = encode(message, message.message_id, stamp_s, persistent=persistent)
    assert raw == as_pika_writes(pikas)


@pytest.mark.parametrize("content_type", ["", "application/octet-stream", "x/" + "0" * 40])
def test_a_bare_message_is_its_shape_around_its_id(content_type: str) -> None:
    message_id, message = "ab" * 16, Message(body=b"", content_type=content_type)
    assert is_bare(message)
    before, after = bare_shape(content_type, 17)
    assert before + message_id.encode() + after == encode(message, message_id, 17)
    before, after = bare_entry_shape(content_type)
    assert before + message_id.encode() + after == encode_entry(message, message_id)


@pytest.mark.parametrize(
    "fields",
    [{"key": "k"}, {"headers": {"a": 1}}, {"priority": 0}, {"message_id": "m"}, {"type": "t"}],
)
def test_what_says_more_than_its_body_is_not_bare(fields: dict[str, Any]) -> None:
    assert not is_bare(Message(body=b"", **fields))


def test_every_message_is_persistent_and_says_when_it_was_made() -> None:
    properties = as_pika_reads(encode(Message(body=b""), "id", 17))
    assert (properties.delivery_mode, properties.timestamp) == (2, 17)
    assert properties.message_id == "id"


def test_what_is_not_said_is_not_sent() -> None:
    properties = as_pika_reads(encode(Message(body=b"", content_type=""), "id", 17))
    absent = ("content_type", "headers", "priority", "correlation_id", "reply_to", "expiration")
    assert [getattr(properties, name) for name in absent] == [None] * len(absent)


def test_the_key_is_carried_in_a_header_that_the_application_does_not_see() -> None:
    raw = encode(Message(body=b"", key="k", headers={"a": 1}), "id", 17)
    assert as_pika_reads(raw).headers == {"a": 1, KEY_HEADER: "k"}
    arrived = decode(raw, b"")
    assert (arrived.key, arrived.headers) == ("k", {"a": 1})


def test_headers_of_ours_are_added_and_nothing_else_changes() -> None:
    message = Message(body=b"x", key="k", headers={"a": 1}, priority=3)
    marked = with_headers(message, {"mb-park-reason": "why"})
    assert as_pika_reads(encode(marked, "id", 17)).headers == {
        "a": 1,
        "mb-park-reason": "why",
        KEY_HEADER: "k",
    }
    assert message.headers == {"a": 1}


@given(st.binary(max_size=200), st.binary(max_size=5))
@settings(max_examples=examples(500), deadline=None)
def test_no_bytes_whatever_can_raise(raw: bytes, body: bytes) -> None:
    for reading in (ALONE, IN_BATCH):
        assert isinstance(reading.message(raw, body), Message)
        assert isinstance(reading.message_id(raw), str)
    is_batch(raw)


@given(MESSAGES, st.integers(0, 400))
@settings(max_examples=examples(100), deadline=None)
def test_properties_cut_short_are_read_as_far_as_they_go(message: Message, length: int) -> None:
    raw = encode(message, message.message_id, 17)
    assert decode(raw[:length], b"x").body == b"x"


SHORT = st.none() | st.binary(max_size=60)
FOREIGN = st.one_of(
    VALUES,
    st.just(Decimal("1.25")),
    st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)),
)


@given(
    st.fixed_dictionaries(
        dict.fromkeys(("content_type", "message_id", "correlation_id", "reply_to", "type"), SHORT)
    ),
    SHORT,
    st.none() | st.integers(0, 255),
    st.dictionaries(st.text(max_size=8), FOREIGN, max_size=4),
    FOREIGN,
)
@settings(max_examples=examples(200), deadline=None)
def test_whatever_other_clients_set_arrives_as_far_as_it_makes_sense(
    texts: dict[str, bytes | None],
    expiration: bytes | None,
    priority: int | None,
    headers: dict[str, Any],
    key: Any,
) -> None:
    properties = pika.BasicProperties(
        headers={**headers, KEY_HEADER: key}, priority=priority, user_id="u", app_id="a"
    )
    properties.expiration = expiration
    for name, value in texts.items():
        setattr(properties, name, value)
    raw = as_pika_writes(properties)
    message = decode(raw, b"body")
    for name in ("content_type", "message_id", "correlation_id", "reply_to", "type", "key"):
        assert isinstance(getattr(message, name), str)
    assert message.priority is None or message.priority in range(10)
    assert message.ttl_ms is None or message.ttl_ms >= 0
    ours = {name for name in headers if not name.startswith("mb-")}
    assert message.headers.keys() == ours
    assert read_message_id(raw) == message.message_id
    assert read_content_type(raw) == message.content_type
    assert read_key(raw) in (message.key, None)


@pytest.mark.parametrize(
    ("expiration", "expected"),
    [
        ("0", 0),
        ("60000", 60_000),
        (b"7", 7),
        ("-1", None),
        ("1.5", None),
        ("", None),
        ("x" * 99, None),
    ],
)
def test_an_expiration_that_is_no_number_is_absent(expiration: Any, expected: int | None) -> None:
    properties = pika.BasicProperties()
    properties.expiration = expiration
    assert decode(as_pika_writes(properties), b"").ttl_ms == expected


def test_texts_that_are_not_utf_8_are_read_with_replacements() -> None:
    properties = pika.BasicProperties()
    properties.message_id = b"\xffid"
    assert decode(as_pika_writes(properties), b"").message_id == "\ufffdid"


@given(st.binary(max_size=40))
def test_a_content_type_is_read_alone_as_with_all_else(raw: bytes) -> None:
    assert ALONE.content_type(raw) == ALONE.message(raw, b"").content_type
    assert IN_BATCH.content_type(raw) == IN_BATCH.message(raw, b"").content_type
