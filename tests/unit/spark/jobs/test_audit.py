"""One of each fault in some thousands of messages: found, with its id."""

from __future__ import annotations

import dataclasses

from spark.jobs import audit
from spark.page import render_text
from tests.unit.spark.conftest import Planted


def test_one_of_each_fault_is_found_with_its_id(planted_run: Planted) -> None:
    answer = audit.measure(planted_run.run)
    found, ids = answer.found, planted_run.truth.ids
    assert {(row["verdict"], row["message_id"]) for row in found["suspects"]} == {
        (verdict, ids[verdict][0]) for verdict in ("lost", "altered", "unexplained", "orphan")
    }
    assert [row["message_id"] for row in found["late"]] == ids["swapped"]
    assert found["order"]["out_of_order"] == 1
    text = render_text(answer.page)
    assert all(message_id in text for each in ids.values() for message_id in each)
    assert len(answer.page.faults) == 5


def test_a_day_without_anything_says_so(planted_run: Planted) -> None:
    answer = audit.measure(dataclasses.replace(planted_run.run, day="2020-01-01"))
    assert answer.page.faults == ("nothing was published",)


def test_a_day_is_judged_with_its_neighbours(planted_run: Planted) -> None:
    """The run lies in one day, so that day is the whole run."""
    whole = audit.measure(planted_run.run).found["verdicts"]
    day = dataclasses.replace(planted_run.run, day="2026-09-21")
    assert audit.measure(day).found["verdicts"] == whole
