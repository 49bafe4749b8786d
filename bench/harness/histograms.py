"""Latencies by second and broker as HDR histograms, and the number of messages in each second.

A value costs an append while load runs, a fraction of a microsecond; now and then all new values are
sorted into bins at once. Index arithmetic is HdrHistogram's (3 digits, unit 1 ns), so it reads the written
bins.

Rates come from the counts, by the time of the confirm or delivery. Latencies belong to the second in which
a message was intended. A rate by intended times would be the rate of the schedule, even for a slow system.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hdrh.histogram import HdrHistogram
from numpy.typing import NDArray

# 39 hours: the same as the reports'.
TOP_NS = 1 << 47
DIGITS = 3
SUB_BUCKET_MASK = 2047
HALF_BITS = 10
SECOND_NS = 1_000_000_000

Bins = dict[int, int]
"""HdrHistogram's counts index -> number of values."""
Rows = NDArray[np.int64]


def indexes(values: Rows) -> Rows:
    """Return HdrHistogram's counts index of each value, 0 or more."""
    # The exponent of a double is exact up to 2^53, some 104 days in ns.
    bits = np.frexp((values | SUB_BUCKET_MASK).astype(np.float64))[1].astype(np.int64) - 1
    bucket = bits - HALF_BITS
    return (bucket << HALF_BITS) + (values >> bucket)


def binned(values: Rows) -> Bins:
    """Return the bins of values, 0 or more."""
    found, counts = np.unique(indexes(np.minimum(values, TOP_NS - 1)), return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def histogram(bins: Mapping[int, int]) -> HdrHistogram:
    made = HdrHistogram(1, TOP_NS, DIGITS)
    for index, count in bins.items():
        made.record_value(made.get_value_from_index(index), count)
    return made


@dataclass(slots=True)
class Latencies:
    """The latencies of one measure. below_zero: values that a clock made negative; they are in no bin.

    bins: (second since start_ns, broker) -> bins.
    """

    start_ns: int
    bins: dict[tuple[int, str], Bins] = field(default_factory=lambda: defaultdict(dict))
    below_zero: int = 0

    def add(self, broker: str, at_ns: Rows, values_ns: Rows) -> None:
        """Add many values of one broker at once; at_ns: times that determine the second of each."""
        if len(values_ns) and values_ns.min() < 0:
            good = values_ns >= 0
            self.below_zero += int(len(values_ns) - good.sum())
            at_ns, values_ns = at_ns[good], values_ns[good]
        seconds = (at_ns - self.start_ns) // SECOND_NS
        keys = (seconds << 20) + indexes(np.minimum(values_ns, TOP_NS - 1))
        for key, count in zip(*np.unique(keys, return_counts=True), strict=True):
            second, index = int(key) >> 20, int(key) & ((1 << 20) - 1)
            bins = self.bins[second, broker]
            bins[index] = bins.get(index, 0) + int(count)

    def whole(self, seconds: range | None = None, broker: str | None = None) -> Bins:
        """Return the sum over these seconds and one broker; None: over all."""
        return summed(
            bins
            for (second, name), bins in self.bins.items()
            if (seconds is None or second in seconds) and broker in (None, name)
        )

    def as_json(self) -> list[dict[str, Any]]:
        return [
            {"second": second, "broker": broker, "bins": sorted(bins.items())}
            for (second, broker), bins in sorted(self.bins.items())
        ]

    def merge(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add the latencies of another process, in the form of `as_json`."""
        for row in rows:
            key = row["second"], row["broker"]
            self.bins[key] = summed((self.bins[key], dict(row["bins"])))


def summed(parts: Iterable[Mapping[int, int]]) -> Bins:
    total: Bins = {}
    for bins in parts:
        for index, count in bins.items():
            total[index] = total.get(index, 0) + count
    return total


@dataclass(slots=True)
class Counts:
    """Counts of messages. of: (second since start_ns, broker) -> messages."""

    start_ns: int
    of: Counter[tuple[int, str]] = field(default_factory=Counter)

    def add(self, broker: str, at_ns: Rows) -> None:
        seconds, counts = np.unique((at_ns - self.start_ns) // SECOND_NS, return_counts=True)
        for second, count in zip(seconds.tolist(), counts.tolist(), strict=True):
            self.of[second, broker] += count

    def total(self, within: range | None = None) -> int:
        """Return the sum over these seconds; None: over the whole load."""
        return sum(n for (second, _), n in self.of.items() if within is None or second in within)

    def by_broker(self) -> dict[str, list[int]]:
        """Return broker -> messages in second 0, 1, ... of the load."""
        last = max((second for second, _ in self.of), default=0)
        found: dict[str, list[int]] = {}
        for (second, broker), count in self.of.items():
            if second >= 0:
                found.setdefault(broker, [0] * (last + 1))[second] += count
        return dict(sorted(found.items()))

    def as_json(self) -> list[dict[str, Any]]:
        return [{"second": s, "broker": b, "count": n} for (s, b), n in sorted(self.of.items())]

    def merge(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add the counts of another process, in the form of `as_json`."""
        for row in rows:
            self.of[row["second"], row["broker"]] += row["count"]
