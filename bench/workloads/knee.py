"""The highest rate that a system takes with its latencies still in bounds, found by halving.

Pure: it returns the next rate to try and gets the result. Rates are doubled until one fails; then the gap
between the highest rate that held and the lowest that failed is halved until it is a tenth. A single try
decides nothing: a rate fails when it failed twice, and the answer has held twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bench.analysis.verdict import is_of_load

GROWTH = 2.0
# The precision of the answer: smaller differences are within the variation of one machine.
PRECISION = 0.1
# The number of tries with the same end after which a rate has failed, or is the answer.
SURE = 2
# Rates below this part of the first one are not tried.
LEAST = 1 / 64
# So many rates at which the load was the limit end a search without an answer: a lower one hardly helps.
LATE_RATES_MAX = 3


class Try(NamedTuple):
    """One try. fault: the reason of a failure; "" when the rate held."""

    rate: float
    fault: str


@dataclass(slots=True)
class Knee:
    """A search.

    first: the first rate, in messages a second. top: the highest rate tried, `first` at least.
    """

    first: float
    top: float
    tries: list[Try] = field(default_factory=list)

    def note(self, rate: float, fault: str = "") -> None:
        """Add the result of a try.

        No try is forgotten: a rate may hold and fail until one has occurred twice.
        """
        self.tries.append(Try(rate, fault))

    @property
    def failed(self) -> float:
        """The lowest rate that failed twice; infinity when none did."""
        rates = {each.rate for each in self.tries}
        return min((rate for rate in rates if self._fails(rate) >= SURE), default=math.inf)

    @property
    def held(self) -> float:
        """The highest rate below `failed` that held, 0 when none did. Higher ones do not count."""
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
        if failed <= self.first * LEAST or len(self._late_rates()) >= LATE_RATES_MAX:
            return None
        return failed / GROWTH

    def _late_rates(self) -> list[float]:
        """Return the rates, from the highest, that failed because of the load alone."""
        faults: dict[float, list[str]] = {}
        for each in self.tries:
            faults.setdefault(each.rate, []).append(each.fault)
        return sorted(
            (rate for rate, own in faults.items() if all(map(is_of_load, own))), reverse=True
        )

    def count(self, rate: float) -> int:
        """Return the number of tries at that rate."""
        return self._holds(rate) + self._fails(rate)

    def _holds(self, rate: float) -> int:
        return sum(each.rate == rate and not each.fault for each in self.tries)

    def _fails(self, rate: float) -> int:
        return sum(each.rate == rate and bool(each.fault) for each in self.tries)

    def answer(self, p99_max_ms: float) -> str:
        """Return the answer in a line."""
        bound = f"with p99 within {p99_max_ms:g} ms"
        if not self.held:
            if len(late := self._late_rates()) < LATE_RATES_MAX:
                return f"no rate holds {bound}"
            rates = ", ".join(f"{rate:,.0f}/s" for rate in late)
            return (
                f"no rate was measured {bound}: the load was the limit at {rates}, not the system"
            )
        if self.held >= self.top:
            return f"at least {self.held:,.0f}/s {bound}: no knee was found below it"
        faults = [each.fault for each in self.tries if each.rate == self.failed and each.fault]
        if any(map(is_of_load, faults)):
            return f"knee of the client, not of the system: {self.held:,.0f}/s {bound}"
        return f"knee: {self.held:,.0f}/s {bound}"


def fault_of(result: Mapping[str, Any], p99_max_ms: float) -> str:
    """Return why a rate does not hold, by the ``result.json`` of its run; "" when it does."""
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
