"""Messages and bytes per broker and second; totals per broker and per publisher."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

SECOND_NS = 1_000_000_000
CONFIRMED = "confirmed"
DELIVERED = "delivered"


def per_second(published: DataFrame, delivered: DataFrame, start_ns: int) -> DataFrame:
    """Return date, kind, broker, topic, subscription, publisher, second, messages, bytes.

    kind: `CONFIRMED` at the time of the confirm (subscription is ""), `DELIVERED` at the time of
    receipt, repeats included. second: whole seconds since the start of the run.
    """
    confirmed = published.filter(F.col("outcome") == CONFIRMED).select(
        "date",
        F.lit(CONFIRMED).alias("kind"),
        "broker",
        "topic",
        F.lit("").alias("subscription"),
        "publisher",
        window("confirmed_ns", start_ns, 1).alias("second"),
        "size",
    )
    received = delivered.select(
        "date",
        F.lit(DELIVERED).alias("kind"),
        "broker",
        "topic",
        "subscription",
        F.coalesce("publisher", F.lit("")).alias("publisher"),
        window("received_ns", start_ns, 1).alias("second"),
        "size",
    )
    rows = confirmed.unionByName(received).filter(F.col("second").isNotNull())
    dims = [name for name in rows.columns if name != "size"]
    return rows.groupBy(*dims).agg(
        F.count(F.lit(1)).alias("messages"), F.sum("size").alias("bytes")
    )


def totals(seconds: DataFrame, dims: Sequence[str]) -> DataFrame:
    """Return kind, dims, messages, bytes, active_s (seconds with any), peak_per_s (best second)."""
    each = seconds.groupBy("kind", *dims, "second").agg(
        F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes")
    )
    return each.groupBy("kind", *dims).agg(
        F.sum("messages").alias("messages"),
        F.sum("bytes").alias("bytes"),
        F.count(F.lit(1)).alias("active_s"),
        F.max("messages").alias("peak_per_s"),
    )


def windows(seconds: DataFrame, width_s: int) -> DataFrame:
    """Return kind, name, window (its first second), messages.

    name: the broker of confirms, topic/subscription of deliveries.
    """
    of = F.when(F.col("kind") == CONFIRMED, F.col("broker"))
    name = of.otherwise(F.concat_ws("/", "topic", "subscription")).alias("name")
    window = whole("second", width_s).alias("window")
    return seconds.groupBy("kind", name, window).agg(F.sum("messages").alias("messages"))


def load_s(published: DataFrame) -> float:
    """Return the seconds from the first intended publish to the last, or to the last confirm.

    A run lasts longer where it waits for a broker or for consumers after its load. 0.0 without a publish.
    """
    at = F.coalesce("intended_ns", "sent_ns")
    last = F.greatest(F.max("confirmed_ns"), F.max(at))
    [span] = published.agg((last - F.min(at)).alias("ns")).collect()
    return max(0, span["ns"] or 0) / SECOND_NS


def publishers(published: DataFrame) -> DataFrame:
    """Return publisher, rows (publishes by outcome), retried (sent more than once), bytes."""
    outcomes = ("confirmed", "refused", "unroutable", "unknown", "spooled")
    return published.groupBy("publisher").agg(
        F.count(F.lit(1)).alias("published"),
        *[F.count_if(F.col("outcome") == name).alias(name) for name in outcomes],
        F.count_if(F.col("attempts") > 1).alias("retried"),
        F.sum("size").alias("bytes"),
    )


def whole(second: str, width_s: int) -> Column:
    """Return the first second of the window of `width_s` around a second."""
    return F.col(second) - F.pmod(F.col(second), F.lit(width_s))


def window(column_ns: str, start_ns: int, width_s: int) -> Column:
    """Return seconds from the start of the run to that of the window of `width_s` around a time.

    Whole numbers throughout: wall-clock ns are too large for a double.
    """
    since = F.col(column_ns) - F.lit(start_ns)
    inside = F.pmod(since, F.lit(SECOND_NS * width_s))
    return F.call_function("div", since - inside, F.lit(SECOND_NS))
