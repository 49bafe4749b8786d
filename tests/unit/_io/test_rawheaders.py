"""Property lists with other headers, beside pika's reading of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus._io.rawheaders import (
    read_content_type,
    read_headers,
    read_stamp_s,
    with_other_headers,
)

TEXTS = st.text(max_size=20)
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 62), 1 << 62), TEXTS, st.lists(st.booleans())
)
NAMES = st.text(min_size=1, max_size=20)
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


def encoded(**properties: Any) -> bytes:
    return b"".join(pika.BasicProperties(**properties).encode())


def decoded(raw: bytes) -> dict[str, Any]:
    found = pika.BasicProperties()
    found.decode(raw)
    return {name: value for name, value in vars(found).items() if value is not None}


@given(PROPERTIES, st.dictionaries(NAMES, VALUES, max_size=3), st.data())
def test_all_stays_as_it_was_but_the_headers_meant_and_the_user(
    properties: dict[str, Any], more: dict[str, Any], data: st.DataObject
) -> None:
    before = properties.get("headers", {})
    dropped = data.draw(st.sets(st.sampled_from(sorted(before)))) if before else set()
    raw = encoded(**properties)
    made = with_other_headers(raw, without=dropped.__contains__, more=more)
    wanted = {name: value for name, value in decoded(raw).items() if name != "user_id"}
    kept = {name: value for name, value in before.items() if name not in dropped}
    assert decoded(made) == wanted | {"headers": kept | more}
    assert read_headers(made) == kept | more
    assert read_headers(raw) == before
    assert read_stamp_s(raw) == properties.get("timestamp")
    assert read_content_type(raw) == properties.get("content_type", "")


def test_headers_that_stay_are_the_same_bytes() -> None:
    # A float, an unsigned short and a nested array of decimals, which clients write differently.
    odd = b"\x01f" + b"f\x3f\x80\x00\x00" + b"\x01u" + b"u\x00\x07"
    table = odd + b"\x01x" + b"t\x01"
    raw = b"\x20\x00" + len(table).to_bytes(4, "big") + table
    made = with_other_headers(raw, without=lambda name: name == "x", more={})
    assert made == b"\x20\x00" + len(odd).to_bytes(4, "big") + odd


@given(PROPERTIES, st.data())
def test_a_list_that_is_cut_short_is_read_as_far_as_it_goes(
    properties: dict[str, Any], data: st.DataObject
) -> None:
    raw = encoded(**properties)
    cut = raw[: data.draw(st.integers(0, len(raw)))]
    assert isinstance(read_headers(cut), dict)
    assert isinstance(read_stamp_s(cut), int | None)
    assert isinstance(read_content_type(cut), str)


def test_headers_cannot_be_put_where_there_is_no_list() -> None:
    with pytest.raises(ValueError, match="cut short"):
        with_other_headers(b"\x80", without=bool, more={})


def test_the_brokers_own_headers_are_read_too() -> None:
    died = {"reason": "delivery_limit", "time": datetime(2026, 1, 1, tzinfo=UTC)}
    raw = encoded(headers={"x-death": [died], "mb-key": "k"})
    assert read_headers(raw)["x-death"] == [died]
