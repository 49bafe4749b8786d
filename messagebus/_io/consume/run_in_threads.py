"""Runs of handlers that are plain functions: each in a thread, never on a loop.

Each run has a context of its own. A thread that overruns its time cannot be ended: its delivery is
answered, and another thread takes its place until it comes back. An awaitable that a plain function returns
(a coroutine function behind a plain wrapper does) is a part of its run: it is in its span and its context,
and is cancelled at its limit and at the end.

`Bridge` stands between an application's loop and these threads. The loop takes deliveries for the threads,
a few more than they run, and gives their answers; it is woken once for all waiting answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import itertools
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import CancelledError, Future
from contextvars import Context

from messagebus._io.consume.runs import Answering, Handling, Job, deliveries_of
from messagebus.core.attempts import Run
from messagebus.handling import Park, Reject, RetryLater
from messagebus.message import Delivery, Header

log = logging.getLogger("messagebus.consumer")

# Pause of a thread after an error of ours in its loop.
AGAIN_S = 1.0
# Deliveries taken beyond those being run, so that no thread waits for a turn of the loop.
AHEAD = 32


def not_awaited(result: Awaitable[object]) -> Future[object]:
    """Refuse an awaitable, where the application has no loop."""
    if inspect.iscoroutine(result):
        result.close()
    raise TypeError("the handler gave something to await: AsyncConsumer.run awaits it")


class _Worker(threading.Thread):
    """A thread of the pool. now: its current or last run. awaits: the awaitable of that run.

    replaced: another thread has its place.
    """

    now: Run[Job] | None = None
    awaits: Future[object] | None = None
    replaced = False


class HandlerThreads:
    """A number of threads that run a handler.

    receive: waits for a delivery; None ends the thread. context: each run gets a copy of it.
    awaited: begins to await the handler's result.
    """

    def __init__(
        self,
        handling: Handling,
        receive: Callable[[], Job | None],
        *,
        context: Context,
        awaited: Callable[[Awaitable[object]], Future[object]] = not_awaited,
    ) -> None:
        self._handling, self._receive, self._awaited = handling, receive, awaited
        self._context = context
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._workers: list[_Worker] = []
        self._is_ending = False
        handling.on_overran = self._replace

    def start(self, count: int) -> None:
        for _ in range(count):
            self._start()

    def _start(self) -> None:
        # A handler that never returns must not keep the process from ending.
        name = f"messagebus-worker-{next(self._numbers)}"
        worker = _Worker(target=self._work, name=name, daemon=True)
        self._workers.append(worker)
        try:
            worker.start()
        except BaseException:  # the system gives no thread
            self._workers.remove(worker)
            raise

    def join(self, timeout_s: float) -> int:
        """Wait up to this time for the threads to end, not for overrun ones; then cancel their awaitables.

        Returns how many runs have not ended, and logs them.
        """
        until_s = time.monotonic() + timeout_s
        for worker in list(self._workers):
            worker.join(max(0.0, until_s - time.monotonic()))
        left = self._handling.left("threads")
        self._is_ending = True
        for worker in list(self._workers):
            if (awaits := worker.awaits) is not None:
                awaits.cancel()
        return left

    def _replace(self, run: Run[Job]) -> None:
        with self._lock:
            slow = next((worker for worker in self._workers if worker.now is run), None)
            if slow is None or not self._handling.runs.is_overrunning(run):
                return  # it has ended just now
            if (awaits := slow.awaits) is not None:
                awaits.cancel()  # it goes on by itself
                return
            if not self._handling.may_replace:
                log.error("too many runs overran handler=%s: a thread less", self._handling.name)
                return
            try:
                self._start()
            except RuntimeError as fault:  # the slow one keeps its place
                log.error("run overran handler=%s: a thread less: %s", self._handling.name, fault)
                return
            slow.replaced = True
            self._workers.remove(slow)

    def _goes_on(self, worker: _Worker) -> bool:
        """Return whether the thread keeps its place after a run that overran."""
        with self._lock:
            return not worker.replaced

    def _work(self) -> None:
        worker = threading.current_thread()
        assert isinstance(worker, _Worker)
        copy = self._context.copy
        while True:
            try:
                while (job := self._receive()) is not None:
                    if not copy().run(self._run, worker, job):
                        return
                return
            except BaseException:
                log.exception("a thread failed, goes on handler=%s", self._handling.name)
                time.sleep(AGAIN_S)

    def _run(self, worker: _Worker, job: Job) -> bool:
        """Run one job. False: another thread has the place of this one."""
        handling = self._handling
        around = handling.around
        worker.now = run = handling.runs.started(job, time.monotonic_ns())
        try:
            if around is None:
                result = self._called(worker, run)
            else:
                with around(job):
                    result = self._called(worker, run)
        except BaseException as error:  # no exception of an application may end the thread
            if handling.runs.ended(run):
                # A run cancelled at the end gets no answer: its delivery comes again.
                if not (self._is_ending and isinstance(error, CancelledError)):
                    handling.failed(job, error)
                return True
            handling.ended_late(run, well=False)
        else:
            if handling.runs.ended(run):
                handling.returned(job, result)
                return True
            handling.ended_late(run, well=_is_well(result))
        return self._goes_on(worker)

    def _called(self, worker: _Worker, run: Run[Job]) -> object:
        result = self._handling.handler(run.item)
        if result is None or not inspect.isawaitable(result):
            return result
        with self._lock:  # `_replace` finds it there, or ran before
            if self._handling.runs.is_overrunning(run):
                if inspect.iscoroutine(result):
                    result.close()
                return None
            awaits = worker.awaits = self._awaited(result)
        if self._is_ending:
            awaits.cancel()
        try:
            return awaits.result()
        finally:
            worker.awaits = None


def _is_well(result: object) -> bool:
    """Return whether a run that was answered as too long, and returned this, has done its work."""
    return not isinstance(result, RetryLater | Park | Reject | Mapping) and not inspect.isawaitable(
        result
    )


class Bridge:
    """The queue between the loop and the threads; an `Answering` itself, for any thread.

    take, receive: get jobs for the threads, on the loop. answering: gives the threads' answers there.
    held_max: bound of deliveries held by the threads, exceeded by less than one job; None: one for each
    thread, and AHEAD.
    """

    def __init__(
        self,
        *,
        threads: int,
        take: Callable[[], Job | None],
        receive: Callable[[], Awaitable[Job | None]],
        answering: Answering,
        held_max: int | None = None,
    ) -> None:
        self._threads, self._take, self._receive_next = threads, take, receive
        self._held_max = held_max or threads + AHEAD
        self._answering = answering
        self._loop = asyncio.get_running_loop()
        # A thread waits for a token and then takes the first job, so that jobs may be withdrawn from
        # any place and keep their order.
        self._jobs: deque[Job | None] = deque()
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._taking = threading.Lock()
        self._answers: deque[Callable[[], object]] = deque()
        self._woken = False
        self._room = asyncio.Event()
        self._held = 0  # deliveries given to the threads and not answered

    # On the loop.
    async def feed(self) -> None:
        """Feed until there are no more deliveries; then the threads end after their current runs."""
        try:
            while (job := self._take() or await self._receive_next()) is not None:
                self._held += len(deliveries_of(job))
                self._put(job)
                while self._held >= self._held_max:
                    self._room.clear()
                    await self._room.wait()
        finally:
            self.close()

    def close(self) -> None:
        for _ in range(self._threads):
            self._put(None)

    def _put(self, job: Job | None) -> None:
        self._jobs.append(job)
        self._tokens.put(None)

    def withdraw(self, before_ns: int | None, *, all_if_any: bool = False) -> list[Delivery]:
        """Return the deliveries that no thread has begun, in order; none will begin them now.

        before_ns: only those that arrived before that time; all_if_any: all of them if there is one.
        """
        with self._taking:
            waiting = [job for job in self._jobs if job is not None]
            old = [job for job in waiting if before_ns is None or job.received_ns < before_ns]
            wanted, count = (waiting if all_if_any and old else old), 0
            # A thread that has its token and not yet its job gets the first one.
            with contextlib.suppress(queue.Empty):
                while count < len(wanted):
                    self._tokens.get_nowait()
                    count += 1
            jobs = wanted[len(wanted) - count :]
            gone = set(map(id, jobs))
            left = [job for job in self._jobs if id(job) not in gone]
            self._jobs.clear()
            self._jobs.extend(left)
        found = [delivery for job in jobs for delivery in deliveries_of(job)]
        self._held -= len(found)
        self._room.set()
        return found

    def _give(self) -> None:
        self._woken = False
        while self._answers:
            answer = self._answers.popleft()
            try:
                answer()
            except Exception:  # go on with the next ones
                log.exception("an answer failed, its delivery comes again")
            self._held -= 1
        self._room.set()

    def answers(
        self, failed: Callable[[Delivery, Exception], object]
    ) -> Callable[[Delivery, Exception], object]:
        """Wrap `failed` for a delivery that never came to the threads but is answered through here."""

        def answer(delivery: Delivery, error: Exception) -> object:
            self._held += 1
            return failed(delivery, error)

        return answer

    # On any thread.
    def receive(self) -> Job | None:
        """Return the next delivery for a thread, or None to end it."""
        self._tokens.get()
        with self._taking:
            return self._jobs.popleft()

    def never_answered(self, job: Job, note: Callable[[Delivery], object]) -> None:
        """Have each delivery of a job that no thread will run noted on the loop."""
        for delivery in deliveries_of(job):
            self._post(delivery, functools.partial(note, delivery))

    def awaited(self, result: Awaitable[object]) -> Future[object]:
        """Begin to await a handler's result on the loop, in the context of this thread."""

        async def wait() -> object:
            try:
                return await result
            except (SystemExit, KeyboardInterrupt) as error:  # would end the application's loop
                raise RuntimeError(f"{type(error).__name__}: {error}") from error

        return asyncio.run_coroutine_threadsafe(wait(), self._loop)

    def ack(self, delivery: Delivery) -> bool:
        return self._post(delivery, lambda: self._answering.ack(delivery))

    def retry(self, delivery: Delivery, delay_ms: int, headers: Mapping[str, Header]) -> bool:
        return self._post(delivery, lambda: self._answering.retry(delivery, delay_ms, headers))

    def park(self, delivery: Delivery, headers: Mapping[str, Header]) -> bool:
        return self._post(delivery, lambda: self._answering.park(delivery, headers))

    def _post(self, delivery: Delivery, answer: Callable[[], object]) -> bool:
        # Asked first: a stop that waits for this answer ends the link a moment after it.
        live = delivery._ledger.is_live
        self._answers.append(answer)
        if not self._woken:
            self._woken = True  # a race wakes twice, never zero times: cleared before taking
            with contextlib.suppress(RuntimeError):  # the loop is closed: it is delivered again
                self._loop.call_soon_threadsafe(self._give)
        return live
