"""_io.amqp.connection: odd contents end no connection, wrong sizes do."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika import frame, spec
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.exceptions import InvalidFrameError

from messagebus._io.amqp.connection import GuardedConnection, RawProperties, guard_problem

GOOD = pika.BasicProperties(message_id="m", headers={"a": 1})
RAW = b"".join(GOOD.encode())
# A timestamp that no calendar knows.
POISON = struct.pack(">HQ", 1 << 6, (1 << 64) - 1)


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    guard_problem.cache_clear()
    yield
    guard_problem.cache_clear()


def read(*pieces: bytes) -> list[Any]:
    """Return the frames that a connection without a socket reads."""
    seen: list[Any] = []
    connection = object.__new__(GuardedConnection)
    connection.params, connection._frame_buffer = pika.ConnectionParameters(frame_max=4096), b""
    connection.bytes_received = 0
    connection._process_frame = seen.append
    for piece in pieces:
        connection._on_data_available(piece)
    return seen


def header(raw: bytes) -> bytes:
    return bytes(frame.Header(1, 5, RawProperties(raw)).marshal())


@pytest.mark.parametrize("raw", [RAW, POISON, b"", b"\xff\xff"])
def test_properties_come_as_they_are_on_the_wire(raw: bytes) -> None:
    (found,) = read(header(raw))
    assert (found.channel_number, found.body_size) == (1, 5)
    assert found.properties.encode() == [raw]


def test_what_pika_can_read_of_them_is_there() -> None:
    assert RawProperties(RAW).message_id == "m"
    assert RawProperties(RAW).headers == {"a": 1}


def test_frames_in_pieces_are_whole_again() -> None:
    stream = header(POISON) + frame.Heartbeat().marshal() + header(RAW)
    seen = read(*(stream[at : at + 3] for at in range(0, len(stream), 3)))
    assert [type(each) for each in seen] == [frame.Header, frame.Heartbeat, frame.Header]


@pytest.mark.parametrize("size", [4096 - 7, 0xFFFFFFFF])
def test_a_frame_larger_than_agreed_is_refused_at_its_first_bytes(size: int) -> None:
    with pytest.raises(InvalidFrameError):
        read(struct.pack(">BHI", spec.FRAME_BODY, 1, size))


def test_the_largest_frame_agreed_is_read() -> None:
    (found,) = read(frame.Body(1, b"x" * (4096 - 8)).marshal())
    assert len(found.fragment) == 4096 - 8


def test_a_frame_that_does_not_end_is_refused() -> None:
    with pytest.raises(InvalidFrameError):
        read(header(RAW)[:-1] + b"\x00")


def test_the_pinned_pika_is_as_expected() -> None:
    assert guard_problem() == ""


def test_a_change_of_what_it_rests_on_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AsyncioConnection, "_on_data_available", lambda *_: None)
    assert guard_problem()
