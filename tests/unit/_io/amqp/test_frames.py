"""Frames, single and in batches."""

from __future__ import annotations

import struct
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pika import frame, spec

from messagebus._io.amqp.batch import (
    ENTRIES_MAX,
    BatchDamaged,
    EntryShape,
    decode_batch,
    encode_entry,
)
from messagebus._io.amqp.frames import (
    HEADER_FRAME_MAX,
    TOO_LONG,
    Confirm,
    Contents,
    FrameParser,
    PublishFrames,
    encode_ack,
    encode_nack,
)
from messagebus._io.amqp.properties import IN_BATCH, bare_entry_shape, read_headers
from messagebus._io.amqp.properties import encode_entry as properties_of
from messagebus.core.headers import has_strange_deaths
from messagebus.message import Message
from tests.support.examples import examples

FRAME_MAX = 4096
HOT, COLD = 1, 2
SHORT = st.text(st.characters(codec="utf-8"), max_size=30)
# A link has one consumer as a rule: most deliveries begin like the one before.
TAGS = st.integers(1, 2**64 - 1)
BODIES = st.one_of(
    st.binary(max_size=50),
    st.integers(0, 3 * FRAME_MAX).map(lambda size: b"x" * size),
    st.sampled_from([FRAME_MAX - 9, FRAME_MAX - 8, FRAME_MAX - 7]).map(lambda size: b"y" * size),
)
PROPERTIES = st.builds(
    spec.BasicProperties,
    message_id=st.none() | SHORT,
    content_type=st.none() | SHORT,
    headers=st.none() | st.dictionaries(SHORT, st.integers(0, 9) | SHORT, max_size=3),
    priority=st.none() | st.integers(0, 9),
    timestamp=st.none() | st.integers(0, 2**40),
)


def marshalled(*frames: Any) -> bytes:
    return b"".join(each.marshal() for each in frames)


def content(channel: int, properties: spec.BasicProperties, body: bytes) -> list[Any]:
    parts = range(0, len(body), FRAME_MAX - 8)
    return [
        frame.Header(channel, len(body), properties),
        *(frame.Body(channel, body[at : at + FRAME_MAX - 8]) for at in parts),
    ]


def list_of(properties: spec.BasicProperties) -> bytes:
    return b"".join(properties.encode())


# Out.
@given(st.integers(1, 65535), SHORT, SHORT, PROPERTIES, BODIES)
@settings(max_examples=examples(200), deadline=None)
def test_a_publish_is_byte_for_byte_what_pika_writes(
    channel: int, exchange: str, routing_key: str, properties: spec.BasicProperties, body: bytes
) -> None:
    out: list[bytes] = []
    PublishFrames(channel, exchange, routing_key, FRAME_MAX).add(out, list_of(properties), body)
    method = spec.Basic.Publish(exchange=exchange, routing_key=routing_key, mandatory=True)
    pikas = marshalled(frame.Method(channel, method), *content(channel, properties, body))
    assert b"".join(out) == pikas


@given(st.lists(BODIES, min_size=1, max_size=6))
@settings(max_examples=examples(100), deadline=None)
def test_alike_publishes_are_the_same_bytes_as_single_ones(bodies: list[bytes]) -> None:
    frames = PublishFrames(HOT, "e", "", FRAME_MAX)
    uniform = frames.uniform((b"\x00\xc0\x02", b"\x00" * 8))
    fast: list[bytes] = []
    slow: list[bytes] = []
    messages = [SimpleNamespace(message_id=f"{n:02}", body=body) for n, body in enumerate(bodies)]
    uniform.add(fast, messages)
    for each in messages:
        frames.add(slow, b"\x00\xc0\x02" + each.message_id.encode() + b"\x00" * 8, each.body)
    assert b"".join(fast) == b"".join(slow)


