"""HdrHistogram's arithmetic (3 significant digits, unit 1 ns) as column expressions.

Counts per bin add up, so bins are stored: any coarser report is a sum of bins, and its percentiles are
exactly those of a histogram that had been fed every value. No value passes through Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hdrh.histogram import HdrHistogram
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

# Largest value of every histogram that is written: 39 hours, in ns; and its significant digits.
TOP_NS = 1 << 47
DIGITS = 3
# Samples that must lie beyond a percentile that is shown; the maximum always is.
BEYOND_MIN = 1
# Bin of values below zero.
BELOW = -1
# Multiple of the error of clocks, so that a latency is at most a tenth off.
BEARS = 10

# 3 significant digits: 2 * 10**3 rounded up to a power of two, half of it per bucket.
SUB_BUCKET_MASK = 2047
HALF_BITS = 10


def index(value: Column) -> Column:
    """Return HdrHistogram's counts index of a value of 0 or more (long).

    floor(log2) of a double may be one off next to a power of two; bucket * 1024 + (v >> bucket) is
    the same number from both sides of that edge, so the index is exact.
    """
    bits = F.floor(F.log2(value.bitwiseOR(F.lit(SUB_BUCKET_MASK)).cast("double"))).cast("int")
    bucket = bits - HALF_BITS
    # F.shiftright takes a whole number only, the SQL function a column.
    return F.shiftleft(bucket, HALF_BITS) + F.call_function("shiftright", value, bucket).cast("int")


def highest(index: Column) -> Column:
    """Return the largest value that shares this index: HdrHistogram reports it for a percentile."""
    bucket = F.greatest(F.shiftright(index, HALF_BITS) - 1, F.lit(0))
    above = (index - F.shiftleft(bucket, HALF_BITS) + 1).cast("long")
    return F.call_function("shiftleft", above, bucket) - 1


def lowest(index: Column) -> Column:
    """Return the smallest value that shares this index."""
    bucket = F.greatest(F.shiftright(index, HALF_BITS) - 1, F.lit(0))
    above = (index - F.shiftleft(bucket, HALF_BITS)).cast("long")
    return F.call_function("shiftleft", above, bucket)


def bins(rows: DataFrame, dims: Sequence[str], value: str) -> DataFrame:
    """Count into dims, bin, n.

    Negative values are in the bin `BELOW`: left out, they would lift all others.
    """
    own = F.when(F.col(value) < 0, BELOW).otherwise(index(F.greatest(F.col(value), F.lit(0))))
    return rows.groupBy(*dims, own.alias("bin")).agg(F.count(F.lit(1)).alias("n"))


def percentiles(bins: DataFrame, dims: Sequence[str], wanted: Sequence[float]) -> DataFrame:
    """Return dims, total, and one column per wanted percentile (0 to 100), called by `name`.

    The same rule as HdrHistogram: the value at rank floor(p * total / 100 + 0.5), at least 1; `BELOW`
    where that is below zero.
    """
    group = Window.partitionBy(*dims)
    upto = group.orderBy("bin").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    summed = bins.groupBy(*dims, "bin").agg(F.sum("n").alias("n"))
    ranked = summed.select(
        *dims, "bin", F.sum("n").over(upto).alias("upto"), F.sum("n").over(group).alias("total")
    )

    def reached(percentile: float) -> Column:
        rank = F.floor(F.lit(float(percentile)) * F.col("total") / 100 + 0.5)
        within = F.col("upto") >= F.greatest(rank, F.lit(1))
        return F.min(F.when(within, F.col("bin"))).alias(name(percentile))

    found = ranked.groupBy(*dims).agg(
        F.max("total").alias("total"), *[reached(each) for each in wanted]
    )
    return found.select(*dims, "total", *[_reported(each) for each in wanted])


def _reported(percentile: float) -> Column:
    """Return the highest value of its bin; for percentile 0 the lowest, as HdrHistogram does."""
    bound, bin = highest if percentile else lowest, F.col(name(percentile))
    value = F.when(bin == BELOW, F.lit(BELOW).cast("long")).otherwise(bound(bin))
    return value.alias(name(percentile))


def histogram(bins: Iterable[tuple[int, int]]) -> HdrHistogram:
    """Return the histogram of (bin, n), as if fed every value, for other tools; without values below 0."""
    made = HdrHistogram(1, TOP_NS, DIGITS)
    for each, n in bins:
        if each != BELOW:
            made.record_value(made.get_value_from_index(each), n)
    return made


def supported(percentile: float, total: int) -> bool:
    """Return whether a percentile of this many samples has a meaning; the maximum always has."""
    return percentile >= 100 or total * (100 - percentile) / 100 >= BEYOND_MIN


def shown(row: Mapping[str, Any], percentile: float, error_ns: int = 0) -> int | None:
    """Return the percentile of a row of `percentiles`, in ns; None where it says nothing.

    error_ns: known difference of clocks: a figure is given if it is at least `BEARS` times that.
    """
    value: int | None = row[name(percentile)]
    if value is None or value < max(0, BEARS * error_ns) or not supported(percentile, row["total"]):
        return None
    return value


def name(percentile: float) -> str:
    """Return the column name of a percentile: p50, p99_9."""
    return f"p{percentile:g}".replace(".", "_")
