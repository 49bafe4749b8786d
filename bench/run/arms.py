"""The two arms of a comparison: runs by turns, or folders of results; and whether they may be compared.

Refused is what has no answer: loads that differ, promises that differ, machines that differ.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.errors import InputInvalid
from bench.load.profile import COMPARED, Profile, unlike
from bench.run.result import RESULT
from bench.run.series import Step

__all__ = [
    "about",
    "are_by_turns",
    "profile_of_arm",
    "read_arm",
    "refuse_unlike",
    "refuse_unlike_machines",
    "turns",
]

Run = Mapping[str, Any]
DURABILITY = "system.durability"


def turns(a: Profile, b: Profile, repeat: int) -> list[Step]:
    """Pairs of steps; each arm is the first of a pair as often as the other."""
    arms = [("a", a), ("b", b)]
    return [
        Step(f"{arm}/{number + 1:02}", profile)
        for number in range(repeat)
        for arm, profile in (arms if number % 2 == 0 else reversed(arms))
    ]


def read_arm(folder: Path) -> list[dict[str, Any]]:
    """The results of a folder: its own, or one of each folder in it, by name. Raises InputInvalid."""
    paths = [folder / RESULT] if (folder / RESULT).exists() else sorted(folder.glob(f"*/{RESULT}"))
    if not paths:
        raise InputInvalid(f"{folder}: no results in it; `python -m bench run` makes some")
    try:
        found = [json.loads(path.read_text()) for path in paths]
    except ValueError as fault:
        raise InputInvalid(f"{folder}: not results: {fault}") from fault
    if not all(isinstance(each, dict) and "profile" in each for each in found):
        raise InputInvalid(f"{folder}: not results of runs")
    return found


def profile_of_arm(name: str, runs: Sequence[Run]) -> Profile:
    """The one that all of them have. Raises InputInvalid: repetitions are of one profile."""
    first, *others = [Profile.from_values(each["profile"], name) for each in runs]
    for other in others:
        if differences := unlike(first, other, free=()):
            raise InputInvalid(f"{name}: not repetitions of one profile: {'; '.join(differences)}")
    return first


def refuse_unlike(a: Profile, b: Profile, *, any_durability: bool) -> None:
    """Raises InputInvalid for loads that differ, and for confirms that promise something else."""
    if differences := unlike(a, b, free=(*COMPARED, DURABILITY)):
        raise InputInvalid(f"these are not alike: {'; '.join(differences)}")
    if not any_durability and (differences := unlike(a, b)):
        raise InputInvalid(
            f"a confirm means something else, {'; '.join(differences)}; "
            "--unlike-durability compares them all the same"
        )


def refuse_unlike_machines(a: Sequence[Run], b: Sequence[Run]) -> None:
    """Raises InputInvalid."""
    machines = {
        f"{each['environment'].get('cpu', 'unknown')}, {each['environment'].get('cores')} cores": None
        for each in (*a, *b)
    }
    if len(machines) > 1:
        raise InputInvalid(f"measured on machines that are not alike: {'; '.join(machines)}")


def are_by_turns(a: Sequence[Run], b: Sequence[Run]) -> bool:
    """Whether they ran in pairs of both arms, one pair after the other."""
    every = [(each["environment"].get("at", ""), arm) for arm in (0, 1) for each in (a, b)[arm]]
    order = [arm for _, arm in sorted(every)]
    return all({*order[at : at + 2]} == {0, 1} for at in range(0, len(order), 2))


def about(name: str, runs: Sequence[Run]) -> str:
    """One line of an arm: which code measured it, and what its confirms mean."""
    commits = dict.fromkeys(str(each["environment"].get("commit")) for each in runs)
    means = dict.fromkeys(str(each.get("durability")) for each in runs)
    return f"{name}: commit {', '.join(commits)}; a confirm means: {'; '.join(means)}"
