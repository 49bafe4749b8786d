"""Tables as Parquet files in folders that are named after their content: date, run, and more.

A table is ``<root>/<name>/date=2026-11-21/run_id=night/...``. A write replaces exactly the partitions
that it stands for, so that a job that is run again gives the same rows once. Names of partitions are
text: Spark would guess a number for a run called 007.

Plain Parquet and no Delta or Iceberg: whole partitions are replaced and there is one writer, which
folders can do. Those formats would be needed for concurrent writers, or for changes of single rows. Two
ingests of one run at once are told, and done again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from messagebus.recording.manifest import RunInvalid
from spark.lake.places import address_of, identity_of, pattern_of, remove, write_whole

DATE, RUN, SOURCE = "date", "run_id", "source"
# Up to so many files are found by the folders of their rows, more of them among all of their run.
FEW = 64
# A note for each run and table: the source of its rows.
NOTES = "runs"


def partitions_of(run_id: str, sources: Sequence[str]) -> list[str]:
    """Return patterns of the partitions with the rows of files, of more than `FEW` those of all files."""
    whole = f"{DATE}=*/{RUN}={run_id}"
    return [f"{whole}/{SOURCE}={each}" for each in sources] if len(sources) <= FEW else [whole]


def utc_day(ns: Column) -> Column:
    """Return the day of wall-clock ns, such as ``2026-11-21``: in UTC, whatever zone a session has."""
    days = F.call_function("div", ns, F.lit(86_400 * 1_000_000_000))
    return F.date_from_unix_date(days.cast("int")).cast("string")


@dataclass(frozen=True, slots=True)
class Lake:
    """All tables below one folder, or address, that all workers see."""

    root: Path

    def folder(self, name: str) -> Path:
        return self.root / name

    def read(
        self, session: SparkSession, name: str, schema: StructType | str, *partitions: str
    ) -> DataFrame:
        """Read the rows of a table, with their partitions as text. partitions: patterns, none for all.

        Returns no rows where there is no such partition: a kind that was not recorded has none.
        """
        folder = self.folder(name)
        there = [each for each in partitions or ("*=*",) if any(folder.glob(each))]
        if not there:
            return session.createDataFrame([], schema)
        # The folder's own name is no pattern, those of the partitions are.
        reader = session.read.schema(schema).option("basePath", address_of(folder))
        return reader.parquet(*[f"{pattern_of(folder)}/{each}" for each in there])

    def write(
        self, name: str, rows: DataFrame, *, by: Sequence[str], replaces: Sequence[str]
    ) -> None:
        """Write rows in place of the partitions that this write stands for.

        by: the columns that make partitions. replaces: patterns of those partitions, from the table's
        folder. Partitions that the write leaves untouched are from an earlier one, and are deleted: Spark
        replaces none for which there are no new rows.
        """
        earlier = self._partitions(name, replaces)
        writer = rows.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
        writer.partitionBy(*by).parquet(address_of(self.folder(name)))
        for path, identity in earlier.items():
            if path.exists() and identity_of(path) == identity:
                remove(path)

    def note(self, run_id: str, name: str) -> dict[str, Any]:
        """Return the note about a run's table; empty when there is none. Raises OSError.

        A note that cannot be reached is not none: without it the rows of files that are gone would be.
        """
        try:
            found = json.loads(self._note_path(run_id, name).read_text())
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def take_note(self, run_id: str, name: str, noted: dict[str, Any]) -> None:
        """Write the note about a run's table.

        It is written last, so that an interrupted job is done again.
        """
        path = self._note_path(run_id, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, f"{json.dumps(noted, indent=1)}\n".encode())

    def runs(self) -> list[str]:
        """Return the names of the ingested runs."""
        return sorted(path.name for path in self.folder(NOTES).glob("*") if path.is_dir())

    def check(self) -> None:
        """Raise RunInvalid where nothing can be written, before any work is done."""
        probe = self.root / f".probe-{os.getpid()}"
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as fault:
            raise RunInvalid(
                f"{self.root}: the lake cannot be written: {fault.strerror}"
            ) from fault

    def days(self, run_id: str, names: Sequence[str]) -> list[str]:
        """Return the days on which a run has rows in any of these tables, in order."""
        found = (
            path for name in names for path in self.folder(name).glob(f"{DATE}=*/{RUN}={run_id}")
        )
        return sorted({path.parent.name.partition("=")[2] for path in found})

    def days_of(self, run_id: str, name: str, sources: Sequence[str]) -> dict[str, list[str]]:
        """Return source -> the days of its rows in a table, in order."""
        found: dict[str, list[str]] = {source: [] for source in sources}
        below = "" if len(sources) <= FEW else f"/{SOURCE}=*"
        for pattern in partitions_of(run_id, sources):
            for path in self.folder(name).glob(f"{pattern}{below}"):
                source, day = (each.name.partition("=")[2] for each in (path, path.parent.parent))
                if source in found:
                    found[source].append(day)
        return {source: sorted(days) for source, days in found.items()}

    def run_folder(self, run_id: str) -> Path:
        return self.folder(NOTES) / run_id

    def _note_path(self, run_id: str, name: str) -> Path:
        return self.run_folder(run_id) / f"{name}.json"

    def _partitions(self, name: str, patterns: Sequence[str]) -> dict[Path, tuple[Any, ...]]:
        return {
            path: identity_of(path)
            for pattern in patterns
            for path in self.folder(name).glob(pattern)
        }
