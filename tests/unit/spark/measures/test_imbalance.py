from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from spark.measures.imbalance import hot_keys, imbalance, imbalance_of, key_loads, keys


def test_even_loads_have_no_imbalance() -> None:
    found = imbalance([5, 5, 5])
    assert found is not None
    assert (found.count, found.mean, found.max_over_mean, found.gini) == (3, 5, 1, 0)


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


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40).filter(any))
def test_loads_that_are_counted_are_judged_as_if_they_were_written_out(loads: list[int]) -> None:
    counted = [(load, loads.count(load)) for load in set(loads)]
    one, other = imbalance(loads), imbalance_of(counted)
    assert one is not None
    assert other is not None
    assert one.count == other.count
    assert one.max_over_mean == pytest.approx(other.max_over_mean)
    assert one.gini == pytest.approx(other.gini, abs=1e-12)


def test_the_hottest_keys_come_first_and_messages_without_one_are_none(
    session: SparkSession,
) -> None:
    rows = [("orders", "a", 10)] * 3 + [("orders", "b", 10), ("orders", "", 1), ("orders", None, 1)]
    found = keys(session.createDataFrame(rows, "topic string, key string, size int"))
    assert [tuple(row) for row in hot_keys(found, 1).collect()] == [("orders", "a", 3, 30)]
    assert {tuple(row) for row in key_loads(found).collect()} == {(3, 1), (1, 1)}
