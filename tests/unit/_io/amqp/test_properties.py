"""Properties and header tables, coded and decoded."""

from __future__ import annotations

import copy
import struct
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pika
import pika.data
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messagebus._io.amqp.header_table import DEPTH_MAX, read_table
from messagebus._io.amqp.properties import (
    ALONE,
    IN_BATCH,
    KEY_HEADER,
    NO_TRACEPARENT,
    STAMP_S_MAX,
    bare_entry_shape,
    bare_shape,
    decode,
    encode,
    encode_entry,
    find_traceparent,
    is_batch,
    read_content_type,
    read_key,
    read_message_id,
    read_stamp_ms,
)
from messagebus.core.headers import OF_BROKERS
from messagebus.message import Message, is_bare
from tests.support.examples import examples

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=60)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(
    lambda name: not name.startswith("mb-") and name not in OF_BROKERS
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
    ttl_s=st.none() | st.integers(0, 2**32 - 1).map(lambda ms: ms / 1000),
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
    expires = None if message.ttl_s is None else round(message.ttl_s * 1000)
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


@pytest.mark.parametrize(
    "stamp_s", [0, STAMP_S_MAX, STAMP_S_MAX + 1, 253_402_300_800, 1 << 40, (1 << 64) - 1]
)
@pytest.mark.parametrize("headers", [{}, {"a": 1}])
def test_a_time_of_sending_has_a_date_in_every_time_zone_or_is_none(
    stamp_s: int, headers: dict[str, Any]
) -> None:
    stamp_ms = read_stamp_ms(encode(Message(body=b"", headers=headers), "id", stamp_s))
    assert stamp_ms == (stamp_s * 1_000 if stamp_s <= STAMP_S_MAX else None)
    for hours in (-12, 14):
        zone = timezone(timedelta(hours=hours))
        assert datetime.fromtimestamp((stamp_ms or 0) / 1_000, zone).year <= 9999


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
    assert message.ttl_s is None or message.ttl_s >= 0
    ours = {name for name in headers if not name.startswith("mb-")}
    assert message.headers.keys() == ours
    assert read_message_id(raw) == message.message_id
    assert read_content_type(raw) == message.content_type
    assert read_key(raw) in (message.key, None)


@pytest.mark.parametrize(
    ("expiration", "expected"),
    [
        ("0", 0),
        ("60000", 60),
        (b"7", 0.007),
        ("-1", None),
        ("1.5", None),
        ("", None),
        ("x" * 99, None),
    ],
)
def test_an_expiration_that_is_no_number_is_absent(expiration: Any, expected: float | None) -> None:
    properties = pika.BasicProperties()
    properties.expiration = expiration
    assert decode(as_pika_writes(properties), b"").ttl_s == expected


def test_keys_that_are_not_utf_8_and_differ_stay_two() -> None:
    raws = [
        as_pika_writes(pika.BasicProperties(headers={**more, KEY_HEADER: key}))
        for key in (b"caf\xe9", b"caf\xe8")
        for more in ({}, {"first": 1})
    ]
    assert [decode(raw, b"").key for raw in raws] == [r"caf\xe9"] * 2 + [r"caf\xe8"] * 2
    assert all(read_key(raw) in (decode(raw, b"").key, None) for raw in raws)


def test_texts_that_are_not_utf_8_are_read_with_replacements() -> None:
    properties = pika.BasicProperties()
    properties.message_id = b"\xffid"
    assert decode(as_pika_writes(properties), b"").message_id == "\ufffdid"


@given(st.binary(max_size=40))
def test_a_content_type_is_read_alone_as_with_all_else(raw: bytes) -> None:
    assert ALONE.content_type(raw) == ALONE.message(raw, b"").content_type
    assert IN_BATCH.content_type(raw) == IN_BATCH.message(raw, b"").content_type


ANY_NAMES = st.text(st.characters(codec="utf-8"), max_size=20)
ANY_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(st.characters(codec="utf-8"), max_size=30)
    | st.binary(max_size=30)
    | st.decimals(-1000, 1000, places=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_NAMES, inner, max_size=3),
    max_leaves=8,
)


def table(*entries: tuple[bytes, bytes]) -> bytes:
    """Encode a table of names and encoded values."""
    whole = b"".join(bytes((len(name),)) + name + value for name, value in entries)
    return struct.pack(">I", len(whole)) + whole


