"""_io.amqp.header_table: headers of every AMQP kind are read, and nothing that is no table can raise."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pika.data
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messagebus._io.amqp.header_table import DEPTH_MAX, read_table
from tests.support.examples import examples

NAMES = st.text(st.characters(codec="utf-8"), max_size=20)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(st.characters(codec="utf-8"), max_size=30)
    | st.binary(max_size=30)
    | st.decimals(-1000, 1000, places=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
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


@given(st.dictionaries(NAMES, VALUES, max_size=5))
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
