"""Messages to send, the options of a publish, and deliveries received.

A `Message` is a value: the library never changes it. A `Delivery` is a message that arrived, with
the receipt that says where its answer must go.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, Protocol, Self, TypedDict, cast

from messagebus.bodies import (
    BINARY,
    JSON,
    TEXT,
    decode_json,
    decode_text,
    encode_json,
    is_json,
    json_in_utf8,
)
from messagebus.core.deliveries import Ledger, Receipt
from messagebus.core.headers import CRC_HEADER, OF_BROKERS
from messagebus.core.path import PATH_HEADER, read_path
from messagebus.destination import Source
from messagebus.errors import MessageInvalid, WrongPayload

__all__ = ["BODY_BYTES_MAX", "Delivery", "Header", "Message", "Options", "Payload", "Reading"]

# Between a broker and one of its segments, in the names that drivers give them.
SEGMENT_MARK = "#"
# RabbitMQ 4 refuses larger ones by closing the channel, which makes the whole window unknown.
BODY_BYTES_MAX = 16 * 1024 * 1024
SHORT_BYTES_MAX = 255
# Properties must fit into one frame, of 128 KiB by default: a longer one ends the connection.
HEADERS_BYTES_MAX = 64 * 1024
HEADER_DEPTH_MAX = 16
# RabbitMQ's bound of an expiration: 2**32 - 1 ms.
TTL_S_MAX = ((1 << 32) - 1) / 1000
RESERVED_PREFIX = "mb-"
# Headers of copies for another run: number of the run, and time of the first publish.
ATTEMPT_HEADER, FIRST_HEADER = "mb-attempt", "mb-first-ms"
# Any publisher may write any number there: beyond these bounds the headers are ignored.
ATTEMPT_MAX, FIRST_MS_MAX = 1_000_000, 253_402_128_000_000  # 9999-12-30: every time zone has it

_TEXTS = (
    *("content_type", "message_id", "key", "correlation_id", "reply_to", "type"),
    *("content_encoding", "app_id"),
)
Header = None | bool | int | str | bytes | list[Any] | dict[str, Any]
NO_HEADERS: Mapping[str, Header] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Message to publish.

    body: at most BODY_BYTES_MAX bytes. content_type: media type of the body; readers decode by it.
    message_id: 1 to 255 bytes; "": the publisher generates one. Every retry and copy has the same id.
    headers: name -> value. Names must not start with ``mb-``, nor be names by which brokers route or count
        (CC, BCC, x-death ...). No floats, which AMQP clients read differently. At most HEADERS_BYTES_MAX
        in all. Never mutated.
    key: messages of one key keep their order; 0 to 255 bytes of UTF-8; "": no key.
    priority: 0 to 9; None: none. Quorum queues of RabbitMQ 3 ignore it; those of RabbitMQ 4 deliver a higher
        one first, out of the order of sending. Topics with partitions refuse it.
    correlation_id, reply_to, type, app_id: as in AMQP, for the application's own use.
    content_encoding: coding of the body, such as ``gzip``; the library neither compresses nor decompresses.
        A charset there, as Spring writes it, is used if content_type has none.
    ttl_s: seconds, to the millisecond, after which a message that still waits is parked, or dropped where the
        subscription has no parking queue; at most 4,294,967; None: never. Brokers look at the head of a queue
        only, and not at messages that a consumer holds.
    """

    body: bytes
    content_type: str = BINARY
    message_id: str = ""
    headers: Mapping[str, Header] = field(default_factory=lambda: NO_HEADERS)
    key: str = ""
    priority: int | None = None
    correlation_id: str = ""
    reply_to: str = ""
    type: str = ""
    ttl_s: float | None = None
    content_encoding: str = ""
    app_id: str = ""

    def __post_init__(self) -> None:
        body: object = self.body
        if not isinstance(body, bytes):
            kind = type(body).__name__
            raise MessageInvalid(f"body is {kind}, not bytes; see Message.text, Message.json")
        if len(self.body) > BODY_BYTES_MAX:
            raise MessageInvalid(f"body of {len(self.body)} bytes: at most {BODY_BYTES_MAX}")
        for name in _TEXTS:
            _check_short(name, getattr(self, name))
        _check_priority(self.priority)
        if self.ttl_s is not None:
            check_seconds("ttl_s", self.ttl_s, TTL_S_MAX)
        headers: object = self.headers
        if not isinstance(headers, Mapping):
            raise MessageInvalid(f"headers is {type(headers).__name__}, not a mapping")
        if self.headers:
            _check_headers(self.headers)

    @classmethod
    def text(
        cls,
        text: str,
        *,
        message_id: str = "",
        headers: Mapping[str, Header] = NO_HEADERS,
        key: str = "",
        priority: int | None = None,
        correlation_id: str = "",
        reply_to: str = "",
        type: str = "",
        ttl_s: float | None = None,
        content_encoding: str = "",
        app_id: str = "",
    ) -> Message:
        """Create a message from a text. Raises MessageInvalid for half a surrogate pair."""
        fields = (message_id, headers, key, priority, correlation_id, reply_to, type, ttl_s,
                  content_encoding, app_id)  # fmt: skip
        return _with_fields(_encoded("text", text), TEXT, fields)

    @classmethod
    def json(
        cls,
        value: Any,
        *,
        message_id: str = "",
        headers: Mapping[str, Header] = NO_HEADERS,
        key: str = "",
        priority: int | None = None,
        correlation_id: str = "",
        reply_to: str = "",
        type: str = "",
        ttl_s: float | None = None,
        content_encoding: str = "",
        app_id: str = "",
    ) -> Message:
        """Create a message from a value, as JSON: dicts, lists, dataclasses, pydantic models, dates, Decimal.

        A time without a time zone is written without one, a set as a list in arbitrary order.
        Raises MessageInvalid for a value that JSON cannot represent.
        """
        try:
            body = encode_json(value)
        except (TypeError, ValueError, RecursionError) as fault:
            raise MessageInvalid(f"{value.__class__.__name__} is not JSON: {fault}") from fault
        fields = (message_id, headers, key, priority, correlation_id, reply_to, type, ttl_s,
                  content_encoding, app_id)  # fmt: skip
        return _with_fields(body, JSON, fields)

    @classmethod
    def binary(
        cls,
        body: bytes,
        *,
        message_id: str = "",
        headers: Mapping[str, Header] = NO_HEADERS,
        key: str = "",
        priority: int | None = None,
        correlation_id: str = "",
        reply_to: str = "",
        type: str = "",
        ttl_s: float | None = None,
        content_encoding: str = "",
        app_id: str = "",
    ) -> Message:
        """Create a message from bytes."""
        fields = (message_id, headers, key, priority, correlation_id, reply_to, type, ttl_s,
                  content_encoding, app_id)  # fmt: skip
        return _with_fields(body, BINARY, fields)

    def with_checksum(self) -> Message:
        """Return a copy whose body every consumer compares with its CRC-32, and parks where they differ."""
        made = copy.copy(self)
        # Not by the constructor, which refuses the library's own headers.
        object.__setattr__(made, "headers", {**self.headers, CRC_HEADER: zlib.crc32(self.body)})
        return made

    def as_text(self) -> str:
        """Return the body as text. Raises WrongPayload unless content_type and the bytes are a text."""
        if not self._media_type.startswith("text/"):
            raise WrongPayload(f"not a text: content_type is {self.content_type!r}")
        return decode_text(self.body, self.content_type, self.content_encoding)

    def as_json(self) -> Any:
        """Return the body, decoded from JSON. Raises WrongPayload unless content_type and the bytes are JSON.

        content_type: application/json, text/json, one that ends in +json, or none. The body is in UTF-8,
        or in the charset that content_type or content_encoding names.
        """
        if self.content_type and not is_json(self.content_type):
            raise WrongPayload(f"not JSON: content_type is {self.content_type!r}")
        return decode_json(json_in_utf8(self.body, self.content_type, self.content_encoding))

    def as_binary(self) -> bytes:
        """Return the body as bytes. Raises WrongPayload if content_type is text or JSON."""
        if self._media_type.startswith("text/") or is_json(self.content_type):
            raise WrongPayload(f"not binary: content_type is {self.content_type!r}")
        return self.body

    @property
    def _media_type(self) -> str:
        return self.content_type.partition(";")[0].strip().lower()


