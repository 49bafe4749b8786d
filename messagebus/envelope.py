"""The envelope: one message as one line of JSON, the same in every tool that prints or reads messages.

Its fields: ``id destination key content_type content_encoding type correlation_id reply_to app_id priority
ttl_s delay_s time_ms headers``, and ``body``, or ``body_base64`` where the body is no UTF-8. Fields
without a value are absent.
``received`` (broker, from, redelivered, attempt) and ``time_ms`` say how a message arrived; publishing
ignores them. In headers bytes are ``{"base64": …}``, times ``{"time": …}``, decimals ``{"decimal": …}``; an
object of one such name is ``{"object": …}``. Reading a line that was written gives the same message back.
Pure.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from messagebus.bodies import decode_json
from messagebus.clock import MS_PER_S
from messagebus.destination import Subscription
from messagebus.errors import MessageInvalid, WrongPayload
from messagebus.message import Delivery, Message
from messagebus.numbers import read_number
from messagebus.terminal import did_you_mean, printable

__all__ = [
    "FIELDS_OF_MESSAGE",
    "Enveloped",
    "Layout",
    "as_envelope",
    "delivered",
    "read_envelope",
    "tagged",
    "write_envelope",
]

FIELDS_OF_MESSAGE = (
    *("key", "content_type", "content_encoding", "type", "correlation_id", "reply_to", "app_id"),
)
SECONDS_MAX = 1e10
KNOWN = frozenset(
    {*FIELDS_OF_MESSAGE, "id", "destination", "priority", "ttl_s", "delay_s", "time_ms"}
    | {"headers", "body", "body_base64", "received"}
)
TAGS = frozenset({"base64", "time", "decimal", "object"})
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode


@dataclass(frozen=True, slots=True)
class Enveloped:
    """A line that was read. destination: "" where it says none. delay_s: None for no delay."""

    message: Message
    destination: str
    delay_s: float | None


def as_envelope(
    message: Message,
    *,
    destination: str,
    time_ms: int,
    received: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the envelope of a message. time_ms: of its first publish, since 1970."""
    told: dict[str, Any] = {"id": message.message_id, "destination": destination}
    for name in FIELDS_OF_MESSAGE:
        if text := getattr(message, name):
            told[name] = text
    if message.priority is not None:
        told["priority"] = message.priority
    if message.ttl_s is not None:
        told["ttl_s"] = message.ttl_s
    told["time_ms"] = time_ms
    if message.headers:
        told["headers"] = {name: tagged(value) for name, value in message.headers.items()}
    if received is not None:
        told["received"] = received
    try:
        told["body"] = message.body.decode()
    except UnicodeDecodeError:
        told["body_base64"] = base64.b64encode(message.body).decode()
    return told


def delivered(delivery: Delivery) -> dict[str, Any]:
    """Return the envelope of a delivery. Its destination is where it was published to."""
    source = delivery.source
    received = {
        "broker": delivery.broker,
        "from": str(source),
        "redelivered": delivery.redelivered,
        "attempt": delivery.attempt,
    }
    place = source.topic if isinstance(source, Subscription) else source
    return as_envelope(
        delivery.message, destination=str(place), time_ms=delivery.first_ms, received=received
    )


def write_envelope(envelope: Mapping[str, Any]) -> bytes:
    """Return the line, without its end; everything in it that does not print is escaped."""
    line = _encode(envelope)
    # In ASCII JSON lets DEL through alone; isprintable() would look at each character, for 3 us at 1 KB.
    is_plain = line.isascii() and "\x7f" not in line
    if not is_plain and not line.isprintable():
        # C1 controls and lone surrogates: JSON itself lets them through.
        line = "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)
    return line.encode()


def read_envelope(line: bytes) -> Enveloped:
    """Read a line. Raises MessageInvalid, which names the field."""
    try:
        told = decode_json(line)
    except WrongPayload as fault:
        raise MessageInvalid(str(fault)) from fault
    if not isinstance(told, dict):
        raise MessageInvalid("no envelope: a JSON object wanted")
    if unknown := sorted(told.keys() - KNOWN):
        name = unknown[0]
        raise MessageInvalid(f"no envelope: unknown field {name!r}{did_you_mean(name, KNOWN)}")
    headers = told.get("headers", {})
    if not isinstance(headers, dict):
        raise MessageInvalid("headers: a JSON object wanted")
    destination = told.get("destination", "")
    if not isinstance(destination, str):
        raise MessageInvalid("destination: a text wanted")
    message = Message(
        body=_body(told),
        message_id=told.get("id", ""),
        headers={name: _untagged(value) for name, value in headers.items()},
        priority=told.get("priority"),
        ttl_s=_seconds(told, "ttl_s"),
        **{name: told.get(name, "") for name in FIELDS_OF_MESSAGE},
    )
    return Enveloped(message, destination, _seconds(told, "delay_s"))


