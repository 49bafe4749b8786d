"""One of each fault in some thousands of messages: found, with its id."""

from __future__ import annotations

import dataclasses

import pytest

from bench.figures.measure.audit import agree
from bench.figures.measure.oracle import audit as audit_by_duckdb
from bench.figures.measure.oracle import opened
from reports.page import render_text
from spark.command import Answer
from spark.jobs import audit
from tests.unit.spark.conftest import Laid, Planted


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
    """It is the day after the run's: of that one nothing is counted."""
    answer = audit.measure(dataclasses.replace(planted_run.run, day="2026-09-22"))
    assert answer.page.faults == ("nothing was published",)
    assert not any(answer.found["verdicts"].values())
    assert (answer.found["late"], answer.found["suspects"]) == ([], [])


def test_a_day_is_judged_with_its_neighbours(planted_run: Planted, answer: Answer) -> None:
    """The run lies in one day, so that day is the whole run."""
    found = audit.measure(dataclasses.replace(planted_run.run, day="2026-09-21")).found
    for name in ("verdicts", "late", "suspects"):
        assert found[name] == answer.found[name]


def test_spark_and_duckdb_agree_on_a_run_with_one_of_each(laid: Laid) -> None:
    planted = laid.planted
    found = audit.measure(laid.run).found
    with opened(laid.run.lake.root) as database:
        assert agree(found, audit_by_duckdb(database)) == []
    assert {(row["verdict"], row["message_id"]) for row in found["suspects"]} == {
        ("lost", planted.lost),
        ("altered", planted.altered),
        ("unexplained", planted.doubled),
        ("orphan", planted.orphan),
    }
    assert [row["message_id"] for row in found["late"]] == [planted.late]
