"""Between an application's loop and the threads that run its plain handlers.

The loop takes deliveries for the threads, a few more than they run, and gives their answers; however many
answers wait, the loop is woken once for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future

from messagebus._io.handlers import Answering, Job, deliveries_of
from messagebus.message import Delivery, Header

__all__ = ["Bridge"]

log = logging.getLogger("messagebus.consumer")

# Taken for the threads beyond what they run, so that none waits for a turn of the loop.
AHEAD = 32


class Bridge:
    """take, receive: the consumer's, on the loop. answering: as the threads' answers are given there.

    It is an `Answering` itself, for any thread.
    """

    def __init__(
        self,
        *,
        threads: int,
        take: Callable[[], Job | None],
        receive: Callable[[], Awaitable[Job | None]],
        answering: Answering,
        batch: int | None = None,
    ) -> None:
        # Of batches one is enough: it is work for a while.
        self._held_max = threads + AHEAD if batch is None else (threads + 1) * batch
        self._threads, self._take, self._receive_next = threads, take, receive
        self._answering = answering
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._answers: deque[Callable[[], object]] = deque()
        self._woken = False
        self._room = asyncio.Event()
        self._held = 0  # deliveries given to the threads and not answered

    # ------------------------------------------------------------------ on the loop
    async def feed(self) -> None:
        """Until there are no more deliveries; then the threads end after what they run."""
        try:
            while (job := self._take() or await self._receive_next()) is not None:
                self._held += len(deliveries_of(job))
                self._jobs.put(job)
                while self._held >= self._held_max:
                    self._room.clear()
                    await self._room.wait()
        finally:
            self.close()

    def close(self) -> None:
        for _ in range(self._threads):
            self._jobs.put(None)

    def withdraw(self, before_ns: int | None = None) -> list[Delivery]:
        """What no thread has begun, and now none will. before_ns: only what arrived before that time."""
        found: list[Delivery] = []
        kept: list[Job | None] = []
        with contextlib.suppress(queue.Empty):
            while True:
                job = self._jobs.get_nowait()
                if job is not None and (before_ns is None or job.received_ns < before_ns):
                    found += deliveries_of(job)
                else:
                    kept.append(job)
        for each in kept:
            self._jobs.put(each)
        self._held -= len(found)
        self._room.set()
        return found

    def _give(self) -> None:
        self._woken = False
        while self._answers:
            answer = self._answers.popleft()
            try:
                answer()
            except Exception:  # the next ones go out all the same
                log.exception("an answer failed, its delivery comes again")
            self._held -= 1
        self._room.set()

    # ------------------------------------------------------------------ on any thread
    def receive(self) -> Job | None:
        """For a thread: the next delivery, or None to end."""
        return self._jobs.get()

    def awaited(self, result: Awaitable[object]) -> Future[object]:
        """Begin to await on the loop what a handler returned, in the context of this thread."""

        async def wait() -> object:
            try:
                return await result
            except (SystemExit, KeyboardInterrupt) as error:  # would end the loop of all
                raise RuntimeError(f"{type(error).__name__}: {error}") from error

        return asyncio.run_coroutine_threadsafe(wait(), self._loop)

    def ack(self, delivery: Delivery) -> bool:
        return self._post(delivery, lambda: self._answering.ack(delivery))

    def retry_soon(self, delivery: Delivery, delay_ms: int, headers: Mapping[str, Header]) -> bool:
        return self._post(delivery, lambda: self._answering.retry_soon(delivery, delay_ms, headers))

    def park_soon(self, delivery: Delivery, headers: Mapping[str, Header]) -> bool:
        return self._post(delivery, lambda: self._answering.park_soon(delivery, headers))

    def _post(self, delivery: Delivery, answer: Callable[[], object]) -> bool:
        # Asked first: a stop that waits for this answer ends the link a moment after it.
        live = delivery.ledger.is_live
        self._answers.append(answer)
        if not self._woken:
            self._woken = True  # a race wakes twice, never not at all: cleared before taking
            with contextlib.suppress(RuntimeError):  # the loop is closed: it is delivered again
                self._loop.call_soon_threadsafe(self._give)
        return live
