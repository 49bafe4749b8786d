"""Order against a loop over the deliveries in the order of their arrival."""

from __future__ import annotations

import random

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark.measures import order

Delivery = tuple[bytes, str, str, str, str, str | None, int | None, int, int, int, int]
COLUMNS = (
    "message_id binary, topic string, subscription string, first_consumer string,"
    " first_broker string, key string, sequence long, attempts int, deliveries int,"
    " first_redelivered int, first_ns long"
)


def delivery(number: int, at: int, sequence: int | None, **changed: object) -> Delivery:
    row = {
        "message_id": number.to_bytes(16, "big"),
        "topic": "orders",
        "subscription": "billing",
        "consumer": "c1",
        "broker": "mb1",
        "key": None,
        "sequence": sequence,
        "attempts": 1,
        "deliveries": 1,
        "redelivered": 0,
        "at": at,
    } | changed
    return tuple(row.values())  # type: ignore[return-value]


def late(session: SparkSession, rows: list[Delivery]) -> set[int]:
    arrivals = order.arrivals(fates_of(session, rows))
    return {int(row.message_id, 16) for row in order.out_of_order(arrivals).collect()}


def fates_of(session: SparkSession, rows: list[Delivery]) -> DataFrame:
    return session.createDataFrame(rows, COLUMNS).selectExpr("*", "'p1' AS publisher")


def test_the_one_that_comes_after_a_later_one_is_named(session: SparkSession) -> None:
    rows = [delivery(1, 10, 1), delivery(2, 12, 2), delivery(3, 11, 3), delivery(4, 13, 4)]
    assert late(session, rows) == {2}


def test_each_broker_consumer_and_key_has_an_order_of_its_own(session: SparkSession) -> None:
    rows = [
        delivery(1, 10, 9),
        delivery(2, 11, 1, broker="mb2"),
        delivery(3, 11, 2, consumer="c2"),
        delivery(4, 11, 3, key="k"),
        delivery(5, 11, 4, subscription="audit"),
    ]
    assert late(session, rows) == set()


def test_what_was_sent_again_or_redelivered_promises_no_order(session: SparkSession) -> None:
    rows = [
        delivery(1, 10, 9),
        delivery(2, 11, 1, attempts=2),
        delivery(3, 12, 2, redelivered=1),
        delivery(4, 13, None),
        delivery(5, 10, 8),
    ]
    assert late(session, rows) == set()
    assert [tuple(row) for row in order.left_out(fates_of(session, rows)).collect()] == [(2, 3)]


@pytest.mark.parametrize("seed", range(2))
def test_it_agrees_with_a_loop(session: SparkSession, seed: int) -> None:
    chance = random.Random(seed)
    rows = [
        delivery(n, chance.randrange(10_000), chance.randrange(500), broker=chance.choice("ab"))
        for n in range(300)
    ]
    highest: dict[str, int] = {}
    expected = set()
    for row in sorted(rows, key=lambda row: (row[10], row[6] or 0)):
        broker, sequence = row[4], row[6] or 0
        if sequence < highest.get(broker, 0):
            expected.add(int.from_bytes(row[0], "big"))
        highest[broker] = max(sequence, highest.get(broker, 0))
    assert late(session, rows) == expected


@pytest.mark.parametrize("seed", range(2))
def test_only_streams_with_something_late_in_them_are_sorted_whole(
    session: SparkSession, seed: int
) -> None:
    """Deliveries are late within a piece of time, and over many of them."""
    chance = random.Random(seed)
    rows = []
    for stream in range(30):
        ats = sorted(chance.sample(range(0, 40 * order.PIECE_NS, order.PIECE_NS // 8), 60))
        swapped = chance.sample(range(60), 2) if stream % 3 else []
        sequences = list(range(60))
        if swapped:
            one, other = swapped
            sequences[one], sequences[other] = sequences[other], sequences[one]
        rows += [
            delivery(stream * 100 + n, at, sequence, consumer=f"c{stream}")
            for n, (at, sequence) in enumerate(zip(ats, sequences, strict=True))
        ]
    arrivals = order.arrivals(fates_of(session, rows))
    doubtful = order.of_streams(arrivals, order.shaken(arrivals))
    names = {row.first_consumer for row in doubtful.select("first_consumer").distinct().collect()}
    assert names == {f"c{stream}" for stream in range(30) if stream % 3}
    some = {row.message_id for row in order.out_of_order(doubtful).collect()}
    assert some == {row.message_id for row in order.out_of_order(arrivals).collect()}
