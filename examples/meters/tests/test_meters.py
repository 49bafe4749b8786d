"""Tests without a server: publishers on brokers in memory, and Spark on this machine."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from messagebus.recording.recorder import Recorder
from messagebus.testing import MemoryBus
from meters.report import PUBLISHED, by_hour, fill, missing, once
from meters.send import DISTRICTS, readings, send

COUNT = 500


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    """A small Spark: one core, and no compiler that pays for itself later."""
    quick = {
        "spark.master": "local[1]",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
    }
    builder = SparkSession.builder.appName("meters")
    for name, value in quick.items():
        builder = builder.config(name, value)
    with builder.getOrCreate() as made:
        made.sparkContext.setLogLevel("ERROR")
        yield made


def archived(path: Path, *lines: tuple[str, object]) -> None:
    """Write a file of an archive: ids and bodies."""
    path.parent.mkdir(exist_ok=True)
    with gzip.open(path, "wt") as file:
        for number, body in lines:
            file.write(json.dumps({"id": number, "time_ms": 0, "body": json.dumps(body)}) + "\n")


def reading(minute: int, kwh: float, meter: str = "m1") -> dict[str, object]:
    at = f"2026-11-01T{minute // 60:02}:{minute % 60:02}:00Z"
    return {"meter": meter, "district": "hill", "at": at, "kwh": kwh}


def lake_of(session: SparkSession, folder: Path) -> DataFrame:
    fill(session, str(folder / "archive"), str(folder / "lake"))
    return session.read.parquet(str(folder / "lake" / "readings"))


def test_whatever_meters_publish_is_in_the_lake_and_not_missing(
    session: SparkSession, tmp_path: Path
) -> None:
    bus, runs = MemoryBus(), tmp_path / "runs"
    bus.declare("readings/lake")
    with Recorder(runs, run_id="night") as recorder, bus.publisher(hooks=[recorder]) as to:
        assert send(to, COUNT) == COUNT
    messages = bus.published("readings")
    assert {each.key for each in messages} == {f"m{n}" for n in range(50)}
    lines = [(each.message_id, each.as_json()) for each in messages]
    archived(tmp_path / "archive" / "1.ndjson.gz", *lines)
    lake = lake_of(session, tmp_path)
    published = session.read.schema(PUBLISHED).json(f"{runs}/published-*.ndjson")
    assert published.filter("outcome = 'confirmed'").count() == once(lake).count() == COUNT
    assert missing(published, lake).count() == 0
    assert lake.filter("at IS NULL").count() == 0
    assert {each.district for each in readings(COUNT)} == set(DISTRICTS)


def test_each_file_goes_into_the_lake_once_and_copies_count_once(
    session: SparkSession, tmp_path: Path
) -> None:
    archived(tmp_path / "archive" / "1.ndjson.gz", ("a", reading(15, 1)), ("b", reading(60, 2)))
    assert lake_of(session, tmp_path).count() == 2
    again, new = ("b", reading(60, 2)), ("c", reading(75, 4, "m2"))
    archived(tmp_path / "archive" / "2.ndjson.gz", again, new)
    archived(tmp_path / "archive" / "3.ndjson.gz.part", ("d", reading(90, 8)))
    lake = lake_of(session, tmp_path)
    assert lake.count() == 4
    found = [(row.hour.hour, row.kwh, row.meters) for row in by_hour(once(lake)).collect()]
    assert found == [(0, 3, 1), (1, 4, 1)]


def test_what_was_confirmed_and_is_not_in_the_lake_is_named(
    session: SparkSession, tmp_path: Path
) -> None:
    archived(tmp_path / "archive" / "1.ndjson.gz", ("a", reading(15, 1)), ("x", "no reading"))
    rows = [
        {"message_id": name, "topic": "readings", "outcome": outcome}
        for name, outcome in (("a", "confirmed"), ("b", "confirmed"), ("c", "refused"))
    ]
    published = session.createDataFrame(rows, PUBLISHED)
    lake = lake_of(session, tmp_path)
    assert [row.id for row in missing(published, lake).collect()] == ["b"]
    assert [row.id for row in lake.filter("at IS NULL").collect()] == ["x"]
