"""The highest rate that a system takes with its latencies still in bounds, found by halving.

Pure: says which rate to try next and is told how it went. Rates grow twofold until one fails, then the
gap between the best that held and the least that failed is halved until it is a tenth. One try decides
nothing that is told in the end: a rate fails when it failed twice, and the answer has held twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bench.analysis.verdict import is_of_load

__all__ = ["Knee", "Try", "fault_of"]

GROWTH = 2.0
# Of the answer: what lies between is within what one machine varies by itself.
PRECISION = 0.1
# Of tries with the same end, until a rate has failed, or is the answer.
SURE = 2
# Below that part of the first rate nobody looks any more.
LEAST = 1 / 64


class Try(NamedTuple):
    """fault: in words; "" when it held."""

    rate: float
    fault: str


@dataclass(slots=True)
class Knee:
    """first: messages a second, of the first try. top: the most that is tried, `first` at least."""

    first: float
    top: float
    tries: list[Try] = field(default_factory=list)

    def note(self, rate: float, fault: str = "") -> None:
        """One try is over. No try is forgotten: a rate may hold and fail, until it did one of both twice."""
        self.tries.append(Try(rate, fault))

    @property
    def failed(self) -> float:
        """The least rate that failed twice; infinity when none did."""
        rates = {each.rate for each in self.tries}
        return min((rate for rate in rates if self._fails(rate) >= SURE), default=math.inf)

    @property
    def held(self) -> float:
        """The highest rate below it that held, 0 when none did. What held above counts for nothing."""
        rates = (each.rate for each in self.tries if not each.fault)
        return max((rate for rate in rates if rate < self.failed), default=0.0)

    def next_rate(self) -> float | None:
        """Return the rate to try next; None when the answer is known."""
        if self.tries and self.tries[-1].fault and self._fails(self.tries[-1].rate) < SURE:
            return self.tries[-1].rate
        held, failed = self.held, self.failed
        if not held:
            return self._lower(failed)
        if held >= self.top or failed / held <= 1 + PRECISION:
            return held if self._holds(held) < SURE else None
        return min(self.top, held * GROWTH) if failed == math.inf else math.sqrt(held * failed)

    def _lower(self, failed: float) -> float | None:
        if failed == math.inf:
            return self.first
        return failed / GROWTH if failed > self.first * LEAST else None

    def count(self, rate: float) -> int:
        """Of tries at that rate."""
        return self._holds(rate) + self._fails(rate)

    def _holds(self, rate: float) -> int:
        return sum(each.rate == rate and not each.fault for each in self.tries)

    def _fails(self, rate: float) -> int:
        return sum(each.rate == rate and bool(each.fault) for each in self.tries)

    def told(self, p99_max_ms: float) -> str:
        """The answer, in a line."""
        bound = f"with p99 within {p99_max_ms:g} ms"
        if not self.held:
            return f"no rate holds {bound}"
        if self.held >= self.top:
            return f"at least {self.held:,.0f}/s {bound}: no knee was found below it"
        faults = [each.fault for each in self.tries if each.rate == self.failed and each.fault]
        if any(map(is_of_load, faults)):
            return f"knee of the client, not of the system: {self.held:,.0f}/s {bound}"
        return f"knee: {self.held:,.0f}/s {bound}"


def fault_of(result: Mapping[str, Any], p99_max_ms: float) -> str:
    """Say why a rate does not hold, by the ``result.json`` of its run; "" when it does."""
    if result["faults"]:
        return "; ".join(result["faults"])
    consumers = result["profile"]["load"]["consumers"]
    for measure in ("confirm", "delivery") if consumers else ("confirm",):
        p99 = result["percentiles_ms"].get(measure, {}).get("p99")
        if p99 is None:
            return f"too few messages for a p99 of {measure}"
        if p99 > p99_max_ms:
            return f"p99 of {measure} {p99:.3g} ms"
    return ""
