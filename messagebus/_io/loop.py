"""Asyncio loops of the clients: a thread with a loop, background tasks, the clock, one blocking call.

`LoopThread` is a loop in a thread of its own, for the blocking clients. `Tasks` keeps a driver's background
work alive, cancels it together, and lets none of it fail in silence. `now_ms` is the drivers' one clock.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from messagebus.errors import Stopped

T = TypeVar("T")

JOIN_TIMEOUT_S = 5.0
log = logging.getLogger("messagebus")


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that resolves names also while the interpreter exits, where atexit handlers publish."""

    async def getaddrinfo(
        self,
        host: bytes | str | None,
        port: bytes | str | int | None,
        *,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        try:
            return await super().getaddrinfo(
                host, port, family=family, type=type, proto=proto, flags=flags
            )
        except RuntimeError:  # no executor takes work any more: the loop waits for the answer
            return socket.getaddrinfo(host, port, family, type, proto, flags)


def _new_loop() -> asyncio.AbstractEventLoop:
    """Return a loop of uvloop if installed: 10 to 20 % less CPU a message. It resolves names itself."""
    try:
        import uvloop  # the extra "uvloop"
    except ImportError:
        return _Loop()
    return uvloop.new_event_loop()


class LoopThread:
    """A thread with an event loop, running until `stop`. Any other thread of the process may call.

    `call_soon` may also be called from the loop thread: the callbacks of a future run there.
    """

    def __init__(self, name: str) -> None:
        self._loop = _new_loop()
        self._pid = os.getpid()
        self._lock = threading.RLock()  # a signal handler may call while its thread has it
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            with self._lock:
                self._is_ending = True
            # What other threads gave it before still runs, or is cancelled: nobody waits for ever.
            self._loop.run_until_complete(self._cancel_left())
            self._loop.close()

    async def _cancel_left(self) -> None:
        while left := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop. Raises Stopped once the loop has ended."""
        try:
            self.check_is_here()
            with self._lock:
                self._check()
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        except Stopped:
            work.close()
            raise

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it, without a time limit of its own. As `begin`."""
        assert threading.current_thread() is not self._thread, "a blocking call on the I/O thread"
        try:
            return self.begin(work).result()
        except CancelledError:
            raise Stopped("stopped") from None

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call this on the loop. Raises Stopped once the loop has ended; else it is called."""
        self.check_is_here()
        with self._lock:
            self._check()
            self._loop.call_soon_threadsafe(function)

    def try_call_soon(self, function: Callable[[], None]) -> bool:
        """Call this on the loop, as `call_soon`; return False where that raises Stopped."""
        try:
            self.call_soon(function)
        except Stopped:
            return False
        return True

    @property
    def is_here(self) -> bool:
        """False in a forked child: the thread, and any locks that it held, stayed in the parent."""
        return os.getpid() == self._pid

    def check_is_here(self) -> None:
        """Raise Stopped in a forked child. Call it before taking a lock that nobody can release there."""
        if not self.is_here:
            raise Stopped("started in another process: start a client after fork, not before")

    def _check(self) -> None:
        if self._is_ending:
            raise Stopped("stopped")

    def stop(self) -> None:
        """End the loop. Tasks still running on it are cancelled."""
        with self._lock:
            if not self._is_ending:
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(JOIN_TIMEOUT_S)


class Tasks:
    """The running tasks of one driver. Each task handles its own expected errors."""

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
        """Wait until all have ended, up to timeout_s."""
        if self._running:
            await asyncio.wait(self._running, timeout=timeout_s)

    async def cancel(self) -> None:
        """Cancel all and wait until they have ended."""
        left = list(self._running)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


def now_ms() -> int:
    """Return whole milliseconds of the monotonic clock."""
    return time.monotonic_ns() // 1_000_000


class LogLimit:
    """At most one log line within interval_ms, of all that share this object."""

    def __init__(self, interval_ms: int) -> None:
        self._interval_ms = interval_ms
        self._last_ms: int | None = None

    def allows(self) -> bool:
        """Return whether a line may be logged now, and count it as logged if so."""
        now = now_ms()
        if self._last_ms is not None and now - self._last_ms < self._interval_ms:
            return False
        self._last_ms = now
        return True


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run it as asyncio.run, but close a refused coroutine and say what to do instead."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    coroutine.close()
    raise RuntimeError(
        "this call waits, and an event loop runs in this thread: await asyncio.to_thread(it, ...)"
    )
