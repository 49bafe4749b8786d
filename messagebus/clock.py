"""Two clocks in whole ms: one that nobody sets, by which all is decided, and the wall's, for people."""

from __future__ import annotations

import time

__all__ = ["monotonic_ms", "wall_ms"]


def monotonic_ms() -> int:
    """Return ms since some moment: for durations and deadlines within this process."""
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    """Return ms since 1970, as the host's clock is set: for people, and for times of other processes."""
    return time.time_ns() // 1_000_000
