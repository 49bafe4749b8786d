from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bench.run.artemis_stomp import Frame, frame, parse

# As Artemis 2.40 writes them.
RECEIPT = b"RECEIPT\nreceipt-id:17\n\n\x00\n"
MESSAGE = b"MESSAGE\nsubscription:0\ncontent-length:4\nack:56,16\n\nx\x00y\n\x00\n"


def test_frames_are_read_with_bodies_of_any_bytes() -> None:
    frames, rest = parse(RECEIPT + MESSAGE)
    assert frames == [
        Frame(b"RECEIPT", {b"receipt-id": b"17"}, b""),
        Frame(
            b"MESSAGE",
            {b"subscription": b"0", b"content-length": b"4", b"ack": b"56,16"},
            b"x\x00y\n",
        ),
    ]
    assert rest == b""


@given(st.lists(st.sampled_from([RECEIPT, MESSAGE]), max_size=5), st.data())
def test_it_does_not_matter_where_the_bytes_are_cut(
    parts: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(parts)
    found, rest, at = [], b"", 0
    while at < len(stream):
        step = data.draw(st.integers(1, len(stream)))
        frames, rest = parse(rest + stream[at : at + step])
        found += frames
        at += step
    assert found == parse(stream)[0]
    assert len(found) == len(parts)


def test_of_a_header_that_comes_twice_the_first_counts() -> None:
    frames, _ = parse(b"MESSAGE\nreceipt:1\nreceipt:2\n\n\x00")
    assert frames[0].headers[b"receipt"] == b"1"


def test_a_colon_in_a_value_is_escaped() -> None:
    made = frame("SUBSCRIBE", {"destination": "load0::load0.sink0"})
    assert made == b"SUBSCRIBE\ndestination:load0\\c\\cload0.sink0\n\n\x00"


def test_what_is_written_can_be_read() -> None:
    made = frame("SEND", {"receipt": "3", "content-length": "3"}, b"\x00\n:")
    assert parse(made)[0] == [
        Frame(b"SEND", {b"receipt": b"3", b"content-length": b"3"}, b"\x00\n:")
    ]
