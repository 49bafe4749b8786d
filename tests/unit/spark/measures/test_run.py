"""Midnight in the middle of a run: messages confirmed before it and delivered after it are not lost."""

from __future__ import annotations

import dataclasses
import json

import pytest
from pyspark.sql import SparkSession

from spark.lake.ingest import ingest, plan
from spark.lake.tables import Lake
from spark.measures.run import Run
from tests.support.events import MONOTONIC_START_NS, write_run

DAY_NS = 86_400_000_000_000
BEFORE, AFTER = "2026-09-20", "2026-09-21"


@pytest.fixture(scope="module")
def run(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of 20 s around midnight."""
    place = tmp_path_factory.mktemp("midnight")
    folder = place / "run"
    write_run(folder, messages=400)
    midnight = 1_790_000_000_000_000_000 // DAY_NS * DAY_NS
    wall = midnight - 10_000_000_000 - MONOTONIC_START_NS
    for path in [folder / "manifest.json", *folder.glob("*.ndjson")]:
        lines = path.read_text().split("\n") if path.suffix == ".ndjson" else [path.read_text()]
        head = json.loads(lines[0])
        head["anchor"]["wall_minus_monotonic_ns"] = wall
        path.write_text("\n".join([json.dumps(head), *lines[1:]]))
    lake = Lake(place / "lake")
    return Run(session, lake, ingest(session, lake, plan(folder, lake)))


def test_days_are_audited_with_what_came_after_midnight(run: Run) -> None:
    verdicts = {}
    for day in (BEFORE, AFTER):
        fates = dataclasses.replace(run, day=day).fates()
        verdicts[day] = {
            r["verdict"]: r["count"] for r in fates.groupBy("verdict").count().collect()
        }
    assert all(set(found) == {"ok"} for found in verdicts.values())
    assert sum(found["ok"] for found in verdicts.values()) == 800
    whole = run.fates().groupBy("date", "verdict").count().collect()
    assert {row["date"]: row["count"] for row in whole} == {
        day: found["ok"] for day, found in verdicts.items()
    }


def test_a_day_that_is_made_again_leaves_the_other_alone(run: Run) -> None:
    rows = run.session.createDataFrame([(1, BEFORE), (2, AFTER)], "n int, date string")
    assert run.keep("numbers", rows).count() == 2
    day = dataclasses.replace(run, day=AFTER)
    again = run.session.createDataFrame([(3, AFTER)], "n int, date string")
    assert [row.n for row in day.keep("numbers", again).collect()] == [3]
    files = run.lake.folder("numbers").glob(f"date={BEFORE}/run_id=run-1/*.parquet")
    assert len(list(files)) == 1


def test_fates_are_made_once_for_the_events_as_they_are(run: Run) -> None:
    run.fates()
    folder = run.lake.folder("fates")
    before = {path.name for path in folder.rglob("*.parquet")}
    run.fates()
    assert {path.name for path in folder.rglob("*.parquet")} == before
