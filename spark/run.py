"""One recorded run, or one day of it, as tables of the lake; what jobs measure on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark import audit
from spark.events import schema_of
from spark.ingest import Ingested
from spark.lake import DATE, RUN, Lake
from spark.manifest import Manifest

__all__ = ["Run"]

FATES = "fates"
# What is confirmed before midnight is delivered after it: a day is judged with its neighbours.
NEIGHBOUR_DAYS = (-1, 0, 1)


@dataclass(frozen=True, slots=True)
class Run:
    """day: ``2026-11-21`` (UTC), None for the whole run."""

    session: SparkSession
    lake: Lake
    ingested: Ingested
    day: str | None = None

    @property
    def manifest(self) -> Manifest:
        return self.ingested.manifest

    def events(self, kind: str) -> DataFrame:
        """published, delivered or sampled: of `schema_of`."""
        return self.lake.read(self.session, kind, schema_of(kind), self._partitions())

    def fates(self) -> DataFrame:
        """Of `audit.fates`, with the day of the publish; made once for the events as they are."""
        session = self._audit_session()
        planned = self._plan_fates(session)
        made_from = self._digest()
        note = f"{FATES}-{self.day}" if self.day else FATES
        if self.lake.note(self.manifest.run_id, note).get("made_from") != made_from:
            self._write(FATES, planned)
            self.lake.take_note(self.manifest.run_id, note, {"made_from": made_from})
        return self.lake.read(self.session, FATES, planned.schema, self._partitions())

    def keep(self, name: str, rows: DataFrame) -> DataFrame:
        """Keep a table of this run or day, in place of what was kept, and return it as kept.

        rows: with their day as `date`.
        """
        kept = rows.withColumn(RUN, F.lit(self.manifest.run_id))
        self._write(name, kept)
        return self.lake.read(self.session, name, kept.schema, self._partitions())

    def around(self, kind: str) -> DataFrame:
        """Of `events`; of a day, with the days before and after."""
        return self._around(self.session, kind)

    def _write(self, name: str, rows: DataFrame) -> None:
        self.lake.write(name, rows, by=(DATE, RUN), replaces=[self._partitions()])

    def _partitions(self) -> str:
        return f"{DATE}={self.day or '*'}/{RUN}={self.manifest.run_id}"

    def _plan_fates(self, session: SparkSession) -> DataFrame:
        published, delivered = (self._around(session, kind) for kind in ("published", "delivered"))
        fates = audit.fates(published, delivered, self.manifest)
        whole = fates.withColumn(RUN, F.lit(self.manifest.run_id))
        return whole.filter(F.col(DATE) == self.day) if self.day else whole

    def _around(self, session: SparkSession, kind: str) -> DataFrame:
        """With the days before and after, when it is about one day."""
        if self.day is None:
            return self.lake.read(session, kind, schema_of(kind), self._partitions())
        middle = date.fromisoformat(self.day)
        days = [str(middle + timedelta(days=each)) for each in NEIGHBOUR_DAYS]
        rows = self.lake.read(
            session, kind, schema_of(kind), f"{DATE}=*/{RUN}={self.manifest.run_id}"
        )
        return rows.filter(F.col(DATE).isin(*days))

    def _audit_session(self) -> SparkSession:
        """Ids hardly ever repeat, so in this one group-by a partial aggregation before the shuffle
        only costs, 10 to 25 % of its CPU. A session of its own, since settings are the session's."""
        session = self.session.newSession()
        session.conf.set("spark.sql.execution.bypassPartialAggregation", "true")
        return session

    def _digest(self) -> str:
        """Changes with the events and with what the manifest says of them."""
        files: dict[str, Any] = {
            source: file["sha256"] for source, file in self.ingested.files.items()
        }
        noted = self.lake.note(self.manifest.run_id, "manifest")
        text = json.dumps([files, noted], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()
