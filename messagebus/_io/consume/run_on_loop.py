"""Runs of handlers that are coroutine functions: a number at once, on the application's own loop.

Each run is a task with a context of its own, so its own changes (a cancel, context variables, a swallowed
cancel) end with it, and code that kept its task can cancel nothing else. Where Python has eager tasks (3.12),
a run that never waits costs no turn of the loop. A run that ends begins the next one; a task of ours waits
for deliveries only while there are none. A run whose time is over is cancelled; if it does not end then, it
is left alone, and its place is given to another.

`LoopWatch` logs that the loop is blocked, and the task that blocks it. A coroutine that computes or waits
without `await` keeps the loop from its links: no heartbeats, no acks, no deliveries. From a thread of its own
the watch checks whether the loop still turns; if not, it finds the task and the place. One thread
for each loop, while handlers run on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import signal
import sys
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextvars import Context
from types import FrameType
from typing import Any

from messagebus._io.consume.runs import Handling, Job
from messagebus._io.loop import raise_soon, starved_s
from messagebus.core.attempts import Run
from messagebus.terminal import printable

log = logging.getLogger("messagebus.consumer")

# Time that a run may take to end after it was cancelled.
CANCELLED_NS = 5_000_000_000
CANCELLED_S = CANCELLED_NS / 1e9
# Logged when a loop has not turned for this time, and again at each tenfold time.
BLOCKED_S = 1.0
AGAIN = 10
BEAT_S = 0.25
FRAMES_MAX = 3
# Time after which runs that never wait let the loop turn: its links, timers and other tasks.
TURN_NS = 1_000_000

_new_task: Callable[..., asyncio.Task[None]] = asyncio.Task
if sys.version_info >= (3, 12):
    _new_task = functools.partial(asyncio.Task, eager_start=True)

Describe = Callable[["asyncio.Task[object]"], str]


async def _awaited(result: object) -> object:
    """Await an awaitable result of a handler: `return work()`, where `return await work()` was meant."""
    while inspect.isawaitable(result):
        result = await result
    return result


def _may_be_interrupted() -> bool:
    """Return whether Ctrl-C raises KeyboardInterrupt; not where it is ignored, or an app handles it."""
    heard_by = signal.getsignal(signal.SIGINT)
    return heard_by is not signal.SIG_IGN and not getattr(heard_by, "raises_nothing", False)


class HandlerTasks:
    """A number of concurrent runs of a handler.

    take: returns a waiting delivery, or None. receive: waits for one; None: there are no more.
    give_back: takes the job of an unfinished, cancelled run. context: each run gets a copy of it.
    """

    def __init__(
        self,
        handling: Handling,
        handler: Callable[[Any], Awaitable[object]],
        *,
        take: Callable[[], Job | None],
        receive: Callable[[], Awaitable[Job | None]],
        give_back: Callable[[Job], object],
        context: Context,
    ) -> None:
        self._handling, self._handler = handling, handler
        self._take, self._receive, self._give_back = take, receive, give_back
        self._context = context
        self._late: set[Run[Job]] = set()
        """Cancelled runs that hold their places."""
        self._replaced: set[Run[Job]] = set()
        """Cancelled runs that go on, and whose places were given to others."""
        self._free = 0
        self._room = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._feeding: asyncio.Task[None] | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._is_beginning = self._is_closed = self._is_cancelling = False
        self._is_main = threading.current_thread() is threading.main_thread()
        handling.on_overran = self._cancel_late

    # Life.
    def start(self, count: int) -> None:
        self._free = count
        self._start_feeding()

    def _start_feeding(self) -> None:
        self._feeding = asyncio.create_task(self._feed(), context=self._context.copy())
        self._feeding.add_done_callback(self._fed)

    async def _feed(self) -> None:
        """Wait for deliveries while there are places for them."""
        while True:
            # Again after the wait: a run that ended meanwhile may have given the place to another. While runs
            # wait for the loop to turn, it is theirs to take deliveries: this would never let it turn.
            while self._free <= 0 or self._is_beginning:
                self._room.clear()
                await self._room.wait()
            self._free -= 1  # held for the delivery that it waits for
            try:
                job = self._take() or await self._receive()
            finally:
                self._free += 1
            if job is None:
                return
            self._begin_next(job)

    def _fed(self, task: asyncio.Task[None]) -> None:
        self._feeding = None
        fault = None if task.cancelled() else task.exception()
        if self._is_closed or self._ended.done():
            self._tell_ended()
        elif task.cancelled():
            # By code that cancels all tasks of the loop: nothing would take deliveries any more.
            log.error("cancelled by the application, goes on handler=%s", self._handling.name)
            self._start_feeding()
        elif fault is not None:
            self._ended.set_exception(fault)
        else:
            self._is_closed = True
            self._tell_ended()

    def _tell_ended(self) -> None:
        if not (self._feeding or self._handling.runs.underway() or self._ended.done()):
            self._ended.set_result(None)

    async def wait(self) -> None:
        """Wait until there are no more deliveries and all runs have ended. Raises the fault of feeding."""
        await asyncio.shield(self._ended)

    async def end(self, grace_s: float) -> int:
        """Begin no more, wait up to this time for the runs to end, then cancel.

        Returns how many were not finished.
        """
        self._is_closed = True
        until_s = self._loop.time() + grace_s
        # In a loop: a last batch that was gathered already begins as soon as there is a place.
        while (left := self._tasks()) and (wait_s := until_s - self._loop.time()) > 0:
            await asyncio.wait(left, timeout=wait_s)
        unfinished = self._handling.left("runs")
        self._is_cancelling = True
        left = self._tasks()
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=CANCELLED_S)
            self._end_unbegun()
        return unfinished

    def _tasks(self) -> list[asyncio.Task[None]]:
        self._end_unbegun()
        tasks = [run.by for run in self._handling.runs.underway()]
        return tasks if self._feeding is None else [*tasks, self._feeding]

    def describe(self, task: asyncio.Task[object]) -> str:
        """Describe the run of this task, "" if it is none of ours; from any thread."""
        for run in self._handling.runs.underway():
            if run.by is task or run.by is None:  # None: its first step runs now
                return f"handler={self._handling.name} message={run.item.message_id}"
        return ""

    # Late ones.
    def _cancel_late(self, run: Run[Job]) -> None:
        self._late.add(run)
        run.by.cancel()

    def tick(self) -> None:
        """Give the places of cancelled runs that do not end to others."""
        self._end_unbegun()
        now_ns = time.monotonic_ns()
        limit_ns = CANCELLED_NS + (self._handling.limit_ns or 0)
        for run in list(self._late):
            if now_ns - run.since_ns >= limit_ns and self._handling.may_replace:
                log.warning(
                    "run does not end when cancelled handler=%s message=%s",
                    self._handling.name,
                    printable(run.item.message_id),
                )
                self._late.remove(run)
                self._replaced.add(run)
                self._leave()

    def _end_unbegun(self) -> None:
        """Answer for the runs whose tasks were cancelled before their first step: they never began."""
        for run in self._handling.runs.underway():
            if run.by.done():
                self._failed(run, asyncio.CancelledError())

    # Working.
    def _begin_next(self, job: Job | None = None) -> None:
        """Begin runs, of this job first, while there are places and deliveries.

        After TURN_NS the loop turns first; runs that end meanwhile begin no others.
        """
        self._is_beginning = True
        first_ns = since_ns = 0
        try:
            while self._free > 0 and since_ns - first_ns <= TURN_NS:
                if job is None and (self._is_closed or (job := self._take()) is None):
                    self._room.set()
                    return
                since_ns, job = self._begin(job), None
                first_ns = first_ns or since_ns
        finally:
            self._is_beginning = since_ns - first_ns > TURN_NS
            if self._is_beginning:
                self._loop.call_soon(self._begin_next, context=self._context)

    def _begin(self, job: Job) -> int:
        """Begin a run; return the time in ns. An eager task may have ended it by then."""
        self._free -= 1
        run = self._handling.runs.started(job, time.monotonic_ns())
        try:
            # Not by the loop's factory, which an application may have set.
            run.by = _new_task(
                self._work(run),
                loop=self._loop,
                name=self._handling.name,
                context=self._context.copy(),
            )
        except KeyboardInterrupt as interrupt:
            raise_soon(interrupt)  # of its first step: not the feeder's, nor another run's
        return run.since_ns

    async def _work(self, run: Run[Job]) -> None:
        handling, job, around = self._handling, run.item, self._handling.around
        try:
            if around is None:
                result = await self._handler(job)
                if result is not None:
                    result = await _awaited(result)
            else:
                with around(job):
                    result = await self._handler(job)
                    if result is not None:
                        result = await _awaited(result)
        except BaseException as error:  # an exception of an application ends this run only
            if self._must_pass_on(error):
                self._interrupted(run)
                raise
            self._failed(run, error)
            return
        if handling.runs.ended(run):
            handling.returned(job, result)
            self._leave()
        else:  # it was cancelled, and may have swallowed that in the middle of its work
            self._ended_late(run)

    def _must_pass_on(self, error: BaseException) -> bool:
        """Return whether to raise it on: not when a handler raises the same by itself."""
        match error:
            case KeyboardInterrupt():
                return self._is_main and _may_be_interrupted()
            case GeneratorExit():  # the loop is gone, or the handler raised it by itself
                return not self._loop.is_running()
            case _:
                return False

    def _interrupted(self, run: Run[Job]) -> None:
        """Give the job of a run back that Ctrl-C interrupted; its task's exception is asyncio's."""
        if self._loop.is_running() and self._handling.runs.ended(run):
            self._give_back(run.item)
            self._leave()

    def _failed(self, run: Run[Job], error: BaseException) -> None:
        if not self._handling.runs.ended(run):
            self._ended_late(run)  # its time was over, and it has its answer
            return
        if self._is_cancelling and isinstance(error, asyncio.CancelledError):
            self._give_back(run.item)
        else:
            self._handling.failed(run.item, error)
        self._leave()

    def _ended_late(self, run: Run[Job]) -> None:
        self._handling.ended_late(run, well=False)
        self._late.discard(run)
        if run not in self._replaced:
            self._leave()
        self._replaced.discard(run)

    def _leave(self) -> None:
        """Free a place: the next delivery gets it."""
        self._free += 1
        if self._is_closed:
            self._room.set()
            self._tell_ended()
        elif not self._is_beginning:
            self._begin_next()


@contextlib.contextmanager
def watched(describe: Describe) -> Iterator[None]:
    """Watch the running loop meanwhile; one watch serves all handlers of a loop.

    describe: describes the run of a task of that loop, "" when it is none of ours; from any thread.
    """
    loop = asyncio.get_running_loop()
    watch = _watches.get(loop)
    if watch is None:
        watch = _watches[loop] = LoopWatch()
        watch.start()
    watch.describing.append(describe)
    try:
        yield
    finally:
        watch.describing.remove(describe)
        if not watch.describing:
            watch.stop()
            del _watches[loop]


class LoopWatch:
    """A watch over the running loop, where it is made; `start` and `stop` are called there."""

    def __init__(self, *, blocked_s: float = BLOCKED_S) -> None:
        self.describing: list[Describe] = []
        self._blocked_s = blocked_s
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._native_id = threading.get_native_id()
        self._starved_s = starved_s(self._native_id)
        """Time that the loop's thread waited for a processor, at the last look at a loop that turned."""
        self._beaten_s = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._watch, name="messagebus-loopwatch", daemon=True
        )
        self._logged_s = 0.0
        """Blocked time at the last log line; 0 while the loop turns."""

    def start(self) -> None:
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        self._beaten_s = time.monotonic()
        self._timer = self._loop.call_later(min(BEAT_S, self._blocked_s / 4), self._beat)

    def _watch(self) -> None:
        wait_s = min(BEAT_S, self._blocked_s / 4)
        looked_s = time.monotonic()
        while not self._stopped.wait(wait_s):
            now_s = time.monotonic()
            # A stopped process is no handler's fault.
            if now_s - looked_s < self._blocked_s:
                self.look(now_s)
            looked_s = now_s

    def look(self, now_s: float) -> None:
        """Log, when due, that the loop is blocked."""
        blocked_s = now_s - self._beaten_s
        if blocked_s < self._blocked_s:
            self._logged_s, self._starved_s = 0.0, starved_s(self._native_id)
        elif (waited_s := starved_s(self._native_id) - self._starved_s) > blocked_s / 2:
            if not self._logged_s:
                log.warning(
                    "no processor for the loop blocked_s=%.1f starved_s=%.1f: the machine is too busy, no"
                    " handler is at fault",
                    *(blocked_s, waited_s),
                )
            self._logged_s = blocked_s
        elif not self._logged_s or blocked_s >= self._logged_s * AGAIN:
            self._logged_s = blocked_s
            log.warning(
                "loop blocked blocked_s=%.1f %s at=%r: brokers hang up after two heartbeats, and deliver"
                " again what is answered behind them",
                *(blocked_s, self._who(), self._where()),
            )

    def _who(self) -> str:
        try:
            task = asyncio.current_task(self._loop)
        except RuntimeError:  # the loop is gone
            task = None
        told = (describe(task) for describe in list(self.describing)) if task is not None else ()
        return next(filter(None, told), "handler=unknown")

    def _where(self) -> str:
        frame = sys._current_frames().get(self._loop_thread)
        places: list[str] = []
        while frame is not None and len(places) < FRAMES_MAX:
            places.append(_place(frame))
            frame = frame.f_back
        return " > ".join(reversed(places))


_watches: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWatch]
_watches = weakref.WeakKeyDictionary()


def _place(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {code.co_name}"
