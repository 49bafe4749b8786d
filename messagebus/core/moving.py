"""What a message that is moved to another broker takes along, and where it goes. Pure.

It arrives there as it lay here: under its id, with its headers, its key and its time. Three things need
care: of a parked message the broker alone may know why, in headers that another broker ignores; a
delayed one has waited for a part of its time; and messages of one key must not overtake each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Any

from messagebus.core.parking import UNKNOWN_REASON, Facts
from messagebus.destination import DELAY_STEPS_MS, Delay, delay_step

__all__ = ["DELAYS", "Spread", "parked_marks", "rest_of_delay"]

DELAYS: Mapping[str, Delay] = {step.amqp_queue: step for step in map(Delay, DELAY_STEPS_MS)}
"""The steps of the delay ladder, by their queues."""


# AMQP's timestamps are whole seconds, cut off: a message is younger than its own by up to that much.
STAMP_STEP_MS = 1_000
# A message is in its step for no longer than the step, and as long as its broker was away. One that says
# that it was, says it by a clock that differs from ours.
OVERDUE_MS_MAX = 60_000


class Spread:
    """Which target takes the next message: those of one key always the same, the others in turn."""

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
