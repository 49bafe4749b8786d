"""One recorded run, or one day of it, as tables of the lake; jobs measure on it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from messagebus.recording.manifest import Manifest
from spark.lake.events import schema_of
from spark.lake.ingest import Ingested
from spark.lake.tables import DATE, RUN, Lake
from spark.measures import fates, throughput

SECOND_NS = 1_000_000_000
DAY_NS = 86_400 * SECOND_NS


@dataclass(frozen=True)
class Run:
    """A run or a day of it. day: ``2026-11-21`` (UTC), None for the whole run."""

    session: SparkSession
    lake: Lake
    ingested: Ingested
    day: str | None = None

    @property
    def manifest(self) -> Manifest:
        return self.ingested.manifest

    def events(self, kind: str) -> DataFrame:
        """Return the rows of published, delivered or sampled, as `schema_of`."""
        return self.lake.read(self.session, kind, schema_of(kind), self._partitions())

    @property
    def whole(self) -> Run:
        """The run with all its days."""
        return dataclasses.replace(self, day=None)

    @property
    def start_ns(self) -> int:
        """The start of the run, or of its day."""
        return max(self.manifest.start_ns, self._midnight_ns or 0)

    @cached_property
    def until_ns(self) -> int:
        """The end of the run, or of its day; of one that was cut short, the time of its last event."""
        end_ns = self.manifest.end_ns or self._last_ns()
        if self._midnight_ns is not None:
            end_ns = min(end_ns, self._midnight_ns + DAY_NS)
        return max(end_ns, self.start_ns)

    @property
    def span_s(self) -> float:
        """The duration, which rates are divided by. Above 0."""
        return max(self.until_ns - self.start_ns, 1) / SECOND_NS

    @cached_property
    def seconds(self) -> DataFrame:
        """The rows of `throughput.per_second`, kept."""
        published, delivered = self.events("published"), self.events("delivered")
        rows = throughput.per_second(published, delivered, self.manifest.start_ns)
        return self.keep("throughput", rows)

    @cached_property
    def outcomes(self) -> list[dict[str, Any]]:
        """The publishes: publisher, broker, topic, outcome, n. Cost: one pass over four columns."""
        dims = ("publisher", "broker", "topic", "outcome")
        counts = self.events("published").groupBy(*dims).agg(F.count(F.lit(1)).alias("n"))
        return [row.asDict() for row in counts.collect()]

    def fates(self) -> DataFrame:
        """Return `audit.fates`, with the day of the publish; made for days alone whose events have changed.

        For a day: the messages that were published on it, whenever they were delivered.
        """
        fates.refresh_fates(self.session, self.lake, self.ingested)
        return self.lake.read(self.session, fates.FATES, fates.SCHEMA, self._partitions())

    def fates_around(self) -> DataFrame:
        """Return the fates of all messages that a delivery of this day can be behind; see `fates.around`."""
        fates.refresh_fates(self.session, self.lake, self.ingested)
        run_id = self.manifest.run_id
        days = fates.around(self.lake, run_id, str(self.day))
        named = [f"{DATE}={each}/{RUN}={run_id}" for each in days] or [self._partitions()]
        return self.lake.read(self.session, fates.FATES, fates.SCHEMA, *named)

    def keep(self, name: str, rows: DataFrame) -> DataFrame:
        """Keep a table of this run or day in place of the kept one, and return it as kept.

        rows: with their day as `date`.
        """
        kept = rows.withColumn(RUN, F.lit(self.manifest.run_id))
        self._write(name, kept)
        return self.lake.read(self.session, name, kept.schema, self._partitions())

    def _write(self, name: str, rows: DataFrame) -> None:
        self.lake.write(name, rows, by=(DATE, RUN), replaces=[self._partitions()])

    def _partitions(self) -> str:
        return f"{DATE}={self.day or '*'}/{RUN}={self.manifest.run_id}"

    @property
    def _midnight_ns(self) -> int | None:
        if self.day is None:
            return None
        return (date.fromisoformat(self.day) - date(1970, 1, 1)).days * DAY_NS

    def _last_ns(self) -> int:
        asked = [
            self.whole.events(kind).agg(F.max(F.greatest(*map(F.col, columns))).alias("last"))
            for kind, columns in (
                ("published", ("intended_ns", "sent_ns", "confirmed_ns")),
                ("delivered", ("received_ns", "acknowledged_ns")),
            )
        ]
        found = [row.last for rows in asked for row in rows.collect() if row.last is not None]
        return max(found, default=self.manifest.start_ns)
