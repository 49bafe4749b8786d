"""When what went wrong was sent: so that a fault is seen beside what was done to the cluster just then."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark.throughput import whole, window

__all__ = ["TROUBLES", "over_time"]

# Counts of `over_time` -> in words.
TROUBLES = {
    "lost": "lost",
    "altered": "altered",
    "unexplained": "again, unexplained",
    "explained": "again, explained",
    "strange": "never published",
    "unconfirmed": "not confirmed",
}


def over_time(fates: DataFrame, start_ns: int, width_s: int) -> DataFrame:
    """at, and the counts of `TROUBLES`. fates: of `audit.fates`.

    at: first second of the window of `width_s` in which messages were meant to be sent, since the start of
    the run; of what was never published, in which it came. strange, unexplained, explained: deliveries;
    unconfirmed: messages; the others: pairs of a message and a subscription.
    """
    known = F.col("outcome").isNotNull()
    rows = fates.withColumn("when_ns", F.coalesce("intended_ns", "first_ns"))
    at = whole("second", width_s).alias("at")
    seconds = rows.withColumn("second", window("when_ns", start_ns, 1))
    counts = [
        F.count_if("lost").alias("lost"),
        F.count_if(F.col("altered") > 0).alias("altered"),
        _sum(_repeats(unexplained=True)).alias("unexplained"),
        _sum(_repeats(unexplained=False)).alias("explained"),
        _sum(F.when(~known, F.col("deliveries"))).alias("strange"),
        F.count_if(known & (F.col("outcome") != "confirmed") & (F.col("ordinal") == 0)).alias(
            "unconfirmed"
        ),
    ]
    return seconds.filter(F.col("second").isNotNull()).groupBy(at).agg(*counts)


def _repeats(*, unexplained: bool) -> Column:
    return F.size(
        F.filter(
            F.coalesce("repeats", F.array().cast("array<struct<broker:string,why:string>>")),
            lambda one: (one.why == "unexplained") == F.lit(unexplained),
        )
    )


def _sum(column: Column) -> Column:
    return F.coalesce(F.sum(column), F.lit(0))