@given(st.integers(1, 65535), TAGS, st.booleans())
def test_answers_are_byte_for_byte_what_pika_writes(channel: int, tag: int, flag: bool) -> None:
    ack = frame.Method(channel, spec.Basic.Ack(tag, flag)).marshal()
    nack = frame.Method(channel, spec.Basic.Nack(tag, False, flag)).marshal()
    assert encode_ack(channel, tag, flag) == ack
    assert encode_nack(channel, tag, flag) == nack


# In.
# Frames that a broker may send, and the items that must come out of them.
Sent = tuple[list[Any], list[Any]]


def confirm(tag: int, multiple: bool, ok: bool, channel: int = HOT) -> Sent:
    kind = spec.Basic.Ack if ok else spec.Basic.Nack
    frames = [frame.Method(channel, kind(tag, multiple))]
    return frames, [Confirm(channel, tag, multiple, ok)]


def deliver(
    consumer: str, tag: int, redelivered: bool, properties: spec.BasicProperties, body: bytes
) -> Sent:
    method = spec.Basic.Deliver(consumer, tag, redelivered, "exchange", "key")
    frames = [frame.Method(HOT, method), *content(HOT, properties, body)]
    return frames, [Contents(HOT, [(tag, redelivered, list_of(properties), body)])]


def of_pika(*frames: Any) -> Sent:
    return list(frames), [each.marshal() for each in frames]


def returned(properties: spec.BasicProperties, body: bytes) -> Sent:
    method = spec.Basic.Return(312, "NO_ROUTE", "e", "k")
    return of_pika(frame.Method(HOT, method), *content(HOT, properties, body))


def cold_delivery(properties: spec.BasicProperties, body: bytes) -> Sent:
    method = spec.Basic.Deliver("c", 1, False, "e", "k")
    return of_pika(frame.Method(COLD, method), *content(COLD, properties, body))


SENT = st.one_of(
    st.builds(confirm, TAGS, st.booleans(), st.booleans()),
    # A link has one consumer as a rule: most deliveries begin like the one before.
    st.builds(
        deliver,
        st.sampled_from(["c1", "c1", "c1", "c2"]) | SHORT,
        TAGS,
        st.booleans(),
        PROPERTIES,
        BODIES,
    ),
    st.builds(returned, PROPERTIES, BODIES),
    st.builds(cold_delivery, PROPERTIES, BODIES),
    st.just(of_pika(frame.Heartbeat())),
    st.just(of_pika(frame.Method(HOT, spec.Channel.Flow(True)))),
    st.just(of_pika(frame.Method(COLD, spec.Basic.Ack(1, False)))),
)


def parser() -> FrameParser:
    made = FrameParser(FRAME_MAX)
    made.hot.add(HOT)
    return made


def flat(items: list[Any]) -> list[Any]:
    """Return every delivery on its own, however many came in a row."""
    found: list[Any] = []
    for item in items:
        if isinstance(item, Contents):
            found += [Contents(item.channel, [each]) for each in item.arrived]
        else:
            found.append(item)
    return found


def fed(made: FrameParser, stream: bytes, cuts: list[int]) -> list[Any]:
    borders = [0, *sorted(cuts), len(stream)]
    pieces = [stream[a:b] for a, b in pairwise(borders)]
    return flat([item for piece in pieces if piece for item in made.feed(piece)])


@given(st.lists(SENT, max_size=8), st.data())
@settings(max_examples=examples(300), deadline=None)
def test_a_stream_in_any_pieces_comes_out_in_order(sent: list[Sent], data: st.DataObject) -> None:
    stream = marshalled(*[each for frames, _ in sent for each in frames])
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    assert fed(parser(), stream, cuts) == [item for _, items in sent for item in items]


# Deliveries of few sizes, and of one size whose parts have other sizes: most follow one like them.
ALIKE = st.builds(
    deliver,
    st.just("c1"),
    TAGS,
    st.booleans(),
    st.sampled_from(["id", "id", "id", "other"]).map(
        lambda id: spec.BasicProperties(message_id=id)
    ),
    st.sampled_from([b"x" * 9, b"y" * 9, b"z" * 6, b"u" * 9]),
)


