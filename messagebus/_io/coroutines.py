"""Handlers that are coroutine functions: as many runs at once as wanted, on the application's own loop.

Each worker is one task that runs one delivery after the other: no task, no future and no timer for a
message. A run whose time is over is cancelled; one that does not end then is let be, and another
worker takes its place.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from messagebus._io.handlers import Handling
from messagebus.core.attempts import Run
from messagebus.message import Delivery

__all__ = ["HandlerTasks"]

log = logging.getLogger("messagebus.consumer")

# How long a run may take to end after it was cancelled.
CANCELLED_NS = 5_000_000_000
CANCELLED_S = CANCELLED_NS / 1e9
# A handler that never waits for anything must not keep the loop from its links: so much for a turn.
TURN_NS = 10_000_000


class _Worker:
    """now: the run that it is in, or was in last. late: one that overran and was cancelled."""

    __slots__ = ("late", "now", "replaced", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None]
        self.now: Run[Delivery] | None = None
        self.late: Run[Delivery] | None = None
        self.replaced = False


class HandlerTasks:
    """A number of tasks that run a handler.

    take: gives a delivery that is there, or None. receive: waits for one; None ends the worker.
    give_back: for what a cancelled run had not finished.
    """

    def __init__(
        self,
        handling: Handling,
        handler: Callable[[Delivery], Awaitable[object]],
        *,
        take: Callable[[], Delivery | None],
        receive: Callable[[], Awaitable[Delivery | None]],
        give_back: Callable[[Delivery], object],
    ) -> None:
        self._handling, self._handler = handling, handler
        self._take, self._receive, self._give_back = take, receive, give_back
        self._workers: dict[asyncio.Task[Any], _Worker] = {}
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._is_main = threading.current_thread() is threading.main_thread()
        handling.on_overran = self._cancel_late

    # ------------------------------------------------------------------ life
    def start(self, count: int) -> None:
        for _ in range(count):
            self._start()

    def _start(self) -> None:
        worker = _Worker()
        task = worker.task = asyncio.create_task(self._work(worker))
        self._workers[task] = worker
        task.add_done_callback(self._worker_ended)

    def _worker_ended(self, task: asyncio.Task[None]) -> None:
        del self._workers[task]
        fault = None if task.cancelled() else task.exception()
        if self._ended.done():
            return
        if fault is not None:
            self._ended.set_exception(fault)
        elif not self._workers:
            self._ended.set_result(None)

    async def wait(self) -> None:
        """Until all workers have ended; raises what one of them ended by."""
        await asyncio.shield(self._ended)

    async def end(self, grace_s: float) -> int:
        """Wait so long for the workers to end, then cancel. Returns how many runs were not finished."""
        left = list(self._workers)
        if left and grace_s > 0:
            await asyncio.wait(left, timeout=grace_s)
        unfinished = self._handling.left("runs")
        left = list(self._workers)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=CANCELLED_S)
        return unfinished

    def describe(self, task: asyncio.Task[object]) -> str:
        """What this task does, if it is one of ours; from any thread."""
        worker = self._workers.get(task)
        run = worker.now if worker is not None else None
        if run is None:
            return ""
        return f"handler={self._handling.name} message={run.item.message_id}"

    # ------------------------------------------------------------------ late ones
    def _cancel_late(self, run: Run[Delivery]) -> None:
        for worker in self._workers.values():
            if worker.now is run:
                worker.late = run
                worker.task.cancel()

    def tick(self) -> None:
        """Replace workers whose run was cancelled and does not end."""
        now_ns = time.monotonic_ns()
        limit_ns = CANCELLED_NS + (self._handling.limit_ns or 0)
        for worker in list(self._workers.values()):
            late = worker.late
            if late is None or worker.replaced or now_ns - late.since_ns < limit_ns:
                continue
            if not self._handling.may_replace:
                continue
            worker.replaced = True
            log.warning(
                "run does not end when cancelled handler=%s message=%s",
                self._handling.name,
                late.item.message_id,
            )
            self._start()

    # ------------------------------------------------------------------ working
    async def _work(self, worker: _Worker) -> None:
        handling, handler, take, receive = self._handling, self._handler, self._take, self._receive
        chain, runs = handling.chain, handling.runs
        started, ended, acked, now_ns = runs.started, runs.ended, handling.acked, time.monotonic_ns
        turn_ns = began_ns = now_ns()
        while True:
            if began_ns - turn_ns > TURN_NS:
                await asyncio.sleep(0)
                turn_ns = now_ns()
            delivery = take()
            if delivery is None:
                delivery = await receive()
                if delivery is None:
                    return
            began_ns = now_ns()
            worker.now = run = started(delivery, began_ns)
            try:
                if chain is None:
                    result = await handler(delivery)
                else:
                    with chain.handling(delivery):
                        result = await handler(delivery)
            except BaseException as error:  # whatever an application raises must not end the worker
                if ended(run):
                    if self._is_told_to_end(worker, error):
                        self._give_back(delivery)
                        raise
                    handling.failed(delivery, error)
                    continue
            else:
                if ended(run):
                    if result is None:
                        acked(delivery)
                    else:
                        handling.returned(delivery, result)
                    continue
            worker.late = None
            if worker.task.uncancel():  # cancelled by somebody else, too
                raise asyncio.CancelledError
            if worker.replaced:
                return

    def _is_told_to_end(self, worker: _Worker, error: BaseException) -> bool:
        """Not when a handler raises the same by itself."""
        match error:
            case asyncio.CancelledError():
                return worker.task.cancelling() > 0
            case KeyboardInterrupt():
                return self._is_main
            case GeneratorExit():  # the loop is gone, or the handler is a strange one
                return not self._loop.is_running()
            case _:
                return False
