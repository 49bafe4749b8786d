"""The properties of a delivery's copy: those of the original, and our own headers.

They are made from bytes, not from a `Message`, so the copy keeps properties of other clients that the
library does not read (a content encoding, floats in headers). It leaves out properties of the original's
way: how long it may wait unread, who published it (a broker refuses another's name), headers that would
route the copy elsewhere too, and headers that the broker adds by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from struct import Struct
from typing import Any

import pika
import pika.data

from messagebus._io.amqp.header_table import entry_spans
from messagebus._io.amqp.properties import (
    CONTENT_ENCODING,
    CONTENT_TYPE,
    CORRELATION_ID,
    DELIVERY_MODE,
    EXPIRATION,
    HEADERS,
    KEY_HEADER,
    MESSAGE_ID,
    PRIORITY,
    REPLY_TO,
    TIMESTAMP,
    TYPE,
    EncodedHeaders,
    going_on,
    read_headers,
)
from messagebus.bodies import BINARY
from messagebus.clock import wall_ms
from messagebus.core.headers import OF_BROKERS, STREAM_OFFSET
from messagebus.core.parking import REDRIVEN, TTL_HEADER, Facts, is_dropped_by_redrive
from messagebus.core.path import PATH_HEADER
from messagebus.message import FIRST_HEADER, RESERVED_PREFIX, Message

# Properties must fit into one frame, of 128 KiB by default, or the broker ends the link.
PROPERTIES_BYTES_MAX = 120 * 1024
USER_ID, APP_ID, CLUSTER_ID = 1 << 4, 1 << 3, 1 << 2
_ORDER = (
    CONTENT_TYPE,
    CONTENT_ENCODING,
    HEADERS,
    DELIVERY_MODE,
    PRIORITY,
    CORRELATION_ID,
    REPLY_TO,
    EXPIRATION,
    MESSAGE_ID,
    TIMESTAMP,
    TYPE,
    USER_ID,
    APP_ID,
    CLUSTER_ID,
)
_BYTES = {DELIVERY_MODE: 1, PRIORITY: 1, TIMESTAMP: 8}
_LEFT_OUT = EXPIRATION | USER_ID | CLUSTER_ID

_FLAGS = Struct(">H")
_LENGTH = Struct(">I")
_STAMP = Struct(">Q")
_INT64 = Struct(">q")
# Fields of a header table: length and text of the name, the type.
_FIRST_FIELD = bytes((len(FIRST_HEADER),)) + FIRST_HEADER.encode() + b"l"
_PATH_FIELD = bytes((len(PATH_HEADER),)) + PATH_HEADER.encode() + b"S"


def copied(
    raw: bytes,
    marks: Mapping[str, Any],
    message_id: str,
    *,
    entry: bool,
    stamp_ms: int,
    without: Callable[[str], bool] | None = None,
    expires: bool = False,
) -> bytes:
    """Return the properties of a copy. marks: our headers, in place of those of the same names.

    message_id, stamp_ms: for an original without them. entry: the original came in a batch. without: tells
    which other headers to leave out. expires: keep the time to live, which begins anew.
    """
    found = _spans(raw)
    for flag in list(found):
        if flag & _LEFT_OUT and not (expires and flag == EXPIRATION):
            del found[flag]
    if entry and CONTENT_TYPE not in found:
        found[CONTENT_TYPE] = _short(BINARY)
    found[HEADERS] = _headers(found.get(HEADERS, b""), marks, without, expires=expires)
    found[DELIVERY_MODE] = b"\x02"
    if len(found.get(MESSAGE_ID, b"")) <= 1:
        found[MESSAGE_ID] = _short(message_id)
    found.setdefault(TIMESTAMP, _STAMP.pack(max(0, stamp_ms) // 1000))
    # The flags fall in the order of the properties.
    return _FLAGS.pack(sum(found)) + b"".join(map(found.__getitem__, sorted(found, reverse=True)))


def redriven(raw: bytes, facts: Facts) -> bytes:
    """Return the properties with which a parked message goes back to its queue. facts: those of `raw`."""
    marks: dict[str, Any] = {REDRIVEN: facts.redriven + 1}
    if facts.first_ms is not None:
        marks["mb-first-ms"] = facts.first_ms
    return copied(
        raw,
        marks,
        facts.message_id,
        entry=False,
        stamp_ms=facts.first_ms or wall_ms(),
        without=is_dropped_by_redrive,
    )


def to_forward(raw: bytes, message: Message, message_id: str, path: str, first_ms: int) -> Message:
    """Return the message with these properties to be published on another bus.

    All headers of applications and the key stay as they came, byte by byte; path: "" for a message that no
    site forwarded.
    """
    own = _FIRST_FIELD + _INT64.pack(
        first_ms
    )  # packed by hand: a fifth of the time of pika's tables
    if path:
        own += _PATH_FIELD + _LENGTH.pack(len(path)) + path.encode()
    if raw and raw[0] << 8 & HEADERS:
        own += _kept(_spans(raw).get(HEADERS, b""), (), _is_left_behind)
    table = _LENGTH.pack(len(own)) + own
    return going_on(message, message_id, EncodedHeaders(message.headers, table))


def _is_left_behind(name: str) -> bool:
    return name.startswith(RESERVED_PREFIX) and name != KEY_HEADER


def _short(text: str) -> bytes:
    encoded = text.encode()
    return bytes((len(encoded),)) + encoded


def _spans(raw: bytes) -> dict[int, bytes]:
    """Return the bytes of each property by its flag. A property cut short is absent, with all after it."""
    found: dict[int, bytes] = {}
    if len(raw) < _FLAGS.size:
        return found
    (flags,), at = _FLAGS.unpack_from(raw), _FLAGS.size
    for flag in _ORDER:
        if not flags & flag:
            continue
        if flag == HEADERS:
            if at + _LENGTH.size > len(raw):
                break
            end = at + _LENGTH.size + _LENGTH.unpack_from(raw, at)[0]
        elif flag in _BYTES:
            end = at + _BYTES[flag]
        elif at < len(raw):
            end = at + 1 + raw[at]
        else:
            break
        if end > len(raw):
            break
        found[flag], at = raw[at:end], end
    return found


def _headers(
    raw: bytes, marks: Mapping[str, Any], without: Callable[[str], bool] | None, *, expires: bool
) -> bytes:
    """Return a header table with the marks and all readable other entries of this one."""
    ours: list[bytes] = []
    pika.data.encode_table(ours, dict(marks))
    replaced = marks if expires else {*marks, TTL_HEADER}
    table = b"".join(ours)[_LENGTH.size :] + _kept(raw, replaced, without)
    return _LENGTH.pack(len(table)) + table


def _kept(raw: bytes, replaced: Collection[str], without: Callable[[str], bool] | None) -> bytes:
    """Return the readable entries of a header table that a copy keeps, as they are."""
    spans, _end = entry_spans(raw, 0) if raw else ([], 0)
    kept = list[bytes]()
    for name, begin, end in spans:
        if name in replaced or name in OF_BROKERS or (without is not None and without(name)):
            continue
        kept.append(raw[begin:end])
    return b"".join(kept)


# Of the property flags: AMQP 0.9.1, class basic.
HEADERS, EXPIRATION = 1 << 13, 1 << 8
DELIVERY_COUNT = "x-delivery-count"


def _properties(raw: bytes) -> pika.BasicProperties | None:
    """Decode properties. None where pika cannot: such a message passes unchanged."""
    properties = pika.BasicProperties()
    try:
        properties.decode(raw)
    except Exception:  # pika raises anything for malformed properties
        return None
    if int.from_bytes(raw[:2]) & HEADERS:
        properties.headers = read_headers(raw)  # pika's loses the fractions of floats
    return properties


def _encoded(properties: pika.BasicProperties) -> bytes:
    return b"".join(properties.encode())


def read_ttl_ms(raw: bytes) -> int | None:
    """Return the time to live in ms that the publisher asked for, None for none."""
    if not int.from_bytes(raw[:2]) & EXPIRATION:
        return None
    properties = _properties(raw)
    text = "" if properties is None else str(properties.expiration)
    return int(text) if text.isascii() and text.isdigit() else None


def counted(raw: bytes, deliveries: int) -> bytes:
    """Add the number of earlier deliveries, as a quorum queue does that delivers again."""
    return _with(raw, DELIVERY_COUNT, deliveries)


def numbered(raw: bytes, offset: int) -> bytes:
    """Add the offset of a message, as a stream does."""
    return _with(raw, STREAM_OFFSET, offset)


def _with(raw: bytes, header: str, value: int) -> bytes:
    properties = _properties(raw)
    if properties is None:
        return raw
    properties.headers = {**(properties.headers or {}), header: value}
    return _encoded(properties)


def dead_lettered(
    raw: bytes, *, reason: str, queue: str, exchange: str, key: str, count: int = 1
) -> bytes:
    """Change the headers as a queue does that dead-letters a message to an exchange.

    reason: rejected, expired or delivery_limit. A time to live that the publisher asked for is removed.
    """
    properties = _properties(raw)
    if properties is None:
        return raw
    headers: Mapping[str, Any] = properties.headers or {}
    earlier = [each for each in headers.get("x-death", []) if isinstance(each, dict)]
    death: dict[str, Any] = {
        "count": count,
        "reason": reason,
        "queue": queue,
        "time": datetime.now(UTC).replace(microsecond=0),
        "exchange": exchange,
        "routing-keys": [key],
    }
    same = [e for e in earlier if (e.get("reason"), e.get("queue")) == (reason, queue)]
    if same:
        death["count"] = same[0].get("count", 0) + count
    if properties.expiration is not None:
        death["original-expiration"], properties.expiration = properties.expiration, None
    kept = {name: value for name, value in headers.items() if name != DELIVERY_COUNT}
    properties.headers = {
        "x-first-death-exchange": exchange,
        "x-first-death-queue": queue,
        "x-first-death-reason": reason,
        **kept,
        "x-death": [death, *(each for each in earlier if each not in same)],
    }
    return _encoded(properties)
