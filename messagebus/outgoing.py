"""Payloads and options of an application's publishes, checked before anything is accepted."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, TypedDict

from messagebus._io.amqp.properties import is_bare
from messagebus._io.publish.publishes import Target, Targets
from messagebus.destination import Destination, delay_step, parse_destination
from messagebus.errors import ConfigError, MessageInvalid
from messagebus.message import BINARY, BODY_BYTES_MAX, Header, Message

__all__ = ["Options", "Outgoing", "Payload", "as_message", "whole_timeout_ms"]

Payload = Message | bytes | str
"""Payload of a publish: a message, its bytes, or a text."""


class Options(TypedDict, total=False):
    """Options of one call beside the payload; they replace those of a `Message` payload.

    headers, key, priority, correlation_id, reply_to, message_id, type: as in `Message`.
    ttl_s: the broker may drop it unread after this time; a delayed message's life begins when it is due.
    deliver_after_s, deliver_at: not before then, rounded up to a step of the delay ladder (1, 2, 5, 10
        s ... 7 days); deliver_at: an aware datetime, or seconds since 1970. At most one of them.
    """

    headers: Mapping[str, Header]
    key: str
    priority: int | None
    ttl_s: float | None
    correlation_id: str
    reply_to: str
    message_id: str
    type: str
    deliver_after_s: float
    deliver_at: datetime | float


_DELAYS = ("deliver_after_s", "deliver_at")


def whole_timeout_ms(timeout_s: float) -> int:
    """Return a publish's timeout in ms. Raises ConfigError for an invalid one."""
    if not 0 <= timeout_s < math.inf:
        raise ConfigError(f"timeout_s {timeout_s!r}: seconds, 0 or more")
    return int(timeout_s * 1000)


def as_message(payload: Payload) -> Message:
    """Return the payload as a message: a message as it is, bytes as binary, str as text."""
    match payload:
        case Message():
            return payload
        case str():
            return Message.text(payload)
        case _:
            return Message(body=payload)


class Outgoing:
    """Reader of the calls of one publisher. Any thread may use it."""

    def __init__(self) -> None:
        self._targets = Targets()

    def name_of(self, destination: Destination | str) -> str:
        """Return the name that hooks get: ``orders``, ``queue:jobs``. Raises NameInvalid."""
        return str(parse_destination(destination) if isinstance(destination, str) else destination)

    def read(
        self, destination: Destination | str, payload: Payload, options: Options
    ) -> tuple[Target, bytes, Message | None]:
        """Return the target, the body, and the message unless it is nothing but a body.

        Raises NameInvalid or MessageInvalid.
        """
        if type(payload) is bytes and not options:  # the usual case: a Message costs 2 us
            if len(payload) > BODY_BYTES_MAX:
                raise MessageInvalid(f"body of {len(payload)} bytes: at most {BODY_BYTES_MAX}")
            if isinstance(destination, str):
                return self._targets.plain(destination), payload, None
            return self._targets.of(destination, BINARY), payload, None
        message = as_message(payload)
        delay_ms = 0
        if options:
            delay_ms = _delay_ms(options)
            message = _with(message, options)
        if isinstance(destination, str):
            destination = parse_destination(destination)
        delay = delay_step(delay_ms) if delay_ms > 0 else None
        target = self._targets.of(destination, message.content_type, delay)
        return target, message.body, None if is_bare(message) else message


def _with(message: Message, options: Options) -> Message:
    fields: dict[str, Any] = {name: v for name, v in options.items() if name not in _DELAYS}
    if "ttl_s" in fields:
        ttl_s = fields.pop("ttl_s")
        fields["ttl_ms"] = None if ttl_s is None else _whole_ms("ttl_s", ttl_s)
    if unknown := fields.keys() - Options.__annotations__.keys() - {"ttl_ms"}:
        raise TypeError(f"unknown option {sorted(unknown)[0]!r}")
    return replace(message, **fields) if fields else message


def _delay_ms(options: Options) -> int:
    """Return the delay in ms; 0 means at once."""
    if all(name in options for name in _DELAYS):
        raise MessageInvalid("deliver_after_s and deliver_at: only one of them")
    if "deliver_after_s" in options:
        return _whole_ms("deliver_after_s", options["deliver_after_s"])
    at = options.get("deliver_at")
    if at is None:
        return 0
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise MessageInvalid("deliver_at without a time zone")
        at = at.timestamp()
    return _whole_ms("deliver_at", max(0, at - time.time()))


def _whole_ms(name: str, seconds: object) -> int:
    """Return whole ms, rounded up. Raises MessageInvalid unless it is a number of seconds."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise MessageInvalid(f"{name} {seconds!r}: a number of seconds")
    if not 0 <= seconds < float("inf"):
        raise MessageInvalid(f"{name} {seconds!r}: 0 or more")
    return -int(-seconds * 1000 // 1)
