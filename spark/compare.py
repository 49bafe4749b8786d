"""Two runs, or two days, beside each other: ratios of numbers that mean the same in both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark import audit, hdr
from spark.throughput import CONFIRMED, totals

__all__ = ["Row", "compared", "numbers", "worse"]

PERCENTILES = (50, 99, 99.9, 100)
# What is better when there is more of it; everything else is better when there is less.
MORE_IS_BETTER = ("confirmed per second", "messages confirmed")
# Counts of what must not be: any more of it is worse, whatever the bound.
FAULTS = ("lost", "altered", "unexplained", "orphan_deliveries", "unexpected")
NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Row:
    """a, b: of the first and of the second; None where there is none. unit: "" for a count."""

    name: str
    unit: str
    a: float | None
    b: float | None

    @property
    def ratio(self) -> float | None:
        """b over a."""
        return self.b / self.a if self.a and self.b is not None else None


def numbers(seconds: DataFrame, bins: DataFrame, fates: DataFrame) -> DataFrame:
    """name, unit, value: of one run. seconds, bins, fates: the tables of that name."""
    confirmed = totals(seconds, []).filter(F.col("kind") == CONFIRMED)
    rates = confirmed.select(
        F.inline(
            F.array(
                _number("messages confirmed", "", F.col("messages")),
                _number("confirmed per second", "/s", F.col("messages") / F.col("active_s")),
            )
        )
    )
    found = hdr.percentiles(bins, ["measure"], PERCENTILES)
    latencies = found.select(
        F.inline(
            F.array(
                *[
                    F.struct(
                        F.concat("measure", F.lit(f" p{each:g}")).alias("name"),
                        F.lit("ms").alias("unit"),
                        (F.col(hdr.name(each)) / NS_PER_MS).alias("value"),
                    )
                    for each in PERCENTILES
                ]
            )
        )
    )
    whole = audit.totals(fates).filter(F.col("of") == "publisher").groupBy()
    fated = whole.agg(*[F.sum(name).alias(name) for name in FAULTS]).select(
        F.inline(F.array(*[_number(name, "", F.coalesce(name, F.lit(0))) for name in FAULTS]))
    )
    return rates.unionByName(latencies).unionByName(fated)


def compared(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> list[Row]:
    """In the order of the first; of `numbers`, as rows."""
    of_b = {row["name"]: row["value"] for row in b}
    units = {row["name"]: row["unit"] for row in (*a, *b)}
    of_a = {row["name"]: row["value"] for row in a}
    return [Row(name, unit, of_a.get(name), of_b.get(name)) for name, unit in units.items()]


def worse(rows: Sequence[Row], worse_max: float) -> list[str]:
    """In words, what of b is worse than of a by more than that part; empty when nothing is."""
    found = []
    for row in rows:
        if row.name in FAULTS:
            if (row.b or 0) > (row.a or 0):
                found.append(f"{row.name}: {row.b:,.0f} after {row.a or 0:,.0f}")
        elif row.ratio is None or row.name == "messages confirmed":
            continue
        elif row.name in MORE_IS_BETTER and row.ratio < 1 - worse_max:
            found.append(f"{row.name}: {1 - row.ratio:.0%} less")
        elif (
            row.name not in MORE_IS_BETTER and row.ratio > 1 + worse_max and "p100" not in row.name
        ):
            found.append(f"{row.name}: {row.ratio:.2f} times as long")
    return found


def _number(name: str, unit: str, value: Any) -> Any:
    return F.struct(
        F.lit(name).alias("name"), F.lit(unit).alias("unit"), value.cast("double").alias("value")
    )
