"""pika's connection, with frames read so that no message and no lie about a size can harm it.

pika decodes the properties of every message that it reads and ends the connection where it cannot: such a
message would come again for ever. And it waits for the whole of a frame of any size. Here properties
are taken as they are on the wire, and a frame larger than agreed ends the connection.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from struct import Struct
from typing import Any

import pika
import pika.exceptions
from pika import frame, spec
from pika.adapters.asyncio_connection import AsyncioConnection

__all__ = ["GuardedConnection", "RawProperties", "guard_problem"]

_HEAD = Struct(">BHI")
_HEADER = Struct(">HHQ")
OVERHEAD = _HEAD.size + 1


class RawProperties(pika.BasicProperties):  # type: ignore[misc]  # pika has no types
    """Properties of a message, as they are on the wire; read as far as pika can."""

    def __init__(self, raw: bytes) -> None:
        super().__init__()
        self.raw = raw
        with contextlib.suppress(Exception):  # whatever pika raises for what others wrote
            self.decode(raw)

    def encode(self) -> list[bytes]:
        return [self.raw]


class GuardedConnection(AsyncioConnection):  # type: ignore[misc]
    def _read_frame(self) -> tuple[int, Any]:
        """pika's hook for the next frame in its buffer: how long it is, and the frame; 0 for none yet."""
        data = self._frame_buffer
        if len(data) < _HEAD.size or data.startswith(b"AMQP"):
            return super()._read_frame()  # type: ignore[no-any-return]
        kind, channel, size = _HEAD.unpack_from(data)
        end = size + OVERHEAD
        if end > self.params.frame_max:
            raise pika.exceptions.InvalidFrameError(f"a frame of {size} bytes")
        if kind != spec.FRAME_HEADER or len(data) < end or data[end - 1] != spec.FRAME_END:
            return super()._read_frame()  # type: ignore[no-any-return]
        _class, _weight, body_size = _HEADER.unpack_from(data, _HEAD.size)
        raw = bytes(data[_HEAD.size + _HEADER.size : end - 1])
        return end, frame.Header(channel, body_size, RawProperties(raw))


@functools.cache
def guard_problem() -> str:
    """Why pika's internals are not as expected; "" when they are. Needs no socket."""
    return first_problem(_problem)


def first_problem(*looks: Callable[[], str]) -> str:
    """What the first of them finds that finds something; "" when none does."""
    try:
        return next((problem for look in looks if (problem := look())), "")
    except Exception as problem:  # whatever is different shows as some exception
        return f"{type(problem).__name__}: {problem}"


def _problem() -> str:
    seen: list[Any] = []
    connection = object.__new__(GuardedConnection)
    connection.params, connection._frame_buffer = pika.ConnectionParameters(), b""
    connection.bytes_received = 0
    connection._process_frame = seen.append
    raw = b"\xff\xff"
    header = frame.Header(1, 7, RawProperties(raw)).marshal()
    connection._on_data_available(header + frame.Heartbeat().marshal())
    if [type(each) for each in seen] != [frame.Header, frame.Heartbeat]:
        return "it does not read through the hook"
    if seen[0].body_size != 7 or seen[0].properties.encode() != [raw]:
        return "it reads headers otherwise"
    return ""
