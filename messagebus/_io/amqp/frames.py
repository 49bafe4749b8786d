"""The frames of publishing, delivering and answering, as bytes: our own AMQP for the hot path.

Pure: no socket, no clock, no pika. pika builds an object for each frame, 12 to 38 us a message. Here
a publish is a few joined pieces and a delivery a few slices of the input, 1 to 2 us. Everything
else of the protocol stays pika's: `FrameParser` passes its frames on, whole and in order.

Source: AMQP 0-9-1 specification, sections 2.3.5 (frames) and 4.2.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from struct import error as StructError
from typing import NamedTuple, Protocol

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
KINDS = frozenset({METHOD, HEADER, BODY, HEARTBEAT})
FRAME_END = 0xCE
END = b"\xce"
FRAME_OVERHEAD = 8  # seven bytes before the payload, one after
HEADER_OVERHEAD = FRAME_OVERHEAD + 12  # class, weight and body size stand before the properties
BASIC = 60 << 16
BASIC_PUBLISH, BASIC_DELIVER, BASIC_ACK, BASIC_NACK = (BASIC | n for n in (40, 60, 80, 120))

_FRAME = Struct(">BHI")  # kind, channel, size of the payload
_PUBLISH = Struct(">IH")  # method, reserved; then exchange, routing key, bits
_HEADER = Struct(">BHIIQ")  # a frame's head, class and weight, size of the body
_TAG = Struct(">QB")  # delivery tag, redelivered
_ANSWER = Struct(">BHIIQBB")  # a whole ack or nack frame
ANSWER_SIZE = _ANSWER.size
ANSWER_PAYLOAD = ANSWER_SIZE - FRAME_OVERHEAD
# Bound of a header frame that is read. RabbitMQ adds headers of its own (x-delivery-count, x-death,
# x-stream-offset) to what filled a frame, and sends a larger one than was agreed.
HEADER_FRAME_MAX = 1 << 20
# Stand for the properties of a delivery whose header frame is larger: it is passed over, since the link would
# end at this message again and again. No broker can count on such an `x-death`: a copy of the body is parked.
TOO_LONG = b"\x20\x00\x00\x00\x00\x12\x07x-deathA\x00\x00\x00\x05S\x00\x00\x00\x00"
# Bound of body sizes with a cached piece each; applications have few different sizes.
SIZES_MAX = 4096
# Bound of the sizes of deliveries that are cut in one step.
ALIKE_MAX = 64


def encode_ack(channel: int, tag: int, multiple: bool) -> bytes:
    """Return a whole Basic.Ack frame."""
    return _ANSWER.pack(METHOD, channel, ANSWER_PAYLOAD, BASIC_ACK, tag, multiple, FRAME_END)


def encode_nack(channel: int, tag: int, requeue: bool) -> bytes:
    """Return a whole Basic.Nack frame for one delivery."""
    return _ANSWER.pack(METHOD, channel, ANSWER_PAYLOAD, BASIC_NACK, tag, requeue << 1, FRAME_END)


class PublishFrames:
    """The frames of publishes to one exchange and routing key, mandatory, on one channel.

    frame_max: as negotiated; longer bodies go in several frames. All frames of one message must be
    written together, without any other frame of the channel between them.
    """

    def __init__(self, channel: int, exchange: str, routing_key: str, frame_max: int) -> None:
        self._channel, self.body_max = channel, frame_max - FRAME_OVERHEAD
        payload = b"".join(
            (_PUBLISH.pack(BASIC_PUBLISH, 0), _short(exchange), _short(routing_key), b"\x01")
        )
        self._method = _FRAME.pack(METHOD, channel, len(payload)) + payload + END

    def add(self, out: list[bytes], properties: bytes, body: bytes) -> None:
        """Append one message. properties: flags and property list, as in a content header."""
        size = len(body)
        out += (self._method, self._header(len(properties), size), properties)
        if 0 < size <= self.body_max:
            out += (END + _FRAME.pack(BODY, self._channel, size), body, END)
        else:
            out.append(END)
            self.add_parts(out, body)

    def uniform(self, shape: tuple[bytes, bytes]) -> UniformPublishFrames:
        """Return frames for many messages that differ in id and body only.

        shape: the properties before the id's text, its length included, and those after it.
        """
        return UniformPublishFrames(self, shape)

    def pieces(self, shape: tuple[bytes, bytes], id_size: int, size: int) -> tuple[bytes, bytes]:
        """Return the bytes before the id, and those between id and body, for one size of body."""
        before, after = shape
        header = self._header(len(before) + id_size + len(after), size)
        tail = after + END
        if 0 < size <= self.body_max:
            tail += _FRAME.pack(BODY, self._channel, size)
        return self._method + header + before, tail

    def _header(self, properties_size: int, size: int) -> bytes:
        return _HEADER.pack(HEADER, self._channel, 12 + properties_size, BASIC, size)

    def add_parts(self, out: list[bytes], body: bytes) -> None:
        """Append the body of a message that is longer than one frame, or empty."""
        for at in range(0, len(body), self.body_max):
            part = body[at : at + self.body_max]
            out += (_FRAME.pack(BODY, self._channel, len(part)), part, END)


class Bare(Protocol):
    """A message of only an id and a body."""

    message_id: str
    body: bytes


class UniformPublishFrames:
    """Publishes of one shape. Their common parts are cached by body size."""

    def __init__(self, frames: PublishFrames, shape: tuple[bytes, bytes]) -> None:
        self._frames, self._shape = frames, shape
        self._sizes: dict[int, tuple[bytes, bytes]] = {}

    def add(self, out: list[bytes], messages: Iterable[Bare]) -> None:
        """Append messages; their ids always have one length."""
        sizes, body_max = self._sizes, self._frames.body_max
        for message in messages:
            message_id, body = message.message_id.encode(), message.body
            size = len(body)
            before, between = sizes.get(size) or self._pieces(len(message_id), size)
            if 0 < size <= body_max:
                out += (before, message_id, between, body, END)
            else:
                out += (before, message_id, between)
                self._frames.add_parts(out, body)

    def _pieces(self, id_size: int, size: int) -> tuple[bytes, bytes]:
        if len(self._sizes) >= SIZES_MAX:
            self._sizes.clear()
        pieces = self._sizes[size] = self._frames.pieces(self._shape, id_size, size)
        return pieces


def _short(text: str) -> bytes:
    raw = text.encode()
    return bytes((len(raw),)) + raw


class Confirm(NamedTuple):
    """Basic.Ack (ok) or Basic.Nack of the broker."""

    channel: int
    tag: int
    multiple: bool
    ok: bool


Arrived = tuple[int, bool, bytes, bytes]
"""A delivery's tag, its redelivered flag, its properties (flags and list, not decoded), its body."""


