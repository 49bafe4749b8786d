"""Percentiles of confirms from histograms that were fed the raw values, one by one: the reference."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import pyarrow.compute as pc
import pyarrow.parquet as pq
from hdrh.histogram import HdrHistogram

__all__ = ["Histograms", "fed"]

Histograms: TypeAlias = Mapping[tuple[str, str], HdrHistogram]
"""(publisher, broker) -> all times from the intended one to the confirm, in ns."""

TOP_NS = 1 << 47
DIGITS = 3


def fed(lake: Path) -> Histograms:
    """Of all publishes in a lake with one run, each of which was confirmed. Cost: 3 us a publish."""
    found: Histograms = defaultdict(lambda: HdrHistogram(1, TOP_NS, DIGITS))
    for path in sorted((lake / "published").rglob("*.parquet/*.parquet")):
        columns = ["publisher", "broker", "intended_ns", "confirmed_ns"]
        rows = pq.ParquetFile(path).read(columns)
        taken = pc.subtract(rows["confirmed_ns"], rows["intended_ns"]).to_pylist()
        names = zip(rows["publisher"].to_pylist(), rows["broker"].to_pylist(), strict=True)
        for name, value in zip(names, taken, strict=True):
            found[name].record_value(value)
    return found
