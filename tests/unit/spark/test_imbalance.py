from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark.imbalance import imbalance


def test_even_loads_have_no_imbalance() -> None:
    found = imbalance([5, 5, 5])
    assert found is not None
    assert (found.brokers, found.mean, found.max_over_mean, found.gini) == (3, 5, 1, 0)


def test_all_on_one_of_four() -> None:
    found = imbalance([0, 8, 0, 0])
    assert found is not None
    assert (found.max_over_mean, found.gini) == (4, 0.75)


@pytest.mark.parametrize("loads", [[], [0, 0]])
def test_no_load_has_no_imbalance(loads: list[float]) -> None:
    assert imbalance(loads) is None


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=30).filter(any))
def test_gini_is_the_mean_difference_over_twice_the_mean(loads: list[int]) -> None:
    n, mean = len(loads), sum(loads) / len(loads)
    differences = sum(abs(a - b) for a in loads for b in loads) / n**2
    found = imbalance(loads)
    assert found is not None
    assert found.gini == pytest.approx(differences / (2 * mean))
