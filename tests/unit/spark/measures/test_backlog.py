"""The depth of queues at any time, against counting at each event; and clocks that differ."""

from __future__ import annotations

import random

import pytest
from pyspark.sql import SparkSession

from spark.measures import backlog

S = 1_000_000_000
WAITS = "broker string, topic string, subscription string, in_ns long, out_ns long, early_ns long"


@pytest.mark.parametrize("seed", range(3))
def test_the_most_at_once_is_that_of_any_moment_of_a_second(
    session: SparkSession, seed: int
) -> None:
    """All wait between two ends of seconds; some are received before their confirm, some never."""
    chance = random.Random(seed)
    messages = []
    for _ in range(60):
        came = chance.randrange(5) * S + chance.randrange(1, 9) * S // 10
        waited = chance.choice([-S // 10, 0, S // 10, S // 5, S, None])
        gone = None if waited is None else came + waited
        messages.append((chance.choice("ab"), came, gone))
    rows = [(broker, "orders", "billing", came, gone, 0) for broker, came, gone in messages]
    found = backlog.depths(session.createDataFrame(rows, WAITS), 0, 8 * S).collect()
    most = {
        broker: max(
            sum(
                one == broker and came <= at and (gone is None or gone > at)
                for one, came, gone in messages
            )
            for at in {came for _, came, _ in messages}
        )
        for broker in "ab"
    }
    assert {b: max(row.most for row in found if row.broker == b) for b in "ab"} == most
    peaks = backlog.drains(session.createDataFrame(found)).collect()
    assert {row.broker: row.peak for row in peaks} == most
    assert all(row.most >= row.depth for row in found)


def test_messages_that_came_before_they_were_sent_show_what_clocks_differ_by(
    session: SparkSession,
) -> None:
    rows = [("a", "orders", "billing", 9, 4, 3), ("a", "orders", "billing", 9, 8, 0)]
    waits = session.createDataFrame(rows, WAITS)
    assert backlog.early(waits) == {"backwards": 1, "error_ns": 3}
