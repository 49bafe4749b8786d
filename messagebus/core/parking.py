"""Parked, moved and delayed messages: the meaning of their headers, and the consequences.

Pure, from the headers as they arrived. A message is parked by a client, which says why in ``mb-park-``
headers, or by its broker, which says it in ``x-death``: the message was rejected, or came back unanswered
more often than its queue's delivery limit, as a message does that kills its consumer.

A message that is moved to another broker arrives there unchanged: with its id, its headers, its key and its
time. Three things need care. The reason of a parked message may stand only in headers that another broker
ignores. A delayed message has waited for a part of its time. Messages of one key must not overtake each
other.

RabbitMQ lets a message out of the delay ladder at the earlier of its step's time and its own expiration, and
then forgets the expiration. So a delayed message carries its time to live in a header, which counts from when
it is due. A delayed message of another client with an expiration comes too early, and waits for the rest.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

from messagebus.core.headers import OF_BROKERS
from messagebus.destination import DELAY_STEPS_MS, UNDELIVERED_QUEUE, Delay, Source, delay_step

DELAYS: Mapping[str, Delay] = {step.amqp_queue: step for step in map(Delay, DELAY_STEPS_MS)}
"""The steps of the delay ladder, by their queues."""


# AMQP's timestamps are whole seconds, cut off: a message is up to this much younger than its timestamp.
STAMP_STEP_MS = 1_000
# A message is in its step for no longer than the step and the time that its broker was away. A larger
# difference means that the publisher's clock differs from ours.
OVERDUE_MS_MAX = 60_000
TTL_HEADER = "mb-ttl-ms"
"""Header of a delayed message: its time to live in ms, counted from when it is due."""
STEP_MARK = b"mb.delay/"
"""Bytes in the properties of every message that came out of a step."""
TTL_MS_MAX = (1 << 32) - 1
# The broker says when it was due in whole seconds, cut off.
DUE_STEP_MS = 1_000


@dataclass(frozen=True, slots=True)
class Undelivered:
    """The messages that were delayed and found no queue when due, as a source with a parking queue."""

    parking_queue: ClassVar[str] = UNDELIVERED_QUEUE
    delivery_limit: ClassVar[int] = 0

    def __str__(self) -> str:
        return "undelivered"


UNDELIVERED = Undelivered()
Parked = Source | Undelivered
"""The owner of a parking queue."""

DELIVERY_LIMIT, UNKNOWN_REASON = "delivery limit", "unknown"
REDRIVEN = "mb-redriven"
"""Header: number of times that it was put back from a parking queue."""
PARKED_PREFIX = "mb-park-"
STEP_PREFIX = "mb.delay/"
# Larger values written by others are ignored: they could not be written again.
MS_MAX, COUNT_MAX = 1 << 50, 1_000_000
# Headers that a redriven message loses: its attempts, and the broker's own book-keeping.
NOT_REDRIVEN = OF_BROKERS | {"mb-attempt", "mb-retry-reason", REDRIVEN}
MS_PER_S = 1_000
# Part of a body that is searched for a pattern.
MATCH_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The known facts of one parked message; None or "" for unknown ones.

    attempts: runs of the handler, or deliveries that nobody answered. first_ms: when it was first
    published, parked_ms: when it was parked, ms since 1970. address: queue or topic exchange that a
    message was for that came out of the delay ladder.
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
    """The application's own headers."""

    @property
    def cause(self) -> str:
        """The reason with the type of the exception, by which parked messages are counted."""
        kind = self.exception.partition(":")[0].strip()
        return self.reason if not kind or kind in self.reason else f"{self.reason} ({kind})"


def read_facts(
    headers: Mapping[str, Any],
    *,
    message_id: str = "",
    stamp_ms: int | None = None,
    delivery_limit: int = 0,
) -> Facts:
    """Read the facts of a parked message from its headers, all of them, as they arrived.

    stamp_ms: its timestamp. delivery_limit: of its queue.
    """
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
    """Return whether a header is left behind when its message goes back to its queue."""
    return name.startswith(PARKED_PREFIX) or name in NOT_REDRIVEN


