"""The workloads that have a name and are more than one run: their steps, what they say, their figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.analysis.series import Step
from bench.analysis.summary import Told
from bench.figures.form import Figure
from bench.load.profile import Profile
from bench.run import lines, peers, seed

__all__ = ["WORKLOADS", "Workload"]

Results = Mapping[str, Mapping[str, Any]]
Load = Callable[[str], Profile]
"""A profile of ours, by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """steps: of profiles, repetitions, and the part of everything that is done (10: a tenth).

    told: of results and repetitions; figures: of these and the command that repeats them.
    """

    steps: Callable[[Load, int, int], Sequence[Step]]
    told: Callable[[Results, int], Told]
    figures: Callable[[Results, int, str], Iterable[Figure]]


def _seed(name: str) -> Workload:
    return Workload(
        steps=lambda load, repeat, part: seed.steps(load(name), repeat, part=part),
        told=lambda results, repeat: seed.told(name, results, repeat),
        figures=lambda results, repeat, command: seed.figures(name, results, repeat, command),
    )


WORKLOADS: Mapping[str, Workload] = {
    "seed-s1": _seed("seed-s1"),
    "seed-s2": _seed("seed-s2"),
    "latency-matrix": Workload(
        steps=lambda load, repeat, part: lines.matrix_steps(map(load, lines.MATRIX), repeat, part),
        told=lambda results, _repeat: lines.matrix_told(results),
        figures=lambda results, _repeat, command: lines.matrix_figures(results, command),
    ),
    "fan-in": Workload(
        steps=lambda load, repeat, part: lines.fan_in_steps(load("fan-in"), repeat, part),
        told=lambda results, _repeat: lines.fan_in_told(results),
        figures=lambda results, _repeat, command: lines.fan_in_figures(results, command),
    ),
    "peers": Workload(
        steps=lambda load, repeat, part: peers.steps(
            load("peers"), load("peers-full"), repeat, part
        ),
        told=lambda results, _repeat: peers.told(results),
        figures=lambda results, _repeat, command: peers.figures(results, command),
    ),
}
