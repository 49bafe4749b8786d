"""How evenly a load lies on brokers: the largest share against the mean, and Gini's coefficient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Imbalance", "imbalance"]


@dataclass(frozen=True, slots=True)
class Imbalance:
    """max_over_mean: 1 is even, n is all on one of n. gini: 0 is even, (n - 1) / n is all on one."""

    brokers: int
    mean: float
    max_over_mean: float
    gini: float


def imbalance(loads: Sequence[float]) -> Imbalance | None:
    """Judge one load per broker, 0 or more, idle brokers included; None when there is no load.

    Gini's coefficient is the mean difference of all pairs over twice the mean, here by ranks:
    sum((2 rank - n - 1) * load) / (n * total).
    """
    total = sum(loads)
    if not total:
        return None
    n = len(loads)
    weighted = sum((2 * rank - n - 1) * load for rank, load in enumerate(sorted(loads), start=1))
    return Imbalance(n, total / n, max(loads) * n / total, weighted / (n * total))
