"""The time from the power-off of a mirrored broker's host until it serves again, by steps of the playbook.

It is measured on virtual hosts: `python -m pytest tests/hosts` leaves a file for each power-off. This group
makes figures of these files, and starts nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.environment import CHECKOUT
from bench.errors import BenchError, InputInvalid
from bench.figures.form import Figure, Maker
from bench.figures.scene import Group, Scene, repeat_command

NAME = "ops.failover"
FOLDER = CHECKOUT / "out" / "hosts"
MEASURE = "python -m pytest tests/hosts"
REPEAT = f"{MEASURE}; {repeat_command(NAME)}"


@dataclass(frozen=True, slots=True)
class Failover:
    """One power-off. steps_s: the playbook's steps, in order. serving_s: until the next confirmed publish."""

    steps_s: tuple[tuple[str, float], ...]
    serving_s: float
    resync_s: float


def failover_figures(_scene: Scene) -> Iterator[Figure]:
    yield from figures_of(failovers(FOLDER))


def failovers(folder: Path) -> list[Failover]:
    """Read the measured power-offs. Raises BenchError if there are none, InputInvalid for a broken file."""
    files = sorted(folder.glob("failover-*.json"))
    if not files:
        raise BenchError(f"no power-off was measured: {MEASURE} leaves them in {folder}")
    return [_read(file) for file in files]


def _read(file: Path) -> Failover:
    try:
        found = json.loads(file.read_text())
        steps = tuple((str(step), float(s)) for step, s in found["steps_s"].items())
        return Failover(steps, float(found["serving_s"]), float(found["resync_s"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as fault:
        raise InputInvalid(f"{file}: not the times of a failover: {fault}") from fault


def figures_of(found: Sequence[Failover]) -> Iterator[Figure]:
    """Make figures of the medians. Hosts swap roles between runs: steps have the names of the first run."""
    make = Maker(NAME, REPEAT)
    what = "Power-off of a mirrored broker's host: until a publish is confirmed again"
    yield make("serving_s", what, [each.serving_s for each in found], "s")
    steps = [step for step, _ in found[0].steps_s]
    if any(len(each.steps_s) != len(steps) for each in found):
        raise InputInvalid(f"the failovers in {FOLDER} are of different playbooks: measure again")
    playbook = [sum(s for _, s in each.steps_s) for each in found]
    rest = [each.serving_s - took_s for each, took_s in zip(found, playbook, strict=True)]
    what = "of it beside the steps: the command's start, and the first publish afterwards"
    yield make("rest_s", what, rest, "s")
    for number, step in enumerate(steps):
        took = [each.steps_s[number][1] for each in found]
        yield make(f"step{number + 1:02}_s", f"of it in step {number + 1}: {step}", took, "s")
    what = "The host is back: until both disks are alike again"
    yield make("resync_s", what, [each.resync_s for each in found], "s")


GROUP = Group(NAME, 0, "two virtual hosts with a mirrored disk, without HAProxy", failover_figures)
