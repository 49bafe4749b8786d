"""Background work of a driver: kept alive, cancelled together, never failing in silence."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["Tasks"]

T = TypeVar("T")

log = logging.getLogger("messagebus")


class Tasks:
    """The running tasks of one driver. Expected errors are the work's own business."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("background work failed", exc_info=fault)

    async def wait(self, timeout_s: float) -> None:
        """Wait until all have ended, so long at most."""
        if self._running:
            await asyncio.wait(self._running, timeout=timeout_s)

    async def cancel(self) -> None:
        """Cancel all and wait until they have ended."""
        left = list(self._running)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
