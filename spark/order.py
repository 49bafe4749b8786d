"""Which messages came after a later one: per publisher, key and broker, as one consumer received them.

Only first deliveries count, of messages that were sent once: a repeat comes late by its nature, and a
publish that was sent again promises no order. Deliveries of one instant are taken to be in order.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

__all__ = ["left_out", "out_of_order"]

# A broker gives a queue to each of its consumers in the order of the queue.
STREAM = ("topic", "subscription", "first_consumer", "first_broker", "publisher", "key")


def out_of_order(fates: DataFrame) -> DataFrame:
    """date, message_id (hex), topic, subscription, consumer, broker, publisher, key, sequence, after.

    after: the highest sequence that had come before it, larger than its own. fates: `audit.fates`.
    Cost: one sort of all first deliveries.
    """
    before = (
        Window.partitionBy(*STREAM)
        .orderBy("first_ns", "sequence")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    judged = fates.filter(_is_ordered()).withColumn("after", F.max("sequence").over(before))
    return judged.filter(F.col("sequence") < F.col("after")).select(
        "date",
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


def left_out(fates: DataFrame) -> DataFrame:
    """ordered, left_out: first deliveries whose order is judged, and those of which it is not."""
    came = fates.filter(F.col("deliveries") > 0)
    return came.agg(
        F.count_if(_is_ordered()).alias("ordered"), F.count_if(~_is_ordered()).alias("left_out")
    )


def _is_ordered() -> Column:
    """Also false where one of the columns is null: of what was never published."""
    sent_once = (F.col("attempts") == 1) & F.col("sequence").isNotNull()
    came_once = (F.col("deliveries") > 0) & (F.col("first_redelivered") == 0)
    return F.coalesce(sent_once & came_once, F.lit(False))