def _body(envelope: Mapping[str, Any]) -> bytes:
    if ("body" in envelope) == ("body_base64" in envelope):
        raise MessageInvalid("body or body_base64: one of them wanted")
    name = "body" if "body" in envelope else "body_base64"
    text = envelope[name]
    try:
        if isinstance(text, str):
            return text.encode() if name == "body" else base64.b64decode(text, validate=True)
    except ValueError as fault:
        raise MessageInvalid(f"{name}: {fault}") from None
    raise MessageInvalid(f"{name}: a text wanted, not {type(text).__name__}")


def _seconds(envelope: Mapping[str, Any], name: str) -> float | None:
    value = envelope.get(name)
    if value is None:
        return None
    try:
        return read_number(None if isinstance(value, str) else value, 0, SECONDS_MAX)
    except ValueError:
        raise MessageInvalid(f"{name}: seconds, 0 or more") from None


def tagged(value: Any) -> Any:
    """Return a header's value as JSON can hold it: bytes, times and decimals as an object of one member."""
    match value:
        case bytes():
            return {"base64": base64.b64encode(value).decode()}
        case datetime():
            return {"time": value.isoformat()}
        case Decimal():
            return {"decimal": str(value)}
        case float() if value - value != 0:  # JSON has neither infinity nor NaN
            return str(value)
        case list():
            return [tagged(each) for each in value]
        case dict():
            inner = {name: tagged(each) for name, each in value.items()}
            return {"object": inner} if len(inner) == 1 and inner.keys() <= TAGS else inner
        case _:
            return value


def _untagged(value: Any) -> Any:
    if isinstance(value, list):
        return [_untagged(each) for each in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and (tag := next(iter(value))) in TAGS:
        return _of_tag(tag, value[tag])
    return {name: _untagged(each) for name, each in value.items()}


def _of_tag(tag: str, value: Any) -> Any:
    try:
        match tag, value:
            case "object", dict():
                return {name: _untagged(each) for name, each in value.items()}
            case "base64", str():
                return base64.b64decode(value, validate=True)
            case "time", str():
                return datetime.fromisoformat(value)
            case "decimal", str():
                return Decimal(value)
    except (ValueError, ArithmeticError):
        pass
    raise MessageInvalid(f"a header that is no {tag}")


_PLACE = re.compile(r"\{([a-z_0-9]+)((?:\[[^\]{}]*\])*)(?::\.(\d{1,5}))?\}")
_TIME, _HEADER, _JSON, _INDEX = "time", "header", "json", re.compile("[0-9]{1,9}")


class Layout:
    """A line chosen by the user, such as ``{time} {broker} {key} {body:.80}``.

    Places are fields of the envelope and of ``received``, ``time``, ``{header[NAME]}`` and
    ``{json[a][b]}`` of a body of JSON; ``:.80`` cuts. Fields that a message lacks are empty.
    """

    def __init__(self, text: str) -> None:
        """Raises ValueError for an unknown place."""
        known = KNOWN | {"broker", "from", "redelivered", "attempt", _TIME, _HEADER, _JSON}
        for found in _PLACE.finditer(text):
            if found[1] not in known:
                raise ValueError(f"no field {found[1]!r}{did_you_mean(found[1], known)}")
        if "{" in _PLACE.sub("", text):
            raise ValueError("a brace that is no place, such as {body:.80} or {header[shop]}")
        self._text = text

    def line(self, envelope: Mapping[str, Any]) -> str:
        """Return the line of an envelope, of printing characters."""

        def put(place: re.Match[str]) -> str:
            value = _look_up(envelope, place[1], re.findall(r"\[([^\]]*)\]", place[2]))
            text = value if isinstance(value, str) else "" if value is None else _encode(value)
            return text[: int(place[3])] if place[3] else text

        return printable(_PLACE.sub(put, self._text))


def _look_up(envelope: Mapping[str, Any], name: str, path: list[str]) -> Any:
    if name == _TIME:
        with contextlib.suppress(OverflowError, ValueError, OSError):  # beyond the calendar
            return datetime.fromtimestamp(envelope["time_ms"] / MS_PER_S).isoformat(
                " ", "milliseconds"
            )
    if name == _JSON:
        try:
            value: Any = decode_json(envelope.get("body", "").encode())
        except WrongPayload:
            return None
    else:
        received = envelope.get("received") or {}
        value = envelope.get("headers" if name == _HEADER else name, received.get(name))
    for step in path:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and _INDEX.fullmatch(step) and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value