def last_death(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the newest ``x-death`` entry: the last queue that let the message go; empty for none."""
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
    """Return the number of attempts; None when unknown.

    The broker does not tell how often it delivered: one time more than the delivery limit.
    """
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
    """Return the key under which it last came out of a delay step, "" for a message from elsewhere."""
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
    """A choice of parked messages; a field of None takes all.

    since_ms, until_ms: range of the time of parking, ms since 1970. reason: part of the reason or of the
    exception, in any case.
    message_id: its id; one that ends in ``*``: the beginning of its id. key: equal to the message's.
    pattern: found in id, key, reason, exception, headers or body.
    """

    since_ms: int | None = None
    until_ms: int | None = None
    reason: str | None = None
    key: str | None = None
    pattern: re.Pattern[str] | None = None
    message_id: str | None = None

    @property
    def is_everything(self) -> bool:
        return self == Choice()

    def may_take(self, raw: bytes) -> bool:
        """Return False when properties, as they came, cannot have the id: quicker than reading them."""
        if self.message_id is None:
            return True
        return self.message_id.removesuffix("*").encode("utf-8", "surrogatepass") in raw

    def takes(self, facts: Facts, body: bytes) -> bool:
        if not self._takes_time(facts.parked_ms):
            return False
        if self.reason is not None and not _has(self.reason, facts.reason, facts.exception):
            return False
        if self.key is not None and self.key != facts.key:
            return False
        if self.message_id is not None and not _is_id(self.message_id, facts.message_id):
            return False
        pattern = self.pattern
        return pattern is None or any(pattern.search(text) for text in _texts(facts, body))

    def _takes_time(self, parked_ms: int | None) -> bool:
        """Return whether its time fits; a message without a known time fits no range."""
        if self.since_ms is None and self.until_ms is None:
            return True
        if parked_ms is None or (self.since_ms is not None and parked_ms < self.since_ms):
            return False
        return self.until_ms is None or parked_ms <= self.until_ms


def _is_id(wanted: str, found: str) -> bool:
    return found == wanted or (wanted.endswith("*") and found.startswith(wanted[:-1]))


def _has(part: str, *texts: str) -> bool:
    return any(part.casefold() in text.casefold() for text in texts)


def _texts(facts: Facts, body: bytes) -> Iterator[str]:
    yield from (facts.message_id, facts.key, facts.reason, facts.exception)
    for name, value in facts.headers.items():
        yield f"{name}: {value}"
    yield body[:MATCH_BYTES_MAX].decode("utf-8", "replace")


class Spread:
    """The choice of targets for messages: the same one for all messages of a key, the others in turn."""

    def __init__(self, targets: int) -> None:
        """Create a spread. targets: their number, 1 or more."""
        self._targets, self._next = targets, -1

    def place(self, key: str) -> int:
        """Return the number of the target, from 0."""
        if key:
            digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
            return int.from_bytes(digest) % self._targets
        self._next = (self._next + 1) % self._targets
        return self._next


def parked_marks(facts: Facts) -> dict[str, Any]:
    """Return headers that keep the known facts of a parked message, where only its broker knew them.

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
    """Return the step for the rest of a delay, rounded up.

    headers, stamp_ms: of the message. there: steps that the other broker has; they are created when
    somebody first asks for them. The time of waiting is known only for a message that was delayed when it
    was first published. Another (a retry) waits for its whole step again, and so does one whose
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
    """A delayed message that came too early. rest_ms: left of its delay. ttl_ms: time to live after that."""

    rest_ms: int
    ttl_ms: int


def read_early(headers: Mapping[str, Any]) -> Early | None:
    """Return the rest of the delay, when the message's own expiration ended it early; else None."""
    death = last_death(headers)
    step = DELAYS.get(str(death.get("queue")))
    text = str(death.get("original-expiration", ""))
    if step is None or not (text.isascii() and text.isdigit() and len(text) <= 10):
        return None
    rest_ms = step.ms - int(text)
    return Early(rest_ms, min(int(text), TTL_MS_MAX)) if rest_ms > 0 else None


def is_late(headers: Mapping[str, Any], now_ms: int) -> bool:
    """Return whether its time to live is over. now_ms: wall clock; the due time is by the broker's clock."""
    ttl_ms, due_ms = read_ttl_ms(headers), read_due_ms(headers)
    return ttl_ms is not None and due_ms is not None and now_ms > due_ms + DUE_STEP_MS + ttl_ms


def read_due_ms(headers: Mapping[str, Any]) -> int | None:
    """Return when a message came out of a delay step, by its broker's clock; None if that was not its way."""
    death = last_death(headers)
    return _epoch_ms(death.get("time")) if str(death.get("queue")) in DELAYS else None


def read_ttl_ms(headers: Mapping[str, Any]) -> int | None:
    ttl_ms = headers.get(TTL_HEADER)
    return ttl_ms if type(ttl_ms) is int and 0 <= ttl_ms <= TTL_MS_MAX else None
