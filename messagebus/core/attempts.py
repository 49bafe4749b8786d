"""What becomes of a delivery when a run of its handler has ended, and which runs go on too long.

Decides; runs nothing. `decide` turns the end of a run into the one answer that its delivery gets:
acked, run again after a delay, parked, or dropped. `Runs` keeps the runs under way: each ends either by
itself or by its time limit, whichever comes first, and only that one answers the delivery.

`Runs.started`, `Runs.ended` and `Runs.overdue` may be called from different threads: who takes a run out
of the dictionary has it, and CPython takes out of a dictionary in one step.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

__all__ = ["Ack", "Action", "Drop", "End", "ParkNow", "Retry", "Rule", "Run", "Runs", "decide"]

T = TypeVar("T")


class End(enum.Enum):
    """How a run ended.

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
    """Done with."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Run again. attempt: the number of that run. delay_ms: before it, not yet rounded to a step."""

    attempt: int
    delay_ms: int


@dataclass(frozen=True, slots=True)
class ParkNow:
    """Into the parking queue."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Answered, and gone."""


Action = Ack | Retry | ParkNow | Drop


class Rule(NamedTuple):
    """attempts_max: runs in all. first_ms: before the second run; times `factor` before each one after
    it, up to max_ms. jitter: a share of the delay, up or down. park: what happens after the last run,
    else it is dropped. limit_ms: no delay is longer, not one that a handler asks for either.
    """

    attempts_max: int
    first_ms: int
    max_ms: int
    factor: float
    jitter: float
    park: bool
    limit_ms: int


def decide(
    rule: Rule, attempt: int, end: End, *, after_ms: int | None = None, share: float
) -> Action:
    """The answer to a delivery whose run number `attempt` (from 1) has ended.

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
            return ParkNow() if rule.park else Drop()


def _delay_ms(rule: Rule, attempt: int, share: float) -> int:
    full_ms = float(rule.first_ms)
    for _ in range(attempt - 1):
        if full_ms >= rule.max_ms:
            break  # a power of a thousand would overflow
        full_ms *= rule.factor
    full_ms = min(full_ms, rule.max_ms)
    return min(rule.max_ms, round(full_ms * (1 + rule.jitter * (2 * share - 1))))


class Run(Generic[T]):
    """One run. item: what is run. since_ns: when it began."""

    __slots__ = ("item", "since_ns")

    def __init__(self, item: T, since_ns: int) -> None:
        self.item = item
        self.since_ns = since_ns


class Runs(Generic[T]):
    """The runs of one handler. limit_ns: how long each may take; None: as long as it likes."""

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
        """It has ended by itself. True: answer its delivery. False: that is done, it overran."""
        if self._open.pop(run, self) is None:
            return True
        self._overran.pop(run, None)
        return False

    def overdue(self, now_ns: int) -> list[Run[T]]:
        """The runs whose time is over, each exactly once: answer their deliveries."""
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
        """Whether its time was over and it has not ended yet."""
        return run in self._overran

    def underway(self) -> list[Run[T]]:
        """All that has not ended, what overran too, in no order."""
        return [*self._open, *self._overran]

    @property
    def open(self) -> list[Run[T]]:
        """All whose delivery has no answer yet, oldest first."""
        return list(self._open)

    @property
    def overran(self) -> int:
        """How many go on although their time is over."""
        return len(self._overran)

    def oldest_ns(self, now_ns: int) -> int:
        """How long the oldest of all these has been running; 0 without any."""
        return max((now_ns - run.since_ns for run in self.underway()), default=0)
