"""Parked, moved and delayed messages: what their headers tell, and what becomes of them by it.

Pure, from the headers as they arrived. A message is parked by a client, which says why in ``mb-park-``
headers, or by its broker, which says it in ``x-death``: rejected, or brought back unanswered more often
than its queue's delivery limit, as a message does that kills its consumer.

A message that is moved to another broker arrives there as it lay here: under its id, with its headers, its
key and its time. Three things need care: of a parked message the broker alone may know why, in headers that
another broker ignores; a delayed one has waited for a part of its time; and messages of one key must not
overtake each other.

RabbitMQ lets a message out of the delay ladder at the earlier of its step's time and its own expiration, and
then forgets the expiration. So a delayed message bears its time to live in a header, which counts from when
it is due; one of another client that bears an expiration comes too early, and waits for the rest.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

from messagebus.destination import DELAY_STEPS_MS, UNDELIVERED_QUEUE, Delay, Source, delay_step

__all__ = [
    "DELIVERY_LIMIT",
    "REDRIVEN",
    "UNDELIVERED",
    "UNKNOWN_REASON",
    "Choice",
    "Facts",
    "Parked",
    "Undelivered",
    "is_dropped_by_redrive",
    "last_death",
    "read_facts",
    "DELAYS",
    "Spread",
    "parked_marks",
    "rest_of_delay",
    "STEP_MARK",
    "TTL_HEADER",
    "Early",
    "is_late",
    "read_early",
    "read_ttl_ms",
]

DELAYS: Mapping[str, Delay] = {step.amqp_queue: step for step in map(Delay, DELAY_STEPS_MS)}
"""The steps of the delay ladder, by their queues."""


# AMQP's timestamps are whole seconds, cut off: a message is younger than its own by up to that much.
STAMP_STEP_MS = 1_000
# A message is in its step for no longer than the step, and as long as its broker was away. One that says
# that it was, says it by a clock that differs from ours.
OVERDUE_MS_MAX = 60_000
TTL_HEADER = "mb-ttl-ms"
"""Header of a delayed message: its time to live, from when it is due."""
STEP_MARK = b"mb.delay/"
"""In the properties of whatever came out of a step."""
TTL_MS_MAX = (1 << 32) - 1
# The broker says when it was due in whole seconds, cut off.
DUE_STEP_MS = 1_000


@dataclass(frozen=True, slots=True)
class Undelivered:
    """Messages that were delayed and found no queue when due, as one more thing with a parking queue."""

    parking_queue: ClassVar[str] = UNDELIVERED_QUEUE
    delivery_limit: ClassVar[int] = 0

    def __str__(self) -> str:
        return "undelivered"


UNDELIVERED = Undelivered()
Parked = Source | Undelivered
"""Whose parking queue it is."""

DELIVERY_LIMIT, UNKNOWN_REASON = "delivery limit", "unknown"
REDRIVEN = "mb-redriven"
"""Header: how often it was put back from a parking queue."""
PARKED_PREFIX = "mb-park-"
STEP_PREFIX = "mb.delay/"
# What others write beyond these says nothing: it could not be written again.
MS_MAX, COUNT_MAX = 1 << 50, 1_000_000
# What a redriven message begins anew without: its attempts, and the broker's own book-keeping.
NOT_REDRIVEN = frozenset(
    {
        "mb-attempt",
        "mb-retry-reason",
        REDRIVEN,
        "x-death",
        "x-delivery-count",
        "x-acquired-count",
        "x-first-death-exchange",
        "x-first-death-queue",
        "x-first-death-reason",
        "x-last-death-exchange",
        "x-last-death-queue",
        "x-last-death-reason",
    }
)
MS_PER_S = 1_000
# Of a body, as far as a pattern is looked for in it.
MATCH_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The known facts of one parked message; None or "" for what is not.

    attempts: runs of the handler, or deliveries that nobody answered. first_ms: when it was first
    published, parked_ms: when it was parked, ms since 1970. address: of what came out of the delay
    ladder, whose it was: a queue, or a topic's exchange.
    """

    message_id: str = ""
    key: str = ""
    reason: str = UNKNOWN_REASON
    exception: str = ""
    attempts: int | None = None
    first_ms: int | None = None
    parked_ms: int | None = None
    redriven: int = 0
    address: str = ""
    headers: Mapping[str, Any] = field(default_factory=dict)
    """The application's own."""