_FIELDS = tuple(each.name for each in dataclasses.fields(Message))[2:]


def _with_fields(body: bytes, content_type: str, fields: tuple[Any, ...]) -> Message:
    """Make a message. fields: all others, in their order."""
    named: dict[str, Any] = dict(zip(_FIELDS, fields, strict=True))
    return Message(body=body, content_type=content_type, **named)


Payload = Any
"""Payload of a publish: a message, bytes, a text; anything else goes as JSON, as `Message.json` makes it."""


def as_message(payload: Payload) -> Message:
    """Return the message of a payload. Raises MessageInvalid for a value that JSON cannot represent."""
    if isinstance(payload, Message):
        return payload
    if isinstance(payload, bytes):
        return Message(body=payload)
    if isinstance(payload, str) and not isinstance(payload, enum.Enum):
        return Message.text(payload)
    return Message.json(payload)


def is_bare(message: Message) -> bool:
    """Return whether it has only a body and a content type, and its id is left to the library."""
    return not (
        message.headers
        or message.message_id
        or message.key
        or message.correlation_id
        or message.reply_to
        or message.type
        or message.content_encoding
        or message.app_id
    ) and (message.priority is None and message.ttl_s is None)


class Options(TypedDict, total=False):
    """Options of one publish that were given, by name; they are those of `Publisher.submit`."""

    headers: Mapping[str, Header]
    key: str
    priority: int
    ttl_s: float
    correlation_id: str
    reply_to: str
    message_id: str
    type: str
    content_encoding: str
    app_id: str
    deliver_after_s: float
    deliver_at: datetime | float
    redundant: bool | str


