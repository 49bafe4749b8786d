"""The changes that a broker makes in a message it dead-letters or redelivers: for brokers in memory."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pika

from messagebus._io.amqp.properties import read_headers

__all__ = ["counted", "dead_lettered", "read_ttl_ms"]

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
    properties = _properties(raw)
    if properties is None:
        return raw
    properties.headers = {**(properties.headers or {}), DELIVERY_COUNT: deliveries}
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
