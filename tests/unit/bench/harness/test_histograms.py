"""Histograms against HdrHistogram, fed one by one."""

from __future__ import annotations

import numpy as np
from hdrh.histogram import HdrHistogram
from hypothesis import given
from hypothesis import strategies as st

from bench.harness.histograms import DIGITS, TOP_NS, Counts, Latencies, histogram, indexes

SECOND = 1_000_000_000
VALUES = st.lists(st.integers(0, TOP_NS - 1), min_size=1, max_size=200)


def reference(values: list[int]) -> HdrHistogram:
    made = HdrHistogram(1, TOP_NS, DIGITS)
    for value in values:
        assert made.record_value(value)
    return made


@given(VALUES)
def test_what_is_written_down_is_what_the_library_writes(values: list[int]) -> None:
    latencies = Latencies(0)
    rows = np.array(values, dtype=np.int64)
    latencies.add("mb1", np.zeros_like(rows), rows)
    assert histogram(latencies.whole()).encode() == reference(values).encode()


def test_indexes_are_the_librarys_at_every_edge() -> None:
    made = HdrHistogram(1, TOP_NS, DIGITS)
    edges = sorted({max(0, (1 << bit) + off) for bit in range(47) for off in (-2, -1, 0, 1, 2)})
    found = indexes(np.array(edges, dtype=np.int64)).tolist()
    assert found == [made._counts_index_for(each) for each in edges]


def test_seconds_and_brokers_stay_apart_and_add_up() -> None:
    latencies = Latencies(5 * SECOND)
    at = np.array([5 * SECOND, 6 * SECOND - 1, 6 * SECOND], dtype=np.int64)
    latencies.add("mb1", at, np.array([7, 7, 9], dtype=np.int64))
    latencies.add("mb2", at[:1], np.array([7], dtype=np.int64))
    assert dict(latencies.bins) == {(0, "mb1"): {7: 2}, (1, "mb1"): {9: 1}, (0, "mb2"): {7: 1}}
    assert latencies.whole() == {7: 3, 9: 1}
    assert latencies.whole(range(1)) == {7: 3}
    assert latencies.whole(broker="mb1") == {7: 2, 9: 1}


def test_parts_of_several_processes_are_one() -> None:
    one, other = Latencies(0), Latencies(0)
    for each in (one, other):
        each.add("mb1", np.array([0], dtype=np.int64), np.array([7], dtype=np.int64))
    one.merge(other.as_json())
    assert one.whole() == {7: 2}


def test_values_below_zero_are_counted_and_never_clipped() -> None:
    latencies = Latencies(0)
    latencies.add("", np.zeros(2, dtype=np.int64), np.array([-1, 3], dtype=np.int64))
    assert (latencies.below_zero, latencies.whole()) == (1, {3: 1})


S = 1_000_000_000


def counts() -> Counts:
    made = Counts(10 * S)
    made.add("a", np.array([10 * S, 10 * S + 1, 12 * S - 1, 13 * S], dtype=np.int64))
    made.add("b", np.array([9 * S, 11 * S], dtype=np.int64))
    return made


def test_messages_belong_to_the_second_in_which_they_came() -> None:
    assert counts().by_broker() == {"a": [2, 1, 0, 1], "b": [0, 1, 0, 0]}
    assert counts().total() == 6
    assert counts().total(range(1, 3)) == 2


def test_what_processes_counted_adds_up() -> None:
    merged = Counts(10 * S)
    for _ in range(2):
        merged.merge(counts().as_json())
    assert merged.by_broker() == {"a": [4, 2, 0, 2], "b": [0, 2, 0, 0]}


def test_nothing_counted_is_no_rate() -> None:
    assert Counts(0).by_broker() == {}
    assert Counts(0).total() == 0
