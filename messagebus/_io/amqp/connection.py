"""pika's connection with our own frames beside its own, and what sends and receives them on a channel.

`GuardedConnection`: pika decodes the properties of every message that it reads and ends the connection
where it cannot: such a message would come again for ever. And pika waits for the whole of a frame of any
size. Here properties stay as they are on the wire, and a frame larger than agreed ends the connection;
header frames have a bound of their own, because a broker adds to headers that filled a frame.

`FrameConnection` takes deliveries and confirms out of the input (`frames.FrameParser`) and writes our
publishes and acks and pika's frames in one order. The handshake, login, channels, declarations, heartbeats,
returns and every error stay pika's. Nothing of pika is patched: other users of it in the process see no
change.

`FrameTransport` sends and receives with our own codec, `PikaTransport` through pika's channel; both do the
same, one more slowly. `guard_problem` and `seam_problem` check all pika internals in use, without a socket,
once in a process; where one has changed, links fall back to plain pika. Runs on one asyncio loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterable
from struct import Struct
from typing import Any, Protocol

import pika
import pika.exceptions
from pika import frame, spec
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.adapters.utils import io_services_utils
from pika.channel import Channel
from pika.exceptions import StreamLostError

from messagebus._io.amqp.frames import (
    HEADER_FRAME_MAX,
    Arrived,
    Bare,
    Confirm,
    Contents,
    FrameParser,
    PublishFrames,
    encode_ack,
    encode_nack,
)

log = logging.getLogger("messagebus")

HOT_PATH = "MESSAGEBUS_HOT_PATH"
"""Environment variable: "0" makes every link plain pika, to compare or to find a fault."""

_HEAD = Struct(">BHI")
_HEADER = Struct(">HHQ")
OVERHEAD = _HEAD.size + 1
# pika reads 4 KiB at a time until nothing is left; larger reads cost less, and one a turn keeps the
# links of one loop fair. Above malloc's threshold (128 KiB) each read would map memory anew.
READ_BYTES = 64 * 1024
# Bytes of our frames in the write buffer above which sending pauses (`backed_up`).
WRITE_BYTES_MAX = 1 << 20
FRAME_MIN = 4096
# Frame size before both sides have agreed: a broker may say much about itself.
FRAME_FIRST_MAX = 131_072


class RawProperties(pika.BasicProperties):  # type: ignore[misc]  # pika has no types
    """Properties of a message as bytes of the wire, decoded as far as pika can."""

    def __init__(self, raw: bytes) -> None:
        super().__init__()
        self.raw = raw
        with contextlib.suppress(Exception):  # pika raises anything for malformed properties
            self.decode(raw)

    def encode(self) -> list[bytes]:
        return [self.raw]


class GuardedConnection(AsyncioConnection):  # type: ignore[misc]
    def _proto_data_received(self, data: bytes) -> None:
        """Override pika's hook for input: the reader of a failed socket takes all that is left, and its end.

        uvloop calls that reader once more and then forgets the socket. A link with more than one read left
        would stay open and deaf until its heartbeat.
        """
        transport = self._transport
        sock = getattr(transport, "_sock", None)
        if sock is not None and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            transport._MAX_CONSUME_BYTES = sys.maxsize
        super()._proto_data_received(data)

    def _read_frame(self) -> tuple[int, Any]:
        """Override pika's hook: return length and content of the next frame in its buffer; 0 for none yet."""
        data = self._frame_buffer
        if len(data) < _HEAD.size or data.startswith(b"AMQP"):
            return super()._read_frame()  # type: ignore[no-any-return]
        kind, channel, size = _HEAD.unpack_from(data)
        end = size + OVERHEAD
        if end > self.params.frame_max and not (
            kind == spec.FRAME_HEADER and channel and size <= HEADER_FRAME_MAX
        ):
            raise pika.exceptions.InvalidFrameError(f"a frame of {size} bytes")
        if kind != spec.FRAME_HEADER or len(data) < end or data[end - 1] != spec.FRAME_END:
            return super()._read_frame()  # type: ignore[no-any-return]
        _class, _weight, body_size = _HEADER.unpack_from(data, _HEAD.size)
        raw = bytes(data[_HEAD.size + _HEADER.size : end - 1])
        return end, frame.Header(channel, body_size, RawProperties(raw))


class HotSink(Protocol):
    """The owner of a channel: it gets items in the order of the stream."""

    def on_item(self, item: Contents | Confirm) -> None: ...

    def on_read(self) -> None:
        """Handle the end of one read: all its items were passed on."""

    def on_closed(self) -> None:
        """Handle the end of the channel: nothing more comes."""