def read_facts(
    headers: Mapping[str, Any],
    *,
    message_id: str = "",
    stamp_ms: int | None = None,
    delivery_limit: int = 0,
) -> Facts:
    """headers: all of them, as they arrived. stamp_ms: the timestamp. delivery_limit: of its queue."""
    death = last_death(headers)
    address = _text(headers.get("mb-park-address")) or _due_for(death)
    parked_ms = _ms(headers.get("mb-park-ms"))
    if parked_ms is None and death:
        parked_ms = _epoch_ms(death.get("time"))
    first_ms = _ms(headers.get("mb-park-first-ms"))
    if first_ms is None:
        first_ms = _ms(headers.get("mb-first-ms"))
    if first_ms is None:
        first_ms = stamp_ms
    own = {n: v for n, v in headers.items() if not n.startswith("mb-") and n not in NOT_REDRIVEN}
    return Facts(
        message_id=message_id,
        key=_text(headers.get("mb-key")),
        reason=_reason(headers, death),
        exception=_text(headers.get("mb-park-exception")),
        attempts=_attempts(headers, death, delivery_limit),
        first_ms=first_ms,
        parked_ms=parked_ms,
        redriven=_count(headers.get(REDRIVEN)) or 0,
        address=address,
        headers=own,
    )


def is_dropped_by_redrive(name: str) -> bool:
    """Tell whether a header is left behind when its message goes back to its queue."""
    return name.startswith(PARKED_PREFIX) or name in NOT_REDRIVEN


