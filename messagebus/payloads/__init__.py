"""Payloads as the application's own types: from a delivery by annotation, and back into a message.

| annotation | content type | read as |
|---|---|---|
| bytes | any | the body |
| str | text/... | the text, in the charset that it says, or UTF-8 |
| dict, list, dataclass, Enum, Any and what they are made of | JSON | `payloads.fitting`, strictly |
| pydantic models, where pydantic is installed | JSON | pydantic, by the model's own rules |
| a union with str, a Literal of texts | both | a text as str, JSON as the union |

JSON is application/json, text/json and anything that ends in +json. A message without a content type, from
another client, is read as the annotation asks. Dataclasses are always read by the library itself, never by
pydantic: an installed package must not change which payloads fit. JSON with a name twice in one object, and
numbers that are not finite (NaN, 1e999 as a float), are refused by all readers, both ways.
"""

from __future__ import annotations

import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Set
from decimal import Decimal
from typing import Any

from messagebus.bodies import (
    BOM,
    JSON,
    REASON_CHARS_MAX,
    check_numbers,
    decode_json,
    decode_text,
    is_json,
    is_pydantic,
    json_in_utf8,
    json_text,
    new_adapter,
    numbers_in,
)
from messagebus.errors import WrongPayload
from messagebus.message import Delivery, Message, Payload
from messagebus.payloads.fitting import Fit, Fitters, Unfit, bare, is_constraint

__all__ = ["Codec", "Reader", "as_payload", "reader"]

Reader = Callable[[Delivery], Any]
"""Function from a delivery to its payload. Raises WrongPayload with a reason that shows no value."""


class Codec(typing.Protocol):
    """A form of payloads of its own, for an `App`: asked before this module's rules."""

    def reader(self, annotation: Any) -> Reader | None:
        """Return how payloads of this annotation are read; None: they are not of this codec."""

    def message(self, value: Any) -> Message | None:
        """Return the message of a value; None: it is not of this codec. Raises MessageInvalid."""


# Faults of a validator that are shown; all of them may be as long as the payload.
FAULTS_SHOWN_MAX = 5


def reader(annotation: Any, codecs: Iterable[Codec] = ()) -> Reader:
    """Return how a payload of that annotation is read. Raises TypeError: no payload can be of that type."""
    for codec in codecs:
        if (own := codec.reader(annotation)) is not None:
            return own
    plain = bare(annotation)
    if plain is bytes:
        return _body
    if plain is str:
        return _text
    if _inner(plain) in (bytes, str) and _is_theirs(plain):
        return _checked(reader(plain.__origin__), plain)
    alternatives = {_inner(e): e for e in typing.get_args(plain)} if _is_union(plain) else {}
    if bytes in alternatives:
        raise TypeError(f"{annotation!r}: any body is bytes: say bytes alone, or none")
    if _is_theirs(plain):
        read_json = _validate_json(plain)
    else:
        fitters = Fitters(_by_pydantic)
        read_json = _fit_json(fitters.of(plain), fitters)
    if str in alternatives:
        return _text_or_json(reader(alternatives[str]), read_json)
    texts = [each for each in alternatives or [plain] if _may_be_text(each)]
    if texts:
        return _word_or_json(Fitters(_by_pydantic).of(typing.Union[tuple(texts)]), read_json)  # noqa: UP007
    return _json_by(read_json)


def as_payload(value: Payload, codecs: Iterable[Codec] = ()) -> Payload:
    """Return the message of the first codec that has one for this value, else the value itself.

    Raises MessageInvalid where a codec does.
    """
    for codec in codecs:
        if (message := codec.message(value)) is not None:
            return message
    return value


# Reading.
def _body(delivery: Delivery) -> bytes:
    return delivery.body


def _text(delivery: Delivery) -> str:
    content_type = delivery.content_type
    if content_type and not _media_type(content_type).startswith("text/"):
        raise WrongPayload(f"content type {content_type!r}: a text wanted")
    return decode_text(delivery.body, content_type, delivery.content_encoding)


def _json_by(read: Callable[[bytes], Any]) -> Reader:
    def read_json(delivery: Delivery) -> Any:
        content_type = delivery.content_type
        if content_type != JSON and content_type and not is_json(content_type):
            raise WrongPayload(f"content type {content_type!r}: {JSON} wanted")
        return read(json_in_utf8(delivery.body, content_type, delivery.content_encoding))

    return read_json


def _text_or_json(read_text: Reader, read: Callable[[bytes], Any]) -> Reader:
    """Return the reader of a union with str: JSON by its content type, else a text."""

    read_json = _json_by(read)

    def read_either(delivery: Delivery) -> Any:
        return (read_json if is_json(delivery.content_type) else read_text)(delivery)

    return read_either


def _may_be_text(annotation: Any) -> bool:
    """Return whether it is a literal of texts, which are published as texts."""
    is_literal = typing.get_origin(annotation) is typing.Literal
    return is_literal and any(type(each) is str for each in typing.get_args(annotation))