OPTIONS = tuple(Options.__annotations__)
DELAYS = ("deliver_after_s", "deliver_at")
_NOT_FIELDS = (*DELAYS, "redundant")
Given = tuple[object, ...]
"""The options of a call in the order of OPTIONS; None for one that was not given."""
NONE_GIVEN: Given = (None,) * len(OPTIONS)


def given_options(given: Given) -> Options:
    """Return the options of a call that were given."""
    named = {name: value for name, value in zip(OPTIONS, given, strict=True) if value is not None}
    return cast(Options, named)


def message_with(payload: Payload, options: Options) -> Message:
    """Return the message of a payload, with the options that are fields of it. Raises MessageInvalid."""
    fields: dict[str, Any] = {name: v for name, v in options.items() if name not in _NOT_FIELDS}
    if type(payload) is bytes:  # a Message is checked when it is made: once instead of twice
        return Message(body=payload, **fields)
    message = as_message(payload)
    return dataclasses.replace(message, **fields) if fields else message


class Reading(Protocol):
    """Decoder of an arrived message; the raw form is the transport's own."""

    def message(self, raw: bytes, body: bytes) -> Message: ...

    def message_id(self, raw: bytes) -> str: ...

    def content_type(self, raw: bytes) -> str: ...

    def content_encoding(self, raw: bytes) -> str: ...

    def key(self, raw: bytes) -> str: ...

    def library_headers(self, raw: bytes) -> Mapping[str, Header]:
        """Return the headers that begin with ``mb-``, which a message does not show."""

    def stamp_ms(self, raw: bytes) -> int | None:
        """Return the time of publishing in ms since 1970; None when the message does not say."""


