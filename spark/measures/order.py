"""Messages that came after a later one: per publisher, key and broker, as one consumer received them.

Only first deliveries count, of messages that were sent once: a repeat comes late by its nature, and a
publish that was sent again promises no order. Deliveries of one instant are taken to be in order. A
publisher that began anew, with numbers that it had given before, is judged by its intended times.

Subscriptions of partitioned topics promise more: each key completes in its order, over all publishers,
brokers and consumers, also where it was sent or delivered again (`broken_keys`).

An *arrival* is a first delivery whose order is judged. To sort all arrivals of a stream is expensive, and one
stream may have most of them. Nearly always all are in order, which `shaken` shows by short pieces of time.
"""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark.lake.tables import utc_day

# A broker gives a queue to each of its consumers in the order of the queue.
STREAM = ("topic", "subscription", "first_consumer", "first_broker", "publisher", "key")


ARRIVAL = ("message_id", *STREAM, "sequence", "first_ns")
# Few enough arrivals to be sorted quickly, enough of them to be worth a group: 10 s.
PIECE_NS = 10_000_000_000


def arrivals(fates: DataFrame) -> DataFrame:
    """Return `ARRIVAL`. fates: rows of `audit.fates`."""
    return fates.filter(_is_ordered()).select(*ARRIVAL)


def out_of_order(arrivals: DataFrame) -> DataFrame:
    """Return date, message_id (hex), topic, subscription, consumer, broker, publisher, key, sequence, after.

    date: day of the arrival, UTC. after: the highest sequence that had come before it, above its own.
    Cost: one sort of all arrivals.
    """
    before = (
        Window.partitionBy(*STREAM)
        .orderBy("first_ns", "sequence")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    judged = arrivals.withColumn("after", F.max("sequence").over(before))
    return judged.filter(F.col("sequence") < F.col("after")).select(
        utc_day(F.col("first_ns")).alias("date"),
        F.lower(F.hex("message_id")).alias("message_id"),
        "topic",
        "subscription",
        F.col("first_consumer").alias("consumer"),
        F.col("first_broker").alias("broker"),
        "publisher",
        "key",
        "sequence",
        "after",
    )


def broken_keys(published: DataFrame, delivered: DataFrame, pairs: Collection[str]) -> DataFrame:
    """Return the columns of `out_of_order`: of the messages of a key that completed too late.

    One is late when another of its key had completed before it, whose publish began when this one was
    confirmed, or behind it at the same publisher. after: ns from its own publish to that of the other one.
    Only first completions count. pairs: such as ``orders/billing``, of partitioned topics.
    Cost: a join of all their messages, and two sorts.
    """
    completed = delivered.filter(
        F.concat_ws("/", "topic", "subscription").isin(*pairs)
        & F.col("acknowledged_ns").isNotNull()
    )
    first = completed.groupBy("message_id", "topic", "subscription").agg(
        F.min("acknowledged_ns").alias("done_ns"),
        *[F.min_by(name, "acknowledged_ns").alias(name) for name in ("consumer", "broker")],
    )
    sent = (
        published.filter(F.coalesce(F.col("key"), F.lit("")) != "")
        .groupBy("message_id")
        .agg(
            F.min("intended_ns").alias("intended_ns"),
            F.min("confirmed_ns").alias("confirmed_ns"),
            *[
                F.min_by(name, "intended_ns").alias(name)
                for name in ("publisher", "key", "sequence")
            ],
        )
    )
    key = Window.partitionBy("topic", "subscription", "key").orderBy("done_ns", "intended_ns")
    own = Window.partitionBy("topic", "subscription", "key", "publisher").orderBy(
        "done_ns", "intended_ns"
    )
    before = Window.unboundedPreceding, -1
    latest = F.max("intended_ns")
    judged = first.join(sent, "message_id").select(
        "*",
        latest.over(key.rowsBetween(*before)).alias("others_ns"),
        latest.over(own.rowsBetween(*before)).alias("own_ns"),
    )
    is_late = F.col("own_ns") > F.col("intended_ns")
    late = judged.filter(is_late | (F.col("others_ns") > F.col("confirmed_ns")))
    return late.select(
        utc_day(F.col("done_ns")).alias("date"),
        F.lower(F.hex("message_id")).alias("message_id"),
        *("topic", "subscription", "consumer", "broker", "publisher", "key", "sequence"),
        (F.col("others_ns") - F.col("intended_ns")).alias("after"),
    )


def shaken(arrivals: DataFrame) -> DataFrame:
    """Return stream: digests of the streams that are not in order, or share their digest with one of these.

    In a piece of time arrivals are compared with the one before; pieces by their lowest and highest.
    """
    piece = F.call_function("div", F.col("first_ns"), F.lit(PIECE_NS))
    rows = arrivals.select(_stream(), piece.alias("piece"), "sequence", "first_ns")
    # With one number that differs for most rows, sorting rarely compares further columns.
    group = ["mixed", "stream", "piece"]
    mixed = rows.withColumn("mixed", F.xxhash64("stream", "piece"))
    before = F.lag("sequence").over(Window.partitionBy(*group).orderBy("first_ns", "sequence"))
    compared = mixed.withColumn("is_late", F.col("sequence") < before)
    pieces = compared.groupBy(*group).agg(
        F.min("sequence").alias("low"),
        F.max("sequence").alias("high"),
        F.max("is_late").alias("is_late"),
    )
    earlier = (
        Window.partitionBy("stream").orderBy("piece").rowsBetween(Window.unboundedPreceding, -1)
    )
    told = pieces.withColumn("reached", F.max("high").over(earlier))
    return (
        told.filter(F.col("is_late") | (F.col("low") < F.col("reached")))
        .select("stream")
        .distinct()
    )


def of_streams(arrivals: DataFrame, streams: DataFrame) -> DataFrame:
    """Return the arrivals of those streams. streams: rows of `shaken`."""
    return (
        arrivals.withColumn("stream", _stream()).join(streams, "stream", "left_semi").drop("stream")
    )


def renumbered(published: DataFrame) -> DataFrame:
    """Return publisher: those that gave one number to several messages, as after a restart."""
    numbers = published.groupBy("publisher", "sequence").agg(
        (F.min("message_id") != F.max("message_id")).alias("is_repeated")
    )
    return numbers.filter("is_repeated").select("publisher").distinct()


def by_time(arrivals: DataFrame, published: DataFrame, publishers: DataFrame) -> DataFrame:
    """Return the arrivals, with intended times as numbers for those publishers, because they always rise."""
    own = published.join(publishers, "publisher", "left_semi")
    times = own.groupBy("message_id").agg(F.min("intended_ns").alias("intended_ns"))
    timed = arrivals.join(times, "message_id", "left")
    number = F.coalesce("intended_ns", "sequence").alias("sequence")
    return timed.select(*[number if name == "sequence" else name for name in arrivals.columns])


def left_out(fates: DataFrame) -> DataFrame:
    """Return ordered, left_out: first deliveries whose order is judged, and those whose order is not."""
    came = fates.filter(F.col("deliveries") > 0)
    return came.agg(
        F.count_if(_is_ordered()).alias("ordered"), F.count_if(~_is_ordered()).alias("left_out")
    )


def _stream() -> Column:
    return F.xxhash64(*STREAM).alias("stream")


def _is_ordered() -> Column:
    """Return whether the order is judged; false where a column is null: the message was never published."""
    sent_once = (F.col("attempts") == 1) & F.col("sequence").isNotNull()
    came_once = (F.col("deliveries") > 0) & (F.col("first_redelivered") == 0)
    return F.coalesce(sent_once & came_once, F.lit(False))
