"""Bodies of messages: text in its charset and JSON, to bytes and from them.

Values become JSON as `messagebus.payloads` reads it: dataclasses, pydantic's models, dates, Decimal, UUID.
JSON with a name twice in one object and numbers that are not finite are refused both ways.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json as jsonlib
import math
import re
import sys
from collections.abc import Callable, Iterable, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from messagebus.errors import WrongPayload

__all__ = [
    *("BINARY", "BOM", "JSON", "REASON_CHARS_MAX", "TEXT"),
    *("check_names", "check_numbers", "decode_json", "decode_text", "encode_json", "is_json"),
    *("is_pydantic", "json_in_utf8", "json_text", "new_adapter", "numbers_in"),
]

TEXT, JSON, BINARY = "text/plain; charset=utf-8", "application/json", "application/octet-stream"
# Bound of the reason why a body does not fit.
REASON_CHARS_MAX = 500
# The byte order mark of UTF-8.
BOM = b"\xef\xbb\xbf"


# Reading.
@functools.lru_cache(maxsize=1024)
def is_json(content_type: str) -> bool:
    """Return whether a content type says JSON: application/json, text/json, one that ends in +json."""
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type in (JSON, "text/json") or media_type.endswith("+json")


def decode_text(body: bytes, content_type: str, content_encoding: str = "") -> str:
    """Decode a text in the charset that its content type names, else in UTF-8. Raises WrongPayload.

    content_encoding: where the content type names none, a charset there counts; a packed body is no text.
    """
    charset = _charset(content_type) or _encoding_charset(content_encoding)
    try:
        return body.decode(charset)
    except LookupError:
        raise WrongPayload(f"content type {content_type!r}: no such charset") from None
    except UnicodeDecodeError as fault:
        raise WrongPayload(f"not {charset}: {fault.reason} at byte {fault.start}") from None
    except ValueError:  # some charsets raise no narrower error
        raise WrongPayload(f"not {charset}") from None


def json_in_utf8(body: bytes, content_type: str, content_encoding: str = "") -> bytes:
    """Return a body of JSON in UTF-8, from the charset that it says, as `decode_text`. Raises WrongPayload.

    Of a content_encoding that is no charset nothing is known: the body may be JSON.
    """
    if not content_encoding and content_type in (JSON, ""):
        return body
    try:
        charset = _charset(content_type) or _encoding_charset(content_encoding)
    except WrongPayload:
        return body
    return body if charset == "UTF-8" else decode_text(body, f"; charset={charset}").encode()


@functools.lru_cache(maxsize=1024)
def _encoding_charset(content_encoding: str) -> str:
    if content_encoding.lower() in ("", "identity", "utf-8", "utf8"):
        return "UTF-8"
    try:
        b"text".decode(content_encoding, "replace")
    except (LookupError, ValueError):
        raise WrongPayload(
            f"content_encoding is {content_encoding!r}: unpack the body first"
        ) from None
    return content_encoding


@functools.lru_cache(maxsize=1024)
def _charset(content_type: str) -> str:
    for parameter in content_type.split(";")[1:]:
        name, _, value = parameter.partition("=")
        charset = value.strip().strip('"').strip()
        if name.strip().lower() == "charset" and charset:
            return "UTF-8" if charset.lower() in ("utf-8", "utf8") else charset
    return ""


def decode_json(body: bytes, *, exact: bool = False) -> Any:
    """Decode a body of JSON. exact: numbers with a fraction become `Decimal`.

    A byte order mark, as .NET writes it, is passed over. Raises WrongPayload, which shows no value, for a
    body that is not JSON in UTF-8, that repeats a name in an object, or that has a number that is not one
    (NaN) or is larger than a float.
    """
    try:
        return (_decode_exact if exact else _decode)(body.removeprefix(BOM).decode())
    except UnicodeDecodeError as fault:
        raise WrongPayload(f"not UTF-8: {fault.reason} at byte {fault.start}") from None
    except jsonlib.JSONDecodeError as fault:
        raise WrongPayload(f"not JSON: {fault}") from None
    except ArithmeticError:  # an exponent of more digits than Decimal has
        raise WrongPayload("not JSON: a number too large") from None
    except ValueError as fault:  # also a number of more digits than Python reads
        raise WrongPayload(f"not JSON: {fault}"[:REASON_CHARS_MAX]) from None
    except RecursionError:
        raise WrongPayload("not JSON: nested too deep") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _finite(text: str) -> float:
    number = float(text)
    if number - number != 0:  # infinite
        raise ValueError("a number too large")
    return number


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object that names one thing twice")
    return found


_decode = jsonlib.JSONDecoder(
    parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_distinct
).decode


_decode_exact = jsonlib.JSONDecoder(
    parse_constant=_no_constant, parse_float=Decimal, object_pairs_hook=_distinct
).decode


# Writing.
def encode_json(value: Any) -> bytes:
    """Encode a value as JSON. Raises TypeError, ValueError or RecursionError for one without a form."""
    if is_pydantic(type(value)):
        return _dumped(value)
    check_names(value)
    return json_text(value).encode()


def check_names(value: Any) -> None:
    """Raise ValueError for names that would be equal in JSON, such as 1 and "1"."""
    match value:
        case dict():
            if any(type(name) is not str for name in value) and len(value) > len(
                jsonlib.loads(jsonlib.dumps(dict.fromkeys(value)))
            ):
                raise ValueError("two names of one object are the same text")
            for each in value.values():
                check_names(each)
        case list() | tuple():
            for each in value:
                check_names(each)


def _plain(value: Any) -> Any:
    """Convert a value that json.dumps does not know, to the form that `payloads.fitting` reads."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if is_pydantic(type(value)):
            return _dumped_plain(value)
        if missing := _not_kept(type(value)):
            raise TypeError(f"{type(value).__name__}.{missing} is given to it and not kept")
        plain = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        check_names(plain)
        return plain
    match value:
        case enum.Enum():
            return value.value
        case UUID():
            return str(value)
        case Decimal():
            if not value.is_finite():
                raise ValueError("a Decimal that is no finite number")
            return str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return _duration(value)
        case set() | frozenset():
            return list(value)
    if is_pydantic(type(value)):
        return _dumped_plain(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


@functools.lru_cache(maxsize=1024)
def _not_kept(cls: Any) -> str:
    """Return a field that the constructor needs and the objects do not keep (`InitVar`); "" for none."""
    kept = {field.name for field in dataclasses.fields(cls)}
    for name, field in cls.__dataclass_fields__.items():
        is_variable = isinstance(field.type, dataclasses.InitVar) or "InitVar" in str(field.type)
        if name not in kept and is_variable and field.default is dataclasses.MISSING:
            return str(name)
    return ""


def _duration(value: timedelta) -> str:
    """Format a duration by ISO 8601: ``P1DT2.5S``."""
    sign, value = ("-", -value) if value < timedelta() else ("", value)
    seconds = f"{value.seconds}.{value.microseconds:06}".rstrip("0").rstrip(".")
    return f"{sign}P{value.days}DT{seconds}S"


json_text = jsonlib.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain
).encode