@pytest.mark.parametrize(
    ("encoded", "expected"),
    [
        (b"t\x01", True),
        (b"b\xff", -1),
        (b"B\xff", 255),
        (b"s\xff\xfe", -2),
        (b"U\xff\xfe", -2),
        (b"u\xff\xfe", 65534),
        (b"I\xff\xff\xff\xfe", -2),
        (b"i\xff\xff\xff\xfe", 2**32 - 2),
        (b"l" + b"\xff" * 8, -1),
        (b"L" + b"\xff" * 8, -1),
        (b"f" + struct.pack(">f", 1.5), 1.5),
        (b"d" + struct.pack(">d", -0.1), -0.1),
        (b"D\x02" + struct.pack(">i", -125), Decimal("-1.25")),
        (b"S\x00\x00\x00\x02\xc3\xbc", "ü"),
        (b"S\x00\x00\x00\x01\xff", b"\xff"),
        (b"x\x00\x00\x00\x01a", b"a"),
        (b"A\x00\x00\x00\x04t\x00b\x01", [False, 1]),
        (b"F\x00\x00\x00\x04\x01at\x01", {"a": True}),
        (b"T" + struct.pack(">Q", 86400), datetime(1970, 1, 2, tzinfo=UTC)),
        (b"T" + b"\xff" * 8, 2**64 - 1),
        (b"V", None),
    ],
)
def test_every_kind_of_value_is_read(encoded: bytes, expected: Any) -> None:
    raw = table((b"before", b"t\x00"), (b"it", encoded), (b"after", b"t\x01"))
    found, end = read_table(raw + b"more", 0)
    assert found == {"before": False, "it": expected, "after": True}
    assert type(found["it"]) is type(expected)
    assert end == len(raw)


@given(st.dictionaries(ANY_NAMES, ANY_VALUES, max_size=5))
@settings(max_examples=examples(200), deadline=None)
def test_what_pika_writes_is_read_back(headers: dict[str, Any]) -> None:
    pieces: list[bytes] = []
    pika.data.encode_table(pieces, headers)
    raw = b"".join(pieces)
    assert read_table(raw, 0) == (headers, len(raw))


@given(st.binary(max_size=300))
@settings(max_examples=examples(500), deadline=None)
def test_bytes_that_are_no_table_give_what_can_be_read(inside: bytes) -> None:
    found, end = read_table(struct.pack(">I", len(inside)) + inside, 0)
    assert isinstance(found, dict)
    assert end == 4 + len(inside)


def test_a_kind_that_nobody_knows_ends_the_table() -> None:
    raw = table((b"a", b"t\x01"), (b"b", b"?xyz"), (b"c", b"t\x01"))
    assert read_table(raw, 0) == ({"a": True}, len(raw))


def test_a_value_longer_than_its_table_is_not_read() -> None:
    raw = table((b"a", b"S\x00\x00\x10\x00abc"))
    assert read_table(raw + b"x" * 5000, 0) == ({}, len(raw))


def test_tables_nested_without_end_are_cut_off() -> None:
    value = b"t\x01"
    for _ in range(5000):
        value = b"A" + struct.pack(">I", len(value)) + value
    found, _ = read_table(table((b"deep", value)), 0)
    depth, inner = 0, found["deep"]
    while inner:
        depth, inner = depth + 1, inner[0]
    assert depth == DEPTH_MAX
    assert inner is None


def test_without_room_for_its_length_there_is_no_table() -> None:
    with pytest.raises(IndexError):
        read_table(b"\x00\x00\x00", 0)


PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACE_NAMES = st.sampled_from(["traceparent", "tracestate", "baggage", "own", "x", "traceparent2"])
TRACE_TEXTS = st.sampled_from(
    [PARENT, PARENT[:-1], PARENT + "x", "", "traceparent", "\x0btraceparentS", "ä"]
)
TRACE_VALUES = (
    TRACE_TEXTS | st.integers(0, 5) | st.binary(max_size=3) | st.lists(TRACE_TEXTS, max_size=2)
)


@given(
    headers=st.dictionaries(TRACE_NAMES, TRACE_VALUES, max_size=4),
    correlation_id=st.sampled_from(["", "talk"]),
    key=st.sampled_from(["", "traceparent", "k"]),
)
def test_what_is_found_at_a_glance_is_what_is_there(
    headers: dict[str, Any], correlation_id: str, key: str
) -> None:
    message = Message(body=b"", headers=headers, correlation_id=correlation_id, key=key)
    raw = encode(message, "id", 5)
    found, there = find_traceparent(raw), decode(raw, b"")
    if found is None:
        return
    assert found == there.headers.get("traceparent", NO_TRACEPARENT)
    assert "baggage" not in there.headers
    assert not found or "tracestate" not in there.headers
    assert there.correlation_id == ""


def test_the_usual_messages_are_found() -> None:
    bare = encode(Message(body=b""), "id", 5)
    traced = encode(Message(body=b"", headers={"traceparent": PARENT, "own": 1}), "id", 5)
    assert (find_traceparent(bare), find_traceparent(traced)) == (NO_TRACEPARENT, PARENT)


@given(st.binary(max_size=100))
def test_nothing_that_arrives_can_raise(raw: bytes) -> None:
    find_traceparent(raw)
