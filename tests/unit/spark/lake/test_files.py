"""Files of the lake: manifests and tables."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from messagebus.recording.events import SCHEMA
from messagebus.recording.files import Anchor
from messagebus.recording.manifest import RunInvalid, read_manifest
from messagebus.recording.parts import RunPart, merged
from spark.lake.files import METADATA, Files, anchor_noted, find_files, source_of
from spark.lake.manifests import manifest_of
from spark.lake.tables import DATE, RUN, Lake
from tests.support.events import HOST, SECOND, WALL_MINUS_MONOTONIC_NS, write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_run(tmp_path, messages=40)
    return tmp_path


def found(folder: Path) -> Files:
    return find_files(folder, read_manifest(folder))


def test_a_second_copy_and_an_empty_file_are_skipped_and_listed(run: Path) -> None:
    first = run / "delivered-audit-1.ndjson"
    (run / "delivered-copy.ndjson").write_bytes(first.read_bytes())
    (run / "published-nothing.ndjson").touch()
    files = found(run)
    assert set(files.skipped) == {
        ("delivered-copy.ndjson", "same content as delivered-audit-1.ndjson"),
        ("published-nothing.ndjson", "empty file"),
    }
    assert files.missing == ()
    assert len(files.used) == 8


def test_a_file_of_a_newer_schema_is_not_read_and_said(run: Path) -> None:
    path = run / "published-publisher-1.ndjson"
    _, _, rows = path.read_text().partition("\n")
    path.write_text(json.dumps({"schema": SCHEMA + 1, "anchor": {}}) + "\n" + rows)
    files = found(run)
    assert files.missing == (path.name,)
    assert dict(files.skipped)[path.name].startswith(f"of schema {SCHEMA + 1}, newer than {SCHEMA}")


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"run_id": ["r"]}, "columns missing: message_id, topic, broker"),
        (None, "not Parquet"),
    ],
)
def test_parquet_that_would_fail_the_job_is_not_read_and_said(
    run: Path, columns: dict[str, list[str]] | None, why: str
) -> None:
    path = run / "published-x.parquet"
    if columns is None:
        path.write_bytes(b"PAR1 cut off")
    else:
        pq.write_table(pa.table(columns), path)
    files = found(run)
    assert files.missing == (path.name,)
    assert dict(files.skipped)[path.name].startswith(why)


def test_a_parquet_column_of_another_type_is_said(run: Path) -> None:
    names = ("run_id", "broker", "topic", "subscription", "ready", "unacked", "at_ns")
    path = run / "sampled-x.parquet"
    pq.write_table(pa.table({name: ["1"] for name in names}), path)
    assert dict(found(run).skipped)[path.name] == "column ready: long wanted, not string"


def test_parquet_has_its_anchor_in_its_metadata(run: Path) -> None:
    columns = {name: ["a"] for name in ("run_id", "broker", "topic", "subscription")} | {
        name: [1] for name in ("ready", "unacked", "at_ns")
    }
    anchor = {"host": "elsewhere", "process": "p", "wall_minus_monotonic_ns": 77}
    table = pa.table(columns).replace_schema_metadata({METADATA: json.dumps({"anchor": anchor})})
    pq.write_table(table, run / "sampled-x.parquet")
    (file,) = found(run).of("sampled", "parquet")
    assert file.offset_ns == 77


def test_what_stands_behind_the_last_line_end_is_known(run: Path) -> None:
    path = run / "published-publisher-1.ndjson"
    with path.open("a") as file:
        file.write('{"run_id": "ru')
    tails = {file.path: file.tail for file in found(run).used}
    assert tails.pop(path) == '{"run_id": "ru'
    assert set(tails.values()) == {""}


def test_processes_of_one_host_share_one_clock(run: Path) -> None:
    files = found(run)
    assert {file.offset_ns for file in files.used} == {WALL_MINUS_MONOTONIC_NS}
    assert files.clock_spread_ns == 3_000


def test_another_host_has_its_own_clock(run: Path) -> None:
    path = run / "published-publisher-1.ndjson"
    _, _, rows = path.read_text().partition("\n")
    anchor = {"host": HOST + "b", "process": "p", "wall_minus_monotonic_ns": 77}
    path.write_text(json.dumps({"anchor": anchor}) + "\n" + rows)
    assert {file.offset_ns for file in found(run).used if file.path == path} == {77}


def test_a_file_without_anchor_is_read_by_the_manifests(run: Path) -> None:
    path = run / "published-publisher-1.ndjson"
    path.write_text(path.read_text().partition("\n")[2])
    file = next(file for file in found(run).used if file.path == path)
    assert (file.anchor, file.head, file.offset_ns) == (None, "", WALL_MINUS_MONOTONIC_NS)


def test_a_folder_without_events_is_said(
    run: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.raises(RunInvalid, match="no events"):
        find_files(tmp_path_factory.mktemp("empty"), read_manifest(run))


def test_the_name_of_a_folder_of_rows_has_nothing_to_escape_and_is_its_own() -> None:
    assert source_of(Path("/x/published-p1.ndjson")) == "published-p1.ndjson"
    names = [
        source_of(Path(f"published-{name}.ndjson")) for name in ("a b", "a=b", "bä", "bü", "a_b")
    ]
    assert names[0].startswith("published-a_b.ndjson.")
    assert len(set(names)) == len(names)
    assert all(re.fullmatch("[A-Za-z0-9._-]+", name) for name in names)


def test_what_looks_like_events_and_is_not_read_is_missing_and_listed(run: Path) -> None:
    names = ["delivered-c2.ndjson.gz", "published-p2.ndjson.1", "published_p3.json"]
    for name in [*names, "notes.txt", ".published-p4.ndjson"]:
        (run / name).write_text("x")
    assert list(found(run).missing) == names
    assert [name for name, _ in found(run).skipped] == names


def with_anchor(path: Path, **anchor: object) -> None:
    head = json.dumps({"anchor": {"process": path.stem} | anchor})
    path.write_text(head + "\n" + path.read_text().partition("\n")[2])


def offsets(folder: Path, known: dict[str, Any] | None = None) -> dict[str, int]:
    files = find_files(folder, read_manifest(folder), known)
    return {file.source: file.offset_ns for file in files.used}


def test_hosts_of_one_name_have_the_clocks_of_their_boots(run: Path) -> None:
    first, second, third = sorted(run.glob("published-*"))[:3]
    with_anchor(first, host="web", wall_minus_monotonic_ns=77, boot="one")
    with_anchor(second, host="web", wall_minus_monotonic_ns=77 + 40 * SECOND, boot="two")
    with_anchor(third, host="pod", wall_minus_monotonic_ns=90, boot="one")
    read = offsets(run)
    assert [read[path.name] for path in (first, second, third)] == [77, 77 + 40 * SECOND, 77]
    assert found(run).clock_doubt_ns == 0


def test_one_name_with_two_clocks_that_may_be_one_is_in_doubt(run: Path) -> None:
    first, second = sorted(run.glob("published-*"))[:2]
    with_anchor(first, host="web", wall_minus_monotonic_ns=0)
    with_anchor(second, host="web", wall_minus_monotonic_ns=5 * SECOND)
    assert (offsets(run)[second.name], found(run).clock_doubt_ns) == (0, 0)
    with_anchor(second, host="web", wall_minus_monotonic_ns=40 * SECOND)
    assert found(run).clock_doubt_ns == 40 * SECOND
    with_anchor(second, host="web", wall_minus_monotonic_ns=400 * SECOND)
    assert (offsets(run)[second.name], found(run).clock_doubt_ns) == (400 * SECOND, 0)


def test_the_clock_of_a_file_that_is_gone_stays_its_hosts(run: Path) -> None:
    first, second = sorted(run.glob("published-*"))[:2]
    with_anchor(first, host="web", wall_minus_monotonic_ns=0)
    with_anchor(second, host="web", wall_minus_monotonic_ns=5 * SECOND)
    files = find_files(run, read_manifest(run)).used
    known = {one.source: {"anchor": anchor_noted(one.anchor, one.offset_ns)} for one in files}
    first.unlink()
    assert offsets(run, known)[second.name] == 0
    assert offsets(run)[second.name] == 5 * SECOND


def test_a_manifest_names_the_clocks_by_which_hosts_are_read(run: Path) -> None:
    path = run / "published-publisher-1.ndjson"
    with_anchor(path, host="web", wall_minus_monotonic_ns=5 * SECOND)
    clock = {"host": "web", "process": "first", "wall_minus_monotonic_ns": 3}
    manifest = run / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"clocks": [clock]}))
    assert offsets(run)[path.name] == 3


TABLE_SCHEMA = StructType(
    [
        StructField("n", LongType()),
        StructField(DATE, StringType()),
        StructField(RUN, StringType()),
    ]
)


def write(session: SparkSession, lake: Lake, run: str, day: str, *numbers: int) -> None:
    rows = session.createDataFrame([(n, day, run) for n in numbers], TABLE_SCHEMA)
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
    assert kept(lake.read(session, "counts", TABLE_SCHEMA)) == {
        (1, "2026-11-20", "007"),
        (5, "2026-11-21", "007"),
        (4, "2026-11-21", "r2"),
    }
    one = lake.read(session, "counts", TABLE_SCHEMA, "date=*/run_id=007")
    assert {n for n, _, _ in kept(one)} == {1, 5}


def test_writing_nothing_leaves_nothing_of_what_was_there(
    session: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(tmp_path)
    write(session, lake, "r1", "2026-11-21", 1)
    write(session, lake, "r2", "2026-11-21", 2)
    write(session, lake, "r1", "2026-11-21")
    assert kept(lake.read(session, "counts", TABLE_SCHEMA)) == {(2, "2026-11-21", "r2")}


def test_a_table_that_is_not_there_has_no_rows(session: SparkSession, tmp_path: Path) -> None:
    assert Lake(tmp_path).read(session, "nothing", TABLE_SCHEMA).count() == 0


def test_a_folder_may_have_any_name(session: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "a b [1]{2}*?%20")
    write(session, lake, "r1", "2026-11-21", 1)
    assert lake.read(session, "counts", TABLE_SCHEMA, "date=*/run_id=r1").count() == 1


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


def host(folder: Path, name: str, offset: int, *, ended: bool = True, run_id: str = "r") -> None:
    part = RunPart(
        run_id=run_id,
        name=name,
        anchor=Anchor(name, name, offset, f"boot-{name}"),
        start_ns=100,
        end_ns=900 if ended else None,
        topics={"orders": {f"of-{name}"}},
        brokers={f"{name}:5672"},
        publishers={name},
        consumers={(name, f"of-{name}")},
        share=0.5,
        dropped=3,
        loop="closed",
    )
    (folder / f"manifest-{name}.json").write_text(json.dumps(merged(None, part)))


def test_manifests_of_hosts_with_clocks_of_their_own_are_joined(tmp_path: Path) -> None:
    host(tmp_path, "a", 1_000)
    host(tmp_path, "b", 5_000)
    found, values = manifest_of(tmp_path)
    assert found.topics == {"orders": ("of-a", "of-b")}
    assert found.brokers == ("a:5672", "b:5672")
    assert (found.on_wall_clock().start_ns, found.on_wall_clock().end_ns) == (1_100, 5_900)
    assert [clock.boot for clock in found.clocks] == ["boot-a", "boot-b"]
    assert sum(left.dropped for left in found.recorders.values()) == 6
    assert found.complete
    assert found.share == 0.5
    assert values["run_id"] == "r"
    # A host that comes later changes the run, and is no other run of its name.
    host(tmp_path, "0", 9_000, ended=False)
    later, _ = manifest_of(tmp_path)
    assert later.anchor == found.anchor
    assert not later.complete


def test_manifests_of_two_runs_and_broken_ones_are_refused_by_name(tmp_path: Path) -> None:
    host(tmp_path, "a", 1_000)
    host(tmp_path, "b", 5_000, run_id="other")
    with pytest.raises(RunInvalid, match="several runs: other, r"):
        manifest_of(tmp_path)
    (tmp_path / "manifest-b.json").write_text("{")
    with pytest.raises(RunInvalid, match=r"manifest-b\.json: not readable JSON"):
        manifest_of(tmp_path)
    (tmp_path / "manifest-b.json").write_text("[]")
    with pytest.raises(RunInvalid, match=r"manifest-b\.json: manifest: dict wanted"):
        manifest_of(tmp_path)
    with pytest.raises(RunInvalid, match=r"no manifest\.json in it"):
        manifest_of(tmp_path.parent)
