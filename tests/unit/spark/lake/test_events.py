from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from messagebus.recording.manifest import Manifest, read_manifest
from spark.lake import events
from spark.lake.events import (
    BROKEN,
    CUT,
    EMPTY,
    FOREIGN,
    MALFORMED_ID,
    MISSING,
    RANGE,
    STRAY,
    WORD,
)
from spark.lake.files import ANCHOR, EventFile, find_files
from spark.lake.tables import utc_day
from tests.support.events import write_run

ID = "0123456789abcdef" * 2
PUBLISH: dict[str, Any] = {
    "run_id": "run-1",
    "message_id": ID,
    "topic": "packages",
    "broker": "mb1:5672",
    "publisher": "p1",
    "sequence": 3,
    "key": None,
    "size": 10,
    "body_hash": ID[::-1],
    "outcome": "confirmed",
    "attempts": 1,
    "intended_ns": 1,
    "sent_ns": 2,
    "confirmed_ns": 3,
}
DELIVERY: dict[str, Any] = {
    "run_id": "run-1",
    "message_id": ID,
    "topic": "packages",
    "subscription": "billing",
    "broker": "mb1:5672",
    "consumer": "c1",
    "size": 10,
    "body_hash": ID,
    "redelivered": 0,
    "ack": "acked",
    "received_ns": 5,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_run(folder, messages=40)
    return folder


@pytest.fixture
def manifest(run: Path) -> Manifest:
    return read_manifest(run).on_wall_clock()


HEAD = json.dumps({"anchor": {"host": "h", "process": "p", "wall_minus_monotonic_ns": 1}})


def events_file(folder: Path, kind: str, lines: list[str]) -> EventFile:
    path = folder / f"{kind}-x.ndjson"
    path.write_text("\n".join(lines))
    return EventFile(path, kind, None, 1_000, 0, "", head=HEAD, tail=lines[-1])


def parsed(
    session: SparkSession, folder: Path, kind: str, manifest: Manifest, lines: list[str]
) -> Any:
    file = events_file(folder, kind, lines)
    return events.parse(events.read_lines(session, [file]), kind, manifest, [file])


def reasons(
    session: SparkSession, folder: Path, kind: str, manifest: Manifest, lines: list[str]
) -> list[str | None]:
    rows = parsed(session, folder, kind, manifest, lines).select("value", "reason").collect()
    assert sorted(row.value for row in rows) == sorted(lines)
    found = {row.value: row.reason for row in rows}
    return [found[line] for line in lines]


def test_every_bad_publish_has_its_reason(
    session: SparkSession, tmp_path: Path, manifest: Manifest
) -> None:
    cases: list[tuple[str, str | None]] = [
        (json.dumps(PUBLISH), None),
        (json.dumps(PUBLISH | {"extra": 1}), None),
        (json.dumps(PUBLISH | {"outcome": "unknown", "confirmed_ns": None}), None),
        (json.dumps(PUBLISH | {"confirmed_ns": None}), MISSING),
        (HEAD, ANCHOR),
        (HEAD.replace('"h"', '"other"'), STRAY),
        ("", EMPTY),
        ("   ", EMPTY),
        (json.dumps(PUBLISH)[:-9], BROKEN),
        ("[]", BROKEN),
        ("\0\0\0", BROKEN),
        (json.dumps(PUBLISH | {"size": "ten"}), BROKEN),
        (json.dumps(PUBLISH | {"attempts": 1.5}), BROKEN),
        (json.dumps(PUBLISH | {"sent_ns": 2**63}), BROKEN),
        (json.dumps({k: v for k, v in PUBLISH.items() if k != "sequence"}), MISSING),
        (json.dumps(PUBLISH | {"broker": None}), MISSING),
        ("{}", MISSING),
        (json.dumps(PUBLISH | {"message_id": ID[1:]}), MALFORMED_ID),
        (json.dumps(PUBLISH | {"body_hash": "g" * 32}), MALFORMED_ID),
        (json.dumps(PUBLISH | {"outcome": "maybe"}), WORD),
        (json.dumps(PUBLISH | {"size": -1}), RANGE),
        (json.dumps(PUBLISH | {"attempts": 0}), RANGE),
        (json.dumps(PUBLISH | {"attempts": 0, "outcome": "refused"}), None),
        (json.dumps(PUBLISH | {"run_id": "run-2"}), FOREIGN),
        (json.dumps(PUBLISH | {"topic": "orders"}), FOREIGN),
        (json.dumps(PUBLISH)[:-3], CUT),
    ]
    found = reasons(session, tmp_path, "published", manifest, [line for line, _ in cases])
    assert found == [reason for _, reason in cases]


def test_every_bad_delivery_has_its_reason(
    session: SparkSession, tmp_path: Path, manifest: Manifest
) -> None:
    cases = [
        (DELIVERY, None),
        (DELIVERY | {"ack": "lost"}, WORD),
        (DELIVERY | {"subscription": "crm"}, FOREIGN),
        ({k: v for k, v in DELIVERY.items() if k != "received_ns"}, MISSING),
    ]
    lines = [json.dumps(row) for row, _ in cases]
    found = reasons(session, tmp_path, "delivered", manifest, lines)
    assert found == [reason for _, reason in cases]


def test_samples_of_brokers_are_events_too(
    session: SparkSession, tmp_path: Path, manifest: Manifest
) -> None:
    names = ("run_id", "topic", "subscription", "broker")
    sample = {name: DELIVERY[name] for name in names} | {"ready": 5, "unacked": 1, "at_ns": 7}
    lines = [json.dumps(sample), json.dumps(sample | {"ready": None}), json.dumps(sample)[:-4]]
    found = reasons(session, tmp_path, "sampled", manifest, lines)
    assert found == [None, MISSING, CUT]


def test_rows_are_typed_and_times_are_wall_clock(
    session: SparkSession, tmp_path: Path, manifest: Manifest
) -> None:
    row = parsed(session, tmp_path, "published", manifest, [json.dumps(PUBLISH)]).first()
    assert (bytes(row.message_id), row.sequence) == (bytes.fromhex(ID), 3)
    assert (row.intended_ns, row.sent_ns, row.confirmed_ns) == (1_001, 1_002, 1_003)
    assert (row.date, row.source, row.run_id) == ("1970-01-01", "published-x.ndjson", "run-1")


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/Los_Angeles"])
def test_a_day_is_that_of_utc_in_each_zone_of_a_session_also_where_clocks_are_set(
    session: SparkSession, zone: str
) -> None:
    """On both days of 2026 on which Berlin sets its clocks, each half hour."""
    half_hours = [
        datetime(2026, month, day, tzinfo=UTC) + timedelta(minutes=30 * number)
        for month, day in ((3, 28), (10, 24))
        for number in range(144)
    ]
    session.conf.set("spark.sql.session.timeZone", zone)
    try:
        rows = session.createDataFrame(
            [(int(at.timestamp()) * 1_000_000_000,) for at in half_hours], "ns long"
        )
        found = [row.day for row in rows.select(utc_day(F.col("ns")).alias("day")).collect()]
    finally:
        session.conf.set("spark.sql.session.timeZone", "UTC")
    assert found == [f"{at:%Y-%m-%d}" for at in half_hours]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/Los_Angeles"])
def test_a_row_is_of_the_utc_day_of_its_event_and_a_bad_line_of_the_runs(
    session: SparkSession,
    tmp_path: Path,
    manifest: Manifest,
    zone: str,
    request: pytest.FixtureRequest,
) -> None:
    session.conf.set("spark.sql.session.timeZone", zone)
    request.addfinalizer(lambda: session.conf.set("spark.sql.session.timeZone", "UTC"))
    midnight = 1_790_000_000_000_000_000 // 86_400_000_000_000 * 86_400_000_000_000
    lines = [
        json.dumps(DELIVERY | {"received_ns": midnight - 1_001}),
        json.dumps(DELIVERY | {"received_ns": midnight - 1_000}),
        "{}",
    ]
    rows = parsed(session, tmp_path, "delivered", manifest, lines).collect()
    assert sorted(row.date for row in rows) == ["2026-09-20", "2026-09-21", "2026-09-21"]


def test_a_line_is_parsed_once_whatever_is_asked(
    session: SparkSession,
    tmp_path: Path,
    manifest: Manifest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = parsed(session, tmp_path, "published", manifest, ["{}"])
    events.quarantined(rows, "published", "run-1").explain()
    assert capsys.readouterr().out.count("from_json(") == 1


def test_lines_are_anchors_and_good_and_bad(session: SparkSession, tmp_path: Path) -> None:
    write_run(tmp_path, messages=40)
    path = tmp_path / "published-publisher-1.ndjson"
    path.write_text(path.read_text() + '\nnonsense\n{"run')
    manifest = read_manifest(tmp_path).on_wall_clock()
    files = find_files(tmp_path, manifest).of("published")
    rows = events.parse(events.read_lines(session, files), "published", manifest, files)
    good, seen = events.counted(rows, "published")
    assert good.columns == events.schema_of("published").names
    kept = len(good.collect())
    counts = events.line_counts(seen)
    assert counts["lines"] == 40 + 4 + 3
    assert (kept, counts["good"], counts[ANCHOR]) == (40, 40, 4)
    assert (counts[EMPTY], counts[BROKEN], counts[CUT]) == (1, 1, 1)
    wrong = events.quarantined(rows, "published", "run-1").collect()
    assert {(row.source, row.reason, row.value) for row in wrong} == {
        (path.name, EMPTY, ""),
        (path.name, BROKEN, "nonsense"),
        (path.name, CUT, '{"run'),
    }


def test_files_of_many_clocks_are_one_read_and_each_row_has_the_time_of_its_own(
    session: SparkSession, tmp_path: Path, manifest: Manifest
) -> None:
    files = []
    for number in range(30):
        path = tmp_path / f"published-host-{number}.ndjson"
        path.write_text(f"{HEAD}\n{json.dumps(PUBLISH)}\n")
        files.append(
            EventFile(path, "published", None, number * 1_000, path.stat().st_size, "", HEAD)
        )
    read = events.read_lines(session, files)
    rows = events.parse(read, "published", manifest, files).filter("reason is null").collect()
    assert {row.source: row.sent_ns for row in rows} == {
        f"published-host-{number}.ndjson": number * 1_000 + 2 for number in range(30)
    }
    assert "Union" not in read._jdf.queryExecution().analyzed().toString()


def test_parquet_gives_the_same_rows_as_json(
    session: SparkSession, tmp_path: Path, manifest: Manifest
) -> None:
    lines = [json.dumps(PUBLISH), json.dumps(PUBLISH | {"outcome": "maybe"})]
    plain = events_file(tmp_path, "published", lines)
    path = tmp_path / "published-x.parquet"
    columns = {
        name: [row[name] for row in map(json.loads, lines)]
        for name in PUBLISH
        if name != "key"  # optional columns may be left out
    }
    for name in ("message_id", "body_hash"):
        columns[name] = [bytes.fromhex(text) for text in columns[name]]
    for name in ("size", "attempts"):
        columns[name] = pa.array(columns[name], pa.int32())
    pq.write_table(pa.table(columns), path)
    packed = EventFile(path, "published", None, 1_000, 0, "")
    names = [*PUBLISH, "date", "reason"]
    one, other = (
        events.parse(events.read_lines(session, [file]), "published", manifest, [file])
        .select(*names)
        .collect()
        for file in (plain, packed)
    )
    assert one == other
    assert [row.reason for row in one] == [None, WORD]
