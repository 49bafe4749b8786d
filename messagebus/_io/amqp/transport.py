"""The fast half of a link: publishes and answers out, confirms and deliveries in.

`FrameTransport` uses our own codec, `PikaTransport` pika's channel; both do the same, one more slowly.
`connection.seam_problem` decides once in a process which one links get. Runs on one asyncio loop.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import pika
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.channel import Channel

from messagebus._io.amqp.connection import (
    WRITE_BYTES_MAX,
    FrameConnection,
    GuardedConnection,
    RawProperties,
    guard_problem,
    seam_problem,
)
from messagebus._io.amqp.frames import (
    Arrived,
    Bare,
    Confirm,
    Contents,
    PublishFrames,
    encode_ack,
    encode_nack,
)

__all__ = ["UniformFrames", "Frames", "Transport", "connection_class", "transport_for"]

log = logging.getLogger("messagebus")

HOT_PATH = "MESSAGEBUS_HOT_PATH"
"""Environment variable: "0" makes every link plain pika, to compare or to find a fault."""


OnConfirm = Callable[[int, bool, bool], None]
OnContents = Callable[[list[Arrived]], None]


def _no_confirm(tag: int, multiple: bool, ok: bool) -> None:
    pass


def _no_contents(arrived: list[Arrived]) -> None:
    pass


def _nothing() -> None:
    pass


class UniformFrames(Protocol):
    def add(self, out: list[bytes], messages: Iterable[Bare]) -> None: ...


class Frames(Protocol):
    """The publisher to one address; added messages go out with the transport's next `flush`."""

    def add(self, out: list[bytes], properties: bytes, body: bytes) -> None: ...

    def uniform(self, shape: tuple[bytes, bytes]) -> UniformFrames: ...


class Transport(Protocol):
    """The publishes, answers, confirms and deliveries of one channel.

    on_confirm(tag, multiple, ok), on_contents(arrived): called for input. on_turn: called once after one or
    several of these; its publishes and answers are written after it. out: pass it to `Frames`.
    """

    out: list[bytes]
    on_confirm: OnConfirm
    on_contents: OnContents
    on_turn: Callable[[], None]

    def frames(self, exchange: str, routing_key: str) -> Frames: ...

    def ack(self, tag: int, multiple: bool) -> None: ...

    def nack(self, tag: int, requeue: bool) -> None: ...

    def flush(self) -> None: ...

    @property
    def backed_up(self) -> bool:
        """True while the socket takes less than we write."""

    def pika_confirm(self, method: Any) -> None:
        """Take a confirm that pika read: the callback for `confirm_delivery`."""

    def pika_content(
        self, channel: Channel, method: Any, properties: pika.BasicProperties, body: bytes
    ) -> None:
        """Take a delivery that pika read: the callback for `basic_consume`."""


def connection_class() -> Any:
    """Return the connection class to dial with."""
    if os.environ.get(HOT_PATH) == "0" or not _seam_holds():
        # Guarded against malformed messages of other clients, where pika allows it.
        return AsyncioConnection if guard_problem() else GuardedConnection
    return FrameConnection


@functools.cache
def _seam_holds() -> bool:
    """Return whether pika's internals are as expected. Checks once in a process; logs one warning if not."""
    if problem := seam_problem():
        log.warning("slow path: pika %s is not as expected: %s", pika.__version__, problem)
    return not problem


def transport_for(connection: Any, channel: Channel) -> Transport:
    """Return the transport of an open channel."""
    if isinstance(connection, FrameConnection):
        return FrameTransport(connection, channel)
    return PikaTransport(connection, channel)


