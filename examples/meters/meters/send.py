"""Meters of a small town, which publish their readings, and record what was confirmed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from messagebus import Message, Outcome, Publisher

__all__ = ["DISTRICTS", "Reading", "readings", "send"]

DISTRICTS = ("harbour", "hill", "mill")
METERS = 50
BEGIN = datetime(2026, 11, 1, tzinfo=UTC)
EVERY = timedelta(minutes=15)
TOGETHER = 1_000


@dataclass(frozen=True, slots=True)
class Reading:
    """Energy that a household used. at: the end of a quarter of an hour."""

    meter: str
    district: str
    at: datetime
    kwh: float


def readings(count: int) -> Iterator[Reading]:
    """Yield readings of all meters, quarter by quarter."""
    for number in range(count):
        quarter, meter = divmod(number, METERS)
        yield Reading(
            meter=f"m{meter}",
            district=DISTRICTS[meter % len(DISTRICTS)],
            at=BEGIN + quarter * EVERY,
            kwh=round(random.uniform(0.05, 0.5), 3),
        )


def send(publisher: Publisher, count: int) -> int:
    """Publish readings, those of a meter in their order. Returns how many were confirmed."""
    messages = [Message.json(each, key=each.meter) for each in readings(count)]
    ends = (
        end
        for first in range(0, count, TOGETHER)
        for end in publisher.send_many("readings", messages[first : first + TOGETHER])
    )
    return sum(end.outcome is Outcome.CONFIRMED for end in ends)
