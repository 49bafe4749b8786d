"""A reader of header tables written by other clients that never raises on their content.

pika's own reader turns floats into whole numbers and ends the connection at a type that it does not
know or a timestamp out of range. Types as RabbitMQ uses them, which differ from the specification's:
https://www.rabbitmq.com/amqp-0-9-1-errata section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from struct import Struct
from struct import error as StructError
from typing import Any

# RabbitMQ carries any table that fits a frame; values nested deeper are read as None.
DEPTH_MAX = 32
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_LENGTH = Struct(">I")
_DECIMAL = Struct(">Bi")


def _timestamp(seconds: int) -> datetime | int:
    """Convert seconds since 1970; beyond the calendar's range return the number."""
    try:
        return EPOCH + timedelta(seconds=seconds)
    except OverflowError:
        return seconds


_FIXED: dict[int, tuple[Struct, Callable[[Any], Any]]] = {
    ord("t"): (Struct(">B"), bool),
    ord("b"): (Struct(">b"), int),
    ord("B"): (Struct(">B"), int),
    ord("s"): (Struct(">h"), int),
    ord("U"): (Struct(">h"), int),
    ord("u"): (Struct(">H"), int),
    ord("I"): (Struct(">i"), int),
    ord("i"): (Struct(">I"), int),
    ord("l"): (Struct(">q"), int),
    ord("L"): (Struct(">q"), int),
    ord("f"): (Struct(">f"), float),
    ord("d"): (Struct(">d"), float),
    ord("T"): (Struct(">Q"), _timestamp),
}


class _Unreadable(Exception):
    """Raised for an unknown type: the entries after it cannot be found."""


def read_table(raw: bytes, at: int) -> tuple[dict[str, Any], int]:
    """Read the table at this place; return it and its end. An entry that cannot be read ends the table early.

    Raises IndexError when not even its length is there.
    """
    if at + 4 > len(raw):
        raise IndexError(at)
    end = at + 4 + _LENGTH.unpack_from(raw, at)[0]
    return _table(raw, at + 4, min(end, len(raw)), 0), end


def entry_spans(raw: bytes, at: int) -> tuple[list[tuple[str, int, int]], int]:
    """Return (name, begin, end) in raw of each entry of the table at this place, and the table's end.

    Entries after one that cannot be read are left out. Raises IndexError as `read_table`.
    """
    if at + 4 > len(raw):
        raise IndexError(at)
    end = at + 4 + _LENGTH.unpack_from(raw, at)[0]
    spans, at = list[tuple[str, int, int]](), at + 4
    try:
        while at < min(end, len(raw)):
            stop = at + 1 + raw[at]
            name = raw[at + 1 : stop].decode("utf-8", "replace")
            _, stop = _value(raw, stop, end, 0)
            spans.append((name, at, stop))
            at = stop
    except (IndexError, StructError, _Unreadable):
        pass
    return spans, end


def _table(raw: bytes, at: int, end: int, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        while at < end:
            stop = at + 1 + raw[at]
            name = raw[at + 1 : stop].decode("utf-8", "replace")
            found[name], at = _value(raw, stop, end, depth)
    except (IndexError, StructError, _Unreadable):
        pass
    return found


def _array(raw: bytes, at: int, end: int, depth: int) -> list[Any]:
    found: list[Any] = []
    try:
        while at < end:
            value, at = _value(raw, at, end, depth)
            found.append(value)
    except (IndexError, StructError, _Unreadable):
        pass
    return found


def _value(raw: bytes, at: int, end: int, depth: int) -> tuple[Any, int]:
    kind, at = raw[at], at + 1
    fixed = _FIXED.get(kind)
    if fixed is not None:
        layout, convert = fixed
        return convert(layout.unpack_from(raw, at)[0]), at + layout.size
    match chr(kind):
        case "V":
            return None, at
        case "D":
            scale, number = _DECIMAL.unpack_from(raw, at)
            return Decimal(number).scaleb(-scale), at + _DECIMAL.size
        case "S" | "x" | "A" | "F" as letter:
            stop = at + 4 + _LENGTH.unpack_from(raw, at)[0]
            if stop > end:
                raise _Unreadable
            return _sized(letter, raw, at + 4, stop, depth + 1), stop
        case _:
            raise _Unreadable


def _sized(letter: str, raw: bytes, at: int, stop: int, depth: int) -> Any:
    if letter in "AF" and depth > DEPTH_MAX:
        return None
    match letter:
        case "A":
            return _array(raw, at, stop, depth)
        case "F":
            return _table(raw, at, stop, depth)
        case "S":
            return _text(raw[at:stop])
        case _:
            return raw[at:stop]


def _text(raw: bytes) -> str | bytes:
    """Decode as pika does: bytes that are not UTF-8 stay bytes."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw
