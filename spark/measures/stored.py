"""Measures of stored messages, as `spark.source` reads them: by minute and broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

MINUTE_MS = 60_000
BY = ("minute", "broker")
# What `by_minute` needs of a stored message.
NEEDED = "broker string, published_ms long, bytes long, gap string"
SUMS, HIGHEST = ("messages", "bytes", "gaps", "age_ms"), ("last_ms", "age_max_ms")
# 0 where no message says when it was published.
LOWEST = "first_ms"
# A row of the live tables: sums over the messages of a minute and a broker.
ARROW = pa.schema(
    [
        (name, pa.string() if name == "broker" else pa.int64())
        for name in (*BY, *SUMS[:2], "last_ms", "gaps", "age_ms", "age_max_ms", LOWEST)
    ]
)


def by_minute(rows: DataFrame) -> DataFrame:
    """Return sums over the messages that were published in a minute: of `ARROW` all but the ages.

    minute: since 1970. dated: messages that say when they were published; first_ms, sum_ms: of these times. A
    gap counts as one in gaps, and not as a message. No value of a batch is in the plan: code that Spark makes
    of it would be new for each batch, and be compiled again.
    """
    is_message, is_dated = F.col("gap").isNull(), F.col("published_ms") > 0
    minute = F.floor(F.coalesce("published_ms", F.lit(0)) / MINUTE_MS)
    return rows.groupBy(minute.alias("minute"), "broker").agg(
        F.count_if(is_message).alias("messages"),
        F.coalesce(F.sum("bytes"), F.lit(0)).cast("long").alias("bytes"),
        F.coalesce(F.max("published_ms"), F.lit(0)).cast("long").alias("last_ms"),
        F.count_if(~is_message).alias("gaps"),
        F.count_if(is_dated).alias("dated"),
        F.coalesce(F.min(F.when(is_dated, F.col("published_ms"))), F.lit(0)).alias("first_ms"),
        F.coalesce(F.sum("published_ms"), F.lit(0)).alias("sum_ms"),
    )


def aged(rows: Iterable[Mapping[str, Any]], now_ms: int) -> list[dict[str, Any]]:
    """Return rows of `by_minute` as `ARROW`. age_ms: the sum of the ages at this time; no age is below 0."""
    found = []
    for row in rows:
        dated, first_ms, sum_ms = (row[name] for name in ("dated", "first_ms", "sum_ms"))
        ages = {
            "age_ms": max(0, dated * now_ms - sum_ms),
            "age_max_ms": max(0, now_ms - first_ms) if dated else 0,
        }
        known = {**row, **ages}
        found.append({name: known[name] for name in ARROW.names})
    return found


def merged(parts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of `ARROW` for all parts of the messages, each in one of them, in order."""
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for part in parts:
        key = (part["minute"], part["broker"])
        had = found.setdefault(key, dict(zip(BY, key, strict=True)))
        for name in SUMS:
            had[name] = had.get(name, 0) + part[name]
        for name in HIGHEST:
            had[name] = max(had.get(name, 0), part[name])
        had[LOWEST] = min(filter(None, (had.get(LOWEST), part[LOWEST])), default=0)
    return [found[key] for key in sorted(found)]


def spread(rows: Iterable[Mapping[str, Any]], brokers: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Return minute, messages, bytes, age_ms (their mean), age_max_ms, and imbalance.

    imbalance: messages of the busiest broker over the mean of all brokers; 1 is even. brokers: those that may
    have none, beside those of any minute.
    """
    listed = [*rows]
    count = len({*brokers, *(row["broker"] for row in listed)}) or 1
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
                "imbalance": busiest * count / total if total else 1.0,
            }
        )
    return found
