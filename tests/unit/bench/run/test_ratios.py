from __future__ import annotations

import math
import random
import statistics

import pytest

from bench.run.ratios import Ratio, is_worse, ratio_of


def test_a_ratio_is_the_geometric_mean_of_the_pairs() -> None:
    found = ratio_of([1, 2, 4], [2, 4, 8])
    assert found is not None
    assert found.value == pytest.approx(2)
    assert found.low == pytest.approx(2)
    assert found.high == pytest.approx(2)


def test_one_pair_says_nothing_about_chance() -> None:
    found = ratio_of([1], [3])
    assert found is not None
    assert (found.low, found.high, found.pairs) == (0.0, math.inf, 1)
    assert str(found) == "3.000 (of one pair)"
    assert not is_worse(found, more_is_better=False, bound=0.1)


def test_no_pairs_have_no_ratio() -> None:
    assert ratio_of([], []) is None
    assert ratio_of([0], [1]) is None


def test_the_interval_holds_the_truth_nineteen_times_of_twenty() -> None:
    chance, held = random.Random(1), 0
    for _ in range(1000):
        machine = [chance.lognormvariate(0, 1) for _ in range(5)]
        a = [each * chance.lognormvariate(0, 0.1) for each in machine]
        b = [1.5 * each * chance.lognormvariate(0, 0.1) for each in machine]
        found = ratio_of(a, b)
        assert found is not None
        held += found.low <= 1.5 <= found.high
    assert 930 <= held <= 970


@pytest.mark.parametrize(("freedom", "t"), [(30, 2.042), (40, 2.021), (60, 2.000), (120, 1.980)])
def test_beyond_the_table_the_interval_still_holds_95_of_100(freedom: int, t: float) -> None:
    logs = [0.1 * (-1) ** number for number in range(freedom + 1)]
    found = ratio_of([1.0] * len(logs), [math.exp(each) for each in logs])
    assert found is not None
    half = math.log(found.high / found.value)
    assert half / (statistics.stdev(logs) / math.sqrt(len(logs))) == pytest.approx(t, abs=0.001)


@pytest.mark.parametrize(
    ("ratio", "more_is_better", "worse"),
    [
        (Ratio(0.8, 0.7, 0.9, 5), True, True),
        (Ratio(0.8, 0.5, 1.2, 5), True, False),
        (Ratio(0.95, 0.94, 0.96, 5), True, False),
        (Ratio(1.3, 1.2, 1.4, 5), False, True),
        (Ratio(1.3, 0.9, 1.9, 5), False, False),
        (Ratio(0.5, 0.4, 0.6, 5), False, False),
    ],
)
def test_worse_is_beyond_the_bound_and_not_by_chance(
    ratio: Ratio, more_is_better: bool, worse: bool
) -> None:
    assert is_worse(ratio, more_is_better=more_is_better, bound=0.1) is worse