def last_death(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    """Tell what its broker notes of the last queue that let it go; empty for none."""
    deaths = headers.get("x-death")
    newest = deaths[0] if isinstance(deaths, list) and deaths else {}
    return newest if isinstance(newest, dict) else {}


def _reason(headers: Mapping[str, Any], death: Mapping[str, Any]) -> str:
    told = _text(headers.get("mb-park-reason")) or _text(death.get("reason"))
    if address := _due_for(death):
        return f"no queue: {address}"
    return DELIVERY_LIMIT if told == "delivery_limit" else told or UNKNOWN_REASON


def _attempts(
    headers: Mapping[str, Any], death: Mapping[str, Any], delivery_limit: int
) -> int | None:
    """The broker does not tell how often it delivered: once more than it may take a message back."""
    told = _count(headers.get("mb-park-attempts"))
    if told is not None or "mb-park-reason" in headers:
        return told
    run = _count(headers.get("mb-attempt")) or 1
    match _text(death.get("reason")):
        case "delivery_limit":
            return run + delivery_limit if delivery_limit else None
        case "rejected":
            return run
        case _:
            return None


def _due_for(death: Mapping[str, Any]) -> str:
    """Under which key it came out of a delay step last, "" for what came from elsewhere."""
    keys = death.get("routing-keys")
    if not _text(death.get("queue")).startswith(STEP_PREFIX) or not isinstance(keys, list):
        return ""
    return _text(keys[0]) if keys else ""


def _ms(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= MS_MAX else None


def _count(value: object) -> int | None:
    return min(value, COUNT_MAX) if type(value) is int and value >= 0 else None


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else ""


def _epoch_ms(value: object) -> int | None:
    return int(value.timestamp() * MS_PER_S) if isinstance(value, datetime) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A choice of parked messages; what is None takes all.

    since_ms, until_ms: parked then, ms since 1970. reason: is in theirs, whatever the case. key: is
    theirs. pattern: is found in id, key, reason, exception, headers or body.
    """

    since_ms: int | None = None
    until_ms: int | None = None
    reason: str | None = None
    key: str | None = None
    pattern: re.Pattern[str] | None = None

    @property
    def is_everything(self) -> bool:
        return self == Choice()

    def takes(self, facts: Facts, body: bytes) -> bool:
        if not self._takes_time(facts.parked_ms):
            return False
        if self.reason is not None and self.reason.casefold() not in facts.reason.casefold():
            return False
        if self.key is not None and self.key != facts.key:
            return False
        pattern = self.pattern
        return pattern is None or any(pattern.search(text) for text in _texts(facts, body))

    def _takes_time(self, parked_ms: int | None) -> bool:
        """Tell whether its time fits; one that does not tell its time is neither older nor newer."""
        if self.since_ms is None and self.until_ms is None:
            return True
        if parked_ms is None or (self.since_ms is not None and parked_ms < self.since_ms):
            return False
        return self.until_ms is None or parked_ms <= self.until_ms


def _texts(facts: Facts, body: bytes) -> Iterator[str]:
    yield from (facts.message_id, facts.key, facts.reason, facts.exception)
    for name, value in facts.headers.items():
        yield f"{name}: {value}"
    yield body[:MATCH_BYTES_MAX].decode("utf-8", "replace")


class Spread:
    """The choice of targets for messages: those of one key always the same, the others in turn."""

    def __init__(self, targets: int) -> None:
        """targets: how many there are, 1 or more."""
        self._targets, self._next = targets, -1

    def place(self, key: str) -> int:
        """From 0."""
        if key:
            digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
            return int.from_bytes(digest) % self._targets
        self._next = (self._next + 1) % self._targets
        return self._next


def parked_marks(facts: Facts) -> dict[str, Any]:
    """Headers that keep what is known of a parked message, where its broker knew it by itself.

    RabbitMQ 4 ignores the ``x-death`` that a publisher sends.
    """
    marks: dict[str, Any] = {
        "mb-park-attempts": facts.attempts,
        "mb-park-first-ms": facts.first_ms,
        "mb-park-ms": facts.parked_ms,
        "mb-park-address": facts.address or None,
    }
    if facts.reason != UNKNOWN_REASON:
        marks["mb-park-reason"] = facts.reason
    return {name: value for name, value in marks.items() if value is not None}


def rest_of_delay(
    step: Delay,
    headers: Mapping[str, Any],
    stamp_ms: int | None,
    now_ms: int,
    there: Collection[Delay] = tuple(DELAYS.values()),
) -> Delay:
    """The step for what is left of a delay, rounded up.

    headers, stamp_ms: of the message. there: steps that the other broker has; they come into being when
    somebody first asks for them. Only of one that was delayed when it was first published is it
    known since when it waits; another (a retry) waits for its whole step again, and so does one whose
    publisher's clock cannot be right.
    """
    if stamp_ms is None or "mb-first-ms" in headers or "mb-attempt" in headers:
        return step
    waited_ms = max(0, now_ms - stamp_ms - STAMP_STEP_MS)
    if waited_ms > step.ms + OVERDUE_MS_MAX:
        return step
    rest = delay_step(max(1, step.ms - waited_ms))
    return min((each for each in there if rest.ms <= each.ms <= step.ms), default=step)


@dataclass(frozen=True, slots=True)
class Early:
    """rest_ms: how much longer it was to wait. ttl_ms: how long it lives after that."""

    rest_ms: int
    ttl_ms: int


def read_early(headers: Mapping[str, Any]) -> Early | None:
    """Tell what is left of its delay, when its own expiration let it go before."""
    death = last_death(headers)
    step = DELAYS.get(str(death.get("queue")))
    text = str(death.get("original-expiration", ""))
    if step is None or not (text.isascii() and text.isdigit() and len(text) <= 10):
        return None
    rest_ms = step.ms - int(text)
    return Early(rest_ms, min(int(text), TTL_MS_MAX)) if rest_ms > 0 else None


def is_late(headers: Mapping[str, Any], now_ms: int) -> bool:
    """Tell whether its time to live is over. now_ms: wall clock; when it was due is its broker's."""
    ttl_ms, death = read_ttl_ms(headers), last_death(headers)
    due = death.get("time")
    if ttl_ms is None or str(death.get("queue")) not in DELAYS or not isinstance(due, datetime):
        return False
    return now_ms > due.timestamp() * 1000 + DUE_STEP_MS + ttl_ms


def read_ttl_ms(headers: Mapping[str, Any]) -> int | None:
    ttl_ms = headers.get(TTL_HEADER)
    return ttl_ms if type(ttl_ms) is int and 0 <= ttl_ms <= TTL_MS_MAX else None
