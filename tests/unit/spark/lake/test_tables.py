from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from messagebus.recording.manifest import RunInvalid
from spark.lake.tables import DATE, RUN, Lake

SCHEMA = StructType(
    [
        StructField("n", LongType()),
        StructField(DATE, StringType()),
        StructField(RUN, StringType()),
    ]
)


def write(session: SparkSession, lake: Lake, run: str, day: str, *numbers: int) -> None:
    rows = session.createDataFrame([(n, day, run) for n in numbers], SCHEMA)
    lake.write("counts", rows, by=(DATE, RUN), replaces=[f"date={day}/run_id={run}"])


def kept(rows: DataFrame) -> set[tuple[int, str, str]]:
    return {(row.n, row.date, row.run_id) for row in rows.collect()}


def test_writing_replaces_its_own_day_and_run_and_nothing_else(
    session: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(tmp_path)
    write(session, lake, "007", "2026-11-20", 1)
    write(session, lake, "007", "2026-11-21", 2, 3)
    write(session, lake, "r2", "2026-11-21", 4)
    write(session, lake, "007", "2026-11-21", 5)
    assert kept(lake.read(session, "counts", SCHEMA)) == {
        (1, "2026-11-20", "007"),
        (5, "2026-11-21", "007"),
        (4, "2026-11-21", "r2"),
    }
    one = lake.read(session, "counts", SCHEMA, "date=*/run_id=007")
    assert {n for n, _, _ in kept(one)} == {1, 5}


def test_writing_nothing_leaves_nothing_of_what_was_there(
    session: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(tmp_path)
    write(session, lake, "r1", "2026-11-21", 1)
    write(session, lake, "r2", "2026-11-21", 2)
    write(session, lake, "r1", "2026-11-21")
    assert kept(lake.read(session, "counts", SCHEMA)) == {(2, "2026-11-21", "r2")}


def test_a_table_that_is_not_there_has_no_rows(session: SparkSession, tmp_path: Path) -> None:
    assert Lake(tmp_path).read(session, "nothing", SCHEMA).count() == 0


def test_a_folder_may_have_any_name(session: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "a b [1]{2}*?%20")
    write(session, lake, "r1", "2026-11-21", 1)
    assert lake.read(session, "counts", SCHEMA, "date=*/run_id=r1").count() == 1


def test_notes_are_kept_by_run(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    assert (lake.runs(), lake.note("r1", "ingested")) == ([], {})
    lake.take_note("r1", "ingested", {"files": 3})
    assert (lake.runs(), lake.note("r1", "ingested")) == (["r1"], {"files": 3})


def test_a_run_has_the_days_of_all_its_tables(tmp_path: Path) -> None:
    for name in ("sent/date=2026-11-21", "sent/date=2026-11-20", "had/date=2026-11-22"):
        (tmp_path / name / "run_id=night").mkdir(parents=True)
    (tmp_path / "sent/date=2026-11-19/run_id=other").mkdir(parents=True)
    found = Lake(tmp_path).days("night", ["sent", "had", "nothing"])
    assert found == ["2026-11-20", "2026-11-21", "2026-11-22"]


def test_a_lake_that_cannot_be_written_is_told_before_any_work(tmp_path: Path) -> None:
    Lake(tmp_path / "lake").check()
    assert list((tmp_path / "lake").iterdir()) == []
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunInvalid, match="the lake cannot be written: "):
        Lake(tmp_path / "file").check()
    with pytest.raises(RunInvalid, match="the lake cannot be written: Not a directory"):
        Lake(tmp_path / "file" / "lake").check()
