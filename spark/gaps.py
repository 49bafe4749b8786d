"""Longest silences: time without an answer while something was waiting for one."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

__all__ = ["every", "longest"]


def every(rows: DataFrame, dims: Sequence[str], *, start: str, end: str) -> DataFrame:
    """dims, until_ns, gap_ns: one row per end, with the silence that it closed.

    rows: something that waited from `start` to `end`, in ns. Every end closes a gap; the gap began at
    the end before it or, where nothing was waiting then, at the first start of what was.
    Cost: one sort per group.
    """
    # Latest first: the frame "this row and all later ones" then begins at the partition's start, which
    # Spark sums up in one pass; the same frame written forwards costs a pass per row.
    latest_first = Window.partitionBy(*dims).orderBy(F.col(end).desc())
    not_yet_ended = latest_first.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    before = F.lead(end).over(latest_first)
    # The first end has none before it: greatest() skips nulls.
    since = F.greatest(before, F.min(start).over(not_yet_ended))
    gap = F.greatest(F.col(end) - since, F.lit(0))
    return rows.select(*dims, F.col(end).alias("until_ns"), gap.alias("gap_ns"))


def longest(rows: DataFrame, dims: Sequence[str], *, start: str, end: str) -> DataFrame:
    """dims, gap_ns, until_ns: the longest gap of each group."""
    gaps = every(rows, dims, start=start, end=end)
    longest = gaps.groupBy(*dims).agg(F.max(F.struct("gap_ns", "until_ns")).alias("longest"))
    return longest.select(*dims, "longest.gap_ns", "longest.until_ns")
