"""Headers that brokers and copies write."""

from __future__ import annotations

import struct
from typing import Any

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus import Message
from messagebus._io.amqp.copy_headers import copied, counted, dead_lettered, read_ttl_ms
from messagebus._io.amqp.properties import (
    IN_BATCH,
    decode,
    due_first,
    encode,
    encode_entry,
    read_headers,
    read_library_headers,
    read_message_id,
    read_stamp_ms,
)
from messagebus.bodies import BINARY

TEXTS = st.text(max_size=20)
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 62), 1 << 62), TEXTS, st.lists(st.booleans())
)
NAMES = st.text("abcdefgh-", min_size=1, max_size=8)
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "content_type": TEXTS,
        "content_encoding": TEXTS,
        "headers": st.dictionaries(NAMES, VALUES, max_size=5),
        "delivery_mode": st.sampled_from([1, 2]),
        "priority": st.integers(0, 9),
        "correlation_id": TEXTS,
        "reply_to": TEXTS,
        "expiration": TEXTS,
        "message_id": TEXTS,
        "timestamp": st.integers(0, 1 << 40),
        "type": TEXTS,
        "user_id": TEXTS,
        "app_id": TEXTS,
        "cluster_id": TEXTS,
    },
)
LEFT_OUT = {"expiration", "user_id", "cluster_id"}


def encoded(**properties: Any) -> bytes:
    return b"".join(pika.BasicProperties(**properties).encode())


def decoded(raw: bytes) -> dict[str, Any]:
    found = pika.BasicProperties()
    found.decode(raw)
    return {name: value for name, value in vars(found).items() if value is not None}


@given(PROPERTIES, st.dictionaries(NAMES, VALUES, max_size=3), st.data())
def test_a_copy_is_the_original_but_for_what_is_marked_and_left_out(
    properties: dict[str, Any], marks: dict[str, Any], data: st.DataObject
) -> None:
    before = properties.get("headers", {})
    dropped = data.draw(st.sets(st.sampled_from(sorted(before)))) if before else set()
    made = copied(
        encoded(**properties),
        marks,
        "made",
        entry=False,
        stamp_ms=7_000,
        without=dropped.__contains__,
    )
    kept = {name: value for name, value in before.items() if name not in dropped}
    wanted = {name: value for name, value in properties.items() if name not in LEFT_OUT}
    wanted |= {"headers": kept | marks, "delivery_mode": 2}
    wanted["message_id"] = wanted.get("message_id") or "made"
    wanted.setdefault("timestamp", 7)
    assert decoded(made) == wanted
    assert read_headers(made) == kept | marks


def test_headers_that_stay_are_the_same_bytes() -> None:
    # A float and an unsigned short, which clients write differently.
    odd = b"\x01f" + b"f\x3f\x80\x00\x00" + b"\x01u" + b"u\x00\x07"
    table = odd + b"\x01x" + b"t\x01" + b"\x02CC" + b"S\x00\x00\x00\x01q"
    raw = b"\x20\x00" + len(table).to_bytes(4, "big") + table
    made = copied(raw, {}, "id", entry=False, stamp_ms=0, without=lambda name: name == "x")
    assert made[2:].startswith(len(odd).to_bytes(4, "big") + odd + b"\x02")


@given(PROPERTIES, st.data())
def test_a_list_that_is_cut_short_is_copied_as_far_as_it_goes(
    properties: dict[str, Any], data: st.DataObject
) -> None:
    raw = encoded(**properties)
    cut = raw[: data.draw(st.integers(0, len(raw)))]
    assert isinstance(read_headers(cut), dict) or not read_headers(cut)
    assert "mark" in read_headers(copied(cut, {"mark": 1}, "id", entry=False, stamp_ms=0))


FULL = Message(
    body=b"",
    content_type="text/x",
    message_id="id",
    headers={"a": 1, "b": "x"},
    key="k",
    priority=7,
    correlation_id="c",
    reply_to="r",
    type="t",
)


def foreign(headers: dict[str, Any] | None = None, **fields: Any) -> bytes:
    """Encode a message as another client may write it."""
    if headers is not None:
        fields["headers"] = headers
    return b"".join(pika.BasicProperties(**fields).encode())


