"""Measures of stored messages, as `spark.source` reads them: by minute and broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

MINUTE_MS = 60_000
BY = ("minute", "broker")
MINUTES = "minute long, broker string, messages long, bytes long, last_ms long, gaps long"


def by_minute(rows: DataFrame) -> DataFrame:
    """Return `MINUTES`: sums over the messages that were published in a minute. minute: since 1970.

    A gap counts as one in gaps, and not as a message.
    """
    is_message = F.col("gap").isNull()
    minute = F.floor(F.coalesce("published_ms", F.lit(0)) / MINUTE_MS)
    return rows.groupBy(minute.alias("minute"), "broker").agg(
        F.count_if(is_message).alias("messages"),
        F.coalesce(F.sum(F.length("body")), F.lit(0)).cast("long").alias("bytes"),
        F.coalesce(F.max("published_ms"), F.lit(0)).cast("long").alias("last_ms"),
        F.count_if(~is_message).alias("gaps"),
    )


def merged(parts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of `by_minute` for all parts of the messages, each in one of them, in order."""
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for part in parts:
        key = (part["minute"], part["broker"])
        had = found.setdefault(key, dict(zip(BY, key, strict=True)))
        for name in ("messages", "bytes", "gaps"):
            had[name] = had.get(name, 0) + part[name]
        had["last_ms"] = max(had.get("last_ms", 0), part["last_ms"])
    return [found[key] for key in sorted(found)]


def spread(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return minute, messages, bytes and imbalance: messages of the busiest broker over the mean of all.

    All: the brokers of any minute. 1 for an even minute.
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
                "imbalance": busiest * brokers / total if total else 1.0,
            }
        )
    return found
