"""Waiting for a condition, never for a time."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Times grow with this on slow machines.
ENV_FACTOR = "MESSAGEBUS_TEST_TIME_FACTOR"
FACTOR = float(os.environ.get(ENV_FACTOR, "1"))
POLL_S = 0.02


def patience() -> float:
    """Return the factor of all times: that of the environment, and with it the machine's load per core."""
    return FACTOR * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def eventually(condition: Callable[[], T], *, within_s: float, what: str = "") -> T:
    """Call until the answer is true, and return it. Raises AssertionError after within_s x patience()."""
    began = time.monotonic()
    while not (answer := condition()):
        if (took := time.monotonic() - began) > within_s * patience():
            raise AssertionError(f"not within {took:.1f} s: {what or condition}")
        time.sleep(POLL_S)
    return answer


async def eventually_async(condition: Callable[[], T], *, within_s: float, what: str = "") -> T:
    """Do the same on a running loop."""
    began = time.monotonic()
    while not (answer := condition()):
        if (took := time.monotonic() - began) > within_s * patience():
            raise AssertionError(f"not within {took:.1f} s: {what or condition}")
        await asyncio.sleep(POLL_S)
    return answer


async def let_accepted_begin() -> None:
    """Let connections that a closed server had just accepted reach their protocols, which end them."""
    for _ in range(4):
        await asyncio.sleep(0)
