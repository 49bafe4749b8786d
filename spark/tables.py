"""Parquet tables of a run: ``<out>/tables/<name>/run_id=<id>/``.

A run's folder is replaced whole, also by an empty result, which Spark's dynamic partition overwrite
would leave as it was. Read several runs with ``run_id`` as text: Spark guesses a number for a run
called 007.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

__all__ = ["Tables"]


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one run below the folder `out`."""

    out: Path
    run_id: str

    def folder(self, name: str) -> Path:
        return self.out / "tables" / name / f"run_id={self.run_id}"

    def write(self, session: SparkSession, name: str, rows: DataFrame) -> DataFrame:
        """Write rows (their own run_id column goes into the path) and return them as read back."""
        kept = rows.drop("run_id")
        path = self.folder(name).resolve().as_uri()
        kept.write.mode("overwrite").parquet(path)
        return session.read.schema(kept.schema).parquet(path)
