from __future__ import annotations

import dataclasses

from pyspark.sql import SparkSession

from spark.measures import latency
from spark.measures.latency import CONFIRM, END_TO_END, RECEIVED_SENT, SENT
from tests.support.literal_events import RUN


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
