"""Ingested again, grown, cut, of another run: rows are there once, and the rest is counted."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from messagebus.recording.manifest import RunInvalid
from spark.lake import files
from spark.lake.events import CUT, FOREIGN, MISSING, schema_of
from spark.lake.ingest import QUARANTINE, QUARANTINE_SCHEMA, ingest, ingested, plan
from spark.lake.places import digest_of
from spark.lake.tables import Lake
from tests.support.events import SECOND, write_run
from tests.support.spark_questions import rows_read

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


def test_only_new_files_are_opened_and_one_that_was_changed_in_place(
    session: SparkSession, run: Path, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change keeps the size, and the time as a copy of the folder would set it."""
    for path in run.iterdir():
        os.utime(path, ns=(1, 1))
    ingest(session, lake, plan(run, lake))
    opened: list[str] = []

    def digest(path: Path) -> tuple[str, int]:
        opened.append(path.name)
        return digest_of(path)

    monkeypatch.setattr(files, "digest_of", digest)
    again = plan(run, lake)
    assert (again.new, opened) == ((), [])
    assert [file.sha256 for file in again.files.used] == [
        digest_of(file.path)[0] for file in again.files.used
    ]
    path = run / PUBLISHER
    path.write_text(path.read_text().replace("confirmed", "CONFIRMED", 1))
    os.utime(path, ns=(1, 1))
    (run / "published-z-copy.ndjson").write_text((run / "published-publisher-2.ndjson").read_text())
    planned = plan(run, lake)
    assert [file.source for file in planned.new] == [PUBLISHER]
    assert sorted(opened) == [PUBLISHER, "published-z-copy.ndjson"]
    # Not settled: a second change could have the time of the first.
    ingest(session, lake, planned)
    opened.clear()
    plan(run, lake)
    assert opened == ["published-z-copy.ndjson"]


def test_one_more_day_costs_the_rows_of_its_file_however_long_the_run_is(
    session: SparkSession, run: Path, lake: Lake
) -> None:
    """The second day, and the seventh: rows are read from the file, and counted from what was written."""
    head, *lines = (run / PUBLISHER).read_text().splitlines()
    for path in run.glob("*.ndjson"):
        path.unlink()

    def days(*numbers: int) -> int:
        """Ingest days; return the rows that Spark has read for it."""
        for day in numbers:
            shift = dict.fromkeys(("intended_ns", "sent_ns", "confirmed_ns"), day * 86400 * SECOND)
            written = [head]
            for row in map(json.loads, lines):
                moved = {name: row[name] + by for name, by in shift.items() if row[name]}
                own = {"message_id": f"{day:016}{row['message_id'][16:]}"}
                written.append(json.dumps(row | moved | own))
            (run / f"published-day-{day}.ndjson").write_text("\n".join([*written, ""]))
        before = rows_read(session)
        assert len(ingest(session, lake, plan(run, lake)).read) == len(numbers)
        return sum(read for stage, read in rows_read(session).items() if stage not in before)

    days(0)
    second = days(1)
    days(2, 3, 4, 5)
    assert days(6) == second >= 2 * len(lines)
    assert rows(session, lake, "published") == 7 * len(lines)


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


def test_files_whose_names_differ_in_any_letter_keep_their_own_rows(
    session: SparkSession, run: Path, lake: Lake
) -> None:
    for old, new in (("publisher-1", "bücher"), ("publisher-2", "bächer")):
        (run / f"published-{old}.ndjson").rename(run / f"published-{new}.ndjson")
    first = ingest(session, lake, plan(run, lake))
    again = ingest(session, lake, plan(run, lake))
    assert (again.read, again.files) == ((), first.files)
    assert rows(session, lake, "published") == 40


def test_by_steps_gives_the_rows_of_at_once(
    session: SparkSession, run: Path, lake: Lake, tmp_path: Path
) -> None:
    """The host's clock was set by five seconds between the starts of two processes."""
    for number, name in enumerate(("delivered-billing-1", "published-publisher-1")):
        path = run / f"{name}.ndjson"
        anchor = {"host": "web", "process": name, "wall_minus_monotonic_ns": number * 5 * SECOND}
        rest = path.read_text().partition("\n")[2]
        path.write_text(json.dumps({"anchor": anchor}) + "\n" + rest)
    at_once = Lake(tmp_path / "at-once")
    ingest(session, at_once, plan(run, at_once))
    held = (run / "delivered-billing-1.ndjson").rename(tmp_path / "held")
    ingest(session, lake, plan(run, lake))
    held.rename(run / "delivered-billing-1.ndjson")
    ingest(session, lake, plan(run, lake))

    def times(kind: str, of: Lake) -> list[Any]:
        column = {"published": "sent_ns", "delivered": "received_ns"}[kind]
        read = of.read(session, kind, schema_of(kind))
        return sorted(map(tuple, read.select("message_id", column).collect()))

    for kind in ("published", "delivered"):
        assert times(kind, lake) == times(kind, at_once)


