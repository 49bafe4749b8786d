"""Ingested again, grown, cut, of another run: rows are there once, and the rest is counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.events import CUT, FOREIGN, schema_of
from spark.ingest import QUARANTINE, QUARANTINE_SCHEMA, ingest, ingested, plan
from spark.lake import Lake
from spark.manifest import RunInvalid
from tests.support.events import write_run

PUBLISHER = "published-publisher-1.ndjson"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_run(tmp_path / "run", messages=40)
    return tmp_path / "run"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def rows(session: SparkSession, lake: Lake, kind: str) -> int:
    return lake.read(session, kind, schema_of(kind)).count()


def wrong(session: SparkSession, lake: Lake) -> dict[str, int]:
    found = lake.read(session, QUARANTINE, QUARANTINE_SCHEMA).groupBy("reason").count().collect()
    return {row["reason"]: row["count"] for row in found}


def test_ingesting_twice_reads_and_changes_nothing(
    session: SparkSession, run: Path, lake: Lake
) -> None:
    first = ingest(session, lake, plan(run, lake))
    assert len(first.read) == len(first.files) == 8
    assert (first.total("published", "good"), first.total("delivered", "good")) == (40, 80)
    again = ingest(session, lake, plan(run, lake))
    assert (again.read, again.files) == ((), first.files)
    assert (rows(session, lake, "published"), rows(session, lake, "delivered")) == (40, 80)
    assert ingested(lake, "run-1").files == first.files


def test_a_file_that_grows_is_read_again_in_place_of_what_it_gave(
    session: SparkSession, run: Path, lake: Lake
) -> None:
    path = run / PUBLISHER
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    first = ingest(session, lake, plan(run, lake))
    assert first.reasons() == wrong(session, lake) == {CUT: 1}
    assert rows(session, lake, "published") < 40
    path.write_text(whole)
    second = ingest(session, lake, plan(run, lake))
    assert second.read == (PUBLISHER,)
    assert (second.bad, rows(session, lake, "published")) == (0, 40)
    assert wrong(session, lake) == {}


def test_what_a_file_grew_by_since_it_was_looked_at_is_counted_and_read_again(
    session: SparkSession, run: Path, lake: Lake
) -> None:
    path = run / PUBLISHER
    whole = path.read_text()
    path.write_text(whole[: whole.index("\n", len(whole) // 2) + 1])
    planned = plan(run, lake)
    path.write_text(whole[:-20])
    first = ingest(session, lake, planned)
    assert (first.bad, first.total("published", "good")) == (1, 39)
    path.write_text(whole)
    second = ingest(session, lake, plan(run, lake))
    assert (second.read, second.bad, second.total("published", "good")) == ((PUBLISHER,), 0, 40)


def test_a_file_that_is_gone_keeps_its_rows(session: SparkSession, run: Path, lake: Lake) -> None:
    ingest(session, lake, plan(run, lake))
    (run / PUBLISHER).unlink()
    found = ingest(session, lake, plan(run, lake))
    assert (found.total("published", "good"), rows(session, lake, "published")) == (40, 40)


def test_rows_of_another_run_are_quarantined_and_counted(
    session: SparkSession, run: Path, lake: Lake
) -> None:
    path = run / PUBLISHER
    head, *lines = path.read_text().splitlines()
    lines[0] = json.dumps(json.loads(lines[0]) | {"run_id": "other"})
    path.write_text("\n".join([head, *lines]) + "\n")
    found = ingest(session, lake, plan(run, lake))
    assert found.reasons() == wrong(session, lake) == {FOREIGN: 1}
    assert found.files[PUBLISHER]["examples"][FOREIGN].startswith('{"run_id": "other"')


def test_two_runs_of_one_name_are_refused(
    session: SparkSession, run: Path, lake: Lake, tmp_path: Path
) -> None:
    ingest(session, lake, plan(run, lake))
    write_run(tmp_path / "other", messages=8)
    manifest = tmp_path / "other" / "manifest.json"
    values = json.loads(manifest.read_text())
    values["anchor"]["host"] = "elsewhere"
    manifest.write_text(json.dumps(values))
    with pytest.raises(RunInvalid, match="another run of the name 'run-1'"):
        ingest(session, lake, plan(tmp_path / "other", lake))
    assert rows(session, lake, "published") == 40


def test_a_run_that_was_not_ingested_is_said(lake: Lake) -> None:
    with pytest.raises(RunInvalid, match="no run 'night' was ingested; there are: none"):
        ingested(lake, "night")
