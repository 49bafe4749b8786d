"""The encoding of messages as AMQP property lists and back: docs/WIRE.md in code.

A property list follows the body's size in a content header: two bytes of flags, then the properties
that they name, in this order. It is bytes, because the hot path writes them unchanged; plain pika reads
them back into its own class. `find_traceparent` finds the trace context without reading a list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from struct import Struct
from typing import Any

import pika.data

from messagebus._io.amqp.batch import BATCH_TYPE
from messagebus._io.amqp.header_table import read_table
from messagebus.bodies import BINARY
from messagebus.clock import whole_ms
from messagebus.core.headers import OF_BROKERS
from messagebus.core.parking import TTL_HEADER, Facts, read_facts, read_ttl_ms
from messagebus.message import FIRST_MS_MAX, NO_HEADERS, RESERVED_PREFIX, Message

KEY_HEADER = "mb-key"
# The field of a header table: length and text of the name, S for a text; its length and itself follow.
_KEY_FIELD = b"\x06mb-keyS"
_KEY_AFTER = len(_KEY_FIELD) + 4
# Its place without a content type: behind the flags and the table's length.
_KEY_AT = 2 + 4 + _KEY_AFTER
# Ids made by the library have this length.
ID_PLACE = "0" * 32

CONTENT_TYPE, CONTENT_ENCODING, HEADERS = 1 << 15, 1 << 14, 1 << 13
DELIVERY_MODE, PRIORITY = 1 << 12, 1 << 11
CORRELATION_ID, REPLY_TO, EXPIRATION = 1 << 10, 1 << 9, 1 << 8
MESSAGE_ID, TIMESTAMP, TYPE = 1 << 7, 1 << 6, 1 << 5
USER_ID, APP_ID = 1 << 4, 1 << 3
_WITH_TYPE, _ENCODED, _WITH_HEADERS = CONTENT_TYPE >> 8, CONTENT_ENCODING >> 8, HEADERS >> 8
RARELY_BEFORE_ID = CONTENT_ENCODING | HEADERS | PRIORITY | CORRELATION_ID | REPLY_TO | EXPIRATION

BATCH_START = bytes((len(BATCH_TYPE),)) + BATCH_TYPE.encode()

# A larger time stamp is not in seconds, or of no calendar.
STAMP_S_MAX = FIRST_MS_MAX // 1_000

_FLAGS = Struct(">H")
_STAMP = Struct(">Q")
# Flags of the time stamp, of all that may follow it, and of more flags.
AFTER_ID = 0x7F
STAMP_AT_END_MIN = _FLAGS.size + _STAMP.size

NO_TRACEPARENT = ""
# The field of a header table: length and text of the name, S, length and text of the value: 55 bytes,
# which is what version 00 of trace context has.
_FIELD = b"\x0btraceparentS\x00\x00\x00\x37"
_VALUE = len(_FIELD)
_NAME, _STATE, _BAGGAGE = b"traceparent", b"tracestate", b"baggage"


def encode(message: Message, message_id: str, stamp_s: int, *, persistent: bool = True) -> bytes:
    """Encode the properties of one publish; stamp_s: seconds since 1970."""
    stamp = _STAMP.pack(max(0, stamp_s))  # a clock may stand before 1970
    return _encode(message, message_id, b"\x02" if persistent else b"\x01", stamp)


def encode_batch_properties(
    message_id: str,
    stamp_s: int,
    *,
    encoding: str,
    marks: Mapping[str, int],
    persistent: bool = True,
) -> bytes:
    """Encode the properties of a batch that is marked. marks: headers of the library."""
    around = _arrived(
        body=b"", content_type=BATCH_TYPE, content_encoding=encoding, headers=marks, message_id="",
        key="", priority=None, correlation_id="", reply_to="", type="", app_id="", ttl_s=None,
    )  # fmt: skip
    return encode(around, message_id, stamp_s, persistent=persistent)


def due_first(message: Message) -> Message:
    """Return a copy to be delayed: its time to live moves into a header, hidden from the broker."""
    fields = {name: getattr(message, name) for name in Message.__slots__}
    assert message.ttl_s is not None
    headers = {**message.headers, TTL_HEADER: whole_ms(message.ttl_s)}
    return _arrived(**{**fields, "headers": headers, "ttl_s": None})


class EncodedHeaders(dict[str, Any]):
    """Headers of a message that goes on as it came, with the bytes of their table.

    table: as in a property list, with the key. A table that is written anew would lose what other clients
    wrote: pika writes no floats, and chooses the types of whole numbers by itself.
    """

    __slots__ = ("table",)

    def __init__(self, headers: Mapping[str, Any], table: bytes) -> None:
        super().__init__(headers)
        self.table = table


def going_on(message: Message, message_id: str, headers: EncodedHeaders) -> Message:
    """Return a copy with this id and these headers, without the checks for messages to send."""
    made, put = object.__new__(Message), object.__setattr__
    for name in Message.__slots__:
        put(made, name, getattr(message, name))
    put(made, "headers", headers)
    put(made, "message_id", message_id)
    return made


def encode_entry(message: Message, message_id: str) -> bytes:
    """Encode the properties of one entry of a batch; the batch's own hold time stamp and delivery mode."""
    return _encode(message, message_id, b"", b"", entry=True)


