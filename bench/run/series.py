"""Many runs, one after the other: what is there already is not done again, so an interrupted one goes on.

Runs that follow each other on the same system share one start of it. What is there counts only when
its profile is the one that is wanted; what is of another one is refused, and never removed.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.environment import commit
from bench.errors import InputInvalid
from bench.harness.interface import Running, started
from bench.harness.worker import PROFILE
from bench.load.profile import Profile, unlike
from bench.run.result import RESULT

__all__ = ["Results", "Run", "Step", "carry_out", "had"]

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
    """Do each step in its own folder below `place`. Raises what `run` raises; what is done stays.

    Raises InputInvalid, before anything is done, when a folder is of another profile.
    """
    found = had(steps, place)
    for line in _of_other_commits(found, commit()):
        say(line)
    for _, some in itertools.groupby(steps, key=lambda step: step.profile.system):
        wanted = [step for step in some if step.name not in found]
        if wanted:
            with started(wanted[0].profile, network, say) as running:
                for step in wanted:
                    if (folder := place / step.name).exists():
                        say(f"{step.name}: was cut short, and is done again")
                        shutil.rmtree(folder)
                    found[step.name] = run(step.profile, folder, running)
                    rate = found[step.name]["confirmed_per_s"]
                    say(f"{step.name}: {rate:,.0f} confirmed a second")
    return {step.name: found[step.name] for step in steps}


def had(steps: Sequence[Step], place: Path) -> Results:
    """Of the steps that came to their end before. Raises InputInvalid for a folder of something else."""
    found = {step.name: _had(place / step.name, step.profile) for step in steps}
    return {name: result for name, result in found.items() if result is not None}


def _had(folder: Path, wanted: Profile) -> dict[str, Any] | None:
    """None when there is no run, or it was cut short."""
    if not folder.exists() or not any(folder.iterdir()):
        return None
    try:
        profile = Profile.from_values(json.loads((folder / PROFILE).read_text()), PROFILE)
    except (OSError, ValueError, InputInvalid) as fault:
        raise InputInvalid(f"{folder}: has something that is no run; use another --dir") from fault
    if differences := unlike(profile, wanted, free=()):
        raise InputInvalid(
            f"{folder}: has a run of another profile, use another --dir: {'; '.join(differences)}"
        )
    try:
        found: dict[str, Any] = json.loads((folder / RESULT).read_text())
    except (OSError, ValueError):
        return None
    return found if found.get("complete") else None


def _of_other_commits(found: Results, now: str) -> list[str]:
    """In words, what of it another version of the code has measured."""
    names: dict[str, list[str]] = {}
    for name, result in found.items():
        names.setdefault(str(result["environment"]["commit"]), []).append(name)
    return [
        f"of commit {was}, and now it is {now}: {', '.join(some)}"
        for was, some in names.items()
        if was != now
    ]