@given(st.lists(ALIKE | st.just(confirm(1, False, True)), max_size=12), st.data())
@settings(max_examples=examples(300), deadline=None)
def test_deliveries_of_one_size_come_out_as_others_do(
    sent: list[Sent], data: st.DataObject
) -> None:
    stream = marshalled(*[each for frames, _ in sent for each in frames])
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=6))
    assert fed(parser(), stream, cuts) == [item for _, items in sent for item in items]


@pytest.mark.parametrize("change", [0x01, 0x80, 0xFF])
def test_a_wrong_byte_in_deliveries_of_one_size_is_found_as_where_each_byte_comes_alone(
    change: int,
) -> None:
    properties = spec.BasicProperties(message_id="id")
    sent = [deliver("c1", tag, False, properties, b"body") for tag in range(1, 5)]
    stream = marshalled(*[each for frames, _ in sent for each in frames])
    for place in range(len(stream) * 3 // 4, len(stream)):  # each of the last one
        wrong = bytearray(stream)
        wrong[place] ^= change
        together, alone = parser(), parser()
        found = fed(together, bytes(wrong), [])
        assert found == fed(alone, bytes(wrong), list(range(len(wrong)))), place
        assert bool(together.fault) == bool(alone.fault), place


def test_deliveries_in_a_row_come_out_together() -> None:
    sent = [deliver("c", tag, False, spec.BasicProperties(), b"x" * tag) for tag in range(1, 40)]
    stream = marshalled(*[each for frames, _ in sent for each in frames])
    (together,) = parser().feed(stream)
    assert isinstance(together, Contents)
    assert [tag for tag, *_ in together.arrived] == list(range(1, 40))


def test_frames_of_other_channels_may_stand_within_a_delivery() -> None:
    frames, (whole,) = deliver("c", 7, False, spec.BasicProperties(), b"x" * 5000)
    beat = frame.Heartbeat()
    mixed = [each for part in frames for each in (part, beat)]
    items = parser().feed(marshalled(*mixed))
    assert [item for item in items if item != beat.marshal()] == [whole]
    assert items.count(beat.marshal()) == len(frames)


def test_a_channel_that_is_no_longer_ours_is_pika_s() -> None:
    made = parser()
    made.hot.discard(HOT)
    frames, _ = confirm(1, False, True)
    assert made.feed(marshalled(*frames)) == [marshalled(*frames)]


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=5))
@settings(max_examples=examples(500), deadline=None)
def test_any_bytes_are_frames_or_a_fault_and_never_raise(noise: bytes, cuts: list[int]) -> None:
    made = parser()
    borders = [0, *sorted(min(cut, len(noise)) for cut in cuts), len(noise)]
    pieces = [noise[a:b] for a, b in pairwise(borders)]
    items = [item for piece in pieces for item in made.feed(piece)]
    passed = b"".join(item for item in items if isinstance(item, bytes))
    assert made.fault or noise.startswith(passed)


@given(SENT, st.data())
@settings(max_examples=examples(300), deadline=None)
def test_one_wrong_byte_never_raises(sent: Sent, data: st.DataObject) -> None:
    stream = bytearray(marshalled(*sent[0]))
    place = data.draw(st.integers(0, len(stream) - 1))
    stream[place] = data.draw(st.integers(0, 255))
    parser().feed(bytes(stream))


@pytest.mark.parametrize(
    "wrong",
    [
        b"\x09\x00\x01\x00\x00\x00\x00\xce",  # no such kind of frame
        b"\x01\x00\x01\x00\x00\x00\x04\x00\x00\x00\x00\xff",  # no end
        b"\x03\x00\x01\x00\x01\x00\x00" + b"x" * 10,  # larger than agreed
        b"\x02\x00\x01\x00\x10\x00\x01" + b"x" * 10,  # larger than any header frame
        b"\x02\x00\x00\x00\x02\x00\x00" + b"x" * 10,  # of no channel
    ],
)
def test_after_the_first_wrong_frame_nothing_more_is_read(wrong: bytes) -> None:
    made = parser()
    frames, items = confirm(1, False, True)
    good = marshalled(*frames)
    assert made.feed(good + wrong) == items
    assert made.fault
    assert made.feed(good) == []