# Pydantic.
# Numbers that are not finite are written as null or as a word.
_MAYBE_NOT_FINITE = re.compile(rb"null|NaN|Infinity")


def is_pydantic(annotation: Any) -> bool:
    """Return whether it is pydantic's model or dataclass. An application with one has imported pydantic."""
    return (
        "pydantic" in sys.modules
        and isinstance(annotation, type)
        and "__pydantic_validator__" in vars(annotation)
    )


def new_adapter(annotation: Any) -> Any:
    from pydantic import TypeAdapter

    try:
        return TypeAdapter(annotation)
    except Exception as fault:  # raised by the application's own types
        raise TypeError(f"pydantic cannot read {annotation!r}: {fault}") from fault


_adapter: Callable[[Any], Any] = functools.lru_cache(maxsize=1024)(new_adapter)


def _dumped(value: Any) -> bytes:
    body: bytes = _adapter(type(value)).dump_json(value, by_alias=True)
    if _MAYBE_NOT_FINITE.search(body):
        check_numbers(value)
    return body


def _dumped_plain(value: Any) -> Any:
    check_numbers(value)
    return _adapter(type(value)).dump_python(value, mode="json", by_alias=True)


def check_numbers(value: Any, inexact: Set[Decimal] = frozenset()) -> None:
    """Raise WrongPayload for a number that is not finite, or that lost digits on its way through a float."""
    for number in numbers_in(value, []):
        if not math.isfinite(number):
            raise WrongPayload("a number that is not finite")
        if type(number) is Decimal and number in inexact:
            raise WrongPayload("a decimal number of more digits than pydantic reads: send a text")


_NO_NUMBERS = frozenset({str, int, bool, type(None), datetime, date, UUID, bytes})


def numbers_in(value: Any, numbers: list[Any]) -> list[Any]:
    """Add all numbers with a fraction within value, at any depth, to numbers."""
    kind = type(value)
    if kind in _NO_NUMBERS:
        return numbers
    if kind is float or kind is Decimal:
        numbers.append(value)
        return numbers
    parts: Iterable[Any] = ()
    if isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        parts = value
    elif dataclasses.is_dataclass(value):
        parts = [getattr(value, each.name, None) for each in dataclasses.fields(value)]
    elif is_pydantic(kind):
        computed = [getattr(value, name) for name in kind.__pydantic_computed_fields__]
        parts = [*vars(value).values(), *(value.__pydantic_extra__ or {}).values(), *computed]
    for each in parts:
        numbers_in(each, numbers)
    return numbers
