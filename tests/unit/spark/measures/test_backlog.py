"""Backlogs against counting at every instant."""

from __future__ import annotations

import random

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark.measures import backlog

SECOND = 1_000_000_000
START = 1_790_000_000 * SECOND
Span = tuple[float, float | None]


def waits(session: SparkSession, spans: list[Span]) -> DataFrame:
    rows = [
        (
            "mb1",
            "orders",
            "billing",
            START + int(begin * SECOND),
            None if end is None else START + int(end * SECOND),
        )
        for begin, end in spans
    ]
    return session.createDataFrame(
        rows, "broker string, topic string, subscription string, in_ns long, out_ns long"
    )


def depths(session: SparkSession, spans: list[Span], end_s: int) -> dict[int, tuple[int, float]]:
    found = backlog.depths(waits(session, spans), START, START + end_s * SECOND).collect()
    return {row.second: (row.depth, row.age_ms) for row in found}


def test_what_waits_is_counted_and_its_oldest_timed(session: SparkSession) -> None:
    found = depths(session, [(0.5, 2.5), (1.5, 1.75), (2.25, None)], 5)
    assert found == {0: (1, 500), 1: (1, 1500), 2: (1, 2000)}


def test_a_frozen_broker_shows_in_the_age_of_what_comes_out_at_last(session: SparkSession) -> None:
    found = depths(session, [(1.0, 4.5), (1.5, 4.5)], 6)
    assert {second: found[second] for second in (1, 4)} == {1: (2, 1000), 4: (0, 3500)}


@pytest.mark.parametrize("seed", range(2))
def test_it_agrees_with_counting_at_every_second(session: SparkSession, seed: int) -> None:
    chance = random.Random(seed)
    spans: list[Span] = []
    for _ in range(200):
        begin = chance.randrange(20_000) / 1000
        end = begin + chance.randrange(5_000) / 1000
        spans.append((begin, None if chance.random() < 0.05 else end))
    for second, (depth, age_ms) in depths(session, spans, 30).items():
        at = second + 1
        waiting = [begin for begin, end in spans if begin < at and (end is None or end >= at)]
        left = [end - begin for begin, end in spans if end and second <= end < at]
        assert depth == len(waiting)
        oldest = max([at - begin for begin in waiting] + left + [0])
        assert age_ms == pytest.approx(oldest * 1000, abs=0.01)


def test_the_time_to_drain_is_from_the_most_to_nothing(session: SparkSession) -> None:
    spans: list[Span] = [(0.1, 3.5), (0.2, 5.5), (0.3, 9.5)]
    found = backlog.drains(backlog.depths(waits(session, spans), START, START + 20 * SECOND))
    row = found.first()
    assert row is not None
    assert (row.peak, row.peak_second, row.empty_second) == (3, 0, 9)
    assert row.age_ms == pytest.approx(9200)


def test_what_is_never_taken_is_never_empty(session: SparkSession) -> None:
    found = backlog.drains(backlog.depths(waits(session, [(0.1, None)]), START, START + 5 * SECOND))
    row = found.first()
    assert row is not None
    assert (row.peak, row.empty_second) == (1, None)


def test_the_last_sample_of_a_second_counts(session: SparkSession) -> None:
    rows = session.createDataFrame(
        [("mb1", "orders", "billing", START + 1, 5, 2), ("mb1", "orders", "billing", START, 9, 9)],
        "broker string, topic string, subscription string, at_ns long, ready long, unacked long",
    )
    assert [tuple(row)[3:] for row in backlog.sampled(rows, START).collect()] == [(0, 5, 2)]


def test_only_what_should_have_come_waits(session: SparkSession) -> None:
    fates = session.createDataFrame(
        [
            ("d", "mb1", "orders", "a", True, 1, 5, 9),
            ("d", "mb1", "orders", "a", True, 0, 5, None),
            ("d", "mb1", "orders", "a", True, 1, 5, 4),
            ("d", "mb1", "orders", "a", False, 1, None, 4),
        ],
        "date string, broker string, topic string, subscription string, expected boolean,"
        " deliveries int, confirmed_ns long, first_ns long",
    )
    found = [(row.in_ns, row.out_ns) for row in backlog.waits(fates).collect()]
    assert sorted(found, key=str) == [(5, 5), (5, 9), (5, None)]