class Delivery:
    """Message that a consumer received. Read-only; compared by identity.

    receipt: the address of its answer. source: the subscription or queue that it was received from.
    redelivered: True if the broker has delivered it before, to any consumer: it may be a duplicate.
    received_ns: time.monotonic_ns() of its arrival.
    body: bytes of the message. message: the whole message; decoded at the first access.
    attempt: number of the handler's run, from 1. age_s: seconds since its first publish.
    """

    # Names with an underscore belong to the library's drivers (`_io.consume`).
    __slots__ = (
        "_answered",
        "_ledger",
        "_message",
        "_own",
        "_part",
        "_properties",
        "_reading",
        "_tag",
        "body",
        "received_ns",
        "redelivered",
        "source",
    )

    def __init__(
        self,
        message: Message,
        receipt: Receipt,
        source: Source,
        redelivered: bool = False,
        received_ns: int = 0,
        attempt: int = 1,
    ) -> None:
        """Create a delivery for tests of an application; consumers create all others."""
        self._ledger = Ledger(receipt.broker, receipt.epoch)
        self._tag, self._part = receipt.tag, receipt.part
        self.source, self.redelivered, self.received_ns = source, redelivered, received_ns
        self.body, self._properties = message.body, b""
        self._message: Message | None = message
        self._reading: Reading | None = None
        self._own: Mapping[str, Header] = {ATTEMPT_HEADER: attempt}
        self._answered = False

    @classmethod
    def _arrived(
        cls,
        ledger: Ledger,
        tag: int,
        part: int,
        source: Source,
        redelivered: bool,
        received_ns: int,
        raw: bytes,
        body: bytes,
        reading: Reading,
    ) -> Self:
        """Make a delivery from a transport; parts that the application does not ask for are never decoded.

        raw: the AMQP property list as it arrived.
        """
        made = cls.__new__(cls)
        made._ledger = ledger
        made._tag = tag
        made._part = part
        made.source = source
        made.redelivered = redelivered
        made.received_ns = received_ns
        made._properties = raw
        made.body = body
        made._reading = reading
        made._message = None
        made._answered = False  # its application gave its answer to an asyncio consumer
        return made

    @property
    def message(self) -> Message:
        """The whole message as published; decoded at the first access."""
        if self._message is None:
            assert self._reading is not None
            self._message = self._reading.message(self._properties, self.body)
        return self._message

    @property
    def message_id(self) -> str:
        """The id of the message, the same in every copy and duplicate."""
        if self._message is not None or self._reading is None:
            return self.message.message_id
        return self._reading.message_id(self._properties)

    @property
    def content_type(self) -> str:
        """The media type of the body; "" if the publisher gave none."""
        if self._message is not None or self._reading is None:
            return self.message.content_type
        return self._reading.content_type(self._properties)

    @property
    def content_encoding(self) -> str:
        """The coding of the body, such as ``gzip``; "" for none."""
        if self._message is not None or self._reading is None:
            return self.message.content_encoding
        return self._reading.content_encoding(self._properties)

    @property
    def key(self) -> str:
        """The key of the message; "" for none."""
        if self._message is not None or self._reading is None:
            return self.message.key
        return self._reading.key(self._properties)

    @property
    def headers(self) -> Mapping[str, Header]:
        """The headers that the publishing application set."""
        return self.message.headers

    @property
    def attempt(self) -> int:
        """The number of the handler's run that this delivery is for: 1 for the first run."""
        number = self._library_headers.get(ATTEMPT_HEADER)
        return min(number, ATTEMPT_MAX) if type(number) is int and number > 0 else 1

    @property
    def age_s(self) -> float:
        """Seconds since its first publish, never negative; as exact as the clocks of both hosts."""
        return max(0.0, time.time() - self.first_ms / 1000)

    @property
    def path(self) -> tuple[str, ...]:
        """The sites that forwarded it, the first site first; () for a message that was published here."""
        return read_path(self._library_headers.get(PATH_HEADER))

    @property
    def first_ms(self) -> int:
        """The time of its first publish, in ms since 1970; the time of its arrival if that is unknown."""
        first_ms = self._library_headers.get(FIRST_HEADER)
        if type(first_ms) is int and 0 < first_ms <= FIRST_MS_MAX:
            return first_ms
        stamp_ms = self._reading.stamp_ms(self._properties) if self._reading is not None else None
        return self._arrived_ms() if stamp_ms is None else stamp_ms

    def _arrived_ms(self) -> int:
        since_ns = time.monotonic_ns() - self.received_ns if self.received_ns else 0
        return (time.time_ns() - since_ns) // 1_000_000

    @property
    def _library_headers(self) -> Mapping[str, Header]:
        """The library's own headers, which begin with ``mb-``: see docs/WIRE.md."""
        try:
            return self._own
        except AttributeError:  # not set when it arrives: most are never asked for it
            assert self._reading is not None
            self._own = self._reading.library_headers(self._properties)
            return self._own

    @property
    def receipt(self) -> Receipt:
        """The address of the answer; valid for one answer, while its connection is open."""
        return Receipt(self._ledger.broker, self._ledger.epoch, self._tag, self._part)

    @property
    def broker(self) -> str:
        """``host:port`` of the broker that delivered it."""
        return self._ledger.broker.partition(SEGMENT_MARK)[0]

    @property
    def partition(self) -> int:
        """The number of its partition; -1 for a topic without partitions."""
        segment = self._ledger.broker.partition(SEGMENT_MARK)[2]
        return int(segment.partition(".")[0]) if segment else -1

    @property
    def fence(self) -> int:
        """A number that rises with each consumer that receives its partition; 0 without `Dedup(fence=True)`.

        Use it in conditional writes, `... WHERE fence <= 17`: they refuse the write of a consumer that has
        lost the partition.
        """
        return self._ledger.fence

    def __repr__(self) -> str:
        size = len(self.body)
        return f"Delivery({self.message_id!r}, {size} bytes, {self.source}, {self.receipt})"


