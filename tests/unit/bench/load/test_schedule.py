"""Schedules against the integral of the rate: n processes together send as one would."""

from __future__ import annotations

import itertools
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.load.profile import Load, Profile, Time
from bench.load.schedule import (
    Bursts,
    Closed,
    Constant,
    Poisson,
    Ramp,
    Replay,
    Schedule,
    Steps,
    intended,
    striped,
)

S = 1_000_000_000


def first(schedule: Schedule, count: int) -> list[int]:
    return list(itertools.islice(intended(schedule, seed=3), count))


@pytest.mark.parametrize(
    ("schedule", "times"),
    [
        (Constant(rate_per_s=4), [0, S // 4, S // 2, 3 * S // 4]),
        # Below one a second, and below the number of processes: kept.
        (Constant(rate_per_s=0.25), [0, 4 * S, 8 * S, 12 * S]),
        (Bursts(count=2, every_s=3), [0, 0, 3 * S, 3 * S]),
        (Replay(offsets_ns=(0, 10, 50), speed=2), [0, 5, 25]),
        # Two a second for a second, then one in two; the interval that runs is stretched.
        (Steps(steps=((2, 1), (0.5, 1))), [0, S // 2, S, 3 * S]),
        (Steps(steps=((1, 1.5), (2, 9))), [0, S, 1_750_000_000, 2_250_000_000]),
        (Ramp(from_per_s=1, to_per_s=1, over_s=9), [0, S, 2 * S, 3 * S]),
    ],
)
def test_messages_are_intended_when_the_schedule_says(schedule: Schedule, times: list[int]) -> None:
    assert first(schedule, len(times)) == times


@given(st.floats(0, 100), st.floats(0.5, 200), st.floats(1, 20))
def test_a_ramp_has_as_many_as_its_integral(start: float, end: float, over_s: float) -> None:
    times = first(Ramp(from_per_s=start, to_per_s=end, over_s=over_s), 300)
    assert times == sorted(times)
    for number, at_ns in enumerate(times):
        at_s = at_ns / S
        inside = min(at_s, over_s)
        area = start * inside + (end - start) * inside * inside / (2 * over_s)
        area += end * max(0.0, at_s - over_s)
        assert area == pytest.approx(number, abs=1e-2)


def test_poisson_arrivals_are_independent_and_the_same_for_a_seed() -> None:
    times = first(Poisson(rate_per_s=100), 5000)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    mean, spread = statistics.fmean(gaps) / S, statistics.stdev(gaps) / S
    assert mean == pytest.approx(0.01, rel=0.1)
    assert spread == pytest.approx(mean, rel=0.1)
    assert times == first(Poisson(rate_per_s=100), 5000)


@given(st.integers(1, 7), st.integers(1, 60))
def test_processes_share_a_schedule_exactly(of: int, count: int) -> None:
    schedule = Poisson(rate_per_s=10)
    parts = [
        list(striped(iter(first(schedule, count)), number=number, of=of)) for number in range(of)
    ]
    assert sorted(time for part in parts for time in part) == first(schedule, count)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(
    ("schedule", "named"),
    [
        (Constant(rate_per_s=1), []),
        (Constant(rate_per_s=0), ["rate_per_s"]),
        (Constant(rate_per_s=1e12), ["rate_per_s"]),
        (Poisson(rate_per_s=-1), ["rate_per_s"]),
        (Ramp(from_per_s=0, to_per_s=1, over_s=1), []),
        (Ramp(from_per_s=0, to_per_s=0, over_s=1), ["to_per_s"]),
        (Ramp(from_per_s=-5, to_per_s=-5, over_s=0), ["from_per_s", "to_per_s", "over_s"]),
        (Steps(steps=((1, 1),)), []),
        (Steps(steps=()), ["steps"]),
        (Steps(steps=((0, 1),)), ["steps[0][0]"]),
        (Steps(steps=((1, -1),)), ["steps[0][1]"]),
        (Bursts(count=5000, every_s=5), []),
        (Bursts(count=0, every_s=0), ["count", "every_s"]),
        (Bursts(count=10_000_000, every_s=1), ["count, every_s"]),
        (Replay(offsets_ns=(0, 0, 5)), []),
        (Replay(offsets_ns=(5, 0)), ["offsets_ns"]),
        (Replay(offsets_ns=(-1, 0)), ["offsets_ns"]),
        (Replay(offsets_ns=(), speed=0), ["speed", "offsets_ns"]),
        (Closed(count=1), []),
        (Closed(count=0), ["count"]),
        (Closed(count=1 << 32), ["count"]),
    ],
)
def test_a_number_that_makes_no_sense_is_named(schedule: Schedule, named: list[str]) -> None:
    profile = Profile(name="x", load=Load(schedule=schedule), time=Time(warm_up_s=0))
    assert [each.split(":")[0] for each in profile.faults()] == [
        f"load.schedule.{name}" for name in named
    ]
