"""Handlers that are plain functions: each run in a thread, never on a loop.

Each run has a context of its own. A thread that overruns its time cannot be ended: its delivery has its
answer, and another thread takes its place until it comes back. What a plain function gives to await (a
coroutine function behind a plain wrapper does) is a part of its run: it is in its span and its context,
and is cancelled at its limit and at the end.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from contextvars import Context

from messagebus._io.handlers import Handling, Job
from messagebus.core.attempts import Run

__all__ = ["HandlerThreads", "not_awaited"]

log = logging.getLogger("messagebus.consumer")

# A thread whose deliveries cannot be had, by a fault of ours, asks again that late.
AGAIN_S = 1.0


def not_awaited(result: Awaitable[object]) -> Future[object]:
    """What becomes of an awaitable where no loop is the application's."""
    if inspect.iscoroutine(result):
        result.close()
    raise TypeError("the handler gave something to await: AsyncConsumer.run awaits it")


class _Worker(threading.Thread):
    """now: the run that it is in, or was in last. awaits: what it gave to await.

    replaced: another thread has its place.
    """

    now: Run[Job] | None = None
    awaits: Future[object] | None = None
    replaced = False


class HandlerThreads:
    """A number of threads that run a handler.

    receive: waits for a delivery; None ends the thread. context: what each run gets a copy of.
    awaited: begins to await what the handler returned.
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
        worker.start()

    def join(self, timeout_s: float) -> int:
        """Wait so long for the threads to end, not for those that overran; then cancel what they await.

        Returns how many runs have not ended, and says so.
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
            slow.replaced = True
            self._workers.remove(slow)
        self._start()

    def _goes_on(self, worker: _Worker) -> bool:
        """After a run that overran."""
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
        """False: another thread has its place."""
        handling = self._handling
        around = handling.around
        worker.now = run = handling.runs.started(job, time.monotonic_ns())
        try:
            if around is None:
                result = self._called(worker, run)
            else:
                with around(job):
                    result = self._called(worker, run)
        except BaseException as error:  # whatever an application raises must not end the thread
            if handling.runs.ended(run):
                # What the end cancelled has no answer: it comes again.
                if not (self._is_ending and isinstance(error, CancelledError)):
                    handling.failed(job, error)
                return True
        else:
            if handling.runs.ended(run):
                handling.returned(job, result)
                return True
        return self._goes_on(worker)

    def _called(self, worker: _Worker, run: Run[Job]) -> object:
        result = self._handling.handler(run.item)
        if result is None or not inspect.isawaitable(result):
            return result
        with self._lock:  # `_replace` finds it there, or has been here before
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