def _encode(
    message: Message, message_id: str, mode: bytes, stamp: bytes, *, entry: bool = False
) -> bytes:
    flags = 0
    parts: list[bytes] = [b""]
    # In a batch the default content type is binary, so that the usual case costs nothing.
    if message.content_type != BINARY if entry else message.content_type:
        flags |= CONTENT_TYPE
        parts.append(_short(message.content_type))
    if message.content_encoding:
        flags |= CONTENT_ENCODING
        parts.append(_short(message.content_encoding))
    if type(message.headers) is EncodedHeaders:
        flags |= HEADERS
        parts.append(message.headers.table)
    elif message.headers or message.key:
        flags |= HEADERS
        headers: dict[str, Any] = dict(message.headers)
        if message.key:
            headers[KEY_HEADER] = message.key
        pika.data.encode_table(parts, headers)
    if mode:
        flags |= DELIVERY_MODE
        parts.append(mode)
    if message.priority is not None:
        flags |= PRIORITY
        parts.append(bytes((message.priority,)))
    expires_s = message.ttl_s
    for flag, text in (
        (CORRELATION_ID, message.correlation_id),
        (REPLY_TO, message.reply_to),
        (EXPIRATION, "" if expires_s is None else str(whole_ms(expires_s))),
        (MESSAGE_ID, message_id),
    ):
        if text:
            flags |= flag
            parts.append(_short(text))
    if stamp:
        flags |= TIMESTAMP
        parts.append(stamp)
    if message.type:
        flags |= TYPE
        parts.append(_short(message.type))
    if message.app_id:
        flags |= APP_ID
        parts.append(_short(message.app_id))
    parts[0] = _FLAGS.pack(flags)
    return b"".join(parts)


def bare_shape(content_type: str, stamp_s: int, *, persistent: bool = True) -> tuple[bytes, bytes]:
    """Encode for a bare body: return the bytes before and after the text of a made id."""
    message = Message(body=b"", content_type=content_type)
    return _around_id(encode(message, ID_PLACE, stamp_s, persistent=persistent))


def bare_entry_shape(content_type: str) -> tuple[bytes, bytes]:
    """Encode for a bare entry of a batch, as `bare_shape`."""
    return _around_id(encode_entry(Message(body=b"", content_type=content_type), ID_PLACE))


def _around_id(properties: bytes) -> tuple[bytes, bytes]:
    # The id stands after every text that an application chooses, so it is the last match.
    before, _, after = properties.rpartition(ID_PLACE.encode())
    return before, after


def _short(text: str) -> bytes:
    raw = text.encode()
    return bytes((len(raw),)) + raw


def decode(raw: bytes, body: bytes) -> Message:
    """Decode an arrived message, as far as it makes sense: other clients may set properties wrongly.

    Texts that are not UTF-8 are read with replacement characters, a key with escapes, so that two which
    differ stay two; numbers out of range as absent.
    Never raises.
    """
    fields: dict[str, Any] = {}
    try:
        for name, value in _properties(raw):
            fields[name] = value
    except IndexError:  # cut short: the rest is absent
        pass
    headers = fields.get("headers", NO_HEADERS)
    key = headers.pop(KEY_HEADER, "") if headers else ""
    ours = {
        name: value
        for name, value in headers.items()
        if not name.startswith(RESERVED_PREFIX) and name not in OF_BROKERS
    }
    priority, expires = fields.get("priority"), _number(fields.get("expiration", ""))
    if expires is None:
        expires = read_ttl_ms(headers)
    return _arrived(
        body=body,
        content_type=fields.get("content_type", ""),
        message_id=fields.get("message_id", ""),
        headers=ours or NO_HEADERS,
        key=_key(key),
        priority=priority if priority in range(10) else None,
        correlation_id=fields.get("correlation_id", ""),
        reply_to=fields.get("reply_to", ""),
        type=fields.get("type", ""),
        content_encoding=fields.get("content_encoding", ""),
        app_id=fields.get("app_id", ""),
        ttl_s=None if expires is None else expires / 1000,
    )


