"""Parquet tables of a run: ``<out>/tables/<name>/run_id=<id>/``.

A run's folder is replaced whole, also by an empty result, which Spark's dynamic partition overwrite
would leave as it was. Read several runs with ``run_id`` as text: Spark guesses a number for a run
called 007.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

__all__ = ["Tables", "address_of", "pattern_of"]


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one run below the folder `out`."""

    out: Path
    run_id: str

    def folder(self, name: str) -> Path:
        return self.out / "tables" / name / f"run_id={self.run_id}"

    def read(self, session: SparkSession, name: str, schema: StructType | None = None) -> DataFrame:
        """The table as kept. schema: of its columns, which saves Spark a job to find out."""
        reader = session.read.schema(schema) if schema else session.read
        return reader.parquet(pattern_of(self.folder(name)))

    def write(self, session: SparkSession, name: str, rows: DataFrame) -> DataFrame:
        """Write rows (their own run_id column goes into the path) and return them as read back."""
        kept = rows.drop("run_id")
        kept.write.mode("overwrite").parquet(address_of(self.folder(name)))
        return self.read(session, name, kept.schema)


def address_of(path: Path) -> str:
    """A path of this machine, wherever Spark's default file system is. Nothing is %-escaped."""
    return f"file://{path.resolve()}"


def pattern_of(path: Path) -> str:
    """The same for reading, where Spark takes every path for a pattern: this one file or folder."""
    return re.sub(r"([\\{}\[\]*?^])", r"\\\1", address_of(path))
