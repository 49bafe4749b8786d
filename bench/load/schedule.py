"""Schedules of messages: open loops, known before the first is sent; a closed one; and one that is steered.

Pure: nanoseconds since the start of the load, in order, without end unless the schedule has one. All load
processes draw the same schedule from the same seed and take every n-th message each, so together they
send exactly that schedule, and a rate below their number is kept.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias, TypeVar

from bench.load.fields import Number, Whole, wanted, within

T = TypeVar("T")
SECOND_NS = 1_000_000_000
# A process counts the messages of its schedule; higher rates are never reached and would take minutes.
RATE_MAX_PER_S = 1_000_000
# One message in a quarter of an hour.
RATE_LEAST_PER_S = 0.001
# A stamp has 32 bits for the number of a message.
COUNT_MAX = (1 << 32) - 1
Rate = Annotated[Number, within(RATE_LEAST_PER_S, RATE_MAX_PER_S)]
Seconds = Annotated[Number, within(0.001, 604_800)]
Count = Annotated[Whole, within(1, COUNT_MAX)]
Speed = Annotated[Number, within(0.001, 1000)]


def _never_decrease(offsets: Sequence[int]) -> bool:
    return bool(offsets) and offsets[0] >= 0 and all(a <= b for a, b in itertools.pairwise(offsets))


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A constant rate with even distances."""

    kind: Literal["constant"] = "constant"
    rate_per_s: Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """A rate that changes evenly from one to another over over_s seconds, and then stays."""

    kind: Literal["ramp"] = "ramp"
    from_per_s: Annotated[Number, within(0, RATE_MAX_PER_S)]
    to_per_s: Rate
    over_s: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Constant rates, one after the other; the last one stays. steps: (rate per s, seconds)."""

    kind: Literal["steps"] = "steps"
    steps: Annotated[tuple[tuple[Rate, Seconds], ...], wanted("one or more", bool)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """Independent arrivals: exponential distances of that mean rate."""

    kind: Literal["poisson"] = "poisson"
    rate_per_s: Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursts:
    """Bursts of messages at once, every `every_s` seconds."""

    kind: Literal["bursts"] = "bursts"
    count: Count
    every_s: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Recorded times: ns since the first. speed: 2 plays them twice as fast."""

    kind: Literal["replay"] = "replay"
    speed: Speed = 1.0
    offsets_ns: Annotated[
        tuple[Whole, ...], wanted("one or more, 0 or more, never decreasing,", _never_decrease)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """A closed loop: each publisher sends `count` messages, the next one when its window has room.

    A message is intended when it is submitted. The wait before that is not seen, so latencies of a closed
    loop are too low. It measures rates, not latencies.
    """

    kind: Literal["closed"] = "closed"
    count: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Steered:
    """A rate that the coordinator may change while the load runs; it ends after `count` messages.

    rate_per_s: until another is set. count: of all publishers together; each record of `messages.file` is
    one of them.
    """

    kind: Literal["steered"] = "steered"
    rate_per_s: Rate
    count: Count


Schedule: TypeAlias = Constant | Ramp | Steps | Poisson | Bursts | Replay | Closed | Steered


def intended(schedule: Schedule, *, seed: int = 0) -> Iterator[int]:
    """Return the intended times of messages 0, 1, 2, ..., never decreasing. seed: of all random choices."""
    match schedule:
        case Constant(rate_per_s=rate):
            return (int(n * SECOND_NS / rate) for n in itertools.count())
        case Ramp():
            return _ramp(schedule)
        case Steps(steps=steps):
            return _steps(steps)
        case Poisson(rate_per_s=rate):
            return _poisson(rate, random.Random(seed))
        case Bursts(count=count, every_s=every_s):
            return (int(n // count * every_s * SECOND_NS) for n in itertools.count())
        case Replay(offsets_ns=offsets, speed=speed):
            return (int(each / speed) for each in offsets)
        case Closed() | Steered():
            raise ValueError("its times are not known beforehand")


def striped(whole: Iterator[T], *, number: int, of: int) -> Iterator[T]:
    """Return the part of one of `of` processes that share a schedule, or records; number: 0 to of - 1."""
    return itertools.islice(whole, number, None, of)


def _ramp(ramp: Ramp) -> Iterator[int]:
    """Yield the times at which the integral of the rate is n: a quadratic equation until the ramp's end."""
    start, end, over_s = ramp.from_per_s, ramp.to_per_s, ramp.over_s
    within = (start + end) / 2 * over_s
    slope = (end - start) / over_s
    for n in itertools.count():
        if n >= within:
            yield int((over_s + (n - within) / end) * SECOND_NS)
        elif slope == 0:
            yield int(n / start * SECOND_NS)
        else:
            root = math.sqrt(max(0.0, start * start + 2 * slope * n))
            yield int((root - start) / slope * SECOND_NS)


def _steps(steps: Sequence[tuple[float, float]]) -> Iterator[int]:
    began_s, left = 0.0, 0.0
    for number, (rate, lasts_s) in enumerate(steps):
        is_last = number == len(steps) - 1
        # The rest of an interval at a change of the rate is waited for at the new rate.
        for n in itertools.count():
            at_s = began_s + (n + left) / rate
            if at_s >= began_s + lasts_s and not is_last:
                left = (at_s - began_s - lasts_s) * rate
                break
            yield int(at_s * SECOND_NS)
        began_s += lasts_s


def _poisson(rate_per_s: float, chance: random.Random) -> Iterator[int]:
    at_s = 0.0
    while True:
        at_s += chance.expovariate(rate_per_s)
        yield int(at_s * SECOND_NS)