def _check_short(name: str, text: object) -> None:
    if not isinstance(text, str):
        raise MessageInvalid(f"{name} is {type(text).__name__}, not str")
    if len(text) <= SHORT_BYTES_MAX and text.isascii():
        return
    if len(_encoded(name, text)) > SHORT_BYTES_MAX:
        raise MessageInvalid(f"{name} of {len(text.encode())} bytes: at most {SHORT_BYTES_MAX}")


def _encoded(name: str, text: object) -> bytes:
    if not isinstance(text, str):
        raise MessageInvalid(f"{name} is {type(text).__name__}, not str")
    try:
        return text.encode()
    except UnicodeEncodeError as fault:
        raise MessageInvalid(f"{name} is not Unicode text: {fault.reason}") from None


def _check_priority(number: object) -> None:
    if number is not None and not (type(number) is int and 0 <= number <= 9):
        raise MessageInvalid(f"priority {number!r}: a whole number from 0 to 9")


def checked_delivery(given: object) -> Delivery:
    """Return a delivery that the application answers. Raises TypeError for anything else."""
    if isinstance(given, Delivery):
        return given
    why = "; receive returns None when no message came in time" if given is None else ""
    if isinstance(given, list | tuple):
        why = "; answer each of them by a call of its own"
    raise TypeError(f"delivery: a Delivery wanted, not {type(given).__name__}{why}") from None


def check_seconds(name: str, seconds: object, at_most: float) -> float:
    """Return a number of seconds from 0 to at_most. Raises MessageInvalid for anything else."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise MessageInvalid(f"{name} {seconds!r}: a number of seconds")
    if not seconds >= 0:
        raise MessageInvalid(f"{name} {seconds!r}: 0 or more")
    if seconds > at_most:
        raise MessageInvalid(f"{name}: at most {at_most:,.0f} s")
    return seconds


def _check_headers(headers: Mapping[str, Header]) -> None:
    for name in headers:
        _check_short("header name", name)
        if name.startswith(RESERVED_PREFIX):
            raise MessageInvalid(f"header {name!r}: {RESERVED_PREFIX!r} belongs to the library")
        if name in OF_BROKERS:
            raise MessageInvalid(f"header {name!r}: brokers route or count by it, only they set it")
    size = _header_bytes("headers", dict(headers), 0)
    if size > HEADERS_BYTES_MAX:
        raise MessageInvalid(f"headers of {size} bytes: at most {HEADERS_BYTES_MAX}")


def _header_bytes(name: str, value: object, depth: int) -> int:
    """Return the size on the wire in bytes. Raises MessageInvalid where no AMQP table can hold it."""
    if depth > HEADER_DEPTH_MAX:
        raise MessageInvalid(f"header {name!r}: nested more than {HEADER_DEPTH_MAX} deep")
    match value:
        case None | bool():
            return 2
        case int() if -(1 << 63) <= value < 1 << 63:
            return 9
        case str():
            return 5 + len(_encoded(f"header {name!r}", value))
        case bytes():
            return 5 + len(value)
        case list():
            return 5 + sum(_header_bytes(name, each, depth + 1) for each in value)
        case dict():
            for key in value:
                _check_short("header name", key)
            return 5 + sum(
                1 + len(key.encode()) + _header_bytes(key, each, depth + 1)
                for key, each in value.items()
            )
        case _:
            kind = type(value).__name__
            raise MessageInvalid(f"header {name!r}: {kind} of that value cannot be carried")