class FrameTransport:
    """A transport with our own frames on pika's connection."""

    def __init__(self, connection: FrameConnection, channel: Channel) -> None:
        self._connection, self._channel = connection, channel
        self._number = channel.channel_number
        self.out = connection.out
        self.on_confirm: OnConfirm = _no_confirm
        self.on_contents: OnContents = _no_contents
        self.on_turn: Callable[[], None] = _nothing
        self._is_closed = False
        connection.attach(channel, self)

    def on_item(self, item: Contents | Confirm) -> None:
        if isinstance(item, Contents):
            self.on_contents(item.arrived)
        else:
            self.on_confirm(item.tag, item.multiple, item.ok)

    def on_read(self) -> None:
        self.on_turn()
        self._connection.flush()

    def on_closed(self) -> None:
        self._is_closed = True

    def frames(self, exchange: str, routing_key: str) -> Frames:
        return PublishFrames(self._number, exchange, routing_key, self._connection.params.frame_max)

    def ack(self, tag: int, multiple: bool) -> None:
        if not self._is_closed:
            self.out.append(encode_ack(self._number, tag, multiple))

    def nack(self, tag: int, requeue: bool) -> None:
        if not self._is_closed:
            self.out.append(encode_nack(self._number, tag, requeue))

    def flush(self) -> None:
        if self._channel.is_open:  # after Channel.Close the broker ends the connection for any more
            self._connection.flush()
        else:
            self.out.clear()

    @property
    def backed_up(self) -> bool:
        return self._connection.backed_up

    def pika_confirm(self, method: Any) -> None:
        raise AssertionError("a confirm went past the hook")

    def pika_content(
        self, channel: Channel, method: Any, properties: pika.BasicProperties, body: bytes
    ) -> None:
        raise AssertionError("a delivery went past the hook")


class PikaTransport:
    """A transport through pika's channel."""

    def __init__(self, connection: Any, channel: Channel) -> None:
        self._connection, self._channel = connection, channel
        self.out: list[bytes] = []
        self.on_confirm: OnConfirm = _no_confirm
        self.on_contents: OnContents = _no_contents
        self.on_turn: Callable[[], None] = _nothing
        self._loop = asyncio.get_running_loop()
        self._woken = False

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._woken = False
        self.on_turn()

    def frames(self, exchange: str, routing_key: str) -> Frames:
        return _PlainFrames(self._channel, exchange, routing_key)

    def ack(self, tag: int, multiple: bool) -> None:
        if self._channel.is_open:
            self._channel.basic_ack(tag, multiple)

    def nack(self, tag: int, requeue: bool) -> None:
        if self._channel.is_open:
            self._channel.basic_nack(tag, requeue=requeue)

    def flush(self) -> None:
        pass

    @property
    def backed_up(self) -> bool:
        transport = self._connection._transport
        return transport is None or transport.get_write_buffer_size() > WRITE_BYTES_MAX

    def pika_confirm(self, method: Any) -> None:
        ok = isinstance(method, pika.spec.Basic.Ack)
        self.on_confirm(method.delivery_tag, method.multiple, ok)
        self._wake()

    def pika_content(
        self, channel: Channel, method: Any, properties: pika.BasicProperties, body: bytes
    ) -> None:
        raw = b"".join(properties.encode())
        self.on_contents([(method.delivery_tag, method.redelivered, raw, body)])
        self._wake()


class _PlainFrames:
    def __init__(self, channel: Channel, exchange: str, routing_key: str) -> None:
        self._channel, self._exchange, self._routing_key = channel, exchange, routing_key

    def add(self, out: list[bytes], properties: bytes, body: bytes) -> None:
        self._channel.basic_publish(
            self._exchange, self._routing_key, body, RawProperties(properties), mandatory=True
        )

    def uniform(self, shape: tuple[bytes, bytes]) -> UniformFrames:
        return _PikaUniformFrames(self, shape)


class _PikaUniformFrames:
    def __init__(self, frames: _PlainFrames, shape: tuple[bytes, bytes]) -> None:
        self._frames, self._shape = frames, shape

    def add(self, out: list[bytes], messages: Iterable[Bare]) -> None:
        before, after = self._shape
        for message in messages:
            properties = before + message.message_id.encode() + after
            self._frames.add(out, properties, message.body)
