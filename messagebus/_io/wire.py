"""Messages as AMQP properties and back: docs/WIRE.md in code."""

from __future__ import annotations

import time
from typing import Any

import pika

from messagebus.message import NO_HEADERS, RESERVED_PREFIX, Message

__all__ = ["KEY_HEADER", "from_amqp", "to_properties"]

KEY_HEADER = "mb-key"
PERSISTENT = 2


def to_properties(message: Message, message_id: str) -> pika.BasicProperties:
    """The properties of one publish. The message is not changed."""
    headers: dict[str, Any] = dict(message.headers)
    if message.key:
        headers[KEY_HEADER] = message.key
    expires = message.expires_after_ms
    return pika.BasicProperties(
        content_type=message.content_type or None,
        headers=headers or None,
        delivery_mode=PERSISTENT,
        priority=message.priority,
        correlation_id=message.correlation_id or None,
        reply_to=message.reply_to or None,
        expiration=None if expires is None else str(expires),
        message_id=message_id,
        timestamp=int(time.time()),
        type=message.type or None,
    )


def from_amqp(properties: pika.BasicProperties, body: bytes) -> Message:
    """What arrived, as far as it makes sense: other clients may set properties wrongly.

    Texts that are not UTF-8 are read with replacement characters, numbers out of range as absent.
    """
    headers = {_text(name): value for name, value in (properties.headers or {}).items()}
    key = headers.pop(KEY_HEADER, "")
    ours = {name: value for name, value in headers.items() if not name.startswith(RESERVED_PREFIX)}
    message = object.__new__(Message)  # what arrived is not judged by the rules for what is sent
    for name, value in (
        ("body", body),
        ("content_type", _text(properties.content_type)),
        ("message_id", _text(properties.message_id)),
        ("headers", ours or NO_HEADERS),
        ("key", _text(key)),
        ("priority", properties.priority if properties.priority in range(10) else None),
        ("correlation_id", _text(properties.correlation_id)),
        ("reply_to", _text(properties.reply_to)),
        ("type", _text(properties.type)),
        ("expires_after_ms", _number(properties.expiration)),
    ):
        object.__setattr__(message, name, value)
    return message


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else ""


def _number(value: object) -> int | None:
    text = _text(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 18 else None