def pika_reads(raw: bytes) -> pika.BasicProperties:
    found = pika.BasicProperties()
    found.decode(raw)
    return found


def copy(raw: bytes, marks: dict[str, Any] | None = None, *, entry: bool = False) -> bytes:
    return copied(raw, marks or {}, "made", entry=entry, stamp_ms=17_000)


def test_a_copy_is_the_same_message_with_our_headers() -> None:
    raw = copy(
        encode(FULL, "id", 1_700), {"mb-attempt": 2, "mb-first-ms": 5, "mb-retry-reason": "é"}
    )
    assert decode(raw, b"") == FULL
    assert read_library_headers(raw) == {
        "mb-key": "k",
        "mb-attempt": 2,
        "mb-first-ms": 5,
        "mb-retry-reason": "é",
    }
    assert read_stamp_ms(raw) == 1_700_000
    assert pika_reads(raw).delivery_mode == 2


def test_a_copy_of_a_copy_bears_each_mark_once() -> None:
    first = copy(encode(FULL, "id", 1), {"mb-attempt": 2, "mb-first-ms": 5})
    second = copy(first, {"mb-attempt": 3, "mb-first-ms": 5})
    assert len(second) == len(first)
    assert read_library_headers(second)["mb-attempt"] == 3


def test_what_a_batch_says_for_all_stands_in_the_copy_of_a_part() -> None:
    entry = encode_entry(Message(body=b"", message_id="x"), "x")
    raw = copy(entry, entry=True)
    found = pika_reads(raw)
    assert (found.content_type, found.timestamp, found.delivery_mode) == (BINARY, 17, 2)
    assert decode(raw, b"") == IN_BATCH.message(entry, b"")


def test_what_other_clients_wrote_is_kept_as_it_is() -> None:
    table = b"\x01fd" + struct.pack(">d", 1.5) + b"\x01sS\x00\x00\x00\x01\xff"
    headers = struct.pack(">I", len(table)) + table
    raw = b"\xe0\x08" + b"\x03x/y" + b"\x04gzip" + headers + b"\x03app"
    made = copy(raw, {"mb-attempt": 2})
    assert table in made
    assert decode(made, b"").headers == {"f": 1.5, "s": b"\xff"}
    found = pika_reads(made)
    assert (found.content_encoding, found.app_id, found.content_type) == ("gzip", "app", "x/y")
    assert found.headers["mb-attempt"] == 2


def test_what_was_about_the_way_of_the_original_is_left_out() -> None:
    raw = foreign(
        {
            "CC": ["elsewhere"],
            "BCC": ["there"],
            "x-death": [{"count": 3}],
            "x-first-death-queue": "q",
            "x-last-death-reason": "expired",
            "x-delivery-count": 4,
            "x-acquired-count": 5,
            "x-mine": 1,
            "x-deaths": 2,
            "x-death-of": "a salesman",
        },
        user_id="somebody",
        expiration="60000",
        message_id="id",
    )
    found = pika_reads(copy(raw))
    assert found.headers == {"x-mine": 1, "x-deaths": 2, "x-death-of": "a salesman"}
    assert dict(decode(raw, b"").headers) == found.headers
    assert (found.user_id, found.expiration, found.cluster_id) == (None, None, None)


@pytest.mark.parametrize("given_id", [None, ""])
def test_one_without_an_id_gets_one_for_all_its_copies(given_id: str | None) -> None:
    raw = copy(foreign(message_id=given_id))
    assert read_message_id(raw) == "made"
    assert read_message_id(copied(raw, {}, "other", entry=False, stamp_ms=0)) == "made"


@given(st.binary(max_size=80), st.booleans())
def test_whatever_arrives_can_be_copied(raw: bytes, entry: bool) -> None:
    marks = {"mb-attempt": 2, "mb-first-ms": 1 << 40, "mb-park-reason": "why"}
    made = copied(raw, marks, "made", entry=entry, stamp_ms=17_000)
    assert {name: read_library_headers(made)[name] for name in marks} == marks
    assert read_message_id(made)
    again = copied(made, marks, "other", entry=entry, stamp_ms=1)
    assert read_message_id(again) == read_message_id(made)


