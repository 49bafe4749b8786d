"""Event loops of load processes, and waits that end within some tens of microseconds.

Event loops round their own waits up to whole milliseconds. Linux can signal the end of a wait through a
file (timerfd_create(2)), which the loop watches like a socket. Half a millisecond is a third of a confirm's
time at light load, and would count as latency.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib.util
import os
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

T = TypeVar("T")

CLOCK_MONOTONIC = 1
FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
EVENT_BYTES = 8
S_NS = 1_000_000_000
# A timer set to 0 would be disarmed.
LEAST_NS = 1


class _Timer(ctypes.Structure):
    """The struct itimerspec: again, then first; seconds and nanoseconds each."""

    _fields_ = (
        ("again_s", ctypes.c_long),
        ("again_ns", ctypes.c_long),
        ("first_s", ctypes.c_long),
        ("first_ns", ctypes.c_long),
    )


class Alarm:
    """A timer for one wait at a time, on the running loop."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.timerfd_create(CLOCK_MONOTONIC, FLAGS)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._rung: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._on_ring)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    async def sleep(self, seconds: float) -> None:
        self._rung = self._loop.create_future()
        whole_s, ns = divmod(max(LEAST_NS, int(seconds * S_NS)), S_NS)
        timer = _Timer(0, 0, whole_s, ns)
        self._libc.timerfd_settime(self._fd, 0, ctypes.byref(timer), None)
        await self._rung

    def _on_ring(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, EVENT_BYTES)
        if self._rung and not self._rung.done():
            self._rung.set_result(None)


def best_loop() -> str:
    """Return uvloop where it is installed, asyncio elsewhere."""
    return "uvloop" if importlib.util.find_spec("uvloop") else "asyncio"


def event_loop(name: str) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return the factory of a loop by its name."""
    if name == "asyncio":
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module(name).new_event_loop
    return factory


def run_on_best_loop(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=event_loop(best_loop())) as runner:
        return runner.run(work)