class Contents(NamedTuple):
    """Basic.Deliver with content: consecutive deliveries on one channel."""

    channel: int
    arrived: list[Arrived]


class _OneSize(NamedTuple):
    """Deliveries to one consumer with properties and a body of these sizes, each body in one frame.

    whole: start, tag, redelivered, middle, properties, between, body, the frame's end. start: as in `_Usual`;
    middle goes up to the properties, between from there to the body.
    """

    whole: Struct
    start: bytes
    middle: bytes
    between: bytes

    def cut(self, arrived: list[Arrived], data: bytes, at: int) -> int:
        """Append the next deliveries that are of this size; return where they end."""
        whole, start, middle, between = self
        unpack, size = whole.unpack_from, whole.size
        last = len(data) - size
        while at <= last:
            begun, tag, redelivered, names, properties, mark, body, end = unpack(data, at)
            if begun != start or names != middle or mark != between or end != END:
                break
            arrived.append((tag, redelivered == 1, properties, body))
            at += size
        return at


class _Usual:
    """The beginning of each delivery to one consumer.

    start: its method frame up to the delivery tag. rest: from there up to the end of the header frame's
    fixed part; tag, redelivered, the frame's end; kind, channel, size, class and weight, body size.
    """

    def __init__(self, channel: int, frame: bytes) -> None:
        """Derive it from the method frame of one such delivery."""
        self.channel, self.start = channel, frame[: 12 + frame[11]]
        names = len(frame) - len(self.start) - _TAG.size - 1  # exchange and routing key, not needed
        self.rest = Struct(f">QB{names}xBBHIIQ")
        self.next: _OneSize | None = None
        """The size of the last deliveries, where two had the same."""
        self._sizes: dict[bytes, _OneSize] = {}

    def like(self, data: bytes, at: int, properties: int, body: int, last: int) -> _OneSize:
        """Return the size of the delivery that stands there, with these parts. last: its last byte."""
        begun, mark = len(self.start), body - FRAME_OVERHEAD
        middle = data[at + begun + _TAG.size : properties]  # it tells both sizes, too
        found = self._sizes.get(middle)
        if found is None:
            if len(self._sizes) >= ALIKE_MAX:
                self._sizes.clear()
            whole = f">{begun}sQB{len(middle)}s{mark - properties}s8s{last - body}ss"
            found = _OneSize(Struct(whole), self.start, middle, data[mark:body])
            self._sizes[middle] = found
        return found


