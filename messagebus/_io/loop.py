"""Asyncio loops of the clients: a thread with a loop, background tasks, one blocking call.

`LoopThread` is a loop in a thread of its own, for the blocking clients. `Tasks` keeps a driver's background
work alive, cancels it together, and lets none of it fail in silence.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import signal
import socket
import sys
import threading
import warnings
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextvars import Context
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, ClassVar, TypeVar

from messagebus.errors import ConfigError, Stopped

T = TypeVar("T")

JOIN_TIMEOUT_S = 5.0
GEVENT = (
    "gevent: its greenlets share one thread, and asyncio runs one loop in a thread:"
    " one blocking client at a time, or each in a process of its own"
)
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
    if is_patched_by_gevent():  # a loop that waits in C would stop every greenlet
        return _Loop()
    try:
        import uvloop  # the extra "uvloop"
    except ImportError:
        return _Loop()
    return uvloop.new_event_loop()


def is_patched_by_gevent() -> bool:
    """Return whether threads are greenlets here: gevent has replaced `threading`."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


class LoopThread:
    """A thread with an event loop, running until `stop`. Any other thread of the process may call.

    `call_soon` may also be called from the loop thread: the callbacks of a future run there.
    """

    def __init__(self, name: str) -> None:
        if is_patched_by_gevent() and asyncio._get_running_loop() is not None:
            raise ConfigError(GEVENT)
        self._loop = _new_loop()
        self._pid = os.getpid()
        self._lock = threading.RLock()  # a signal handler may call while its thread has it
        self._is_ending = False  # no more calls are taken
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            while not self._is_over:
                self._ran(self._loop.run_forever)
        finally:
            with self._lock:
                self._is_ending = True
            # What other threads gave it before still runs, or is cancelled: nobody waits permanently.
            while not self._ran(lambda: self._loop.run_until_complete(self._cancel_left())):
                pass
            self._loop.close()

    @staticmethod
    def _ran(run: Callable[[], object]) -> bool:
        """Run the loop. False: a callback raised SystemExit or KeyboardInterrupt, which end only its turn."""
        try:
            run()
        except (SystemExit, KeyboardInterrupt) as fault:
            log.error(
                "a callback on the client's own thread raised %s, the thread goes on",
                type(fault).__name__,
                exc_info=fault,
            )
            return False
        return True

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
        try:
            self.refuse_here()
        except RuntimeError:
            work.close()
            raise
        try:
            return self.begin(work).result()
        except CancelledError:
            raise Stopped("stopped") from None

    def refuse_here(self) -> None:
        """Raise RuntimeError on the loop's own thread: a call that waits there would wait permanently."""
        if self.is_own:
            raise RuntimeError(
                "this call waits for the client's own thread and was made on it, by a done-callback, a hook"
                " or a log handler: make it on another thread, or use submit"
            )

    @property
    def is_own(self) -> bool:
        """True on the loop's own thread. The number of a thread that has ended may be another one's today."""
        return threading.get_ident() == self._thread.ident and self._thread.is_alive()

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
        """End the loop and wait for it. Tasks still running on it are cancelled."""
        self.end()
        self._thread.join(JOIN_TIMEOUT_S)

    def begin_stop(self, work: Coroutine[Any, Any, T], *, waits: bool) -> Future[T] | None:
        """Run a client's stop on the loop; None once another call has ended the loop.

        waits: the caller waits by `wait_stopped`, as it may not where it interrupted the client.
        """
        try:
            ending = self.begin(work)
        except Stopped:
            return None
        if not waits:
            ending.add_done_callback(lambda _ending: self.end())
        return ending

    def wait_stopped(self, ending: Future[T]) -> None:
        """Wait for a stop, and for the end of the loop."""
        with contextlib.suppress(CancelledError):  # the loop has ended with another call's stop
            ending.result()
        self.stop()

    def end(self) -> None:
        """End the loop, as `stop`, without waiting for it."""
        with self._lock:
            if not self._is_ending:
                self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if not self._is_over:  # another call's: what is left is being cancelled
            self._is_over = True
            self._loop.stop()


