from __future__ import annotations

import asyncio
import time

from bench.harness.loop import Alarm, best_loop, event_loop

NS = 1_000_000_000


async def waits(seconds: float, count: int) -> list[float]:
    """Return how late each wait ended, in seconds."""
    late = []
    with Alarm() as alarm:
        for _ in range(count):
            due_s = time.monotonic() + seconds
            await alarm.sleep(seconds)
            late.append(time.monotonic() - due_s)
    return late


def test_no_wait_ends_early_on_any_loop() -> None:
    assert min(asyncio.run(waits(0.0015, 20))) >= 0
    with asyncio.Runner(loop_factory=event_loop(best_loop())) as runner:
        assert min(runner.run(waits(0.0015, 20))) >= 0


def test_what_is_due_already_is_not_waited_for_in_vain() -> None:
    assert len(asyncio.run(waits(-1.0, 3))) == 3


def test_the_loop_is_one_that_is_installed() -> None:
    loop = event_loop(best_loop())()
    loop.close()
    assert best_loop() in ("asyncio", "uvloop")
