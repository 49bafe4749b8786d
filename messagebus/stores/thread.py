"""The one thread of a store whose driver blocks."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["StoreThread"]

T = TypeVar("T")

# Wait at the end for work that does not return, before it is cut off.
STUCK_AT_CLOSE_S = 1.0


class StoreThread:
    """A thread that carries out one piece of work after the other. Begins with the first, also after `close`.

    Any thread and any loop may call.
    """

    def __init__(self, on_fork: Callable[[], None]) -> None:
        """Create it. on_fork: called once in a forked process, which has no thread, before its first work."""
        self._lock, self._on_fork = threading.Lock(), on_fork
        self._pool: ThreadPoolExecutor | None = None
        self._pid = os.getpid()

    def _look_for_a_fork(self) -> None:
        if self._pid != os.getpid():
            self._pid, self._pool = os.getpid(), None
            self._on_fork()

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Have this called on the thread, and return a future of the running loop with its result."""
        with self._lock:
            self._look_for_a_fork()
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, "messagebus-store")
            future = self._pool.submit(work)
        return asyncio.wrap_future(future)

    async def close(self, last: Callable[[], None], cut: Callable[[], None] | None = None) -> None:
        """Call `last` on the thread after all other work, and end it; nothing where it has not begun.

        cut: called when that takes longer than STUCK_AT_CLOSE_S, to end what hangs.
        """
        with self._lock:
            self._look_for_a_fork()
            pool, self._pool = self._pool, None
        if pool is None:
            return
        ended = pool.submit(last)
        waited = asyncio.wrap_future(ended)
        try:
            await asyncio.wait([waited], timeout=STUCK_AT_CLOSE_S)
        finally:
            if cut is not None and not ended.done():
                cut()
            pool.shutdown(wait=False)
        await waited
