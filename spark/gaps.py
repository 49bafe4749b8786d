"""Longest silences: time without an answer while something was waiting for one, answered or not."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

__all__ = ["every", "longest"]


def every(
    rows: DataFrame, dims: Sequence[str], *, start: str, end: str, until_ns: int | None = None
) -> DataFrame:
    """dims, until_ns, gap_ns: one row per end, with the silence that it closed.

    rows: something that waited from `start` to `end`, in ns; what has no end waited for the next end of
    its group, or to until_ns, when the run was over (None: it is left out). Every end closes a gap; the
    gap began at the end before it or, where nothing was waiting then, at the first start of what was.
    Cost: one sort per group.
    """
    if until_ns is None:
        rows, until_ns = rows.filter(F.col(end).isNotNull()), 0
    # Latest first: the frame "this row and all later ones" then begins at the partition's start, which
    # Spark sums up in one pass; the same frame written forwards costs a pass per row.
    at = F.coalesce(end, start)
    latest_first = Window.partitionBy(*dims).orderBy(at.desc(), F.col(end).asc_nulls_first())
    not_yet_ended = latest_first.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    over = F.greatest(F.lit(until_ns), F.max(start).over(not_yet_ended))
    closed = rows.withColumn(
        "closed_ns", F.coalesce(F.col(end), F.min(end).over(not_yet_ended), over)
    )
    before = F.lead("closed_ns").over(latest_first)
    # The first end has none before it: greatest() skips nulls.
    since = F.greatest(before, F.min(start).over(not_yet_ended))
    gap = F.greatest(F.col("closed_ns") - since, F.lit(0))
    return closed.select(*dims, F.col("closed_ns").alias("until_ns"), gap.alias("gap_ns"))


def longest(
    rows: DataFrame, dims: Sequence[str], *, start: str, end: str, until_ns: int | None = None
) -> DataFrame:
    """dims, gap_ns, until_ns: the longest gap of each group."""
    gaps = every(rows, dims, start=start, end=end, until_ns=until_ns)
    longest = gaps.groupBy(*dims).agg(F.max(F.struct("gap_ns", "until_ns")).alias("longest"))
    return longest.select(*dims, "longest.gap_ns", "longest.until_ns")
