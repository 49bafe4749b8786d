"""Judging and naming; the numbers themselves are tested with a whole run in test_pipeline."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from messagebus.telemetry.eventfile import Anchor
from messagebus.telemetry.manifest import ConsumerEntry, Incident, Manifest
from spark.lake.events import MISSING
from spark.lake.ingest import Ingested
from spark.measures.audit import COUNTS, TOTALS
from spark.page.pipeline import Numbers, Rows
from spark.page.summary import DoesNotAddUp, summarize

SECOND = 1_000_000_000
RUN = Manifest(
    run_id="r",
    topics={"orders": ("billing",)},
    brokers=("mb1:5672", "mb2:5672"),
    anchor=Anchor("h", "c", 0),
    start_ns=10 * SECOND,
    end_ns=20 * SECOND,
    grace_ns=0,
    publishers=("p1",),
    consumers=(ConsumerEntry("c1", "billing"),),
    prefetch=None,
    incidents=(Incident("kill", "mb1:5672", 12 * SECOND, 13 * SECOND),),
    complete=True,
)


def ingested(
    manifest: Manifest = RUN, *, bad: int = 0, delivered: int = 4, **more: Any
) -> Ingested:
    """Return one ingested file of each kind."""
    file = {"kind": "published", "good": 4, "anchors": 1, "has_anchor": True, "examples": {}}
    wrong = {MISSING: bad} if bad else {}
    files = {
        "published-p1.ndjson": file | {"bad": wrong, "examples": dict.fromkeys(wrong, "{}")},
        "delivered-c1.ndjson": file | {"kind": "delivered", "good": delivered, "bad": {}},
    }
    return Ingested(manifest=manifest, files=files, clock_spread_ns=5_000_000, **more)


def total(of: str, **known: object) -> dict[str, object]:
    dims = dict.fromkeys(column for columns in TOTALS.values() for column in columns)
    return {"of": of} | dims | dict.fromkeys(COUNTS, 0) | known


def numbers(*, lost: int = 0, ids: int = 4, negative: int = 0) -> Numbers:
    """Return the numbers of four messages of one publisher, all on the first broker."""
    pair = {"expected": 4, "delivered": 4 - lost, "deliveries": 4 - lost, "lost": lost}
    published: Rows = [
        {
            "publisher": "p1",
            "published": 4,
            "confirmed": 4,
            "refused": 0,
            "unroutable": 0,
            "unknown": 0,
            "retried": 0,
            "bytes": 40,
        }
    ]
    verdicts = [total("verdict", verdict="ok", outcome="confirmed", messages=4 - lost)]
    if lost:
        verdicts.append(total("verdict", verdict="lost", outcome="confirmed", messages=lost))
    load = {"kind": "confirmed", "broker": "mb1:5672", "messages": 4, "bytes": 40}
    return Numbers(
        negative={"confirm_from_sent": negative, "received_from_intended": 3},
        window_s=1,
        rows={
            "distinct_ids": [{"ids": ids}],
            "out_of_order": [{"count": 0}],
            "totals": [
                total("subscription", topic="orders", subscription="billing", **pair),
                total("publisher", publisher="p1", messages=4, **pair),
                total("broker", broker="mb1:5672", messages=4, **pair),
                *verdicts,
            ],
            "publishers": published,
            "publisher_gaps": [{"publisher": "p1", "gap_ns": 300_000_000, "until_ns": 12 * SECOND}],
            "broker_gaps": [],
            "brokers": [load | {"active_s": 2, "peak_per_s": 3}],
            "timeline": [
                load | {"topic": "orders", "subscription": "", "window": 1, "messages": 4}
            ],
            "latency": [],
            "latency_timeline": [],
        },
    )


def test_a_run_without_faults_holds() -> None:
    found = summarize(numbers(), ingested(), bad_max=0)
    assert (found["holds"], found["faults"]) == (True, [])
    assert (found["published"], found["confirmed"], found["lost"]) == (4, 4, 0)


def test_one_lost_pair_is_a_fault() -> None:
    found = summarize(numbers(lost=1), ingested(delivered=3), bad_max=0)
    assert found["faults"] == ["1 confirmed and never delivered"]
    assert [row["lost"] for row in found["brokers"]] == [1, 0]
    assert found["publishers"][0]["lost"] == 1


@pytest.mark.parametrize(("bad_max", "faults"), [(1, ["2 bad lines, 1 allowed"]), (2, [])])
def test_bad_lines_are_put_up_with_as_far_as_asked(bad_max: int, faults: list[str]) -> None:
    found = summarize(numbers(), ingested(bad=2), bad_max=bad_max)
    assert found["faults"] == faults
    assert found["lines"]["bad_by_reason"] == {MISSING: 2}


def test_a_run_that_was_cut_short_does_not_hold() -> None:
    cut = dataclasses.replace(RUN, complete=False, end_ns=None)
    found = summarize(numbers(), ingested(cut), bad_max=0)
    assert found["faults"] == ["the run did not end in order: what it has is counted, and no more"]
    assert found["run"]["duration_s"] is None


def test_an_audit_that_does_not_add_up_is_never_shown() -> None:
    with pytest.raises(DoesNotAddUp, match="4 messages judged, 5 distinct ids"):
        summarize(numbers(ids=5), ingested(), bad_max=0)


def test_an_idle_broker_counts_for_the_balance() -> None:
    found = summarize(numbers(), ingested(), bad_max=0)
    assert found["imbalance"]["confirmed"]["max_over_mean"] == 2
    assert found["imbalance"]["deliveries"] is None
    assert [row["confirmed_per_s"] for row in found["brokers"]] == [2, 0]


def test_times_are_seconds_since_the_start() -> None:
    found = summarize(numbers(), ingested(), bad_max=0)
    assert found["run"]["incidents"][0]["at_s"] == 2
    gap = found["publishers"][0]
    assert (gap["longest_gap_ms"], gap["longest_gap_at_s"]) == (300, 1.7)
    assert found["brokers"][0]["longest_gap_ms"] is None


def test_a_clock_that_went_back_is_a_fault_and_two_clocks_that_differ_are_none() -> None:
    found = summarize(numbers(negative=2), ingested(), bad_max=0)
    assert found["faults"] == ["2 publishes with an end before the begin: a clock went back"]
    assert found["negative_latencies"]["received_from_intended"] == 3


def test_a_file_that_cannot_be_read_is_a_fault() -> None:
    found = summarize(numbers(), ingested(missing=("delivered-c2.parquet",)), bad_max=0)
    assert found["faults"] == ["delivered-c2.parquet cannot be read: its rows are in no number"]
