"""Payloads as the application's own types: from a delivery by annotation, and back into a message.

| annotation | content type | read as |
|---|---|---|
| bytes | any | the body |
| str | text/... | the text, UTF-8 |
| dict, list, dataclass, Enum, Any and what they are made of | JSON | `core.fitting`, strictly |
| pydantic models, where pydantic is installed | JSON | pydantic, by the model's own rules |

JSON is application/json, text/json and anything that ends in +json. A message of another client that
says no content type is taken as what is asked for. Dataclasses are always read by the library itself,
never by pydantic: what fits must not change because somebody installs a package.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import sys
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from messagebus.core.fitting import Fit, Unfit, fitter
from messagebus.errors import MessageInvalid, WrongPayload
from messagebus.message import JSON, Delivery, Message
from messagebus.outgoing import Payload

__all__ = ["Reader", "as_payload", "reader"]

Reader = Callable[[Delivery], Any]
"""From a delivery to its payload. Raises WrongPayload with the reason, which shows no value."""

# Of what a validator says; the whole may be as long as the payload.
REASON_CHARS_MAX = 500
FAULTS_TOLD_MAX = 5


def reader(annotation: Any) -> Reader:
    """How a payload of that annotation is read. Raises TypeError: no payload can be of that type."""
    if annotation is bytes:
        return _body
    if annotation is str:
        return _text
    if _is_pydantic(annotation):
        return _json_by(_validate_json(annotation))
    return _json_by(_fit_json(fitter(annotation, _by_pydantic)))


def as_payload(value: Any) -> Payload:
    """What a publisher takes: messages, bytes and texts as they are, anything else as JSON.

    Raises MessageInvalid for what JSON cannot say.
    """
    if isinstance(value, Message | bytes | str) and not isinstance(value, enum.Enum):
        return value
    if _is_pydantic(type(value)):
        return Message(
            body=_adapter(type(value)).dump_json(value, by_alias=True), content_type=JSON
        )
    try:
        return Message(body=_encode(value).encode(), content_type=JSON)
    except (TypeError, ValueError, RecursionError) as fault:
        raise MessageInvalid(f"{type(value).__name__} is not JSON: {fault}") from fault


# ---------------------------------------------------------------------- reading
def _body(delivery: Delivery) -> bytes:
    return delivery.body


def _text(delivery: Delivery) -> str:
    content_type = delivery.content_type
    if content_type and not _media_type(content_type).startswith("text/"):
        raise WrongPayload(f"content type {content_type!r}: a text wanted")
    try:
        return delivery.body.decode()
    except UnicodeDecodeError as fault:
        raise WrongPayload(f"not UTF-8: {fault.reason} at byte {fault.start}") from None


def _json_by(read: Callable[[bytes], Any]) -> Reader:
    def read_json(delivery: Delivery) -> Any:
        content_type = delivery.content_type
        if content_type != JSON and content_type and not _is_json(content_type):
            raise WrongPayload(f"content type {content_type!r}: {JSON} wanted")
        return read(delivery.body)

    return read_json


def _fit_json(fit: Fit) -> Callable[[bytes], Any]:
    def read(body: bytes) -> Any:
        try:
            return fit(_decode(body.decode()))
        except Unfit as fault:
            raise WrongPayload(_bounded(str(fault))) from fault
        except UnicodeDecodeError as fault:
            raise WrongPayload(f"not UTF-8: {fault.reason} at byte {fault.start}") from None
        except json.JSONDecodeError as fault:
            raise WrongPayload(f"not JSON: {fault}") from None
        except ValueError as fault:  # a number of more digits than Python reads
            raise WrongPayload(_bounded(f"not JSON: {fault}")) from None
        except RecursionError:
            raise WrongPayload("not JSON: nested too deep") from None

    return read


@functools.lru_cache(maxsize=1024)
def _is_json(content_type: str) -> bool:
    media_type = _media_type(content_type)
    return media_type in (JSON, "text/json") or media_type.endswith("+json")


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _bounded(reason: str) -> str:
    return reason if len(reason) <= REASON_CHARS_MAX else f"{reason[: REASON_CHARS_MAX - 3]}..."


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


_decode = json.JSONDecoder(parse_constant=_no_constant).decode


# ---------------------------------------------------------------------- writing
def _plain(value: Any) -> Any:
    """What json.dumps asks for: the form that `core.fitting` reads."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if _is_pydantic(type(value)):
            return _adapter(type(value)).dump_python(value, mode="json", by_alias=True)
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    match value:
        case enum.Enum():
            return value.value
        case UUID() | Decimal():
            return str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case set() | frozenset():
            return list(value)
    if _is_pydantic(type(value)):
        return _adapter(type(value)).dump_python(value, mode="json", by_alias=True)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


_encode = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain
).encode


# ---------------------------------------------------------------------- pydantic
def _is_pydantic(annotation: Any) -> bool:
    """Whether it is a model or dataclass of pydantic's; whoever has one has imported pydantic."""
    return (
        "pydantic" in sys.modules
        and isinstance(annotation, type)
        and "__pydantic_validator__" in vars(annotation)
    )


def _new_adapter(cls: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(cls)


_adapter: Callable[[Any], Any] = functools.lru_cache(maxsize=1024)(_new_adapter)


def _validate_json(cls: type) -> Callable[[bytes], Any]:
    from pydantic import ValidationError

    validate = _adapter(cls).validate_json

    def read(body: bytes) -> Any:
        try:
            return validate(body)
        except ValidationError as fault:
            raise WrongPayload(_told(fault.errors(**_NO_VALUES))) from None  # it shows values

    return read


def _by_pydantic(annotation: Any) -> Fit | None:
    """A model within other types: it reads JSON, by whose rules a strict model takes a date."""
    if not _is_pydantic(annotation):
        return None
    validate = _validate_json(annotation)

    def fit(value: Any) -> Any:
        try:
            return validate(_encode(value).encode())
        except WrongPayload as fault:
            raise Unfit(str(fault)) from None

    return fit


_NO_VALUES: dict[str, Any] = {
    "include_url": False,
    "include_context": False,
    "include_input": False,
}


def _told(faults: list[Any]) -> str:
    told = [
        f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" if fault["loc"] else fault["msg"]
        for fault in faults[:FAULTS_TOLD_MAX]
    ]
    more = len(faults) - len(told)
    return _bounded("; ".join(told) + (f"; and {more} more" if more else ""))
