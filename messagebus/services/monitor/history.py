"""Figures of the last hour and day, in rings of fixed size."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FINE_S, FINE_COUNT = 5, 720
COARSE_S, COARSE_COUNT = 60, 1_440
# Names that are kept; those beyond have no history: 35 KB each.
NAMES_MAX = 2_000
GONE_AFTER_S = 24 * 3_600
SPARK_S, SPARK_POINTS = 1_800, 40
FIELDS = ("oldest_s", "waiting", "in_per_s", "out_per_s")


@dataclass(frozen=True, slots=True)
class Course:
    """One figure over time. begin_s: of the first value, s since 1970. values: one a step; None: unknown."""

    begin_s: int
    step_s: int
    values: tuple[float | None, ...]


class Ring:
    """Values of the last `count` steps; where nothing was put, nothing is known."""

    __slots__ = ("_last", "_values", "step_s")

    def __init__(self, step_s: int, count: int) -> None:
        self.step_s = step_s
        self._values = array("f", [math.nan]) * count
        self._last = 0

    def put(self, at_s: float, value: float | None) -> None:
        """Put the value of a step; the last one of a step counts. An earlier step's is left out."""
        step, count = int(at_s // self.step_s), len(self._values)
        if step < self._last:
            return
        for gap in range(max(self._last + 1, step - count + 1), step + 1):
            self._values[gap % count] = math.nan
        self._last = step
        if value is not None:
            self._values[step % count] = value

    def read(self, now_s: float, span_s: float) -> Course:
        """Return the values of the last span_s, at most those that are kept."""
        values = self.floats(now_s, span_s)
        first = int(now_s // self.step_s) - len(values) + 1
        known = tuple(None if math.isnan(value) else value for value in values)
        return Course(first * self.step_s, self.step_s, known)

    def floats(self, now_s: float, span_s: float) -> list[float]:
        """Return the same values as numbers; NaN: unknown."""
        count, last = len(self._values), int(now_s // self.step_s)
        first = last - min(count, math.ceil(span_s / self.step_s)) + 1
        begin, end = max(first, self._last - count + 1), min(last, self._last) + 1
        if begin >= end:
            return [math.nan] * (last - first + 1)
        low, high = begin % count, (end - 1) % count + 1
        kept = self._values[low:high] if low < high else self._values[low:] + self._values[:high]
        return [math.nan] * (begin - first) + kept.tolist() + [math.nan] * (last + 1 - end)


class Series:
    """Some figures of one name, an hour in steps of 5 s and a day in steps of a minute."""

    __slots__ = ("_coarse", "_fine", "last_s")

    def __init__(self, figures: int) -> None:
        self._fine = [Ring(FINE_S, FINE_COUNT) for _ in range(figures)]
        self._coarse = [Ring(COARSE_S, COARSE_COUNT) for _ in range(figures)]
        self.last_s = 0.0

    def put(self, at_s: float, values: Sequence[float | None]) -> None:
        """Put one value of each figure."""
        self.last_s = at_s
        for fine, coarse, value in zip(self._fine, self._coarse, values, strict=True):
            fine.put(at_s, value)
            coarse.put(at_s, value)

    def read(self, figure: int, now_s: float, span_s: float) -> Course:
        """Return a figure's last span_s; in steps of 5 s where those are kept."""
        rings = self._fine if span_s <= FINE_S * FINE_COUNT else self._coarse
        return rings[figure].read(now_s, span_s)

    def spark(self, figure: int, now_s: float) -> tuple[float | None, ...]:
        """Return the mean of each 45 s of the last 30 minutes."""
        values = self._fine[figure].floats(now_s, SPARK_S)
        size = len(values) // SPARK_POINTS
        return tuple(_mean(values[i : i + size]) for i in range(0, len(values), size))


class History:
    """Series by name. A name that was not put for a day is forgotten."""

    def __init__(self, figures: int = len(FIELDS)) -> None:
        self._figures = figures
        self._series: dict[str, Series] = {}

    def put(self, name: str, at_s: float, values: Sequence[float | None]) -> None:
        """Put one value of each figure of a name."""
        series = self._series.get(name)
        if series is None:
            if len(self._series) >= NAMES_MAX and not self._forget(at_s):
                return
            series = self._series[name] = Series(self._figures)
        series.put(at_s, values)

    def of(self, name: str) -> Series | None:
        """Return a name's series; None while nothing is known of it."""
        return self._series.get(name)

    def _forget(self, now_s: float) -> bool:
        gone = [n for n, each in self._series.items() if each.last_s < now_s - GONE_AFTER_S]
        for name in gone:
            del self._series[name]
        return bool(gone)


def _mean(values: Iterable[float]) -> float | None:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else None
