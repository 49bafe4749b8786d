"""_io.marks: the properties of copies, beside pika's reading of them."""

from __future__ import annotations

from typing import Any

import pika
from hypothesis import given
from hypothesis import strategies as st

from messagebus._io.marks import copied
from messagebus._io.properties import read_headers

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
