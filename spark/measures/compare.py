"""Two runs, or two days, beside each other: ratios of numbers that mean the same in both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from messagebus.recording.events import FAULTS
from spark.measures import hdr

__all__ = ["Row", "compared", "numbers", "worse"]

PERCENTILES = (50, 99, 99.9, 100)
CONFIRMED, RATE = "messages confirmed", "confirmed per second"
# Numbers that are better when larger; all others are better when smaller.
MORE_IS_BETTER = (RATE, CONFIRMED)
NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Row:
    """One number of both.

    a, b: values of the first and the second; None where it has none. unit: "" for counts.
    """

    name: str
    unit: str
    a: float | None
    b: float | None

    @property
    def ratio(self) -> float | None:
        """The quotient b / a."""
        return self.b / self.a if self.a and self.b is not None else None


def numbers(
    found: Iterable[Mapping[str, Any]],
    *,
    confirmed: int,
    span_s: float,
    faults: Mapping[str, int],
    errors: Mapping[str, int],
) -> list[dict[str, Any]]:
    """Return name, unit, value of one run.

    found: rows of `hdr.percentiles` by measure. span_s: length of the run: a stall is in its rate.
    faults: name in `events.FAULTS` -> count. errors: measure -> difference of clocks, ns.
    A percentile without enough samples has no value.
    """
    rows = [_number(CONFIRMED, "", confirmed), _number(RATE, "/s", confirmed / span_s)]
    for row in sorted(found, key=lambda row: str(row["measure"])):
        for each in PERCENTILES:
            value_ns = hdr.shown(row, each, errors.get(row["measure"], 0))
            value = None if value_ns is None else value_ns / NS_PER_MS
            rows.append(_number(f"{row['measure']} p{each:g}", "ms", value))
    return rows + [_number(name, "", faults.get(name, 0)) for name in FAULTS]


def compared(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Pair the rows of `numbers`, in the order of the first."""
    of_b = {row["name"]: row["value"] for row in b}
    units = {row["name"]: row["unit"] for row in (*a, *b)}
    of_a = {row["name"]: row["value"] for row in a}
    return [Row(name, unit, of_a.get(name), of_b.get(name)) for name, unit in units.items()]


def worse(rows: Sequence[Row], worse_max: float) -> list[str]:
    """Return the numbers of b that are worse by more than that part, in words; empty when none is."""
    found = []
    of_b = {_measure(row.name) for row in rows if row.b is not None}
    for row in rows:
        if row.name in FAULTS:
            # Counts of faults: any more is worse, whatever the bound.
            if (row.b or 0) > (row.a or 0):
                found.append(f"{row.name}: {row.b:,.0f} after {row.a or 0:,.0f}")
        elif row.name == CONFIRMED:
            if row.b == 0:
                found.append("the second confirmed nothing")
        elif row.a is not None and row.b is None and _measure(row.name) not in of_b:
            found.append(f"{row.name}: the second has none")
        elif row.ratio is None:
            continue
        elif row.name in MORE_IS_BETTER and row.ratio < 1 - worse_max:
            found.append(f"{row.name}: {1 - row.ratio:.0%} less")
        elif (
            row.name not in MORE_IS_BETTER and row.ratio > 1 + worse_max and "p100" not in row.name
        ):
            found.append(f"{row.name}: {row.ratio:.2f} times as long")
    return found


def _measure(name: str) -> str:
    """Return the measure of a percentile, which may lack a value where others of its measure have one."""
    return name.rpartition(" p")[0] or name


def _number(name: str, unit: str, value: float | None) -> dict[str, Any]:
    return {"name": name, "unit": unit, "value": value}
