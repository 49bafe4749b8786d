"""The lines of a workload several times, in whole rounds: what disturbs the machine meets all of them."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.run.series import Step
from bench.run.verdict import is_of_load

__all__ = ["in_rounds", "middle", "samples", "trusted", "turns_of"]

Run = Mapping[str, Any]


def in_rounds(steps: Sequence[Step], repeat: int) -> list[Step]:
    """All of them, and all of them again; of the second round on with its number behind the name."""
    return [
        Step(_named(step.name, number), step.profile) for number in range(repeat) for step in steps
    ]


def turns_of(results: Mapping[str, Run], name: str) -> list[Run]:
    """The runs of one line, in their order; none when it was not run."""
    names = (_named(name, number) for number in itertools.count())
    return [results[each] for each in itertools.takewhile(results.__contains__, names)]


def trusted(turns: Iterable[Run]) -> list[Run]:
    """Those that the load was not too slow for; none where the system failed in one of them.

    A figure of the turns that went well alone would be of luck.
    """
    own = [turn for turn in turns if not any(map(is_of_load, turn["faults"]))]
    return [] if any(turn["faults"] for turn in own) else own


def _named(name: str, number: int) -> str:
    return name if number == 0 else f"{name}-{number + 1}"


def samples(values: Iterable[float | None]) -> tuple[float, ...]:
    """What each turn gave, of those that know it."""
    return tuple(float(value) for value in values if value is not None)


def middle(values: Iterable[float | None]) -> float | None:
    """The median of what is known; None of nothing."""
    known = samples(values)
    return statistics.median(known) if known else None
