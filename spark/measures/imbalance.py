"""Balance of a load over brokers, connections or keys: largest share against the mean, and Gini's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

# Names of the judged loads.
OF_BROKERS, OF_RATES = "brokers, messages confirmed", "brokers, rate while they took any"
OF_DELIVERIES = "brokers, deliveries"
OF_CONNECTIONS, OF_KEYS = "connections, messages confirmed", "keys, messages"


@dataclass(frozen=True, slots=True)
class Imbalance:
    """The balance of a load. max_over_mean: 1 is even, n is all on one of n.

    gini: 0 is even, (n - 1) / n is all on one.
    """

    count: int
    mean: float
    max_over_mean: float
    gini: float


def imbalance(loads: Sequence[float]) -> Imbalance | None:
    """Judge one load each, 0 or more, the idle ones included; None when there is no load."""
    return imbalance_of((load, 1) for load in loads)


def imbalance_of(loads: Iterable[tuple[float, int]]) -> Imbalance | None:
    """Judge loads, each given with the number of those who have it.

    Gini's coefficient is the mean difference of all pairs over twice the mean, here by ranks:
    sum((2 rank - n - 1) * load) / (n * total); k equal loads after `below` others have, together,
    ranks of k * (2 * below + k - n).
    """
    ordered = sorted(loads)
    n = sum(of for _, of in ordered)
    total = sum(load * of for load, of in ordered)
    if not total:
        return None
    below, weighted = 0, 0.0
    for load, of in ordered:
        weighted += load * of * (2 * below + of - n)
        below += of
    return Imbalance(n, total / n, ordered[-1][0] * n / total, weighted / (n * total))


def keys(published: DataFrame) -> DataFrame:
    """Return topic, key, messages, bytes, of messages that have a key."""
    keyed = published.filter(F.coalesce("key", F.lit("")) != "")
    return keyed.groupBy("topic", "key").agg(
        F.count(F.lit(1)).alias("messages"), F.sum("size").alias("bytes")
    )


def hot_keys(keys: DataFrame, count: int) -> DataFrame:
    """Return the keys with the most messages."""
    return keys.orderBy(F.col("messages").desc(), "topic", "key").limit(count)


def key_loads(keys: DataFrame) -> DataFrame:
    """Return messages, keys: the number of keys with that many. Few rows, however many keys there are."""
    return keys.groupBy("messages").agg(F.count(F.lit(1)).alias("keys"))
