"""How many messages in each second of the load, by when something became of them: rates are made of these.

Latencies belong to the second in which a message was intended; a rate that was counted so would be
that of the schedule, however slow the system.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from bench.run.latencies import SECOND_NS, Rows

__all__ = ["Counts"]


@dataclass(slots=True)
class Counts:
    """of: (second since start_ns, broker) -> messages."""

    start_ns: int
    of: Counter[tuple[int, str]] = field(default_factory=Counter)

    def add(self, broker: str, at_ns: Rows) -> None:
        seconds, counts = np.unique((at_ns - self.start_ns) // SECOND_NS, return_counts=True)
        for second, count in zip(seconds.tolist(), counts.tolist(), strict=True):
            self.of[second, broker] += count

    def total(self, within: range | None = None) -> int:
        """None: of the whole load."""
        return sum(n for (second, _), n in self.of.items() if within is None or second in within)

    def by_broker(self) -> dict[str, list[int]]:
        """broker -> messages in second 0, 1, ... of the load."""
        last = max((second for second, _ in self.of), default=0)
        found: dict[str, list[int]] = {}
        for (second, broker), count in self.of.items():
            if second >= 0:
                found.setdefault(broker, [0] * (last + 1))[second] += count
        return dict(sorted(found.items()))

    def as_json(self) -> list[dict[str, object]]:
        return [{"second": s, "broker": b, "count": n} for (s, b), n in sorted(self.of.items())]

    def merge(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Add what another process has counted, of `as_json`."""
        for row in rows:
            self.of[int(str(row["second"])), str(row["broker"])] += int(str(row["count"]))
