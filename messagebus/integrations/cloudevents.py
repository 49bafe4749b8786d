"""CloudEvents 1.0 over HTTP, and as messages: binary, structured and batched mode. Pure.

The id of an event is the message's id, or a header if it cannot be one; other attributes are headers
``cloudEvents_<name>``, as in the AMQP binding; ``partitionkey`` is the key; data is the body. Events of other
AMQP clients are read as well: ``cloudEvents:<name>`` headers, and structured events, which pass as they are.
"""

from __future__ import annotations

import base64
import functools
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, unquote

from messagebus import Delivery, Message, MessageInvalid, WrongPayload
from messagebus.bodies import decode_json, is_json

__all__ = ["BATCH", "STRUCTURED", "as_event", "binary_headers", "is_event", "of_headers", "of_json"]

STRUCTURED = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
PREFIX = "cloudEvents_"
# Both are of the AMQP binding; JMS knows no colon.
_PREFIXES = (PREFIX, "cloudEvents:")
ID_FORM = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NAME = re.compile(r"[a-z0-9]{1,100}")
_REQUIRED = ("id", "source", "specversion", "type")
_TRACE = ("traceparent", "tracestate")
# JSON writes these as members; all else is a text.
_JSON_TYPES = (str, int, bool)
# Containers within each other that can always be written, and those that may stand around a body.
DEPTH_MAX, DEPTH_SPARE = 300, 50
_NOT_ESCAPED = "".join(chr(c) for c in range(0x21, 0x7F) if chr(c) not in '"%')


def of_headers(headers: Iterable[tuple[str, str]], body: bytes, content_type: str) -> Message:
    """Make a message of an event in binary mode: ``ce-`` headers. Raises MessageInvalid."""
    attributes: dict[str, Any] = {}
    for name, value in headers:
        if name.startswith("ce-"):
            if name[3:] in attributes:
                raise MessageInvalid(f"{name}: said twice")
            try:
                attributes[name[3:]] = unquote(value, errors="strict")
            except UnicodeDecodeError:
                raise MessageInvalid(f"{name}: not UTF-8") from None
    return _message(attributes, body, content_type)


def of_json(event: Any) -> Message:
    """Make a message of an event in structured mode, decoded. Raises MessageInvalid."""
    if not isinstance(event, dict):
        raise MessageInvalid("a CloudEvent is an object")
    attributes = {
        name: value
        for name, value in event.items()
        if name not in ("data", "data_base64", "datacontenttype") and value is not None
    }
    kind = event.get("datacontenttype")
    if kind is not None and not isinstance(kind, str):
        raise MessageInvalid("datacontenttype: a text wanted")
    if "data_base64" in event:
        if "data" in event or not isinstance(event["data_base64"], str):
            raise MessageInvalid("data_base64: a text wanted, and no data beside it")
        try:
            body = base64.b64decode(event["data_base64"], validate=True)
        except ValueError:
            raise MessageInvalid("data_base64: not Base64") from None
        return _message(attributes, body, kind or "")
    data = event.get("data")
    if data is None:
        return _message(attributes, b"", kind or "")
    if isinstance(data, str) and kind is not None and not is_json(kind):
        return _message(attributes, data.encode(errors="surrogatepass"), kind)
    try:
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError) as fault:
        raise MessageInvalid(f"data: {fault}") from None
    body = text.encode(errors="backslashreplace")  # half of a pair, as JSON writes it
    return _message(attributes, body, kind or "application/json")


