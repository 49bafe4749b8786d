from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from messagebus.events import DELIVERED, PUBLISHED
from spark import events
from spark.events import ANCHOR, BROKEN, EMPTY, FOREIGN, MALFORMED_ID, MISSING, WORD
from spark.manifest import Manifest, RunInvalid, read_manifest
from tests.support.events import HOST, WALL_MINUS_MONOTONIC_NS, write_run

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
    return read_manifest(run)


def reasons(
    session: SparkSession, columns: Any, manifest: Manifest, lines: list[str]
) -> list[str | None]:
    rows = session.createDataFrame(
        [(line, "f", 1_000) for line in lines], "value string, file string, offset_ns long"
    )
    return [row.reason for row in events.parse(rows, columns, manifest).collect()]


def test_every_bad_publish_has_its_reason(session: SparkSession, manifest: Manifest) -> None:
    cases: list[tuple[str, str | None]] = [
        (json.dumps(PUBLISH), None),
        (json.dumps(PUBLISH | {"extra": 1, "confirmed_ns": None}), None),
        (
            json.dumps({"anchor": {"host": "h", "process": "p", "wall_minus_monotonic_ns": 1}}),
            ANCHOR,
        ),
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
        (json.dumps(PUBLISH | {"run_id": "run-2"}), FOREIGN),
        (json.dumps(PUBLISH | {"topic": "orders"}), FOREIGN),
    ]
    found = reasons(session, PUBLISHED, manifest, [line for line, _ in cases])
    assert found == [reason for _, reason in cases]


def test_every_bad_delivery_has_its_reason(session: SparkSession, manifest: Manifest) -> None:
    cases = [
        (DELIVERY, None),
        (DELIVERY | {"ack": "lost"}, WORD),
        (DELIVERY | {"subscription": "crm"}, FOREIGN),
        ({k: v for k, v in DELIVERY.items() if k != "received_ns"}, MISSING),
    ]
    found = reasons(session, DELIVERED, manifest, [json.dumps(row) for row, _ in cases])
    assert found == [reason for _, reason in cases]


def test_rows_are_typed_and_times_are_wall_clock(session: SparkSession, manifest: Manifest) -> None:
    lines = session.createDataFrame(
        [(json.dumps(PUBLISH), "f", 1_000)], "value string, file string, offset_ns long"
    )
    row = events.parse(lines, PUBLISHED, manifest).first()
    assert row is not None
    assert (bytes(row.message_id), row.sequence) == (bytes.fromhex(ID), 3)
    assert (row.intended_ns, row.sent_ns, row.confirmed_ns) == (1_001, 1_002, 1_003)


def test_a_line_is_parsed_once_whatever_is_asked(
    session: SparkSession, manifest: Manifest, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = session.createDataFrame([("", "f", 0)], "value string, file string, offset_ns long")
    events.bad_lines(events.parse(lines, PUBLISHED, manifest)).explain()
    assert capsys.readouterr().out.count("from_json(") == 1


def test_lines_are_anchors_and_good_and_bad(session: SparkSession, tmp_path: Path) -> None:
    write_run(tmp_path, messages=40)
    path = tmp_path / "published-publisher-1.ndjson"
    path.write_text(path.read_text() + '\nnonsense\n{"run')
    manifest = read_manifest(tmp_path)
    files = events.find_files(tmp_path, manifest)
    parsed = events.parse(events.read_lines(session, files.of("published")), PUBLISHED, manifest)
    good, seen = events.counted(parsed, PUBLISHED)
    rows = len(good.collect())
    counts = events.line_counts(seen)
    assert counts["lines"] == 40 + 4 + 3
    assert (rows, counts[ANCHOR], counts[EMPTY], counts[BROKEN]) == (40, 4, 1, 2)
    bad = {(row.file, row.reason): row.lines for row in events.bad_lines(parsed).collect()}
    assert bad == {(path.name, EMPTY): 1, (path.name, BROKEN): 2}


def test_a_second_copy_and_an_empty_file_are_skipped_and_listed(tmp_path: Path) -> None:
    write_run(tmp_path, messages=40)
    first = tmp_path / "delivered-audit-1.ndjson"
    (tmp_path / "delivered-copy.ndjson").write_bytes(first.read_bytes())
    (tmp_path / "published-nothing.ndjson").touch()
    files = events.find_files(tmp_path, read_manifest(tmp_path))
    assert set(files.skipped) == {
        ("delivered-copy.ndjson", "same content as delivered-audit-1.ndjson"),
        ("published-nothing.ndjson", "empty file"),
    }
    assert len(files.used) == 8


def test_processes_of_one_host_share_one_clock(run: Path, manifest: Manifest) -> None:
    files = events.find_files(run, manifest)
    assert {file.offset_ns for file in files.used} == {WALL_MINUS_MONOTONIC_NS}
    assert files.clock_spread_ns == 3_000


def test_another_host_has_its_own_clock(tmp_path: Path) -> None:
    write_run(tmp_path, messages=40)
    path = tmp_path / "published-publisher-1.ndjson"
    lines = path.read_text().splitlines(keepends=True)
    anchor = {"host": HOST + "b", "process": "p", "wall_minus_monotonic_ns": 77}
    path.write_text(json.dumps({"anchor": anchor}) + "\n" + "".join(lines[1:]))
    files = events.find_files(tmp_path, read_manifest(tmp_path))
    assert {file.offset_ns for file in files.used if file.path == path} == {77}


def test_a_file_without_anchor_is_read_by_the_manifests(tmp_path: Path) -> None:
    write_run(tmp_path, messages=40)
    path = tmp_path / "published-publisher-1.ndjson"
    path.write_text(path.read_text().partition("\n")[2])
    files = events.find_files(tmp_path, read_manifest(tmp_path))
    found = next(file for file in files.used if file.path == path)
    assert (found.anchor, found.offset_ns) == (None, WALL_MINUS_MONOTONIC_NS)


def test_a_run_without_events_is_said(run: Path, manifest: Manifest, tmp_path: Path) -> None:
    with pytest.raises(RunInvalid, match="no events"):
        events.find_files(tmp_path, manifest)


def test_a_kind_without_files_has_no_lines(session: SparkSession) -> None:
    assert events.read_lines(session, []).count() == 0
