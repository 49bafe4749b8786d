"""Rules for the answer to a delivery after a run of its handler, and for runs that take too long.

Decides; runs nothing. `decide` turns the end of a run into the one answer that its delivery gets:
acked, run again after a delay, parked (alone, or with what follows of its key), dropped, or kept.
`Runs` keeps the runs under way: each ends either by
itself or by its time limit. The first of the two answers the delivery; the other does not.

`Runs.started`, `Runs.ended` and `Runs.overdue` may be called from different threads: the thread that
removes a run from the dictionary owns it, and CPython removes a key from a dictionary in one step.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")


class End(enum.Enum):
    """The way a run ended.

    RETURNED: well. FAILED: another run may help. FAILED_FOR_GOOD: none will. LATER: the handler asks
    for another run. PARK: it asks to park. REJECT: it asks for no further run.
    """

    RETURNED = "returned"
    FAILED = "failed"
    FAILED_FOR_GOOD = "failed for good"
    LATER = "later"
    PARK = "park"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class Ack:
    """The order to acknowledge the delivery."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The order to run again. attempt: number of that run. delay_ms: before it, not rounded to a step."""

    attempt: int
    delay_ms: int


@dataclass(frozen=True, slots=True)
class ParkNow:
    """The order to move the message into the parking queue."""


@dataclass(frozen=True, slots=True)
class Drop:
    """The order to drop the message: acknowledge it without another run."""


@dataclass(frozen=True, slots=True)
class ParkKey:
    """The order to park the message, and all that follows it with its key."""


@dataclass(frozen=True, slots=True)
class StopKey:
    """The order to keep the message unanswered, and to hand out nothing more of its key."""


Action = Ack | Retry | ParkNow | Drop | ParkKey | StopKey


class Rule(NamedTuple):
    """The retry rule of a handler.

    attempts_max: runs in all. first_ms: delay before the second run; multiplied by `factor` before each
    later one, up to max_ms. jitter: share of the delay, up or down. then: what follows the last run.
    limit_ms: upper bound of a delay in ms, also for delays that a handler asks for.
    """

    attempts_max: int
    first_ms: int
    max_ms: int
    factor: float
    jitter: float
    then: Action
    limit_ms: int


def decide(
    rule: Rule, attempt: int, end: End, *, after_ms: int | None = None, share: float
) -> Action:
    """Return the answer to a delivery whose run number `attempt` (from 1) has ended.

    after_ms: the delay that the handler asked for, with LATER. share: a random number from 0 to 1.
    """
    match end:
        case End.RETURNED:
            return Ack()
        case End.PARK:
            return ParkNow()
        case End.FAILED | End.LATER if attempt < rule.attempts_max:
            wait_ms = _delay_ms(rule, attempt, share) if after_ms is None else after_ms
            return Retry(attempt + 1, max(0, min(wait_ms, rule.limit_ms)))
        case _:
            return rule.then


def _delay_ms(rule: Rule, attempt: int, share: float) -> int:
    full_ms = float(rule.first_ms)
    for _ in range(attempt - 1):
        if full_ms >= rule.max_ms:
            break  # a power of a thousand would overflow
        full_ms *= rule.factor
    full_ms = min(full_ms, rule.max_ms)
    return min(rule.max_ms, round(full_ms * (1 + rule.jitter * (2 * share - 1))))


class Run(Generic[T]):
    """One run. item: the work. since_ns: when it began. by: the caller's, such as its task; None at first."""

    __slots__ = ("by", "item", "since_ns")

    def __init__(self, item: T, since_ns: int) -> None:
        self.item = item
        self.since_ns = since_ns
        self.by: Any = None


class Runs(Generic[T]):
    """The runs of one handler. limit_ns: time limit of each run; None for no limit."""

    def __init__(self, limit_ns: int | None = None) -> None:
        self._limit_ns = limit_ns
        # In the order in which they began, so the first is the oldest.
        self._open: dict[Run[T], None] = {}
        self._overran: dict[Run[T], None] = {}

    def started(self, item: T, now_ns: int) -> Run[T]:
        run = Run(item, now_ns)
        self._open[run] = None
        return run

    def ended(self, run: Run[T]) -> bool:
        """Record that a run ended by itself. True: answer its delivery. False: it overran and is answered."""
        if self._open.pop(run, self) is None:
            return True
        self._overran.pop(run, None)
        return False

    def overdue(self, now_ns: int) -> list[Run[T]]:
        """Take the runs whose time is over, each exactly once: answer their deliveries."""
        late: list[Run[T]] = []
        if self._limit_ns is None:
            return late
        for run in list(self._open):
            if now_ns - run.since_ns < self._limit_ns:
                break
            self._overran[run] = None  # first: it may end between these two lines
            if self._open.pop(run, self) is None:
                late.append(run)
            else:
                del self._overran[run]
        return late

    def is_overrunning(self, run: Run[T]) -> bool:
        """Return whether the time limit of this run has passed and it has not ended."""
        return run in self._overran

    def underway(self) -> list[Run[T]]:
        """Return all runs that have not ended, including overrunning ones, in no order."""
        return [*self._open, *self._overran]

    @property
    def open(self) -> list[Run[T]]:
        """The runs whose delivery has no answer yet, oldest first."""
        return list(self._open)

    @property
    def overran(self) -> int:
        """The number of runs that go on after their time limit."""
        return len(self._overran)

    def oldest_ns(self, now_ns: int) -> int:
        """Return the age in ns of the oldest run under way; 0 without any."""
        return max((now_ns - run.since_ns for run in self.underway()), default=0)