def read_message_id(raw: bytes, errors: str = "replace") -> str:
    """Read only the message id. errors: for bytes that are not UTF-8, as of `str`. "" for none."""
    try:
        flags, at = raw[0] << 8 | raw[1], 2
        if not flags & MESSAGE_ID:
            return ""
        if not flags & RARELY_BEFORE_ID:
            at += (1 + raw[2] if flags & CONTENT_TYPE else 0) + (flags >> 12 & 1)
            return str(raw[at + 1 : at + 1 + raw[at]], "utf-8", errors)
        if flags & CONTENT_TYPE:
            at += 1 + raw[at]
        if flags & CONTENT_ENCODING:
            at += 1 + raw[at]
        if flags & HEADERS:
            at += 4 + int.from_bytes(raw[at : at + 4])
        at += (flags >> 12 & 1) + (flags >> 11 & 1)  # delivery mode, priority
        for flag in (CORRELATION_ID, REPLY_TO, EXPIRATION):
            if flags & flag:
                at += 1 + raw[at]
        return str(raw[at + 1 : at + 1 + raw[at]], "utf-8", errors)
    except IndexError:
        return ""


def read_key(raw: bytes) -> str | None:
    """Read only the key, where it is the first header. "" for no headers; None: it needs `decode`."""
    if len(raw) < 3 or raw[0] & _ENCODED:
        return None
    if not raw[0] & _WITH_HEADERS:
        return ""
    at = _KEY_AT + (1 + raw[2] if raw[0] & _WITH_TYPE else 0)
    if not raw.startswith(_KEY_FIELD, at - _KEY_AFTER):
        return None
    return str(raw[at : at + int.from_bytes(raw[at - 4 : at])], "utf-8", "backslashreplace")


def has_priority(raw: bytes) -> bool:
    return len(raw) > 1 and bool(raw[0] << 8 & PRIORITY)


def read_content_type(raw: bytes) -> str:
    """Read only the content type, the first property. "" for none."""
    if len(raw) < 3 or not raw[0] << 8 & CONTENT_TYPE:
        return ""
    return str(raw[3 : 3 + raw[2]], "utf-8", "replace")


def has_content_encoding(raw: bytes) -> bool:
    return bool(raw and raw[0] << 8 & CONTENT_ENCODING)


def read_library_headers(raw: bytes) -> Mapping[str, Any]:
    """Read the library's own headers, which `decode` leaves out."""
    found = read_headers(raw)
    for name in [*found]:
        if not name.startswith(RESERVED_PREFIX):
            del found[name]
    return found


def read_encoding_and_headers(raw: bytes) -> tuple[str, Mapping[str, Any]]:
    """Read the content encoding and all headers. Never raises."""
    encoding, headers = "", NO_HEADERS
    try:
        for name, value in _properties(raw):
            if name == "content_encoding":
                encoding = value
            elif name == "headers":
                headers = value
            elif name != "content_type":
                break
    except IndexError:
        pass
    return encoding, headers


def read_headers(raw: bytes) -> dict[str, Any]:
    """Read all headers: the application's, the library's and the broker's. Never raises."""
    try:
        flags, at = raw[0] << 8, 2
        if not flags & HEADERS:
            return {}
        if flags & CONTENT_TYPE:
            at += 1 + raw[at]
        if flags & CONTENT_ENCODING:
            at += 1 + raw[at]
        return read_table(raw, at)[0]
    except IndexError:
        return {}


def read_stamp_ms(raw: bytes) -> int | None:
    """Return the time of sending, in ms since 1970; None when absent or out of range."""
    if len(raw) >= STAMP_AT_END_MIN and raw[1] & AFTER_ID == TIMESTAMP:  # nothing comes behind it
        stamp_s = int.from_bytes(raw[-_STAMP.size :])
        return stamp_s * 1000 if stamp_s <= STAMP_S_MAX else None
    try:
        for name, value in _properties(raw) if raw[1] & TIMESTAMP else ():
            if name == "timestamp" and len(value) == _STAMP.size:
                stamp_s = int(_STAMP.unpack(value)[0])
                return stamp_s * 1000 if stamp_s <= STAMP_S_MAX else None
    except IndexError:
        pass
    return None


