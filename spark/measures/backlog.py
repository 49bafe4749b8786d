"""The backlog of the brokers: number and age, second by second, from publishes and first deliveries.

A message waits from its confirm to its first delivery; one that never came waits to the end. The
brokers' own counts, where they were sampled, are shown beside: they include publishes of others.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark.measures.throughput import window

SECOND_NS = 1_000_000_000
DIMS = ("broker", "topic", "subscription")
FAR_NS = 1 << 62


def waits(fates: DataFrame) -> DataFrame:
    """Return date, broker, topic, subscription, in_ns, out_ns (null: never), early_ns of expected messages.

    early_ns: how long before its sending a message came that was sent once; 0 for all others. Clocks differ
    by that, or more. out_ns is before in_ns where a delivery overtook the confirm on its way back.
    A copy that an unconfirmed attempt left elsewhere came from a broker that is not known to have
    stored it: it waits where it was confirmed.
    """
    return fates.filter("expected").select(
        "date",
        "broker",
        "topic",
        "subscription",
        F.col("confirmed_ns").alias("in_ns"),
        F.when(F.col("deliveries") > 0, F.col("first_ns")).alias("out_ns"),
        F.when(
            (F.col("deliveries") > 0)
            & (F.col("attempts") == 1)
            & (F.col("first_ns") < F.col("sent_ns")),
            F.col("sent_ns") - F.col("first_ns"),
        )
        .otherwise(F.lit(0))
        .alias("early_ns"),
    )


def early(waits: DataFrame) -> dict[str, int]:
    """Return backwards: messages that came before their sending, and error_ns: by how much at most."""
    [row] = waits.agg(
        F.count_if(F.col("early_ns") > 0).alias("backwards"),
        F.coalesce(F.max("early_ns"), F.lit(0)).alias("error_ns"),
    ).collect()
    return row.asDict()


def depths(waits: DataFrame, start_ns: int, end_ns: int) -> DataFrame:
    """Return DIMS, second, entered, left, depth, most, age_ms, oldest_ms of each second with any movement.

    depth: messages that wait at its end. most: at once, at any time in it. A message that came before its
    confirm waited at no time. age_ms: the longest wait of any message in it, 0 for none;
    oldest_ms: age of the oldest that still waits at its end.
    """
    never = F.lit(end_ns + SECOND_NS)
    # What overtook its confirm comes and goes at one time.
    ends = waits.withColumn("gone_ns", F.greatest(F.coalesce("out_ns", never), F.col("in_ns")))
    moved = ends.select(
        *DIMS,
        "in_ns",
        "gone_ns",
        F.inline(
            F.array(
                F.struct(
                    _second("in_ns", start_ns).alias("second"),
                    F.lit(1).alias("comes"),
                    F.col("in_ns").alias("at_ns"),
                ),
                F.struct(
                    _second("gone_ns", start_ns).alias("second"),
                    F.lit(0).alias("comes"),
                    F.col("gone_ns").alias("at_ns"),
                ),
            )
        ),
    )
    # By range: what happens at one time is one change.
    within = Window.partitionBy(*DIMS, "second").orderBy("at_ns")
    so_far = within.rangeBetween(Window.unboundedPreceding, Window.currentRow)
    moved = moved.withColumn("more", F.sum(2 * F.col("comes") - 1).over(so_far))
    both = moved.groupBy(*DIMS, "second").agg(
        F.sum("comes").alias("entered"),
        F.sum(1 - F.col("comes")).alias("left"),
        F.greatest(F.max("more"), F.lit(0)).alias("more"),
        F.min(F.when(F.col("comes") == 0, F.col("in_ns"))).alias("oldest_ns"),
        F.max(F.when(F.col("comes") == 0, F.col("gone_ns") - F.col("in_ns"))).alias("waited_ns"),
    )
    group = Window.partitionBy(*DIMS).orderBy("second")
    upto = group.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    # A message that leaves later than this second waits at its end, if it has entered by then; the oldest of
    # those that leave later is the oldest that waits, unless it is still to come.
    later = (
        Window.partitionBy(*DIMS)
        .orderBy(F.col("second").desc())
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    at_ns = F.lit(start_ns) + (F.col("second") + 1) * SECOND_NS
    waits_ns = at_ns - F.coalesce(F.min("oldest_ns").over(later), F.lit(FAR_NS))
    age_ns = F.greatest(waits_ns, F.coalesce("waited_ns", F.lit(0)), F.lit(0))
    depth = F.sum(F.col("entered") - F.col("left")).over(upto)
    return both.select(
        *DIMS,
        "second",
        "entered",
        "left",
        depth.alias("depth"),
        (depth - F.col("entered") + F.col("left") + F.col("more")).alias("most"),
        (age_ns / 1_000_000).alias("age_ms"),
        (F.greatest(waits_ns, F.lit(0)) / 1_000_000).alias("oldest_ms"),
    ).filter(F.col("second") <= (end_ns - start_ns) / SECOND_NS)


def still(waits: DataFrame, start_ns: int, at_ns: int) -> DataFrame:
    """Return a row of `depths` for the second before a moment: waiting messages, moving or not."""
    there = (F.col("in_ns") < at_ns) & (F.col("out_ns").isNull() | (F.col("out_ns") >= at_ns))
    age_ms = ((F.lit(at_ns) - F.min("in_ns")) / 1_000_000).alias("age_ms")
    found = waits.filter(there).groupBy(*DIMS).agg(F.count(F.lit(1)).alias("depth"), age_ms)
    none = F.lit(0).cast("long")
    return found.select(
        *DIMS,
        F.lit((at_ns - 1 - start_ns) // SECOND_NS).cast("long").alias("second"),
        none.alias("entered"),
        none.alias("left"),
        "depth",
        F.col("depth").alias("most"),
        "age_ms",
        F.col("age_ms").alias("oldest_ms"),
    )


def together(*depths: DataFrame) -> DataFrame:
    """Join rows of `depths` from several sources, to one for each second."""
    most = [F.max(name).alias(name) for name in ("depth", "most", "age_ms", "oldest_ms")]
    moved = [F.sum(name).alias(name) for name in ("entered", "left")]
    rows = reduce(DataFrame.unionByName, depths).groupBy(*DIMS, "second").agg(*moved, *most)
    return rows.select(*depths[0].columns)


def left(waits: DataFrame, end_ns: int) -> DataFrame:
    """Return DIMS, never: number of messages that had come in by end_ns and were never taken out."""
    kept = waits.filter(F.col("out_ns").isNull() & (F.col("in_ns") < end_ns))
    return kept.groupBy(*DIMS).agg(F.count(F.lit(1)).alias("never"))


def drains(depths: DataFrame) -> DataFrame:
    """Return DIMS, peak, peak_second, empty_second (the first after the peak; null: not emptied), age_ms.

    peak: the most at once, at any time. age_ms: age of the oldest message at any time.
    """
    peak = depths.groupBy(*DIMS).agg(
        F.max(F.struct("most", (-F.col("second")).alias("earlier"))).alias("peak"),
        F.max("age_ms").alias("age_ms"),
    )
    peaks = peak.select(
        *DIMS,
        F.col("peak.most").alias("peak"),
        (-F.col("peak.earlier")).alias("peak_second"),
        "age_ms",
    )
    emptied = (F.col("depth") == 0) & (F.col("second") >= F.col("peak_second"))
    joined = depths.drop("age_ms").join(F.broadcast(peaks), [*DIMS])
    return joined.groupBy(*DIMS, "peak", "peak_second", "age_ms").agg(
        F.min(F.when(emptied, F.col("second"))).alias("empty_second")
    )


def sampled(samples: DataFrame, start_ns: int) -> DataFrame:
    """Return DIMS, second, ready, unacked: the last sample of each second, in the broker's numbers."""
    timed = samples.withColumn("second", _second("at_ns", start_ns))
    return timed.groupBy(*DIMS, "second").agg(
        F.max_by("ready", "at_ns").alias("ready"), F.max_by("unacked", "at_ns").alias("unacked")
    )


def _second(column_ns: str, start_ns: int) -> Column:
    return window(column_ns, start_ns, 1)
