"""Scans that DuckDB answers too, and pages made of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import duckdb
import pytest

from reports.svg import COLOURS
from spark import pages
from spark.measures.run import Run
from tests.support.duckdb_answers import answer, different, fed, opened
from tests.support.spark_questions import answered
from tests.unit.spark.conftest import Laid, Planted


@dataclass(frozen=True)
class Both:
    run: Run
    duck: duckdb.DuckDBPyConnection

    def spark_says(self, question: str) -> Any:
        return answered(self.run, question)

    def duck_says(self, question: str) -> Any:
        return json.loads(json.dumps(answer(self.duck, question)))


@pytest.fixture(scope="module")
def both(laid: Laid) -> Iterator[Both]:
    with opened(laid.run.lake.root) as duck:
        yield Both(laid.run, duck)


@pytest.mark.parametrize("question", ["seconds", "bins", "latency"])
def test_spark_and_duckdb_give_the_same_numbers(both: Both, question: str) -> None:
    found = both.spark_says(question)
    assert found == both.duck_says(question)
    assert found


def test_a_backlog_is_the_same_from_fates_and_from_events_alone(both: Both) -> None:
    found = both.spark_says("depths")
    assert found == both.duck_says("depths") == both.duck_says("depths_of_events")
    # One is lost: it waits at the end.
    assert sum(entered - left for *_, entered, left, _, _, _ in found) == 1


def test_all_percentiles_of_all_groups_are_those_of_a_histogram_that_was_fed(both: Both) -> None:
    rows, reference = both.spark_says("percentiles"), fed(both.run.lake.root)
    assert different(rows, reference) == []
    assert sum(len(row["percentiles"]) for row in rows) >= 96
    assert sum(row["total"] for row in rows) == both.run.ingested.total("published", "good")
    rows[0]["percentiles"]["99"] += 1
    assert len(different(rows[:-1], reference)) == 2


def test_fates_are_those_of_duckdb(both: Both) -> None:
    found = both.spark_says("verdicts")
    assert found == both.duck_says("verdicts")
    # Or a second round would cost nothing.
    assert both.run.session.sparkContext._jsc.getPersistentRDDs().isEmpty()


def test_windows_are_no_more_than_a_chart_can_show() -> None:
    assert [pages.window_for(s) for s in (0, 1, 150, 151, 3_000)] == [1, 1, 1, 2, 20]


def test_the_largest_series_are_drawn_and_holes_are_zero() -> None:
    rates = {("a", at): 1.0 for at in (0, 4)}
    rates |= {(f"n{n}", 0): 2.0 for n in range(len(COLOURS) - 1)} | {("small", 0): 0.5}
    drawn = pages.series_by(rates, width=2)
    assert drawn[-1].label == "2 others"
    assert [(one.x, one.y) for one in drawn if one.label == "a"] == [([0, 2, 4], [1.0, 0.0, 1.0])]
    assert pages.series_by({}) == []


def test_what_is_not_drawn_by_itself_is_drawn_together() -> None:
    ages = {(f"n{n:02}", at): float(n) for n in range(12) for at in (0, 1)}
    added = pages.series_by(ages)
    assert len(added) == len(COLOURS)
    assert added[-1].label == "5 others"
    assert list(added[-1].y) == [0 + 1 + 2 + 3 + 4] * 2
    oldest = pages.series_by(ages, together=max)
    assert list(oldest[-1].y) == [4, 4]


def test_an_incident_is_a_mark_and_one_that_lasts_is_a_span(planted_run: Planted) -> None:
    drawn = pages.marks_and_spans(planted_run.run)
    names = [mark.label for mark in drawn["marks"]]
    assert names[-3:] == ["127.0.0.13 killed", "127.0.0.13 back", "balancer reloaded"]
    killed, back = (drawn["marks"][at].at_s for at in (-3, -2))
    down = [span for span in drawn["spans"] if span.alarm]
    assert [(span.from_s, span.to_s) for span in down] == [(killed, back)]


def test_the_input_is_told_with_what_was_left_out(planted_run: Planted) -> None:
    page = pages.page_of(planted_run.run, "audit", words={}, tables="fates", verdict="")
    text = page.words["input"]
    assert "2,000 published" in text
    assert "1 bad line " in text
    assert page.meta[0].startswith("started 2026-09-21")


def test_brokers_of_one_port_are_told_apart_by_their_hosts() -> None:
    assert pages.short_names(["a:1", "b:1"]) == {"a:1": "a", "b:1": "b"}
    assert pages.short_names(["a:1", "a:2"]) == {"a:1": "a:1", "a:2": "a:2"}
