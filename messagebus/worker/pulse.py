"""Signs of life of an app's loop, for other threads: whether it is ready, turns, or is stuck, and where.

The loop writes a `Pulse`; a health server reads it. A watchdog thread logs where the loop is stuck, which
the loop itself cannot.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from messagebus._io.consume.runs import OVERRUNNING_MAX
from messagebus._io.loop import starved_s
from messagebus.app import App
from messagebus.errors import Stopped
from messagebus.stats import ConsumerStats, Status

log = logging.getLogger("messagebus.worker")

BEAT_S = 0.5
# A handler that holds the loop for longer is named; heartbeats end after twice `heartbeat_s`.
STUCK_S = 2.0
# Not live after this: several times a loop's delay on a loaded machine, less than two heartbeats.
LIVE_S = 10.0
FRAMES_SHOWN = 3
# Not ready after this, where handlers wait for the store of deduplication.
STORE_AWAY_S = 30.0

Look = Mapping[str, Any]
"""State of an app: JSON."""

_LIBRARY = f"{Path(__file__).resolve().parents[1]}/"
_STANDARD = f"{Path(asyncio.__file__).resolve().parents[1]}/"
_INSTALLED = f"{_STANDARD}site-packages/"


class Pulse:
    """Last state that the loop reported. Any thread may read it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.begun = False
        """True once the loop has said anything."""
        self._last: tuple[float, Look] = (clock(), {"ready": False, "status": "starting"})

    def tell(self, look: Look) -> None:
        self.begun = True
        self._last = (self._clock(), look)  # in one step: readers see both or neither

    @property
    def look(self) -> Look:
        return self._last[1]

    @property
    def age_s(self) -> float:
        return self._clock() - self._last[0]


def look(app: App) -> Look:
    """Return the app's state. Ready: it runs, is not stopping, each subscription is attached and handled."""
    try:
        stats = app.stats().consumers
    except Stopped:
        stats = {}
    attached = all(
        any(broker.state == "open" for broker in each.brokers.values()) for each in stats.values()
    )
    # Other workers may reach the store, and the application's operators look at this.
    waiting = any(
        each.dedup_state == "waiting" and each.store_away_s > STORE_AWAY_S
        for each in stats.values()
    )
    stopped = any(each.keys_stopped for each in stats.values())
    # Every place of a handler is held by a run that never ends: what arrives is handled by nobody.
    hung = any(
        each.overrunning > OVERRUNNING_MAX and each.handling == each.overrunning and each.buffered
        for each in stats.values()
    )
    running, ended = app.status is Status.RUNNING, getattr(app, "ended", {})
    return {
        "ready": running and attached and not (ended or waiting or stopped or hung),
        "status": app.status.value if running else "stopping" if stats else "starting",
        "subscriptions": {name: _of(each) for name, each in stats.items()},
        **({"ended": dict(ended)} if ended else {}),
    }


def _of(stats: ConsumerStats) -> Look:
    return {
        "brokers": {name: broker.state for name, broker in stats.brokers.items()},
        "handling": stats.handling,
        "oldest_run_s": round(stats.oldest_run_s, 1),
        **({"overrunning": stats.overrunning} if stats.overrunning else {}),
        "parked": stats.parked,
        "retried": stats.retried,
        **({"dedup": _of_dedup(stats)} if stats.dedup_state else {}),
        **({"keys_stopped": stats.keys_stopped} if stats.keys_stopped else {}),
    }


def _of_dedup(stats: ConsumerStats) -> Look:
    return {
        "state": stats.dedup_state,
        "away_s": round(stats.store_away_s, 1),
        "duplicates": stats.duplicates,
        "deferred": stats.deferred,
        "undeduplicated": stats.undeduplicated,
    }


async def beat(app: App, tell: Callable[[Look], None]) -> None:
    """Report the app's state regularly, until cancelled."""
    while True:
        tell(look(app))
        await asyncio.sleep(BEAT_S)


class Watchdog:
    """Thread that logs where the loop of the thread that makes it is stuck, once each time."""

    def __init__(self, pulse: Pulse) -> None:
        self._pulse, self._thread_id = pulse, threading.get_ident()
        self._native_id = threading.get_native_id()
        self._starved_s = starved_s(self._native_id)
        self._ended = threading.Event()
        self._is_logged = False

    def start(self) -> None:
        threading.Thread(target=self._watch, name="messagebus-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(BEAT_S):
            self.check()

    def check(self) -> None:
        stuck_s = self._pulse.age_s
        waited_s = starved_s(self._native_id) - self._starved_s
        if stuck_s < STUCK_S:
            self._is_logged, self._starved_s = False, self._starved_s + waited_s
        elif not self._is_logged and waited_s < stuck_s / 2:  # else no processor was free for it
            self._is_logged = True
            log.warning(
                "loop stuck stuck_s=%.1f at=%r: a coroutine handler must await, a plain one may block",
                stuck_s,
                standing_at(self._thread_id),
            )


def standing_at(thread_id: int) -> str:
    """Return the application's innermost lines in that thread, outermost first."""
    frame = sys._current_frames().get(thread_id)
    lines = of_application(traceback.extract_stack(frame))
    return " > ".join(
        f"{Path(each.filename).name}:{each.lineno} {each.name}" for each in lines[-FRAMES_SHOWN:]
    )


def of_application(stack: Iterable[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Return the application's own frames, in order: neither ours nor the standard library's."""
    return [frame for frame in stack if _is_of_application(frame.filename)]


def _is_of_application(file: str) -> bool:
    if file.startswith(("<frozen", _LIBRARY)):
        return False
    return file.startswith(_INSTALLED) or not file.startswith(_STANDARD)
