"""One of each fault in some thousands of messages: found, with its id."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bench.figures.measure.audit import agree
from bench.figures.measure.made import lay
from bench.figures.measure.oracle import audit as audit_by_duckdb
from bench.figures.measure.oracle import opened
from reports.page import render_text
from spark.command import Answer
from spark.jobs import audit
from spark.lake.ingest import ingested
from spark.lake.tables import Lake
from spark.measures.run import Run
from tests.unit.spark.conftest import Planted


@pytest.fixture(scope="module")
def answer(planted_run: Planted) -> Answer:
    return audit.measure(planted_run.run)


def test_one_of_each_fault_is_found_with_its_id(planted_run: Planted, answer: Answer) -> None:
    found, ids = answer.found, planted_run.truth.ids
    assert {(row["verdict"], row["message_id"]) for row in found["suspects"]} == {
        (verdict, ids[verdict][0]) for verdict in ("lost", "altered", "unexplained", "orphan")
    }
    assert [row["message_id"] for row in found["late"]] == ids["swapped"]
    assert found["order"]["out_of_order"] == 1
    text = render_text(answer.page)
    assert all(message_id in text for each in ids.values() for message_id in each)
    assert len(answer.page.faults) == 5


def test_every_id_has_one_verdict(planted_run: Planted, answer: Answer) -> None:
    events = [planted_run.run.events(kind) for kind in ("published", "delivered")]
    ids = {row.message_id for rows in events for row in rows.select("message_id").collect()}
    assert sum(answer.found["verdicts"].values()) == len(ids)
    [orphan] = planted_run.truth.ids["orphan"]
    assert len(ids) == planted_run.truth.published + len([orphan])


def test_a_day_without_anything_says_so(planted_run: Planted) -> None:
    answer = audit.measure(dataclasses.replace(planted_run.run, day="2020-01-01"))
    assert answer.page.faults == ("nothing was published",)


def test_a_day_is_judged_with_its_neighbours(planted_run: Planted, answer: Answer) -> None:
    """The run lies in one day, so that day is the whole run."""
    whole = answer.found["verdicts"]
    day = dataclasses.replace(planted_run.run, day="2026-09-21")
    assert audit.measure(day).found["verdicts"] == whole


def test_spark_and_duckdb_agree_on_a_run_with_one_of_each(
    session: SparkSession, tmp_path: Path
) -> None:
    planted = lay(tmp_path, 5000)
    lake = Lake(tmp_path)
    found = audit.measure(Run(session, lake, ingested(lake, "made"))).found
    with opened(tmp_path) as database:
        assert agree(found, audit_by_duckdb(database)) == []
    assert {(row["verdict"], row["message_id"]) for row in found["suspects"]} == {
        ("lost", planted.lost),
        ("altered", planted.altered),
        ("unexplained", planted.doubled),
        ("orphan", planted.orphan),
    }
    assert [row["message_id"] for row in found["late"]] == [planted.late]
