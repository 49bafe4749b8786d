"""Handlers that are plain functions: each run in a thread, never on a loop.

A thread that overruns its time cannot be ended: its delivery has its answer, and another thread takes its
place until it comes back.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import threading
import time
from collections.abc import Awaitable, Callable

from messagebus._io.handlers import Handling
from messagebus.core.attempts import Run
from messagebus.message import Delivery

__all__ = ["HandlerThreads", "not_awaited"]

log = logging.getLogger("messagebus.consumer")


def not_awaited(result: Awaitable[object]) -> object:
    """What becomes of an awaitable where no loop is the application's."""
    if inspect.iscoroutine(result):
        result.close()
    raise TypeError("the handler gave something to await: AsyncConsumer.run awaits it")


class _Worker(threading.Thread):
    """now: the run that it is in, or was in last. replaced: another thread has its place."""

    now: Run[Delivery] | None = None
    replaced = False


class HandlerThreads:
    """A number of threads that run a handler.

    receive: waits for a delivery; None ends the thread. awaited: gives the result of an awaitable that
    the handler returned.
    """

    def __init__(
        self,
        handling: Handling,
        receive: Callable[[], Delivery | None],
        *,
        awaited: Callable[[Awaitable[object]], object] = not_awaited,
    ) -> None:
        self._handling, self._receive, self._awaited = handling, receive, awaited
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._workers: list[_Worker] = []
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
        """Wait so long for the threads to end, not for those that overran.

        Returns how many runs have not ended, and says so.
        """
        until_s = time.monotonic() + timeout_s
        for worker in list(self._workers):
            worker.join(max(0.0, until_s - time.monotonic()))
        return self._handling.left("threads")

    def _replace(self, run: Run[Delivery]) -> None:
        with self._lock:
            slow = next((worker for worker in self._workers if worker.now is run), None)
            if slow is None or not self._handling.runs.is_overrunning(run):
                return  # it has ended just now
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
        handling, receive = self._handling, self._receive
        handler, chain, runs = handling.handler, handling.chain, handling.runs
        started, ended, acked = runs.started, runs.ended, handling.acked
        now_ns = time.monotonic_ns
        while (delivery := receive()) is not None:
            worker.now = run = started(delivery, now_ns())
            try:
                if chain is None:
                    result = handler(delivery)
                else:
                    with chain.handling(delivery):
                        result = handler(delivery)
                if result is not None and inspect.isawaitable(result):
                    result = self._awaited(result)
            except BaseException as error:  # whatever an application raises must not end the thread
                if ended(run):
                    handling.failed(delivery, error)
                    continue
            else:
                if ended(run):
                    if result is None:
                        acked(delivery)
                    else:
                        handling.returned(delivery, result)
                    continue
            if not self._goes_on(worker):
                return