def test_a_file_with_another_name_moves_its_rows(
    session: SparkSession, run: Path, lake: Lake
) -> None:
    ingest(session, lake, plan(run, lake))
    (run / PUBLISHER).rename(run / "published-a.ndjson")
    found = ingest(session, lake, plan(run, lake))
    assert (found.read, rows(session, lake, "published")) == (("published-a.ndjson",), 40)
    # A copy whose name comes first is read in its place.
    (run / "published-0.ndjson").write_bytes((run / "published-a.ndjson").read_bytes())
    ingest(session, lake, plan(run, lake))
    assert rows(session, lake, "published") == 40


def test_a_mended_manifest_heals_what_was_in_quarantine(
    session: SparkSession, run: Path, lake: Lake
) -> None:
    manifest = run / "manifest.json"
    whole = json.loads(manifest.read_text())
    topics = {"packages": ["audit"]}
    manifest.write_text(json.dumps(whole | {"topics": topics}))
    assert ingest(session, lake, plan(run, lake)).reasons() == {FOREIGN: 40}
    manifest.write_text(json.dumps(whole))
    healed = ingest(session, lake, plan(run, lake))
    # Whatever was good as it was is not read again.
    assert sorted(healed.read) == [f"delivered-billing-{number}.ndjson" for number in (1, 2, 3)]
    assert (healed.bad, wrong(session, lake), rows(session, lake, "delivered")) == (0, {}, 80)
    manifest.write_text(json.dumps(whole | {"topics": topics}))
    assert ingest(session, lake, plan(run, lake)).bad == 40


def test_an_ingest_that_was_interrupted_is_no_run_to_ask(
    session: SparkSession, run: Path, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(session, lake, plan(run, lake))
    with (run / PUBLISHER).open("a") as file:
        file.write("{}\n")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as changed:
        changed.setattr(Lake, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ingest(session, lake, plan(run, lake))
    with pytest.raises(RunInvalid, match="was interrupted: ingest it again"):
        ingested(lake, "run-1")
    ingest(session, lake, plan(run, lake))
    assert ingested(lake, "run-1").bad == 1


@pytest.mark.parametrize("ended", [True, False])
def test_of_two_ingests_at_once_one_is_told_and_the_next_leaves_each_row_once(
    session: SparkSession, run: Path, lake: Lake, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    write, others = Lake.write, [lake]

    def meanwhile(self: Lake, *given: Any, **named: Any) -> None:
        """Another ingest comes between the plan and the first write of this one."""
        if others:
            other = others.pop()
            if ended:
                ingest(session, other, plan(run, other))
            else:
                noted = other.note("run-1", "ingested")
                other.take_note("run-1", "ingested", noted | {"reading": "another's"})
        write(self, *given, **named)

    with monkeypatch.context() as changed:
        changed.setattr(Lake, "write", meanwhile)
        with pytest.raises(RunInvalid, match="another ingest of 'run-1' went on meanwhile"):
            ingest(session, lake, plan(run, lake))
    with pytest.raises(RunInvalid, match="interrupted"):
        ingested(lake, "run-1")
    again = ingest(session, lake, plan(run, lake))
    assert len(again.read) == 8
    assert (rows(session, lake, "published"), rows(session, lake, "delivered")) == (40, 80)
    assert ingested(lake, "run-1").files == again.files


def test_a_note_that_cannot_be_reached_is_not_taken_for_none(
    session: SparkSession, run: Path, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(session, lake, plan(run, lake))

    def away(self: Path, *_: object, **__: object) -> str:
        raise OSError(5, "SlowDown: please reduce your rate")

    with monkeypatch.context() as changed:
        changed.setattr(Path, "read_text", away)
        with pytest.raises(OSError, match="SlowDown"):
            lake.note("run-1", "ingested")


def test_a_confirm_without_its_time_and_half_a_character_are_told_apart(
    session: SparkSession, run: Path, lake: Lake
) -> None:
    path = run / PUBLISHER
    head, first, *lines = path.read_text().splitlines()
    first = json.dumps({**json.loads(first), "confirmed_ns": None})
    path.write_text("\n".join([head, first, *lines]) + "\n")
    with path.open("ab") as file:
        file.write('{"run_id": "run-1", "key": "ä'.encode()[:-1])
    assert ingest(session, lake, plan(run, lake)).reasons() == {MISSING: 1, CUT: 1}
