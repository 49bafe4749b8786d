"""Whether what came out of the delay ladder is handed out now: not before its time, nor after its life.

RabbitMQ lets a message go at the earlier of its step's time and its own expiration, and then forgets the
expiration. So a delayed message bears its time to live in a header, which counts from when it is due;
one of another client that bears an expiration comes too early, and waits for the rest. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from messagebus.core.parking import DELAYS, last_death

__all__ = ["STEP_MARK", "TTL_HEADER", "Early", "is_late", "read_early", "read_ttl_ms"]

TTL_HEADER = "mb-ttl-ms"
"""Header of a delayed message: its time to live, from when it is due."""
STEP_MARK = b"mb.delay/"
"""In the properties of whatever came out of a step."""
TTL_MS_MAX = (1 << 32) - 1
# The broker says when it was due in whole seconds, cut off.
DUE_STEP_MS = 1_000


@dataclass(frozen=True, slots=True)
class Early:
    """rest_ms: how much longer it was to wait. ttl_ms: how long it lives after that."""

    rest_ms: int
    ttl_ms: int


def read_early(headers: Mapping[str, Any]) -> Early | None:
    """What is left of its delay, when its own expiration let it go before."""
    death = last_death(headers)
    step = DELAYS.get(str(death.get("queue")))
    text = str(death.get("original-expiration", ""))
    if step is None or not (text.isascii() and text.isdigit() and len(text) <= 10):
        return None
    rest_ms = step.ms - int(text)
    return Early(rest_ms, min(int(text), TTL_MS_MAX)) if rest_ms > 0 else None


def is_late(headers: Mapping[str, Any], now_ms: int) -> bool:
    """Whether its time to live is over. now_ms: wall clock; when it was due is its broker's."""
    ttl_ms, death = read_ttl_ms(headers), last_death(headers)
    due = death.get("time")
    if ttl_ms is None or str(death.get("queue")) not in DELAYS or not isinstance(due, datetime):
        return False
    return now_ms > due.timestamp() * 1000 + DUE_STEP_MS + ttl_ms


def read_ttl_ms(headers: Mapping[str, Any]) -> int | None:
    ttl_ms = headers.get(TTL_HEADER)
    return ttl_ms if type(ttl_ms) is int and 0 <= ttl_ms <= TTL_MS_MAX else None