class FrameConnection(GuardedConnection):
    """A connection of pika's, with channels whose messages do not pass through pika."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.out: list[bytes] = []
        """Output of the next `flush`; pieces of one message must be appended together."""
        self._parser = FrameParser(FRAME_FIRST_MAX)
        self._sinks: dict[int, HotSink] = {}
        self._direct = False
        super().__init__(*args, **kwargs)

    def attach(self, channel: Channel, sink: HotSink) -> None:
        """Send deliveries and confirms of this open channel to the sink, from now on."""
        transport = self._transport
        if type(transport) is getattr(io_services_utils, "_AsyncPlaintextTransport", None):
            transport._MAX_RECV_BYTES, transport._MAX_CONSUME_BYTES = READ_BYTES, 1
            self._direct = hasattr(transport, "_sock") and hasattr(transport, "_tx_buffers")
        self._parser.frame_max = max(self.params.frame_max, FRAME_MIN)
        self._parser.hot.add(channel.channel_number)
        self._sinks[channel.channel_number] = sink
        channel.add_on_close_callback(lambda closed, _why: self._detach(closed.channel_number))

    def _detach(self, number: int) -> None:
        self._parser.hot.discard(number)
        sink = self._sinks.pop(number, None)
        if sink is not None:
            sink.on_closed()

    def _on_data_available(self, data_in: bytes) -> None:
        """Override pika's hook for input."""
        self.bytes_received += len(data_in)  # pika's heartbeat check watches this number
        for item in self._parser.feed(data_in):
            if type(item) is bytes:
                self.bytes_received -= len(item)  # counted by pika
                super()._on_data_available(item)
            elif (sink := self._sinks.get(item.channel)) is not None:  # type: ignore[union-attr]
                sink.on_item(item)  # type: ignore[arg-type]
        for sink in list(self._sinks.values()):
            sink.on_read()
        if self._parser.fault:
            self._terminate_stream(StreamLostError(f"no AMQP: {self._parser.fault}"))

    def _output_marshaled_frames(self, marshaled_frames: Any) -> None:
        """Override pika's hook for output: our frames came first, and a close must not overtake them."""
        self.flush()
        super()._output_marshaled_frames(marshaled_frames)

    def flush(self) -> None:
        """Write the frames in `out`, in one piece."""
        if not self.out:
            return
        transport = self._transport
        if transport is not None:
            data = memoryview(b"".join(self.out))  # a view: a partial send copies no tail
            self.bytes_sent += len(data)
            if self._direct and not transport._tx_buffers:
                # Send at once when nothing waits: saves two epoll_ctl and a turn of the loop each.
                with contextlib.suppress(OSError):  # full, or broken: pika's own write handles it
                    data = data[transport._sock.send(data) :]
            if data:
                transport.write(data)
        self.out.clear()

    @property
    def backed_up(self) -> bool:
        """True while the socket takes less than we write; pika's transport does not tell when it drains."""
        transport = self._transport
        return transport is None or transport.get_write_buffer_size() > WRITE_BYTES_MAX


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
        # After Channel.Close the broker ends the connection for any more; other channels go on.
        if self._channel.is_open or len(self._connection._sinks) > 1:
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


@functools.cache
def seam_problem() -> str:
    """Return how pika's internals differ from what is expected; "" when they do not."""
    return first_problem(_version_problem, guard_problem, _input_problem, _output_problem)


@functools.cache
def guard_problem() -> str:
    """Return how pika's internals differ from what is expected; "" when they do not. Needs no socket."""
    return first_problem(_problem)


def first_problem(*looks: Callable[[], str]) -> str:
    """Return the first problem that a check finds; "" when none does."""
    try:
        return next((problem for look in looks if (problem := look())), "")
    except Exception as problem:  # any difference may show as an exception
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


def _version_problem() -> str:
    if not (1, 4) <= tuple(int(part) for part in pika.__version__.split(".")[:2]) < (2,):
        return f"pika {pika.__version__} is not known"
    for name, names in {
        "_proto_data_received": ["self", "data"],
        "_on_data_available": ["self", "data_in"],
        "_output_marshaled_frames": ["self", "marshaled_frames"],
    }.items():
        if list(inspect.signature(getattr(AsyncioConnection, name)).parameters) != names:
            return f"{name} takes other arguments"
    return ""


def _input_problem() -> str:
    """Feed three frames in small pieces: the ack must be ours, the others pika's."""
    seen: list[Any] = []
    connection = _probe(seen.append, lambda _data: None)
    stream = b"".join(
        each.marshal()
        for each in (
            frame.Heartbeat(),
            frame.Method(1, spec.Basic.Ack(7, multiple=True)),
            frame.Method(1, spec.Channel.Flow(active=False)),
        )
    )
    for at in range(0, len(stream), 5):
        connection._proto_data_received(stream[at : at + 5])
    if [type(each) for each in seen] != [frame.Heartbeat, Confirm, frame.Method]:
        return "it does not read through the hook"
    if connection._frame_buffer or connection.bytes_received != len(stream):
        return "it keeps or counts what it reads otherwise"
    return ""


def _output_problem() -> str:
    """Write one message by pika behind one of ours: both must be the same bytes, ours first."""
    sent: list[bytes] = []
    connection = _probe(lambda _item: None, lambda data: sent.append(bytes(data)))
    properties = spec.BasicProperties(message_id="m", headers={"a": 1}, delivery_mode=2)
    body = b"x" * (FRAME_MIN + 1)
    PublishFrames(1, "e", "k", FRAME_MIN).add(connection.out, b"".join(properties.encode()), body)
    connection._send_method(
        1, spec.Basic.Publish(exchange="e", routing_key="k", mandatory=True), (properties, body)
    )
    if not sent or sent[0] != b"".join(sent[1:]):
        return "it writes otherwise"
    return ""


class _ProbeSink:
    def __init__(self, on_item: Callable[[Any], None]) -> None:
        self.on_item = on_item

    def on_read(self) -> None:
        pass

    def on_closed(self) -> None:
        pass


def _probe(on_item: Callable[[Any], None], write: Callable[[Any], None]) -> FrameConnection:
    """Return a connection that believes it is open, without a socket."""
    connection = object.__new__(FrameConnection)
    connection._parser, connection._direct, connection.out = FrameParser(FRAME_MIN), False, []
    connection._parser.hot.add(1)
    connection._sinks = {1: _ProbeSink(on_item)}
    connection.params = pika.ConnectionParameters()
    connection._transport = type("Probe", (), {"write": staticmethod(write)})()
    connection.bytes_received = connection.bytes_sent = connection.frames_sent = 0
    connection.connection_state, connection._frame_buffer = connection.CONNECTION_OPEN, b""
    connection._body_max_length = FRAME_MIN - 8
    connection._process_frame = on_item
    return connection