def _message(attributes: Mapping[str, Any], body: bytes, content_type: str) -> Message:
    for name in _REQUIRED:
        if not (isinstance(attributes.get(name), str) and attributes[name]):
            raise MessageInvalid(f"CloudEvents attribute {name}: a text wanted")
    if attributes["specversion"] != "1.0":
        raise MessageInvalid(f"specversion {attributes['specversion'][:20]!r}: 1.0 wanted")
    headers: dict[str, Any] = {}
    for name, value in attributes.items():
        if not _NAME.fullmatch(name) or name in ("data", "datacontenttype"):
            raise MessageInvalid(
                f"CloudEvents attribute {name[:100]!r}: lower case letters, digits"
            )
        if not isinstance(value, _JSON_TYPES):
            raise MessageInvalid(f"CloudEvents attribute {name}: a text, number or boolean wanted")
        if isinstance(value, int) and not isinstance(value, bool) and not -(2**31) <= value < 2**31:
            raise MessageInvalid(f"CloudEvents attribute {name}: a number of 32 bits wanted")
        headers[name if name in _TRACE else PREFIX + name] = value
    key = headers.pop(f"{PREFIX}partitionkey", "")
    message_id = attributes["id"]
    if ID_FORM.fullmatch(message_id):
        del headers[f"{PREFIX}id"]
    else:
        message_id = ""
    return Message(
        body=body, content_type=content_type, message_id=message_id, headers=headers, key=str(key)
    )


def is_event(delivery: Delivery) -> bool:
    """Return whether a delivery was published as an event."""
    return any(f"{prefix}specversion" in delivery.headers for prefix in _PREFIXES)


def _structured(delivery: Delivery) -> dict[str, Any] | None:
    """Return the event that the body is, in structured mode; None for any other body."""
    if delivery.content_type.partition(";")[0].strip().lower() != STRUCTURED:
        return None
    try:
        event = _json_of(delivery.body)
    except (WrongPayload, RecursionError):
        return None
    is_whole = isinstance(event, dict) and all(event.get(name) for name in _REQUIRED)
    return event if is_whole else None


def _attributes(delivery: Delivery) -> dict[str, Any]:
    """Return the attributes; of a message that was no event, those that one needs."""
    headers, message = delivery.headers, delivery.message
    receipt = delivery.receipt
    # An event must have an id. Without one a delivery is only known by where it came from.
    made_id = "/".join(map(str, receipt))
    found: dict[str, Any] = {"specversion": "1.0", "id": message.message_id or made_id}
    if not is_event(delivery):
        found |= {"source": f"/{delivery.source}", "type": message.type or "message"}
    for name, value in headers.items():
        attribute = next((name[len(each) :] for each in _PREFIXES if name.startswith(each)), "")
        if attribute and isinstance(value, _JSON_TYPES):
            found[attribute] = value
        elif name in _TRACE:
            found[name] = value
    if message.key:
        found["partitionkey"] = message.key
    return {
        name: _CONTROL.sub("\ufffd", value) if isinstance(value, str) else value
        for name, value in found.items()
    }


def as_event(delivery: Delivery) -> dict[str, Any]:
    """Return a delivery as an event of structured mode."""
    if (structured := _structured(delivery)) is not None:
        return structured
    event = _attributes(delivery)
    kind = delivery.content_type
    if kind:
        event["datacontenttype"] = kind
    body = delivery.body
    if not body:
        return event
    try:
        event["data"] = _json_of(body) if is_json(kind) else body.decode()
    except (UnicodeDecodeError, WrongPayload, RecursionError):
        event["data_base64"] = base64.b64encode(body).decode()
    return event


def _json_of(body: bytes) -> Any:
    """Decode JSON that can be written again inside of other values. Raises WrongPayload, RecursionError.

    NaN is none: one such body would spoil an answer with others.
    """
    found = decode_json(body)
    if body.count(b"[") + body.count(b"{") > DEPTH_MAX:  # it may be as deep, or is only long
        json.dumps(functools.reduce(lambda inner, _: [inner], range(DEPTH_SPARE), found))
    return found


def binary_headers(delivery: Delivery) -> dict[str, str]:
    """Return the headers of binary mode; the body is the delivery's."""
    if _structured(delivery) is not None:
        return {"content-type": delivery.content_type}
    told = {
        f"ce-{name}": quote(
            str(value).lower() if isinstance(value, bool) else str(value), safe=_NOT_ESCAPED
        )
        for name, value in _attributes(delivery).items()
    }
    return told | ({"content-type": delivery.content_type} if delivery.content_type else {})
