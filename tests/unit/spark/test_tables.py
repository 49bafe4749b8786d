from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from spark.tables import Tables

SCHEMA = "run_id string, n long"


def test_a_second_run_leaves_the_first_and_an_empty_one_replaces(
    session: SparkSession, tmp_path: Path
) -> None:
    first, second = Tables(tmp_path, "r1"), Tables(tmp_path, "r2")
    first.write(session, "counts", session.createDataFrame([("r1", 1), ("r1", 2)], SCHEMA))
    second.write(session, "counts", session.createDataFrame([("r2", 3)], SCHEMA))
    again = second.write(session, "counts", session.createDataFrame([], SCHEMA))
    assert again.columns == ["n"]
    assert again.count() == 0
    assert {row.n for row in first.read(session, "counts").collect()} == {1, 2}
    assert first.folder("counts") == tmp_path / "tables" / "counts" / "run_id=r1"
    assert list(first.folder("counts").glob("*.parquet"))


def test_a_folder_may_have_any_name(session: SparkSession, tmp_path: Path) -> None:
    tables = Tables(tmp_path / "a b [1]{2}*?%20", "r1")
    rows = tables.write(session, "counts", session.createDataFrame([("r1", 1)], SCHEMA))
    assert rows.count() == 1
    assert tables.folder("counts").is_dir()
