"""The one clock of the drivers."""

from __future__ import annotations

import time

__all__ = ["now_ms"]


def now_ms() -> int:
    """Whole milliseconds of the monotonic clock."""
    return time.monotonic_ns() // 1_000_000
