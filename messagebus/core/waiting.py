"""Messages at one consumer, and those that wait for a run: another's, or their own as suspects.

Decides; calls no store. Times are whole milliseconds of a monotonic clock.

    WANTED ──▶ GRANTED ──▶ RUNNING ──▶ TELLING ──▶ GONE
     │  ▲                               ▲
     ▼  │                               │
    HELD, SUSPECT ──▶ PARKING ──────────┘

A message goes from any step before RUNNING back to WANTED, or is GONE, when its deliveries go.

Owners: a `LocalMessage` has its step and its claim. `HeldDeliveries` has those that wait until a run of their
message ends, elsewhere or here, and counts them against the one bound. `Suspects` has the messages whose last
runs never ended, and the one whose turn it is.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

# Waits before a message that another runs, or a store that is away, is asked for again.
ASK_FIRST_MS, ASK_MAX_MS = 50, 5_000
# A message becomes a suspect before the last runs that it may begin: after a crash nobody knows which of the
# messages at work was the cause.
ALONE_RUNS = 3
# No suspect runs until no other was found for this time: what arrived with it has been given back by then, so
# that a crash does not count for it.
CALM_MS = 50

NEVER_MS = 1 << 62

D = TypeVar("D", bound=Hashable)

# Steps of a message.
WANTED = 1  # to be asked for, or asked for in the turn that is on its way
SUSPECT = 2  # several of its runs never ended: waits for its turn, or for its place to be parked
HELD = 3  # another consumer runs it
GRANTED = 4  # claimed, and handed out to wait for its run
RUNNING = 5
PARKING = 6  # its copy for the parking queue is being stored
TELLING = 7  # the store is being told its end
GONE = 8


@dataclass(slots=True, eq=False)
class LocalMessage(Generic[D]):
    """One message that is here. item: the delivery that runs; copies: others, which wait for its end.

    first_ms: time of its first publish. token: of the claim that we have, or may have; b"" when we surely
    have none. until_ms: end of its lease. times_held: how often it was held because another runs it. parks:
    waits as a suspect does, but to be parked.
    """

    key: bytes
    item: D
    first_ms: int
    copies: list[D] | tuple[()] = ()
    step: int = WANTED
    token: bytes = b""
    until_ms: int = 0
    times_held: int = 0
    end: str = ""
    parks: bool = False


class HeldDeliveries(Generic[D]):
    """The deliveries that wait until another run of their message ends: at another consumer, or here."""

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max
        """Deliveries held at most: more are deferred."""
        self.count = 0
        self.times: list[tuple[int, int, LocalMessage[D]]] = []
        """Heap of the messages that another consumer runs, by the time to ask for them again."""
        self._numbers = 0

    def keep_all(self) -> None:
        """Hold every copy from now on: in an ordered queue none may come again behind others."""
        self.count_max = NEVER_MS

    @property
    def is_full(self) -> bool:
        return self.count >= self.count_max

    def hold(self, message: LocalMessage[D], lease_ms: int, now_ms: int) -> None:
        """Keep a message that another consumer runs. It is asked for again within its lease."""
        self.count += 1
        message.step = HELD
        wait_ms = min(lease_ms, ASK_MAX_MS, ASK_FIRST_MS << min(message.times_held, 10))
        message.times_held += 1
        self._numbers += 1  # no two are alike, so that messages are not compared
        heapq.heappush(self.times, (now_ms + wait_ms, self._numbers, message))

    def due(self, now_ms: int) -> list[LocalMessage[D]]:
        """Take out the messages whose time of waiting is over, and which wait still."""
        found = []
        while self.times and self.times[0][0] <= now_ms:
            _ms, _number, message = heapq.heappop(self.times)
            if message.step == HELD:  # not gone meanwhile
                message.step = WANTED  # it may be here twice
                self.count -= 1
                found.append(message)
        return found


class Suspects(Generic[D]):
    """The messages whose last runs never ended: one of them runs at a time.

    A suspect waits without a claim. It gets its turn when it would go to the application at once; the turn
    passes on when its run ends or overruns its limit, when it is parked or goes back, or when it has been
    granted for as long as a lease. One that is to be parked waits for its place alone.
    """

    def __init__(self, unended_max: int, is_next: Callable[[D], bool]) -> None:
        """Create it empty. unended_max: of the `Rule`. is_next: as of `Claims`."""
        self.is_next = is_next
        self.alone_from = max(2, unended_max - ALONE_RUNS + 1)
        """Runs without an end from which on a message is a suspect."""
        self.waiting: dict[LocalMessage[D], None] = {}
        self.alone: LocalMessage[D] | None = None
        """The one whose turn it is."""
        self.alone_until_ms = NEVER_MS
        self.calm_ms = 0
        """No suspect gets its turn before."""

    def wait(self, message: LocalMessage[D], now_ms: int) -> None:
        """Have a message without a claim wait for its turn."""
        self._wait(message, parks=False)
        self.calm_ms = now_ms + CALM_MS

    def wait_to_park(self, message: LocalMessage[D]) -> None:
        """Have a message without a claim wait until nothing of its lane or link stands before it."""
        self._wait(message, parks=True)

    def _wait(self, message: LocalMessage[D], *, parks: bool) -> None:
        self.pass_on(message)
        message.step, message.parks = SUSPECT, parks
        self.waiting[message] = None

    def pass_on(self, message: LocalMessage[D]) -> None:
        """End the turn of a suspect, if it is this one's."""
        if message is self.alone:
            self.alone, self.alone_until_ms = None, NEVER_MS

    def next_ones(self, now_ms: int) -> list[LocalMessage[D]]:
        """Take out those that can be parked, and the first that can run, unless another has its turn."""
        if now_ms >= self.alone_until_ms:
            self.alone, self.alone_until_ms = None, NEVER_MS
        may_run = self.alone is None and now_ms >= self.calm_ms
        found = []
        for message in list(self.waiting):
            if (message.parks or may_run) and self.is_next(message.item):
                del self.waiting[message]
                if not message.parks:
                    self.alone, may_run = message, False
                found.append(message)
        return found

    def times(self, now_ms: int) -> list[int]:
        """Return the times at which another one may get its turn."""
        return [each for each in (self.alone_until_ms, self.calm_ms) if each > now_ms]
