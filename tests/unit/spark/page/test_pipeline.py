"""A run with every fault planted, from its files to its numbers; the session is shared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.lake.ingest import ingest, plan
from spark.lake.tables import Lake
from spark.measures.run import Run
from spark.page.pipeline import BIN_WINDOW_S, collect
from spark.page.report import render_html, render_text
from spark.page.summary import DoesNotAddUp, Summary, summarize
from tests.support.events import (
    ADDED,
    KILLED,
    PUBLISHERS,
    REMOVED,
    Faults,
    Truth,
    write_run,
)

FAULTS = Faults(
    lost=3,
    altered=2,
    owed=5,
    unknown=4,
    acked_without_proof=6,
    unexplained=2,
    swapped=1,
    orphans=2,
    refused=2,
    unroutable=1,
    unknown_absent=3,
    unknown_delivered=4,
    cut_lines=1,
    wrong_types=2,
    missing_fields=1,
    empty_lines=1,
)


@pytest.fixture(scope="module")
def planted(
    session: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Truth, Summary, Run]:
    folder = tmp_path_factory.mktemp("run")
    truth = write_run(folder, messages=400, faults=FAULTS)
    lake = Lake(tmp_path_factory.mktemp("out"))
    run = Run(session, lake, ingest(session, lake, plan(folder, lake)))
    numbers = collect(run)
    summary = summarize(numbers, run.ingested, bad_max=0)
    numbers.rows["distinct_ids"][0]["ids"] += 1
    with pytest.raises(DoesNotAddUp, match="402 messages judged, 403 distinct ids"):
        summarize(numbers, run.ingested, bad_max=0)
    return truth, summary, run


def test_every_planted_fault_is_counted(planted: tuple[Truth, Summary, Run]) -> None:
    truth, found, _ = planted
    assert (found["published"], found["confirmed"]) == (truth.published, truth.confirmed)
    assert (found["expected"], found["delivered"]) == (truth.expected, truth.delivered)
    assert found["deliveries"] == truth.deliveries
    assert (found["lost"], found["altered"]) == (FAULTS.lost, FAULTS.altered)
    assert found["doubled"] == {
        "total": 17,
        "unknown": FAULTS.unknown,
        "owed": FAULTS.owed,
        "acked_without_proof": FAULTS.acked_without_proof,
        "unexplained": FAULTS.unexplained,
    }
    assert (found["orphan_deliveries"], found["unexpected"], found["reused_ids"]) == (2, 0, 0)
    assert found["unconfirmed"] == {
        "refused": 2,
        "unroutable": 1,
        "unknown": 7,
        "pairs_delivered": 8,
        "pairs_absent": 12,
    }


def test_the_verdict_names_every_fault(planted: tuple[Truth, Summary, Run]) -> None:
    _, found, _ = planted
    assert not found["holds"]
    assert found["faults"] == [
        "3 confirmed and never delivered",
        "2 delivered with another body",
        "2 delivered again without an explanation",
        "2 delivered and never published",
        "1 delivered after a later one of the same publisher and key",
        "5 bad lines, 0 allowed",
        # A message that changed places with a later one came before it was sent.
        "1 sample of end to end: handed over to received below zero: a clock went back",
        "1 sample of end to end: sent to received below zero: a clock went back",
    ]


def test_every_line_is_accounted_for(planted: tuple[Truth, Summary, Run]) -> None:
    truth, found, _ = planted
    lines = found["lines"]
    assert lines["read"] == truth.lines
    assert lines["read"] == lines["anchors"] + sum(lines["good"].values()) + lines["bad"]
    assert sorted(lines["bad_by_reason"].values()) == [1, 1, 3]
    assert sum(row["lines"] for row in lines["bad_by_file"]) == 5


def test_every_broker_and_publisher_is_there(planted: tuple[Truth, Summary, Run]) -> None:
    truth, found, _ = planted
    brokers = {row["broker"]: row for row in found["brokers"]}
    assert sum(row["confirmed"] for row in brokers.values()) == truth.confirmed
    assert sum(row["deliveries"] for row in brokers.values()) == truth.deliveries
    assert brokers[KILLED]["doubled"]["acked_without_proof"] == FAULTS.acked_without_proof
    assert brokers[REMOVED]["active_s"] < brokers[KILLED]["active_s"]
    assert brokers[ADDED]["confirmed"] > 0
    assert all(row["longest_gap_ms"] > 0 for row in brokers.values())
    publishers = {row["publisher"]: row for row in found["publishers"]}
    assert set(publishers) == set(PUBLISHERS)
    assert sum(row["lost"] for row in publishers.values()) == FAULTS.lost
    # Held back for 300 ms at the kill.
    assert 150 < max(row["longest_gap_ms"] for row in publishers.values()) < 450
    assert found["imbalance"]["confirmed"]["count"] == 4
    assert found["out_of_order"] == FAULTS.swapped


def test_suspects_can_be_looked_up(planted: tuple[Truth, Summary, Run]) -> None:
    _, found, _ = planted
    verdicts = {row["message_id"]: row["verdict"] for row in found["suspects"]}
    assert sorted(verdicts.values()) == sorted(
        ["lost"] * 3 + ["altered"] * 2 + ["unexplained"] * 2 + ["orphan"] * 2
    )


def test_tables_are_kept_for_other_tools(
    session: SparkSession, planted: tuple[Truth, Summary, Run]
) -> None:
    truth, _, run = planted
    assert run.events("published").count() == truth.published
    assert run.events("delivered").count() == truth.deliveries
    assert run.fates().filter("expected").count() == truth.expected
    bins = session.read.parquet(str(run.lake.folder("latency_bins")))
    assert bins.filter(f"pmod(window, {BIN_WINDOW_S}) != 0").count() == 0
    confirms = bins.filter("measure = 'confirm_from_intended'").groupBy().sum("n").first()
    assert confirms is not None
    assert confirms[0] == truth.confirmed


def test_the_summary_is_json_and_renders(planted: tuple[Truth, Summary, Run]) -> None:
    _, found, _ = planted
    again = json.loads(json.dumps(found))
    assert "DOES NOT HOLD" in render_text(again)
    assert "does not hold" in render_html(again)


def test_a_folder_with_publishes_alone_loses_all(session: SparkSession, tmp_path: Path) -> None:
    truth = write_run(tmp_path, messages=40)
    for path in tmp_path.glob("delivered-*"):
        path.unlink()
    lake = Lake(tmp_path / "out")
    run = Run(session, lake, ingest(session, lake, plan(tmp_path, lake)))
    found = summarize(collect(run), run.ingested, bad_max=0)
    assert (found["lost"], found["delivered"]) == (truth.expected, 0)
    assert "80 confirmed and never delivered" in render_html(found)