def read_parked_facts(raw: bytes, delivery_limit: int = 0) -> Facts:
    """Read the facts of a parked message. delivery_limit: of its queue, for the number of its attempts."""
    return read_facts(
        read_headers(raw),
        message_id=read_message_id(raw),
        stamp_ms=read_stamp_ms(raw),
        delivery_limit=delivery_limit,
    )


class Reading:
    """The readers for deliveries of messages that came alone, and (entry) in a batch.

    around: the properties of the whole batch, which have its time stamp.
    """

    __slots__ = ("_around", "_entry")

    def __init__(self, *, entry: bool, around: bytes = b"") -> None:
        self._entry, self._around = entry, around

    def message(self, raw: bytes, body: bytes) -> Message:
        found = decode(raw, body)
        if self._entry and not int.from_bytes(raw[:2]) & CONTENT_TYPE:
            object.__setattr__(found, "content_type", BINARY)
        return found

    message_id = staticmethod(read_message_id)

    def content_type(self, raw: bytes) -> str:
        if self._entry and not int.from_bytes(raw[:2]) & CONTENT_TYPE:
            return BINARY
        return read_content_type(raw)

    def content_encoding(self, raw: bytes) -> str:
        is_there = len(raw) > 2 and raw[0] & _ENCODED
        return decode(raw, b"").content_encoding if is_there else ""

    def key(self, raw: bytes) -> str:
        key = read_key(raw)
        return decode(raw, b"").key if key is None else key

    def library_headers(self, raw: bytes) -> Mapping[str, Any]:
        return read_library_headers(raw)

    def stamp_ms(self, raw: bytes) -> int | None:
        return read_stamp_ms(self._around or raw)


ALONE, IN_BATCH = Reading(entry=False), Reading(entry=True)


def in_batch(around: bytes) -> Reading:
    """Return the readers for the entries of a batch with these properties."""
    return Reading(entry=True, around=around)


def is_batch(raw: bytes) -> bool:
    """Return whether the content type is that of a batch."""
    return raw.startswith(BATCH_START, 2) and raw[0] & 0x80 != 0


def _properties(raw: bytes) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each property. Raises IndexError where the list is cut short."""
    flags, at = raw[0] << 8 | raw[1], 2
    for flag, name in _ORDER:
        if not flags & flag:
            continue
        value: Any
        if flag == HEADERS:
            value, at = read_table(raw, at)
        elif flag in (DELIVERY_MODE, PRIORITY):
            value, at = raw[at], at + 1
        elif flag == TIMESTAMP:
            value, at = raw[at : at + 8], at + 8
        else:
            stop = at + 1 + raw[at]
            value, at = str(raw[at + 1 : stop], "utf-8", "replace"), stop
        yield name, value


_ORDER = (
    (CONTENT_TYPE, "content_type"),
    (CONTENT_ENCODING, "content_encoding"),
    (HEADERS, "headers"),
    (DELIVERY_MODE, "delivery_mode"),
    (PRIORITY, "priority"),
    (CORRELATION_ID, "correlation_id"),
    (REPLY_TO, "reply_to"),
    (EXPIRATION, "expiration"),
    (MESSAGE_ID, "message_id"),
    (TIMESTAMP, "timestamp"),
    (TYPE, "type"),
    (USER_ID, "user_id"),
    (APP_ID, "app_id"),
)


def _arrived(**fields: Any) -> Message:
    """Make a message that arrived, without the checks for messages to send."""
    message = object.__new__(Message)
    for name, value in fields.items():
        object.__setattr__(message, name, value)
    return message


def _key(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value if isinstance(value, str) else ""


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 18 else None


def find_traceparent(properties: bytes) -> str | None:
    """Find the traceparent of a message without any other data that a trace needs.

    For most messages it takes a third of the time of reading. A handler often asks for the body only, so
    decoding all of its message for one header would be the larger part of the costs of tracing.
    `NO_TRACEPARENT`: it has none. None: read properly, it has more, or another form.
    """
    if len(properties) < 2:
        return None
    flags = properties[0] << 8 | properties[1]
    if flags & CORRELATION_ID:
        return None
    if not flags & HEADERS:
        return NO_TRACEPARENT
    at = properties.find(_FIELD)
    if at < 0:
        return None if _NAME in properties or _BAGGAGE in properties else NO_TRACEPARENT
    if _STATE in properties or _BAGGAGE in properties or properties.count(_NAME) > 1:
        return None
    return properties[at + _VALUE : at + _VALUE + 55].decode("ascii", "replace")
