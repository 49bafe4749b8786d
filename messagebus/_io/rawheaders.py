"""A property list as it arrived: all its headers, and the same list with other ones.

What is put back into a queue must be what was taken out of it, whichever client wrote it. So headers
that stay, and every other property, are copied byte for byte, and not read and written again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any

import pika.data

from messagebus._io.properties import HEADERS, MESSAGE_ID, TIMESTAMP
from messagebus._io.table import entry_spans, read_table

__all__ = ["read_content_type", "read_headers", "read_stamp_s", "with_other_headers"]

CONTENT_TYPE, CONTENT_ENCODING = 1 << 15, 1 << 14
# Flags of what stands between the headers and the timestamp, and whether it has a length of its own.
BEHIND_HEADERS = (
    (1 << 12, False),
    (1 << 11, False),
    (1 << 10, True),
    (1 << 9, True),
    (1 << 8, True),
)
TYPE, USER_ID = 1 << 5, 1 << 4

_LENGTH, _STAMP, _FLAGS = Struct(">I"), Struct(">Q"), Struct(">H")


def read_headers(raw: bytes) -> dict[str, Any]:
    """All headers, the library's and the broker's too. Never raises."""
    try:
        flags, at = _until_headers(raw)
        return read_table(raw, at)[0] if flags & HEADERS else {}
    except IndexError:
        return {}


def read_content_type(raw: bytes) -> str:
    """ "" where there is none. Never raises."""
    if len(raw) < 3 or not raw[0] << 8 & CONTENT_TYPE:
        return ""
    return str(raw[3 : 3 + raw[2]], "utf-8", "replace")


def read_stamp_s(raw: bytes) -> int | None:
    """The timestamp, seconds since 1970; None where there is none. Never raises."""
    try:
        flags, at = _until_headers(raw)
        if not flags & TIMESTAMP:
            return None
        if flags & HEADERS:
            at += _LENGTH.size + int.from_bytes(raw[at : at + _LENGTH.size])
        at = _behind_headers(raw, flags, at)
        if flags & MESSAGE_ID:
            at += 1 + raw[at]
        return int(_STAMP.unpack(raw[at : at + 8])[0]) if len(raw) >= at + 8 else None
    except IndexError:
        return None


def with_other_headers(
    raw: bytes, *, without: Callable[[str], bool], more: Mapping[str, Any]
) -> bytes:
    """The same properties, without headers of these names and with more of them.

    A user id is left out, which the broker takes from its own user only. Raises ValueError for a
    property list that is cut short.
    """
    try:
        return _respelled(raw, without, more)
    except IndexError:
        raise ValueError("a property list that is cut short") from None


def _respelled(raw: bytes, without: Callable[[str], bool], more: Mapping[str, Any]) -> bytes:
    flags, begin = _until_headers(raw)
    end, kept = begin, b""
    if flags & HEADERS:
        spans, end = entry_spans(raw, begin)
        kept = b"".join(raw[a:b] for name, a, b in spans if not without(name) and name not in more)
    pieces: list[bytes] = []
    pika.data.encode_table(pieces, dict(more))
    table = kept + b"".join(pieces)[_LENGTH.size :]
    behind = _without_user_id(raw, flags, end)
    flags = (flags | HEADERS) & ~USER_ID
    return b"".join((_FLAGS.pack(flags), raw[2:begin], _LENGTH.pack(len(table)), table, behind))


def _without_user_id(raw: bytes, flags: int, at: int) -> bytes:
    if not flags & USER_ID:
        return raw[at:]
    stop = _behind_headers(raw, flags, at)
    stop += (1 + raw[stop]) if flags & MESSAGE_ID else 0
    stop += _STAMP.size if flags & TIMESTAMP else 0
    stop += (1 + raw[stop]) if flags & TYPE else 0
    return raw[at:stop] + raw[stop + 1 + raw[stop] :]


def _until_headers(raw: bytes) -> tuple[int, int]:
    flags, at = raw[0] << 8 | raw[1], 2
    for flag in (CONTENT_TYPE, CONTENT_ENCODING):
        if flags & flag:
            at += 1 + raw[at]
    return flags, at


def _behind_headers(raw: bytes, flags: int, at: int) -> int:
    """Where the message id begins; at: where the headers end."""
    for flag, has_length in BEHIND_HEADERS:
        if flags & flag:
            at += 1 + raw[at] if has_length else 1
    return at
