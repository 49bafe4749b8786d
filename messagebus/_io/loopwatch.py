"""Notices that an application's loop is blocked, and says by whom.

A coroutine that computes or waits without `await` keeps the loop from its links: no heartbeats, no
acks, no deliveries. From a thread of its own this looks whether the loop still turns, and while it does
not, which task it is in and where. One thread for each loop, while handlers run on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import FrameType

__all__ = ["LoopWatch", "watched"]

log = logging.getLogger("messagebus.consumer")

# Told when a loop has not turned for so long, and again at each ten times of it.
BLOCKED_S = 1.0
AGAIN = 10
BEAT_S = 0.25
FRAMES_MAX = 3

Describe = Callable[["asyncio.Task[object]"], str]


@contextlib.contextmanager
def watched(describe: Describe) -> Iterator[None]:
    """Watch the running loop meanwhile; one watch serves all handlers of a loop.

    describe: says what a task of that loop is doing, "" when it is none of ours; from any thread.
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
    """Of the running loop, where it is made; `start` and `stop` are called there."""

    def __init__(self, *, blocked_s: float = BLOCKED_S) -> None:
        self.describing: list[Describe] = []
        self._blocked_s = blocked_s
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._beaten_s = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._watch, name="messagebus-loopwatch", daemon=True
        )
        self._told_s = 0.0
        """How long the loop was blocked when it was last told; 0 while it turns."""

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
            # A process that was stopped as a whole is no handler's fault.
            if now_s - looked_s < self._blocked_s:
                self.look(now_s)
            looked_s = now_s

    def look(self, now_s: float) -> None:
        """Tell, if there is something to tell."""
        blocked_s = now_s - self._beaten_s
        if blocked_s < self._blocked_s:
            self._told_s = 0.0
        elif not self._told_s or blocked_s >= self._told_s * AGAIN:
            self._told_s = blocked_s
            log.warning(
                "loop blocked blocked_s=%.1f %s at=%r", blocked_s, self._who(), self._where()
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
