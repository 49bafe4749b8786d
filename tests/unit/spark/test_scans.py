"""Spark and DuckDB give the same numbers, and percentiles are those of hdrhistogram, on a made run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import duckdb
import pytest

from bench.figures.measure.oracle import answer, opened
from bench.figures.measure.scans import CELLS_MIN, different, fed
from spark.measures.run import Run
from spark.scans import answered
from tests.support.events import BROKERS
from tests.unit.spark.conftest import Laid


@dataclass(frozen=True)
class Both:
    run: Run
    duck: duckdb.DuckDBPyConnection

    def spark_says(self, question: str) -> Any:
        [line] = answered(self.run, [f"{question}\n"])
        return json.loads(line)

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
    assert sum(entered - left for *_, entered, left, _, _ in found) == 1


def test_all_percentiles_of_all_groups_are_those_of_a_histogram_that_was_fed(both: Both) -> None:
    rows, reference = both.spark_says("percentiles"), fed(both.run.lake.root)
    assert different(rows, reference) == []
    assert sum(len(row["percentiles"]) for row in rows) > CELLS_MIN
    assert sum(row["total"] for row in rows) == both.run.ingested.total("published", "good")
    rows[0]["percentiles"]["99"] += 1
    assert len(different(rows[:-1], reference)) == 2


def test_fates_are_the_same_from_a_join_and_from_duckdb(both: Both) -> None:
    found = both.spark_says("verdicts")
    assert found == both.spark_says("joined") == both.duck_says("verdicts")
    # Or a second round would cost nothing.
    assert both.run.session.sparkContext._jsc.getPersistentRDDs().isEmpty()


def test_an_approximation_has_as_many_groups(both: Both) -> None:
    assert [row[0] for row in both.spark_says("approximate")] == sorted(BROKERS)
