"""An event loop whose clock jumps to the next timer instead of waiting for it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop in virtual time: nothing on it may wait for a socket or a thread."""

    def __init__(self) -> None:
        self._clock = _Jumping()
        super().__init__(self._clock)
        self.set_default_executor(_AtOnce(max_workers=1))

    def time(self) -> float:
        return self._clock.now_s

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait for nothing: the executor has no thread, and asyncio would wait for one of its own."""

    @property
    def now_ms(self) -> int:
        return round(self._clock.now_s * 1000)


class _Jumping(selectors.DefaultSelector):
    """Selector that lets the time pass that it was asked to wait."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everything waits, and no timer is set"
        self.now_s += max(0.0, timeout)
        return super().select(0)


class _AtOnce(ThreadPoolExecutor):
    """Executor that calls a function where it is submitted: a thread takes no virtual time."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done = Future[Any]()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as fault:  # it belongs to whoever waits for the future
            done.set_exception(fault)
        return done
