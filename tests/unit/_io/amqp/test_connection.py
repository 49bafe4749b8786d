"""Connections, and the guard of their callbacks."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika import frame, spec
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.exceptions import InvalidFrameError

from messagebus._io.amqp import connection as module
from messagebus._io.amqp.connection import (
    FrameConnection,
    GuardedConnection,
    RawProperties,
    guard_problem,
    seam_problem,
)
from messagebus._io.amqp.frames import HEADER_FRAME_MAX


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    seam_problem.cache_clear()
    yield
    seam_problem.cache_clear()


def test_the_pinned_pika_is_as_expected() -> None:
    assert seam_problem() == ""


@pytest.mark.parametrize("version", ["1.3.2", "2.0.0", "2.1.0b1", "one"])
def test_another_pika_is_not_trusted(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(pika, "__version__", version)
    assert seam_problem()


def _other_arguments(self: Any, data: bytes, more: int = 0) -> None:
    pass


def _swallow(self: Any, data_in: bytes) -> None:
    pass


def _keeps_part(self: Any, data_in: bytes) -> None:
    self._frame_buffer += data_in


def _writes_twice(self: Any, marshaled_frames: Any) -> None:
    for each in marshaled_frames:
        self._adapter_emit_data(each + each)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("_on_data_available", _other_arguments),
        ("_on_data_available", _swallow),
        ("_on_data_available", _keeps_part),
        ("_output_marshaled_frames", _other_arguments),
        ("_output_marshaled_frames", _writes_twice),
        ("_proto_data_received", _swallow),
        ("_send_message", lambda *_: None),
    ],
)
def test_a_change_of_what_the_seam_rests_on_is_seen(
    monkeypatch: pytest.MonkeyPatch, name: str, changed: Any
) -> None:
    monkeypatch.setattr(AsyncioConnection, name, changed)
    assert seam_problem()


class FakeSink:
    def __init__(self) -> None:
        self.items: list[Any] = []
        self.reads = 0
        self.closed = False

    def on_item(self, item: Any) -> None:
        self.items.append(item)

    def on_read(self) -> None:
        self.reads += 1

    def on_closed(self) -> None:
        self.closed = True


def test_what_waits_goes_out_before_what_pika_writes() -> None:
    sent: list[bytes] = []
    connection = module._probe(lambda _item: None, lambda data: sent.append(bytes(data)))
    connection.out += [b"one", b"two"]
    connection._output_marshaled_frames([b"close"])
    assert sent == [b"onetwo", b"close"]
    assert connection.out == []


def test_a_connection_that_has_ended_takes_nothing_and_keeps_nothing() -> None:
    connection = module._probe(lambda _item: None, lambda _data: None)
    connection._transport = None
    connection.out.append(b"late")
    connection.flush()
    assert connection.out == []
    assert connection.backed_up


def test_a_closed_channel_s_items_are_told_to_nobody() -> None:
    connection = module._probe(lambda _item: None, lambda _data: None)
    sink = FakeSink()
    connection._sinks = {1: sink}
    connection._detach(1)
    assert sink.closed
    ack = b"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x50" + bytes(7) + b"\x01\x00\xce"
    seen: list[Any] = []
    connection._process_frame = seen.append
    connection._on_data_available(ack)
    assert sink.items == []
    assert len(seen) == 1, "it is pika's"


@pytest.fixture(autouse=True)
def _usual_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(module.HOT_PATH, raising=False)
    module._seam_holds.cache_clear()
    yield
    module._seam_holds.cache_clear()


def test_the_hot_path_is_the_usual_one() -> None:
    assert module.connection_class() is FrameConnection


def test_it_can_be_turned_off_without_a_word(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(module.HOT_PATH, "0")
    assert module.connection_class() is GuardedConnection
    assert caplog.records == []


def test_where_pika_is_not_as_expected_plain_pika_is_used_and_one_warning_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "seam_problem", lambda: "it writes otherwise")
    with caplog.at_level(logging.WARNING):
        assert module.connection_class() is GuardedConnection
        assert module.connection_class() is GuardedConnection
    (record,) = caplog.records
    assert "it writes otherwise" in record.getMessage()


def test_where_pika_reads_otherwise_it_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(module.HOT_PATH, "0")
    monkeypatch.setattr(module, "guard_problem", lambda: "it reads headers otherwise")
    assert module.connection_class() is AsyncioConnection


GOOD = pika.BasicProperties(message_id="m", headers={"a": 1})
RAW = b"".join(GOOD.encode())
# A timestamp that no calendar knows.
POISON = struct.pack(">HQ", 1 << 6, (1 << 64) - 1)


@pytest.fixture(autouse=True)
def _guard_asked_anew() -> Iterator[None]:
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


def test_what_a_broker_added_to_headers_that_filled_a_frame_is_read_up_to_a_bound() -> None:
    """RabbitMQ adds x-death, x-delivery-count and x-stream-offset, and does not count them."""
    longer = b"".join(pika.BasicProperties(headers={"a": "x" * 4096}).encode())
    (found,) = read(header(longer)[:5000], header(longer)[5000:])
    assert found.properties.encode() == [longer]
    with pytest.raises(InvalidFrameError):
        read(struct.pack(">BHI", spec.FRAME_HEADER, 1, HEADER_FRAME_MAX + 1))


def test_the_largest_frame_agreed_is_read() -> None:
    (found,) = read(frame.Body(1, b"x" * (4096 - 8)).marshal())
    assert len(found.fragment) == 4096 - 8


def test_a_frame_that_does_not_end_is_refused() -> None:
    with pytest.raises(InvalidFrameError):
        read(header(RAW)[:-1] + b"\x00")


def test_the_pinned_pika_can_be_guarded() -> None:
    assert guard_problem() == ""


def test_a_change_of_what_it_rests_on_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AsyncioConnection, "_on_data_available", lambda *_: None)
    assert guard_problem()