class _Open:
    """A delivery whose content is still incomplete."""

    __slots__ = ("got", "parts", "properties", "redelivered", "size", "tag")

    def __init__(self, tag: int, redelivered: bool) -> None:
        self.tag, self.redelivered = tag, redelivered
        self.properties: bytes | None = None
        self.size = self.got = 0
        self.parts: list[bytes] = []


Item = Contents | Confirm | bytes


class _Malformed(Exception):
    """Raised when the stream is no AMQP from here on."""


class FrameParser:
    """A parser of input into deliveries, confirms, and other frames, which are pika's.

    Ours are Ack, Nack and Deliver with its content on the channels in `hot`. A header or body frame
    belongs to the owner of the last method of its channel. After the first malformed frame (`fault`)
    nothing more is read. Keeps at most one incomplete frame, and one incomplete content for each channel.
    """

    def __init__(self, frame_max: int) -> None:
        """Create a parser. frame_max: as negotiated; a larger frame is malformed.

        Header frames have a bound of their own, HEADER_FRAME_MAX; of a delivery, a longer one is passed over.
        """
        self.hot: set[int] = set()
        self.frame_max = frame_max
        self._pieces: list[bytes] = []  # of one incomplete frame
        self._have = self._need = 0
        self._passing = 0  # bytes to come of a frame that is passed over
        self._open: dict[int, _Open] = {}
        self._usual: _Usual | None = None
        self.fault = ""
        """The fault in the stream; the connection must end."""

    def feed(self, data: bytes) -> list[Item]:
        """Return the items complete now, in the order of the stream; bytes are whole frames for pika."""
        if self.fault:
            return []
        if self._passing:
            passed = min(self._passing, len(data))
            self._passing -= passed
            data = data[passed:]
        if self._pieces:  # joined once, when the frame is whole: linear in its size
            self._pieces.append(data)
            self._have += len(data)
            if self._have < self._need:
                return []
            data, self._pieces = b"".join(self._pieces), []
        found: list[Item] = []
        at = 0
        try:
            at = self._cut(data, found)
        except _Malformed as fault:
            self.fault = str(fault)
            return found
        if at < len(data):
            self._keep(data[at:])
        return found

    def _keep(self, rest: bytes) -> None:
        self._pieces, self._have, self._need = [rest], len(rest), FRAME_OVERHEAD
        if len(rest) >= FRAME_OVERHEAD:
            self._need += min(_FRAME.unpack_from(rest)[2], max(self.frame_max, HEADER_FRAME_MAX))

    def _cut(self, data: bytes, items: list[Item]) -> int:
        """Cut whole frames; return where they end. Raises _Malformed; `items` has the items before it."""
        at, end, hot, limit = 0, len(data), self.hot, self.frame_max - FRAME_OVERHEAD
        usual = self._usual
        if usual is not None and usual.channel in hot and usual.channel not in self._open:
            at = self._alike(items, data, usual)
        while end - at >= FRAME_OVERHEAD:
            kind, channel, size = _FRAME.unpack_from(data, at)
            stop = at + 7 + size
            if kind not in KINDS or (size > limit and (kind != HEADER or channel == 0)):
                raise _Malformed(f"frame of kind {kind} and {size} bytes")
            if size > limit and size > HEADER_FRAME_MAX:
                if not self._awaits_header(channel):
                    raise _Malformed(f"frame of kind {kind} and {size} bytes")
                if end - at < HEADER_OVERHEAD - 1:
                    break
                self._pass_header(items, channel, data, at)
                self._passing = max(0, stop + 1 - end)
                at = min(stop + 1, end)
                continue
            if stop >= end:
                break
            if data[stop] != FRAME_END:
                raise _Malformed("frame without its end")
            if channel in hot:
                try:
                    if kind == METHOD:
                        at = self._method(items, data, at, stop)
                        continue
                    if channel in self._open and kind != HEARTBEAT:
                        self._add_content(items, channel, kind, data[at + 7 : stop])
                        at = stop + 1
                        continue
                except (IndexError, StructError):
                    raise _Malformed("frame shorter than its method") from None
            at = stop + 1
            items.append(data[stop - 7 - size : at])
        return at

    def _awaits_header(self, channel: int) -> bool:
        """Return whether the next frame of a channel is the header of a delivery."""
        under_way = self._open.get(channel)
        return channel in self.hot and under_way is not None and under_way.properties is None

    def _pass_header(self, items: list[Item], channel: int, data: bytes, at: int) -> None:
        """Take the size of a body from its awaited header, which is too long to keep."""
        under_way = self._open[channel]
        under_way.size = int.from_bytes(data[at + 11 : at + 19])
        under_way.properties = TOO_LONG
        self._close_if_whole(items, channel, under_way)

    def _method(self, items: list[Item], data: bytes, at: int, stop: int) -> int:
        """Read one method frame of a hot channel, and a delivery's whole content if it has arrived."""
        channel, index = data[at + 1] << 8 | data[at + 2], int.from_bytes(data[at + 7 : at + 11])
        if channel in self._open:
            raise _Malformed("method within a content")
        if index == BASIC_DELIVER:
            # The consumer tag stands before the delivery tag; exchange and routing key after it.
            tag, redelivered = _TAG.unpack_from(data, at + 12 + data[at + 11])
            self._usual = usual = _Usual(channel, data[at : stop + 1])
            after = self._alike(items, data, usual, at)
            if after > at:
                return after
            self._open[channel] = _Open(tag, redelivered == 1)
        elif index in (BASIC_ACK, BASIC_NACK) and stop - at == ANSWER_SIZE - 1:
            _, _, _, _, tag, bits, _ = _ANSWER.unpack_from(data, at)
            items.append(Confirm(channel, tag, bits & 1 == 1, index == BASIC_ACK))
        else:
            items.append(data[at : stop + 1])
        return stop + 1

    def _alike(self, items: list[Item], data: bytes, usual: _Usual, at: int = 0) -> int:
        """Cut complete deliveries to one consumer, each in one body frame; return where they end.

        The usual case, in a third of the time; in a sixth where one has the size of the one before. It stops
        at anything else, which is cut frame by frame.
        """
        channel, start, rest = usual.channel, usual.start, usual.rest
        end, limit, unpack = len(data), self.frame_max - FRAME_OVERHEAD, rest.unpack_from
        arrived: list[Arrived] = []
        to_rest, to_properties, size_before = len(start), len(start) + rest.size, 0
        if usual.next is not None:
            at = usual.next.cut(arrived, data, at)
        while data.startswith(start, at) and at + to_properties < end:
            tag, redelivered, mark, kind, its_channel, size, _, length = unpack(data, at + to_rest)
            properties = at + to_properties
            body = properties + size - 12 + FRAME_OVERHEAD  # behind two frames' end and head
            last = body + length
            if (
                last >= end
                or kind != HEADER
                or its_channel != channel
                or not 14 <= size <= HEADER_FRAME_MAX
                or not 0 < length <= limit
                or _FRAME.unpack_from(data, body - 7) != (BODY, channel, length)
                or not mark == data[body - 8] == data[last] == FRAME_END
            ):
                break
            arrived.append((tag, redelivered == 1, data[properties : body - 8], data[body:last]))
            if last - at != size_before:
                size_before, at, usual.next = last - at, last + 1, None
            else:
                usual.next = usual.like(data, at, properties, body, last)
                at = usual.next.cut(arrived, data, last + 1)
        if arrived:
            _add(items, channel, arrived)
        return at

    def _add_content(self, items: list[Item], channel: int, kind: int, payload: bytes) -> None:
        """Add a content frame that arrived later than its method."""
        under_way = self._open[channel]
        if kind == HEADER and under_way.properties is None and len(payload) >= 14:
            under_way.size = int.from_bytes(payload[4:12])
            under_way.properties = payload[12:]
        elif (
            kind == BODY
            and under_way.properties is not None
            and under_way.got + len(payload) <= under_way.size
        ):
            under_way.parts.append(payload)
            under_way.got += len(payload)
        else:
            raise _Malformed("content of another size than announced")
        self._close_if_whole(items, channel, under_way)

    def _close_if_whole(self, items: list[Item], channel: int, under_way: _Open) -> None:
        if under_way.properties is not None and under_way.got == under_way.size:
            del self._open[channel]
            body = b"".join(under_way.parts)
            whole = (under_way.tag, under_way.redelivered, under_way.properties, body)
            _add(items, channel, [whole])


def _add(items: list[Item], channel: int, arrived: list[Arrived]) -> None:
    last = items[-1] if items else None
    if isinstance(last, Contents) and last.channel == channel:
        last.arrived.extend(arrived)
    else:
        items.append(Contents(channel, arrived))
