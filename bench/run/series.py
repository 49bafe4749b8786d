"""Many runs, one after the other: what is there already is not done again, so an interrupted one goes on.

Runs that follow each other on the same system share one start of it.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.run.drivers import Running, started
from bench.run.profile import Profile
from bench.run.result import RESULT

__all__ = ["Step", "carry_out", "had"]

Run = Callable[[Profile, Path, Running], dict[str, Any]]
Results = dict[str, dict[str, Any]]
"""Name of a step -> what its ``result.json`` has."""


@dataclass(frozen=True, slots=True)
class Step:
    """One run. name: of its folder."""

    name: str
    profile: Profile


def carry_out(
    steps: Sequence[Step], place: Path, network: str, run: Run, say: Callable[[str], None]
) -> Results:
    """Do each step in its own folder below `place`. Raises what `run` raises; what is done stays."""
    found: Results = {}
    for _, some in itertools.groupby(steps, key=lambda step: step.profile.system):
        group = list(some)
        known = {step.name: had(place / step.name) for step in group}
        found |= {name: result for name, result in known.items() if result is not None}
        wanted = [step for step in group if known[step.name] is None]
        if wanted:
            with started(wanted[0].profile, network, say) as running:
                for step in wanted:
                    shutil.rmtree(place / step.name, ignore_errors=True)
                    found[step.name] = run(step.profile, place / step.name, running)
                    rate = found[step.name]["confirmed_per_s"]
                    say(f"{step.name}: {rate:,.0f} confirmed a second")
    return found


def had(folder: Path) -> dict[str, Any] | None:
    """The result of a run that came to its end; None when there is none, or it was cut short."""
    try:
        found: dict[str, Any] = json.loads((folder / RESULT).read_text())
    except (OSError, ValueError):
        return None
    return found if found.get("complete") else None
