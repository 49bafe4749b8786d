"""Messages and bytes per broker and second; totals per broker and per publisher."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

__all__ = [
    "CONFIRMED",
    "CONFIRMED_PER_S",
    "DELIVERED",
    "brokers",
    "loads",
    "per_second",
    "publishers",
    "windows",
]

SECOND_NS = 1_000_000_000
CONFIRMED = "confirmed"
DELIVERED = "delivered"
CONFIRMED_PER_S = "confirmed_per_s"


def per_second(published: DataFrame, delivered: DataFrame) -> DataFrame:
    """kind, broker, topic, subscription, second, messages, bytes.

    kind: `CONFIRMED` at the time of the confirm (subscription is ""), `DELIVERED` at the time of
    receipt, repeats included. second: whole seconds of wall-clock time.
    """
    confirmed = published.filter(F.col("outcome") == CONFIRMED).select(
        F.lit(CONFIRMED).alias("kind"),
        "broker",
        "topic",
        F.lit("").alias("subscription"),
        _second("confirmed_ns"),
        "size",
    )
    received = delivered.select(
        F.lit(DELIVERED).alias("kind"),
        "broker",
        "topic",
        "subscription",
        _second("received_ns"),
        "size",
    )
    rows = confirmed.unionByName(received).filter(F.col("second").isNotNull())
    return rows.groupBy("kind", "broker", "topic", "subscription", "second").agg(
        F.count(F.lit(1)).alias("messages"), F.sum("size").alias("bytes")
    )


def windows(seconds: DataFrame, width_s: int) -> DataFrame:
    """kind, broker, topic, subscription, window (its first second), messages, bytes."""
    window = F.expr(f"second div {width_s} * {width_s}").alias("window")
    return seconds.groupBy("kind", "broker", "topic", "subscription", window).agg(
        F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes")
    )


def brokers(seconds: DataFrame) -> DataFrame:
    """kind, broker, messages, bytes, active_s (seconds with any), peak_per_s (best second)."""
    each = seconds.groupBy("kind", "broker", "second").agg(
        F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes")
    )
    return each.groupBy("kind", "broker").agg(
        F.sum("messages").alias("messages"),
        F.sum("bytes").alias("bytes"),
        F.count(F.lit(1)).alias("active_s"),
        F.max("messages").alias("peak_per_s"),
    )


def loads(brokers: DataFrame, every: DataFrame) -> DataFrame:
    """load_of, broker, load: one row for every broker of the run, 0 where it had none.

    load_of: confirmed and delivered messages, and confirmed_per_s while the broker took any, which
    is what is left of an imbalance when brokers come and go.
    """
    kinds = brokers.select("kind").distinct()
    all_loads = every.crossJoin(kinds).join(brokers, ["kind", "broker"], "left")
    load = F.coalesce("messages", F.lit(0)).cast("double")
    whole = all_loads.select(F.col("kind").alias("load_of"), "broker", load.alias("load"))
    rate = all_loads.filter(F.col("kind") == CONFIRMED).select(
        F.lit(CONFIRMED_PER_S).alias("load_of"),
        "broker",
        (load / F.coalesce("active_s", F.lit(1))).alias("load"),
    )
    return whole.unionByName(rate)


def publishers(published: DataFrame) -> DataFrame:
    """publisher, rows (publishes by outcome), retried (sent more than once), bytes."""
    outcomes = ("confirmed", "refused", "unroutable", "unknown")
    return published.groupBy("publisher").agg(
        F.count(F.lit(1)).alias("published"),
        *[F.count_if(F.col("outcome") == name).alias(name) for name in outcomes],
        F.count_if(F.col("attempts") > 1).alias("retried"),
        F.sum("size").alias("bytes"),
    )


def _second(column: str) -> Column:
    return F.expr(f"{column} div {SECOND_NS}").alias("second")
