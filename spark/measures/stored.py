"""Measures of stored messages, as `spark.source` reads them: by minute and broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

MINUTE_MS = 60_000
BY = ("minute", "broker")
# What `by_minute` needs of a stored message.
NEEDED = "broker string, published_ms long, bytes long, gap string"
SUMS, HIGHEST = ("messages", "bytes", "gaps", "age_ms"), ("last_ms", "age_max_ms")
MINUTES = (
    "minute long, broker string, messages long, bytes long, last_ms long, gaps long, "
    "age_ms long, age_max_ms long"
)


def by_minute(rows: DataFrame, now_ms: int) -> DataFrame:
    """Return `MINUTES`: sums over the messages that were published in a minute. minute: since 1970.

    age_ms: the sum of their ages at this time; of one that does not say when it was published, none. A gap
    counts as one in gaps, and not as a message.
    """
    is_message = F.col("gap").isNull()
    age_ms = F.when(F.col("published_ms") > 0, F.greatest(F.lit(0), now_ms - F.col("published_ms")))
    minute = F.floor(F.coalesce("published_ms", F.lit(0)) / MINUTE_MS)
    return rows.groupBy(minute.alias("minute"), "broker").agg(
        F.count_if(is_message).alias("messages"),
        F.coalesce(F.sum("bytes"), F.lit(0)).cast("long").alias("bytes"),
        F.coalesce(F.max("published_ms"), F.lit(0)).cast("long").alias("last_ms"),
        F.count_if(~is_message).alias("gaps"),
        F.coalesce(F.sum(age_ms), F.lit(0)).cast("long").alias("age_ms"),
        F.coalesce(F.max(age_ms), F.lit(0)).cast("long").alias("age_max_ms"),
    )


def merged(parts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of `by_minute` for all parts of the messages, each in one of them, in order."""
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for part in parts:
        key = (part["minute"], part["broker"])
        had = found.setdefault(key, dict(zip(BY, key, strict=True)))
        for name in SUMS:
            had[name] = had.get(name, 0) + (part[name] or 0)  # tables of before have no ages
        for name in HIGHEST:
            had[name] = max(had.get(name, 0), part[name] or 0)
    return [found[key] for key in sorted(found)]


def spread(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return minute, messages, bytes, age_ms (their mean), age_max_ms, and imbalance.

    imbalance: messages of the busiest broker over the mean of all brokers of any minute; 1 is even.
    """
    listed = [*rows]
    brokers = len({row["broker"] for row in listed}) or 1
    minutes: dict[int, list[Mapping[str, Any]]] = {}
    for row in listed:
        minutes.setdefault(row["minute"], []).append(row)
    found = []
    for minute, each in sorted(minutes.items()):
        total = sum(row["messages"] for row in each)
        busiest = max(row["messages"] for row in each)
        found.append(
            {
                "minute": minute,
                "messages": total,
                "bytes": sum(row["bytes"] for row in each),
                "age_ms": sum(row["age_ms"] for row in each) / (total or 1),
                "age_max_ms": max(row["age_max_ms"] for row in each),
                "imbalance": busiest * brokers / total if total else 1.0,
            }
        )
    return found
