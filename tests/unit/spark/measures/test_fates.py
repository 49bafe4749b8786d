"""Fates that are kept, as files come, grow, change and go: always those of all events at once."""

from __future__ import annotations

import dataclasses
import hashlib
import random
import shutil
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from messagebus.recording.files import Anchor
from messagebus.recording.manifest import Incident, Manifest
from spark.lake.events import schema_of
from spark.lake.ingest import Ingested
from spark.lake.tables import Lake
from spark.measures import audit, fates
from spark.measures.fates import FATES, SCHEMA
from spark.measures.run import Run
from tests.support.spark_questions import rows_read

RUN_ID, DAYS, DAY_NS, HOUR_NS = "run-1", 6, 86_400_000_000_000, 3_600_000_000_000
FIRST = date(2026, 11, 20)
FIRST_NS = (FIRST - date(1970, 1, 1)).days * DAY_NS
# Each costs as much as a report; more of them are for a change of these rules.
SEEDS = range(1)
Row = dict[str, Any]
TYPES = {
    **{"message_id": pa.binary(), "body_hash": pa.binary(), "size": pa.int32()},
    **{"attempts": pa.int32(), "redelivered": pa.int32(), "sequence": pa.int64()},
}


def id_of(number: int) -> bytes:
    """Return an id of one of three processes, whose messages are numbered; of one in five, without order."""
    if number % 5 == 4:
        return hashlib.blake2b(b"%d" % number, digest_size=16).digest()
    return b"process-%02d" % (number % 3) + number.to_bytes(6)


def published(number: int, at_ns: int, **changed: Any) -> Row:
    return {
        **{"message_id": id_of(number), "topic": "t", "broker": "mb1", "publisher": "p"},
        **{"sequence": number, "key": None, "size": 5, "body_hash": b"b" * 16, "attempts": 1},
        **{
            "outcome": "confirmed",
            "intended_ns": at_ns,
            "sent_ns": at_ns,
            "confirmed_ns": at_ns + 9,
        },
    } | changed


def delivered(number: int, at_ns: int, **changed: Any) -> Row:
    return {
        **{"message_id": id_of(number), "topic": "t", "subscription": "s", "broker": "mb1"},
        **{"consumer": "c", "publisher": "p", "sequence": number, "key": None, "size": 5},
        **{"body_hash": b"b" * 16, "redelivered": 0, "ack": "acked", "received_ns": at_ns},
        **{"acknowledged_ns": at_ns + 1},
    } | changed