@pytest.mark.parametrize("channel", [HOT, COLD])
@pytest.mark.parametrize("cut", [None, 40, 10_000])
def test_a_delivery_whose_headers_the_broker_made_longer_than_a_frame_is_read(
    channel: int, cut: int | None
) -> None:
    """The link would end at it, be dialled again, and end at it again, for as long as the message lives."""
    properties = spec.BasicProperties(headers={"a": "x" * (FRAME_MAX + 1)})
    method = frame.Method(channel, spec.Basic.Deliver("c", 1, True, "e", "k"))
    header, body = frame.Header(channel, 2, properties), frame.Body(channel, b"ok")
    stream = marshalled(method, header, body)
    made = parser()
    found = made.feed(stream[:cut]) + ([] if cut is None else made.feed(stream[cut:]))
    assert made.fault == ""
    if channel == HOT:
        assert found == [Contents(HOT, [(1, True, list_of(properties), b"ok")])]
    else:
        assert found == [each.marshal() for each in (method, header, body)]


@pytest.mark.parametrize("body", [b"", b"ok"])
@pytest.mark.parametrize("cut", [1 << 30, 50, 60, 10_000])
def test_a_delivery_whose_headers_are_above_every_bound_is_passed_over_and_does_not_end_the_link(
    body: bytes, cut: int
) -> None:
    longest = spec.BasicProperties(headers={"a": "x" * (HEADER_FRAME_MAX + 1)})
    parts = [frame.Body(HOT, body)] if body else []
    stream = marshalled(
        frame.Method(HOT, spec.Basic.Deliver("c", 1, True, "e", "k")),
        frame.Header(HOT, len(body), longest),
        *parts,
        frame.Method(HOT, spec.Basic.Deliver("c", 2, False, "e", "k")),
        frame.Header(HOT, 4, spec.BasicProperties()),
        frame.Body(HOT, b"next"),
    )
    made, arrived, at = parser(), list[Any](), 0
    while at < len(stream):
        step = cut if at < cut else 300_000
        for each in made.feed(stream[at : at + step]):
            assert isinstance(each, Contents)
            arrived += each.arrived
        at += step
    assert made.fault == ""
    assert [(tag, body) for tag, _, _, body in arrived] == [(1, body), (2, b"next")]
    assert arrived[0][2] == TOO_LONG
    assert has_strange_deaths(read_headers(TOO_LONG))


def test_a_body_longer_than_announced_is_wrong() -> None:
    made = parser()
    method = spec.Basic.Deliver("c", 1, False, "e", "k")
    start = marshalled(frame.Method(HOT, method), frame.Header(HOT, 3, spec.BasicProperties()))
    assert made.feed(start) == []
    assert made.feed(frame.Body(HOT, b"four").marshal()) == []
    assert "another size" in made.fault


def test_a_content_that_is_not_finished_is_wrong() -> None:
    made = parser()
    method = frame.Method(HOT, spec.Basic.Deliver("c", 1, False, "e", "k"))
    header = frame.Header(HOT, 3, spec.BasicProperties())
    assert made.feed(marshalled(method, header, frame.Body(HOT, b"no"), method)) == []
    assert "within a content" in made.fault


def test_an_incomplete_frame_is_all_that_is_kept() -> None:
    made = parser()
    frames, _ = deliver("c", 1, False, spec.BasicProperties(), b"x" * 1000)
    stream = marshalled(*frames)
    for _ in range(50):
        made.feed(stream)
    made.feed(stream[:-1])
    assert made._have < len(stream)
    assert made._open[HOT].parts == []


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
    shape.add(alike, ids, bodies)
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
