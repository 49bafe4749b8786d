"""Between an application's loop and the threads that run its plain handlers.

The loop takes deliveries for the threads, a few more than they run, and gives their answers; however many
answers wait, the loop is woken once for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
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
    """take, receive: what the threads get, on the loop. answering: as their answers are given there.

    held_max: deliveries that the threads have, or one job more; None: one for each and AHEAD. It is an
    `Answering` itself, for any thread.
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
        # A thread waits for a token and then takes the first job: so that jobs may be withdrawn from
        # anywhere and none overtakes another.
        self._jobs: deque[Job | None] = deque()
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._taking = threading.Lock()
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
        """What no thread has begun, and now none will, in order.

        before_ns: only what arrived before that time; all_if_any: or, if there is some, all of it.
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
            except Exception:  # the next ones go out all the same
                log.exception("an answer failed, its delivery comes again")
            self._held -= 1
        self._room.set()

    def answers(
        self, failed: Callable[[Delivery, Exception], object]
    ) -> Callable[[Delivery, Exception], object]:
        """The same for a delivery that never came to the threads, and has its answer by way of here."""

        def answer(delivery: Delivery, error: Exception) -> object:
            self._held += 1
            return failed(delivery, error)

        return answer

    # ------------------------------------------------------------------ on any thread
    def receive(self) -> Job | None:
        """For a thread: the next delivery, or None to end."""
        self._tokens.get()
        with self._taking:
            return self._jobs.popleft()

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