@dataclasses.dataclass
class Kept:
    """A lake whose files are laid without Spark."""

    lake: Lake
    manifest: Manifest
    files: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    rows: dict[str, list[Row]] = dataclasses.field(default_factory=dict)

    def lay(self, source: str, rows: list[Row]) -> None:
        """Put a file's rows in place of its earlier ones."""
        kind = source.partition("-")[0]
        self.drop(source)
        at = "intended_ns" if kind == "published" else "received_ns"
        by_day: dict[str, list[Row]] = {}
        for row in rows:
            day = FIRST + timedelta(days=(row[at] - FIRST_NS) // DAY_NS)
            by_day.setdefault(f"{day}", []).append(row)
        for named, own in by_day.items():
            folder = (
                self.lake.folder(kind) / f"date={named}" / f"run_id={RUN_ID}" / f"source={source}"
            )
            folder.mkdir(parents=True)
            columns = {
                name: pa.array([row[name] for row in own], TYPES.get(name)) for name in own[0]
            }
            columns["key"] = columns["key"].cast(pa.string())
            pq.write_table(pa.table(columns), folder / "part-0.parquet")
        self.rows[source] = rows
        self.files[source] = {"kind": kind, "sha256": repr(rows), "good": len(rows), "offset_ns": 0}

    def drop(self, source: str) -> None:
        kind = source.partition("-")[0]
        for folder in self.lake.folder(kind).glob(f"date=*/run_id={RUN_ID}/source={source}"):
            shutil.rmtree(folder)
        self.files.pop(source, None)
        self.rows.pop(source, None)

    def run(self, session: SparkSession) -> Run:
        return Run(session, self.lake, Ingested(manifest=self.manifest, files=dict(self.files)))


def told(fates: DataFrame) -> list[str]:
    names = [part.split()[0] for part in audit.FATES.split(", ")]
    return sorted(str(row.asDict(recursive=True)) for row in fates.select(*names).collect())


def at_once(run: Run) -> list[str]:
    published, delivered = (
        run.lake.read(run.session, kind, schema_of(kind)) for kind in ("published", "delivered")
    )
    return told(audit.fates(published, delivered, run.manifest))


def written(lake: Lake) -> dict[str, set[str]]:
    """Return day -> the files of its fates."""
    found: dict[str, set[str]] = {}
    for path in lake.folder(FATES).glob("date=*/*/*.parquet"):
        found.setdefault(path.parent.parent.name.partition("=")[2], set()).add(path.name)
    return found


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    manifest = Manifest(
        run_id=RUN_ID,
        topics={"t": ("s",)},
        brokers=("mb1",),
        anchor=Anchor("h", "p", 0, "b"),
        start_ns=FIRST_NS,
        end_ns=FIRST_NS + DAYS * DAY_NS,
    )
    return Kept(Lake(tmp_path), manifest)


def test_the_columns_are_those_that_the_lake_keeps(session: SparkSession, kept: Kept) -> None:
    published, delivered = (
        session.createDataFrame([], schema_of(kind)) for kind in ("published", "delivered")
    )
    made = audit.fates(published, delivered, kept.manifest)
    known = session.createDataFrame([], audit.FATES)
    assert [(field.name, field.dataType) for field in made.schema] == [
        (field.name, field.dataType) for field in known.schema
    ]
    assert f"{audit.FATES}, run_id string" == SCHEMA


@pytest.mark.parametrize("seed", SEEDS)
def test_fates_by_steps_are_those_of_all_at_once(
    session: SparkSession, kept: Kept, seed: int
) -> None:
    """Messages that are published again, delivered days later or never, and files in any order."""
    chance = random.Random(seed)
    pool: dict[str, list[Row]] = {
        f"{kind}-{n}": [] for kind in ("published", "delivered") for n in "abc"
    }
    for number in range(60):
        sent_ns = FIRST_NS + chance.randrange(DAYS * 24) * HOUR_NS
        if chance.random() < 0.95:
            again = [0] if chance.random() < 0.9 else [0, chance.randrange(4) * DAY_NS]
            for after_ns in again:
                pool[f"published-{chance.choice('abc')}"].append(
                    published(number, sent_ns + after_ns)
                )
        for _ in range(chance.choice((0, 1, 1, 1, 1, 2))):
            at_ns = sent_ns + chance.choice((1, 1, HOUR_NS, 3 * DAY_NS))
            row = delivered(number, at_ns, ack=chance.choice(("acked", "stale")))
            pool[f"delivered-{chance.choice('abc')}"].append(row)
    last = kept.manifest
    for _ in range(6):
        match chance.choice(("lay", "lay", "lay", "cut", "drop", "manifest")):
            case "drop" if kept.files:
                kept.drop(chance.choice(sorted(kept.files)))
            case "cut" if kept.files:
                source = chance.choice(sorted(kept.files))
                kept.lay(source, pool[source][chance.randrange(len(pool[source])) :])
            case "manifest":
                kill = Incident("kill", "mb1", FIRST_NS + chance.randrange(DAYS * 24) * HOUR_NS + 5)
                last = dataclasses.replace(
                    last,
                    incidents=(*last.incidents, kill),
                    grace_ns=chance.randrange(DAYS) * DAY_NS,
                )
                kept.manifest = last
            case _:
                source = chance.choice(sorted(pool))
                kept.lay(source, pool[source])
        run = kept.run(session)
        assert told(run.fates()) == at_once(run)


def test_a_new_day_leaves_the_fates_of_older_days_as_they_are(
    session: SparkSession, kept: Kept
) -> None:
    """Of the day before one message came behind midnight."""
    for day in range(4):
        begin_ns = FIRST_NS + day * DAY_NS
        kept.lay(f"published-{day}", [published(day * 9 + n, begin_ns + n) for n in range(9)])
        came = [delivered(day * 9 + n, begin_ns + n + 20) for n in range(9)]
        came[8]["received_ns"] += DAY_NS
        kept.lay(f"delivered-{day}", came)
    kept.run(session).fates()
    before = written(kept.lake)
    for kind in (published, delivered):
        kept.lay(f"{kind.__name__}-4", [kind(40 + n, FIRST_NS + 4 * DAY_NS + n) for n in range(9)])
    kept.lay("delivered-late", [delivered(8, FIRST_NS + 4 * DAY_NS)])
    run = kept.run(session)
    assert told(run.fates()) == at_once(run)
    after = written(kept.lake)
    days = [f"{FIRST + timedelta(days=n)}" for n in range(5)]
    assert sorted(after) == days
    # The late one was published on the first day.
    assert [day for day in days if before.get(day) == after[day]] == days[1:4]


@pytest.mark.parametrize("spans_max", [fates.SPANS_MAX, 0], ids=["in order", "in no order"])
def test_a_new_day_costs_the_rows_of_its_files_however_long_the_run_is(
    session: SparkSession, kept: Kept, monkeypatch: pytest.MonkeyPatch, spans_max: int
) -> None:
    """Rows that Spark reads at the second and at the sixth day of a process that lives on.

    Where ids have no order, those of all fates are read too.
    """
    monkeypatch.setattr(fates, "SPANS_MAX", spans_max)

    def days(*numbers: int) -> int:
        """Add days; return the rows that were read for it."""
        before = rows_read(session)
        for day in numbers:
            begin_ns = FIRST_NS + day * DAY_NS
            for kind in (published, delivered):
                rows = [
                    kind(n, begin_ns + n, message_id=b"a-process-" + n.to_bytes(6))
                    for n in range(day * 9, day * 9 + 9)
                ]
                kept.lay(f"{kind.__name__}-{day}", rows)
            run = kept.run(session)
            fates.refresh_fates(session, kept.lake, run.ingested)
        return sum(read for stage, read in rows_read(session).items() if stage not in before)

    days(0)
    second = days(1)
    days(2, 3, 4)
    assert days(5) == second + (0 if spans_max else 4 * 9)
    run = kept.run(session)
    assert told(run.fates()) == at_once(run)