def test_a_time_to_live_after_a_delay_is_kept_where_the_delay_is() -> None:
    raw = encode(due_first(Message(body=b"", headers={"a": 1}, ttl_s=0.5)), "id", 1)
    assert decode(raw, b"").ttl_s == 0.5
    assert decode(raw, b"").headers == {"a": 1}
    again = copied(raw, {}, "", entry=False, stamp_ms=0)
    moved = copied(raw, {}, "", entry=False, stamp_ms=0, expires=True)
    waits = copied(raw, {"mb-ttl-ms": 7}, "", entry=False, stamp_ms=0)
    assert [decode(each, b"").ttl_s for each in (again, moved, waits)] == [None, 0.5, 0.007]


@pytest.mark.parametrize("stamp_ms", [-(1 << 63), -1, 0])
def test_a_forged_time_keeps_nobody_from_copying(stamp_ms: int) -> None:
    assert read_stamp_ms(copied(b"\x00\x00", {}, "id", entry=False, stamp_ms=stamp_ms)) == 0


HEADERS: dict[str, Any] = {"a": 1, "b": "é", "c": [1, {"d": None}], "e": True, "f": b"\xff"}
DEAD_LETTERED = Message(
    body=b"",
    content_type="text/x",
    headers=HEADERS,
    key="k",
    priority=3,
    correlation_id="c",
    reply_to="r",
    type="t",
)
NOT_READABLE = b"\x20\x00\x00\x00\x00\x05"


@pytest.mark.parametrize("message", [DEAD_LETTERED, Message(body=b"")])
def test_a_count_is_one_header_more(message: Message) -> None:
    raw = encode(message, "id", 17)
    again = decode(counted(counted(raw, 1), 2), b"")
    assert read_headers(counted(raw, 2))["x-delivery-count"] == 2
    assert dict(again.headers) == message.headers
    assert (again.message_id, again.key, again.type) == ("id", message.key, message.type)


def test_a_dead_letter_says_why_and_from_where_and_lives_for_ever() -> None:
    raw = encode(Message(body=b"", headers={"a": 1}, ttl_s=0.5, key="k"), "id", 17)
    dead = dead_lettered(counted(raw, 3), reason="expired", queue="q", exchange="e", key="r")
    found, headers = decode(dead, b""), dict(read_headers(dead))
    assert headers.pop("mb-key") == "k"
    (death,) = headers.pop("x-death")
    assert headers == {
        "a": 1,
        "x-first-death-exchange": "e",
        "x-first-death-queue": "q",
        "x-first-death-reason": "expired",
    }
    assert death.pop("time")
    assert death == {
        "count": 1,
        "reason": "expired",
        "queue": "q",
        "exchange": "e",
        "routing-keys": ["r"],
        "original-expiration": "500",
    }
    assert (found.key, found.ttl_s, found.message_id) == ("k", None, "id")


def test_a_second_death_of_the_same_kind_is_counted_and_another_comes_first() -> None:
    raw = encode(Message(body=b""), "id", 17)
    for queue, reason in (("q", "expired"), ("q", "expired"), ("p", "rejected")):
        raw = dead_lettered(raw, reason=reason, queue=queue, exchange="e", key="r")
    headers = read_headers(raw)
    deaths = [(each["queue"], each["reason"], each["count"]) for each in headers["x-death"]]
    assert deaths == [("p", "rejected", 1), ("q", "expired", 2)]
    assert headers["x-first-death-queue"] == "q"


@pytest.mark.parametrize(("ttl_s", "found"), [(None, None), (0, 0), (1.5, 1_500)])
def test_the_time_to_live_is_read(ttl_s: float | None, found: int | None) -> None:
    assert read_ttl_ms(encode(Message(body=b"", ttl_s=ttl_s), "id", 17)) == found


def test_what_cannot_be_read_passes_unchanged() -> None:
    assert counted(NOT_READABLE, 1) == NOT_READABLE
    dead = dead_lettered(NOT_READABLE, reason="rejected", queue="q", exchange="e", key="r")
    assert dead == NOT_READABLE
    assert read_ttl_ms(b"\x01\x00\x05ab") is None