class Ends:
    """The callers, threads or tasks, that were given the None of a stop."""

    def __init__(self) -> None:
        self._given: weakref.WeakSet[object] = weakref.WeakSet()

    def give(self, caller: object) -> None:
        """Note that a caller gets it. Raises Stopped for a second time."""
        if caller in self._given:
            raise Stopped("the consumer is stopped")
        self._given.add(caller)


class OneStop:
    """The stop of a client on a loop: the first call begins it, and each call waits for its end.

    A caller that is cancelled does not cancel it. It goes on when its client is gone.
    """

    _underway: ClassVar[set[asyncio.Task[int]]] = set()

    def __init__(self) -> None:
        self._task: asyncio.Task[int] | None = None

    @property
    def has_begun(self) -> bool:
        """True from the first `begin` on."""
        return self._task is not None

    def begin(self, work: Coroutine[Any, Any, int]) -> None:
        """Begin the stop: once."""
        # In a context of its own: the caller may be a handler's run, which it waits for.
        self._task = asyncio.create_task(work, context=Context())
        self._underway.add(self._task)
        self._task.add_done_callback(self._underway.discard)

    async def wait(self) -> int:
        """Return how many were left, when the stop has ended."""
        assert self._task is not None, "begun before"
        return await asyncio.shield(self._task)


def warn_dropped(client: object, use: str, *, stacklevel: int = 3) -> None:
    """Warn of a client that is collected while it runs; called by its `__del__`."""
    name = type(client).__name__
    article = "an" if name.startswith("A") else "a"
    text = f"{article} {name} was dropped without stop(): use it by `{use}`"
    warnings.warn(text, ResourceWarning, stacklevel=stacklevel, source=client)


class Origin:
    """The loop that an asyncio client was started on, in its process."""

    def __init__(self) -> None:
        self.loop, self._pid = asyncio.get_running_loop(), os.getpid()

    def end_dropped(self, client: object, stop: Callable[[], object]) -> None:
        """Warn of a client that is collected while it runs, and call `stop` on its loop. From any thread.

        Not in a forked child, whose parent has the client, and not once the loop is closed, which ended it.
        """
        if os.getpid() != self._pid or self.loop.is_closed():
            return
        warn_dropped(client, "async with", stacklevel=4)
        with contextlib.suppress(RuntimeError):  # closed just now, by another thread
            self.loop.call_soon_threadsafe(stop)


def is_interrupting(client: object, file: str) -> bool:
    """Return whether this thread may not wait for the client's loop, because it interrupted something.

    That is so in a signal handler: the interrupted code may hold a lock that the loop needs, or the delivery
    that a stop waits for. Python does not say where a handler runs. It is found by the code of the handlers
    that are set, and, where one has set itself back, by what it interrupted: a call of the client (in this
    file) or of `logging`.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers = {_code_of(signal.getsignal(each)) for each in signal.valid_signals()} - {None}
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code in handlers or code.co_filename == logging.__file__:
            return True
        is_ours = code.co_filename == file and code.co_name not in _LEAVING
        if is_ours and frame.f_locals.get("self") is client:
            return True
        frame = frame.f_back
    return False


# Methods that call `stop` themselves.
_LEAVING = ("__exit__", "__del__")


def _code_of(handler: object) -> CodeType | None:
    """Return the code of a signal's handler; None for one that is not Python's."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not callable(handler):
        return None
    if not hasattr(handler, "__code__"):
        handler = getattr(handler, "__func__", getattr(type(handler), "__call__", None))  # noqa: B004
    return getattr(handler, "__code__", None)


