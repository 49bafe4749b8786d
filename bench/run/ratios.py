"""Ratios of paired repetitions with confidence intervals, and whether they are a regression."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Ratio", "is_worse", "ratio_of"]

# Student's t, two-sided 95 %, for 1, 2, ... degrees of freedom; beyond, from the normal distribution's by
# two terms of its expansion in 1 / freedom (Abramowitz and Stegun 26.7.5), right to 0.001.
# fmt: off
T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045,
)
# fmt: on
T95_FAR = 1.960


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of b over a: the geometric mean over the pairs, and its 95 % confidence interval."""

    value: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        if self.pairs == 1:
            return f"{self.value:.3f} (of one pair)"
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def ratio_of(a: Sequence[float], b: Sequence[float]) -> Ratio | None:
    """Of pairs that met the same conditions, one after the other. None without positive pairs.

    By Student's t on the logarithms: what disturbs a pair multiplies both its members.
    """
    logs = [math.log(y / x) for x, y in zip(a, b, strict=True) if x > 0 and y > 0]
    if not logs:
        return None
    middle = statistics.fmean(logs)
    if len(logs) == 1:
        return Ratio(math.exp(middle), 0.0, math.inf, 1)
    freedom = len(logs) - 1
    half = _t95(freedom) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(middle), math.exp(middle - half), math.exp(middle + half), len(logs))


def _t95(freedom: int) -> float:
    if freedom <= len(T95):
        return T95[freedom - 1]
    z = T95_FAR
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def is_worse(ratio: Ratio, *, more_is_better: bool, bound: float) -> bool:
    """Whether b is worse than a by more than the bound (0.1: a tenth), and not by chance alone.

    The whole interval must lie beyond 1, and the mean beyond the bound.
    """
    if more_is_better:
        return ratio.value < 1 - bound and ratio.high < 1
    return ratio.value > 1 + bound and ratio.low > 1