def _word_or_json(fit: Fit, read: Callable[[bytes], Any]) -> Reader:
    """Return the reader of literals: a text where the content type says so, else JSON."""
    read_json, read_word = _json_by(read), _fitted(fit)

    def read_either(delivery: Delivery) -> Any:
        content_type = delivery.content_type
        if _media_type(content_type).startswith("text/") and not is_json(content_type):
            return read_word(_text(delivery))
        return read_json(delivery)

    return read_either


def _inner(annotation: Any) -> Any:
    """Return the annotation without its constraints."""
    is_annotated = typing.get_origin(plain := bare(annotation)) is typing.Annotated
    return _inner(plain.__origin__) if is_annotated else plain


def _fit_json(fit: Fit, fitters: Fitters) -> Callable[[bytes], Any]:
    exact, fitted = fitters.exact, _fitted(fit)
    return lambda body: fitted(decode_json(body, exact=exact))


def _fitted(fit: Fit) -> Fit:
    def fitted(value: Any) -> Any:
        try:
            return fit(value)
        except Unfit as fault:
            raise WrongPayload(_bounded(str(fault))) from fault
        except RecursionError:
            raise WrongPayload("not JSON: nested too deep") from None

    return fitted


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _bounded(reason: str) -> str:
    return reason if len(reason) <= REASON_CHARS_MAX else f"{reason[: REASON_CHARS_MAX - 3]}..."


# Pydantic.
# Texts that pydantic may read as numbers and that are not finite, and numbers with more digits than a float.
_DOUBTFUL = re.compile(rb'"[\s+-]*[nNiI][aAnN][nNfF]|[0-9][0-9.]{16}')


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _is_theirs(annotation: Any) -> bool:
    """Return whether pydantic reads it: a model, a union of models, an `Annotated` with its constraints."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _is_theirs(annotation.__origin__) or (
            "pydantic" in sys.modules and any(is_constraint(e) for e in annotation.__metadata__)
        )
    if _is_union(annotation):
        some = [each for each in typing.get_args(annotation) if each is not type(None)]
        return all(_is_theirs(each) for each in some)
    return is_pydantic(typing.get_origin(annotation) or annotation)


def _validate_json(annotation: Any) -> Callable[[bytes], Any]:
    validate = _validating(new_adapter(annotation).validate_json, annotation)

    def read(body: bytes) -> Any:
        value = validate(body.removeprefix(BOM))
        decode_json(body)  # pydantic lets some faults pass
        if _DOUBTFUL.search(body):
            check_numbers(value, _inexact(decode_json(body, exact=True)))
        return value

    return read


def _checked(read: Reader, annotation: Any) -> Reader:
    """Return a reader of a text or bytes that an `Annotated` constrains."""
    validate = _validating(new_adapter(annotation).validate_python, annotation)
    return lambda delivery: validate(read(delivery))


def _validating(validate: Callable[..., Any], annotation: Any) -> Callable[[Any], Any]:
    from pydantic import ValidationError

    # A constrained type within a dataclass is read as strictly as the dataclass; a model has its own rule.
    is_ours = typing.get_origin(annotation) is typing.Annotated and not _is_theirs(
        annotation.__origin__
    )
    strict = True if is_ours else None

    def checked(value: Any) -> Any:
        try:
            return validate(value, strict=strict)
        except ValidationError as fault:
            raise WrongPayload(_described(fault.errors(**_NO_VALUES))) from None  # it shows values
        except (KeyboardInterrupt, MemoryError):
            raise
        except BaseException as fault:  # the application's own validators may raise anything
            raise WrongPayload(f"its own checks raised {type(fault).__name__}") from fault

    return checked


def _by_pydantic(annotation: Any) -> Fit | None:
    """Return a reader of a model within other types. It reads JSON, where a strict model accepts a date."""
    if not _is_theirs(annotation):
        return None
    read = _validate_json(annotation)

    def fit(value: Any) -> Any:
        try:
            return read(_again(value).encode())
        except WrongPayload as fault:
            raise Unfit(str(fault)) from None

    return fit


def _again(value: Any) -> str:
    """Return the JSON that the value was read from, its numbers as they were written."""
    match value:
        case dict():
            return f"{{{','.join(f'{json_text(k)}:{_again(each)}' for k, each in value.items())}}}"
        case list():
            return f"[{','.join(map(_again, value))}]"
        case Decimal():
            return str(value)
        case _:
            return json_text(value)


def _inexact(value: Any) -> Set[Decimal]:
    """Return the numbers of which pydantic does not keep all digits, as pydantic reads them."""
    read = {each: Decimal(repr(float(each))) for each in numbers_in(value, [])}
    return {as_read for each, as_read in read.items() if as_read != each}


_NO_VALUES: dict[str, Any] = {
    "include_url": False,
    "include_context": False,
    "include_input": False,
}


def _described(faults: list[Any]) -> str:
    told = [
        f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" if fault["loc"] else fault["msg"]
        for fault in faults[:FAULTS_SHOWN_MAX]
    ]
    more = len(faults) - len(told)
    return _bounded("; ".join(told) + (f"; and {more} more" if more else ""))