class Tasks:
    """The running tasks of one driver. Each task handles its own expected errors."""

    def __init__(self) -> None:
        self._running: set[asyncio.Future[Any]] = set()
        self.is_over = False
        """True from `cancel` on: nothing begins again."""

    def spawn(
        self,
        work: Coroutine[Any, Any, T],
        *,
        cancelled: Callable[[], object] | None = None,
        pause_s: float = 0.0,
    ) -> asyncio.Task[T]:
        """Run a coroutine. cancelled: called pause_s after it was cancelled, perhaps before its first step.

        By its owner, or by an application that cancels all tasks of its loop: then the work begins again. Not
        called from `cancel` on. pause_s: above 0, nothing begins again while the loop itself ends.
        """
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        if cancelled is not None:
            task.add_done_callback(functools.partial(self._cancelled, cancelled, pause_s))
        return task

    def keep_running(self, work: Callable[[], Coroutine[Any, Any, None]], pause_s: float) -> None:
        """Run this; again, pause_s later, where an application has cancelled all tasks of its loop."""
        self.spawn(work(), cancelled=lambda: self.keep_running(work, pause_s), pause_s=pause_s)

    def _cancelled(
        self, begin_again: Callable[[], object], pause_s: float, task: asyncio.Task[Any]
    ) -> None:
        def begin() -> None:
            if not self.is_over:
                begin_again()

        if not task.cancelled():
            return
        if pause_s > 0:
            task.get_loop().call_later(pause_s, begin)
        else:
            begin()

    def keep(self, work: Awaitable[object]) -> None:
        """Keep work alive that has begun, or begins now."""
        future = asyncio.ensure_future(work)
        self._running.add(future)
        future.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Future[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("background work failed", exc_info=fault)

    async def wait(self, timeout_s: float) -> None:
        """Wait until all have ended, up to timeout_s."""
        if self._running:
            await asyncio.wait(self._running, timeout=timeout_s)

    async def finish(self, within_s: float) -> None:
        """Wait until all have ended, up to within_s; then cancel what is left."""
        await self.wait(within_s)
        await self.cancel()

    async def cancel(self) -> None:
        """Cancel all and wait until they have ended: the end of their owner."""
        self.is_over, left = True, list(self._running)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


class Conditions:
    """Waits of coroutines on one loop for what changes there. Whoever changes it calls `look`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for a condition, up to this time; return whether it holds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.until(condition)
        return condition()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition."""
        while not condition():  # it may be over again before this task runs
            done = self._loop.create_future()
            self.waiting.append((condition, done))
            await done

    def look(self) -> None:
        """Wake those whose condition holds now."""
        waiting, self.waiting = self.waiting, []
        for condition, done in waiting:
            if done.done():
                continue
            if condition():
                done.set_result(None)
            else:
                self.waiting.append((condition, done))


@contextlib.asynccontextmanager
async def held(place: asyncio.Semaphore, at_most_s: Callable[[], float]) -> AsyncIterator[None]:
    """Hold a place during the block, but not for longer than this, which is looked up when it is taken."""
    await place.acquire()
    holds = [True]

    def leave() -> None:
        if holds:
            holds.clear()
            place.release()

    late = asyncio.get_running_loop().call_later(at_most_s(), leave)
    try:
        yield
    finally:
        late.cancel()
        leave()


def raise_soon(fault: BaseException) -> None:
    """Raise this in a turn of its own of the running loop, where it unwinds no other work."""

    def throw() -> None:
        raise fault

    asyncio.get_running_loop().call_soon(throw)


def starved_s(native_id: int) -> float:
    """Return how long a thread of ours has waited for a processor; 0 where Linux keeps no count."""
    try:
        counts = Path(f"/proc/self/task/{native_id}/schedstat").read_text().split()
        return int(counts[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run it as asyncio.run, but close a refused coroutine and say what to do instead."""
    if asyncio._get_running_loop() is None:
        return asyncio.run(coroutine)  # outside any handling of errors, which its own would show
    coroutine.close()
    if is_patched_by_gevent():
        raise ConfigError(GEVENT)
    raise RuntimeError(
        "this call waits, and an event loop runs in this thread: await asyncio.to_thread(it, ...)"
    )
