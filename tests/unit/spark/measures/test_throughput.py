from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark.measures import throughput

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
    found = throughput.windows(seconds, 10).filter("kind = 'confirmed'").collect()
    assert {(row.broker, row.window, row.messages, row.bytes) for row in found} == {
        ("mb1", 0, 3, 60),
        ("mb2", 10, 1, 40),
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
