"""Messages at a steady rate, whose latency counts from when they were intended.

A client that is held back sends late and its latency grows: nothing is left out. Two histograms:
until the confirm, and until the delivery to a consumer in the same process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from hdrh.histogram import HdrHistogram

from bench.errors import BenchError
from bench.harness.loop import Alarm

__all__ = ["DIGITS", "HIGHEST_US", "Latencies", "intended_in", "paced", "stamped"]

HIGHEST_US = 60_000_000
DIGITS = 3
STAMP_BYTES = 8
US = 1_000


def _histogram() -> HdrHistogram:
    return HdrHistogram(1, HIGHEST_US, DIGITS)


@dataclass(slots=True)
class Latencies:
    """In whole microseconds. from_ns: what was intended earlier belongs to the warm-up.

    all_delivered: set with the delivery of number `expected`.
    """

    expected: int
    from_ns: int = 0
    confirm: HdrHistogram = field(default_factory=_histogram)
    delivery: HdrHistogram = field(default_factory=_histogram)
    delivered: int = 0
    all_delivered: asyncio.Event = field(default_factory=asyncio.Event)

    def confirmed(self, intended_ns: int) -> None:
        if intended_ns >= self.from_ns:
            self.confirm.record_value(_since_us(intended_ns))

    def received(self, body: bytes) -> None:
        self.delivered += 1
        if self.delivered == self.expected:
            self.all_delivered.set()
        if (intended_ns := intended_in(body)) >= self.from_ns:
            self.delivery.record_value(_since_us(intended_ns))

    def encoded(self, messages: int) -> dict[str, str]:
        """Name -> histogram, as HDR histograms are written down. Raises BenchError for less than all."""
        for name, found in (("confirmed", self.confirm), ("delivered", self.delivery)):
            if (count := found.get_total_count()) < messages:
                raise BenchError(f"{messages - count} of {messages} messages were not {name}")
        return {
            "confirm": self.confirm.encode().decode(),
            "delivery": self.delivery.encode().decode(),
        }


def _since_us(intended_ns: int) -> int:
    return min(HIGHEST_US, max(1, (time.monotonic_ns() - intended_ns) // US))


def stamped(body: bytes, intended_ns: int) -> bytes:
    """The body with its first bytes replaced by the intended time."""
    return intended_ns.to_bytes(STAMP_BYTES, "big") + body[STAMP_BYTES:]


def intended_in(body: bytes) -> int:
    return int.from_bytes(body[:STAMP_BYTES], "big")


async def paced(
    rate_per_s: float, count: int, body: bytes, send: Callable[[bytes, int], Awaitable[None]]
) -> None:
    """Send `count` bodies, each when it is due; all that are due at once, one after the other."""
    with Alarm() as alarm:
        start_ns = time.monotonic_ns()
        for number in range(count):
            intended_ns = start_ns + int(number / rate_per_s * 1e9)
            if (early_ns := intended_ns - time.monotonic_ns()) > 0:
                await alarm.sleep(early_ns / 1e9)
            await send(stamped(body, intended_ns), intended_ns)
