"""How evenly a load lies on brokers: the largest share against the mean, and Gini's coefficient."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

__all__ = ["imbalance"]


def imbalance(loads: DataFrame, dims: Sequence[str], value: str) -> DataFrame:
    """dims, brokers, total, mean, max_over_mean, gini.

    loads: one row per broker within dims; brokers without load must be there with 0, or they do not
    count. max_over_mean: 1 is even, n is all on one of n. gini: 0 is even, (n - 1) / n is all on one;
    sum((2 rank - n - 1) * value) / (n * total). Both null where the total is 0.
    """
    group = Window.partitionBy(*dims)
    ranked = loads.select(
        *dims,
        F.col(value).alias("load"),
        F.row_number().over(group.orderBy(value)).alias("rank"),
        F.count(F.lit(1)).over(group).alias("size"),
    )
    weight = 2 * F.col("rank") - F.col("size") - 1
    total = F.nullif(F.sum("load"), F.lit(0))
    return ranked.groupBy(*dims).agg(
        F.count(F.lit(1)).alias("brokers"),
        F.sum("load").alias("total"),
        F.avg("load").alias("mean"),
        (F.max("load") * F.count(F.lit(1)) / total).alias("max_over_mean"),
        (F.sum(weight * F.col("load")) / (F.count(F.lit(1)) * total)).alias("gini"),
    )
