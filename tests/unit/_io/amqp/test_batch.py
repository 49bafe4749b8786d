"""_io.amqp.batch: packed messages come out again, and nothing that is no batch can harm."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messagebus._io.amqp.batch import (
    ENTRIES_MAX,
    BatchDamaged,
    EntryShape,
    decode_batch,
    encode_entry,
)
from messagebus._io.amqp.properties import IN_BATCH, bare_entry_shape
from messagebus._io.amqp.properties import encode_entry as properties_of
from messagebus.message import Message
from tests.support.examples import examples

ENTRIES = st.lists(
    st.tuples(st.binary(min_size=2, max_size=40), st.binary(max_size=200)), min_size=1, max_size=20
)


def packed(entries: list[tuple[bytes, bytes]]) -> bytes:
    out: list[bytes] = []
    for properties, body in entries:
        encode_entry(out, properties, body)
    return b"".join(out)


@given(ENTRIES)
@settings(max_examples=examples(200), deadline=None)
def test_entries_come_out_as_they_went_in(entries: list[tuple[bytes, bytes]]) -> None:
    assert decode_batch(packed(entries)) == entries


@given(st.binary(max_size=300))
@settings(max_examples=examples(500), deadline=None)
def test_any_bytes_are_a_batch_or_damaged(body: bytes) -> None:
    try:
        entries = decode_batch(body)
    except BatchDamaged:
        return
    assert packed(entries) == body


@given(ENTRIES, st.data())
@settings(max_examples=examples(200), deadline=None)
def test_a_batch_cut_short_is_damaged_unless_cut_between_entries(
    entries: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    whole = packed(entries)
    length = data.draw(st.integers(0, len(whole) - 1))
    borders = {len(packed(entries[:count])) for count in range(1, len(entries))}
    if length in borders:
        assert len(decode_batch(whole[:length])) < len(entries)
    else:
        with pytest.raises(BatchDamaged):
            decode_batch(whole[:length])


def test_damage_says_where_it_is() -> None:
    good = packed([(b"\x00\x00", b"x")])
    with pytest.raises(BatchDamaged, match=rf"entry 2 at byte {len(good)} of {len(good) + 3}"):
        decode_batch(good + b"abc")


def test_an_empty_body_is_no_batch() -> None:
    with pytest.raises(BatchDamaged, match="no entries"):
        decode_batch(b"")


def test_a_body_that_announces_more_than_it_has_costs_no_memory() -> None:
    with pytest.raises(BatchDamaged):
        decode_batch(struct.pack(">I", 2**32 - 1) + b"\x00" * 100)


def test_entries_are_bounded() -> None:
    entry = packed([(b"\x00\x00", b"")])
    assert len(decode_batch(entry * ENTRIES_MAX)) == ENTRIES_MAX
    with pytest.raises(BatchDamaged, match="more than"):
        decode_batch(entry * (ENTRIES_MAX + 1))


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=10), st.sampled_from(["", "text/x"]))
@settings(max_examples=examples(100), deadline=None)
def test_alike_entries_are_the_same_bytes_as_single_ones(
    bodies: list[bytes], content_type: str
) -> None:
    shape = EntryShape(bare_entry_shape(content_type), 32)
    ids = [f"{number:032x}" for number in range(len(bodies))]
    alike: list[bytes] = []
    for message_id, body in zip(ids, bodies, strict=True):
        shape.add(alike, message_id.encode(), body)
    message = Message(body=b"", content_type=content_type)
    assert b"".join(alike) == packed(
        [(properties_of(message, i), body) for i, body in zip(ids, bodies, strict=True)]
    )


@pytest.mark.parametrize(
    ("vector", "message_id", "content_type", "body"),
    [
        # docs/WIRE.md, section "Batches": the test vectors.
        ("0000000700800461626364000000026869", "abcd", "application/octet-stream", b"hi"),
        (
            "0000000e808006746578742f78046162636400000000",
            "abcd",
            "text/x",
            b"",
        ),
    ],
)
def test_the_published_test_vectors(
    vector: str, message_id: str, content_type: str, body: bytes
) -> None:
    ((properties, its_body),) = decode_batch(bytes.fromhex(vector))
    message = IN_BATCH.message(properties, its_body)
    assert (message.message_id, message.content_type, message.body) == (
        message_id,
        content_type,
        body,
    )
    assert packed([(properties_of(message, message_id), body)]).hex() == vector
