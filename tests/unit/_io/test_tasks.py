"""_io.tasks: background work is kept, cancelled together, and never fails in silence."""

from __future__ import annotations

import asyncio
import logging

import pytest

from messagebus._io.tasks import Tasks


async def test_work_that_fails_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise ValueError("mine")

    with caplog.at_level(logging.ERROR, "messagebus"):
        task = Tasks().spawn(fails())
        await asyncio.wait([task])
        await asyncio.sleep(0)
    assert "background work failed" in caplog.text
    assert "mine" in caplog.text


async def test_cancel_ends_all_and_waits_for_them(caplog: pytest.LogCaptureFixture) -> None:
    tasks, ended = Tasks(), list[int]()

    async def waits(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(number)

    spawned = [tasks.spawn(waits(number)) for number in range(3)]
    await asyncio.sleep(0)
    await tasks.cancel()
    assert sorted(ended) == [0, 1, 2]
    assert all(task.cancelled() for task in spawned)
    assert caplog.text == ""
