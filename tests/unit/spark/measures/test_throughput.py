"""Throughput, latency, backlog, and how evenly brokers share it."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from spark.measures import backlog, latency, throughput
from spark.measures.imbalance import hot_keys, imbalance, imbalance_of, key_loads, keys
from spark.measures.latency import CONFIRM, END_TO_END, RECEIVED_SENT, SENT
from tests.support.literal_events import RUN

SECOND = 1_000_000_000
# A wall-clock time that no double can hold.
START = 1_790_000_000 * SECOND + 123_456_789


@pytest.fixture(scope="module")
def seconds(session: SparkSession) -> Any:
    published = session.createDataFrame(
        [
            ("d", "p1", "mb1", "orders", "confirmed", START, 10),
            ("d", "p1", "mb1", "orders", "confirmed", START + SECOND - 1, 20),
            ("d", "p1", "mb1", "orders", "confirmed", START + SECOND, 30),
            ("d", "p2", "mb2", "orders", "confirmed", START + 11 * SECOND, 40),
            ("d", "p2", "", "orders", "unknown", None, 50),
        ],
        "date string, publisher string, broker string, topic string, outcome string,"
        " confirmed_ns long, size int",
    )
    delivered = session.createDataFrame(
        [
            ("d", "p1", "mb1", "orders", "billing", START + 2, 10),
            ("d", "p1", "mb1", "orders", "billing", START + 3, 10),
            ("d", None, "mb1", "orders", "audit", START - 1, 10),
        ],
        "date string, publisher string, broker string, topic string, subscription string,"
        " received_ns long, size int",
    )
    return throughput.per_second(published, delivered, START)


def test_seconds_begin_with_the_run(seconds: Any) -> None:
    assert {tuple(row) for row in seconds.collect()} == {
        ("d", "confirmed", "mb1", "orders", "", "p1", 0, 2, 30),
        ("d", "confirmed", "mb1", "orders", "", "p1", 1, 1, 30),
        ("d", "confirmed", "mb2", "orders", "", "p2", 11, 1, 40),
        ("d", "delivered", "mb1", "orders", "billing", "p1", 0, 2, 20),
        ("d", "delivered", "mb1", "orders", "audit", "", -1, 1, 10),
    }


def test_windows_add_seconds_up(seconds: Any) -> None:
    assert {tuple(row) for row in throughput.windows(seconds, 10).collect()} == {
        ("confirmed", "mb1", 0, 3),
        ("confirmed", "mb2", 10, 1),
        ("delivered", "orders/billing", 0, 2),
        ("delivered", "orders/audit", -10, 1),
    }


def test_totals_have_active_seconds_and_a_best_one(seconds: Any) -> None:
    assert {tuple(row) for row in throughput.totals(seconds, ["broker"]).collect()} == {
        ("confirmed", "mb1", 3, 60, 2, 2),
        ("confirmed", "mb2", 1, 40, 1, 1),
        ("delivered", "mb1", 3, 30, 2, 2),
    }


def test_publishers_are_counted_by_outcome(session: SparkSession) -> None:
    rows = session.createDataFrame(
        [
            ("p1", "confirmed", 1, 10),
            ("p1", "confirmed", 3, 10),
            ("p1", "refused", 1, 5),
            ("p2", "unknown", 2, 1),
        ],
        "publisher string, outcome string, attempts int, size int",
    )
    found = {row.publisher: row.asDict() for row in throughput.publishers(rows).collect()}
    assert found["p1"] == {
        "publisher": "p1",
        "published": 3,
        "confirmed": 2,
        "refused": 1,
        "unroutable": 0,
        "unknown": 0,
        "spooled": 0,
        "retried": 1,
        "bytes": 25,
    }
    assert (found["p2"]["unknown"], found["p2"]["retried"]) == (1, 1)


def test_samples_are_first_deliveries_and_confirms_only(session: SparkSession) -> None:
    published = session.createDataFrame(
        [("d", "mb1", "confirmed", 100, 130, 150), ("d", "", "unknown", 100, 130, None)],
        "date string, broker string, outcome string, intended_ns long, sent_ns long, confirmed_ns long",
    )
    fates = session.createDataFrame(
        [
            ("d", "orders", "billing", True, 3, 90, "mb2", 100, 85, 2),
            ("d", "orders", "audit", True, 0, None, None, 100, 100, 1),
            ("d", "orders", "audit", False, 1, 500, "mb1", 100, 100, 1),
        ],
        "date string, topic string, subscription string, expected boolean, deliveries int, first_ns long,"
        " first_broker string, intended_ns long, sent_ns long, attempts int",
    )
    assert {tuple(row) for row in latency.samples(published, fates).collect()} == {
        ("d", CONFIRM, "mb1", "", 100, 50, False),
        ("d", SENT, "mb1", "", 100, 20, False),
        ("d", END_TO_END, "mb2", "orders/billing", 100, -10, True),
        ("d", RECEIVED_SENT, "mb2", "orders/billing", 100, 5, True),
    }


def test_only_what_was_sent_once_shows_that_clocks_differ(session: SparkSession) -> None:
    samples = session.createDataFrame(
        [
            (END_TO_END, -9, False),
            (END_TO_END, -50, True),
            (END_TO_END, 7, False),
            (SENT, 1, False),
        ],
        "measure string, value_ns long, resent boolean",
    )

    def told(measure: str) -> list[int]:
        asked = [value.alias(name) for name, value in latency.below(measure).items()]
        return [*samples.agg(*asked).collect()[0]]

    assert told(END_TO_END) == [2, 1, 9]
    assert told(SENT) == [0, 0, 0]


def test_intended_is_said_only_where_it_was_recorded() -> None:
    known = dataclasses.replace(RUN, loop="open")
    assert latency.names(known) == latency.MEASURE_NAMES
    for manifests in ((RUN,), (known, RUN), (dataclasses.replace(RUN, loop="closed"),)):
        assert latency.names(*manifests)[CONFIRM] == "publish: handed over to confirmed"


def test_bins_are_scoped_to_the_run_the_broker_and_the_subscription(session: SparkSession) -> None:
    bins = session.createDataFrame(
        [
            (CONFIRM, "mb1", "", 0, 7, 2),
            (CONFIRM, "mb1", "", 10, 7, 1),
            (CONFIRM, "mb2", "", 0, 8, 5),
            (END_TO_END, "mb1", "orders/billing", 0, 7, 4),
        ],
        "measure string, broker string, subscription string, window long, bin int, n long",
    )
    assert {tuple(row) for row in latency.scoped(bins).collect()} == {
        (CONFIRM, "all", "", 7, 3),
        (CONFIRM, "all", "", 8, 5),
        (CONFIRM, "broker", "mb1", 7, 3),
        (CONFIRM, "broker", "mb2", 8, 5),
        (END_TO_END, "all", "", 7, 4),
        (END_TO_END, "broker", "mb1", 7, 4),
        (END_TO_END, "subscription", "orders/billing", 7, 4),
    }


WHOLE_SECOND = 1_790_000_000 * SECOND
Span = tuple[float, float | None]


def waits(session: SparkSession, spans: list[Span]) -> DataFrame:
    rows = [
        (
            "mb1",
            "orders",
            "billing",
            WHOLE_SECOND + int(begin * SECOND),
            None if end is None else WHOLE_SECOND + int(end * SECOND),
        )
        for begin, end in spans
    ]
    return session.createDataFrame(
        rows, "broker string, topic string, subscription string, in_ns long, out_ns long"
    )


def depths(session: SparkSession, spans: list[Span], end_s: int) -> dict[int, tuple[int, float]]:
    found = backlog.depths(
        waits(session, spans), WHOLE_SECOND, WHOLE_SECOND + end_s * SECOND
    ).collect()
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
    found = backlog.drains(
        backlog.depths(waits(session, spans), WHOLE_SECOND, WHOLE_SECOND + 20 * SECOND)
    )
    row = found.first()
    assert row is not None
    assert (row.peak, row.peak_second, row.empty_second) == (3, 0, 9)
    assert row.age_ms == pytest.approx(9200)


def test_what_is_never_taken_is_never_empty(session: SparkSession) -> None:
    found = backlog.drains(
        backlog.depths(waits(session, [(0.1, None)]), WHOLE_SECOND, WHOLE_SECOND + 5 * SECOND)
    )
    row = found.first()
    assert row is not None
    assert (row.peak, row.empty_second) == (1, None)


def test_the_last_sample_of_a_second_counts(session: SparkSession) -> None:
    rows = session.createDataFrame(
        [
            ("mb1", "orders", "billing", WHOLE_SECOND + 1, 5, 2),
            ("mb1", "orders", "billing", WHOLE_SECOND, 9, 9),
        ],
        "broker string, topic string, subscription string, at_ns long, ready long, unacked long",
    )
    assert [tuple(row)[3:] for row in backlog.sampled(rows, WHOLE_SECOND).collect()] == [(0, 5, 2)]


def test_only_what_should_have_come_waits(session: SparkSession) -> None:
    where = ("d", "mb1", "orders", "a")
    fates = session.createDataFrame(
        [
            (*where, True, 1, 1, 3, 5, 9),
            (*where, True, 0, 1, 3, 5, None),
            (*where, True, 1, 1, 3, 5, 4),  # the delivery overtook the confirm
            (*where, True, 1, 1, 6, 8, 4),  # it came before its sending: clocks differ
            (*where, True, 1, 2, 6, 8, 4),  # or the first attempt was delivered
            (*where, False, 1, 1, 3, None, 4),
        ],
        "date string, broker string, topic string, subscription string, expected boolean,"
        " deliveries int, attempts int, sent_ns long, confirmed_ns long, first_ns long",
    )
    found = [(row.in_ns, row.out_ns, row.early_ns) for row in backlog.waits(fates).collect()]
    wanted = [(5, 4, 0), (5, 9, 0), (5, None, 0), (8, 4, 0), (8, 4, 2)]
    assert sorted(found, key=str) == wanted


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
