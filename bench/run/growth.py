"""How much a counter grew that was looked at now and then; between two looks it grew evenly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["between"]


def between(points: Sequence[tuple[float, float]], begin: float, end: float) -> float | None:
    """From begin to end; points: time and count, in order of time. None: not known there."""
    if not points or points[0][0] > begin or points[-1][0] < end:
        return None
    times, values = zip(*points, strict=True)
    return float(np.interp(end, times, values)) - float(np.interp(begin, times, values))
