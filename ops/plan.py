"""A playbook as a value: its steps, in order, and how it is printed. Runs nothing."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from ops.step import Command, Step

__all__ = ["Plan", "spell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """name: ``add mb4``; names its journal too. Step names are unique."""

    name: str
    steps: tuple[Step, ...]

    def lines(self, after: int = 0) -> Iterator[str]:
        """The plan as a person confirms it: each step, and exactly what it runs.

        after: so many steps are done, and left out.
        """
        for number, step in enumerate(self.steps[after:], start=after + 1):
            yield f"{number:3}. {step.name}"
            for command in step.commands:
                yield f"     $ {spell(command)}"
            if step.until:
                yield f"     until {step.until}, {step.within_s:.0f} s at most"


def spell(command: Command) -> str:
    """A command as it could be typed."""
    typed = shlex.join(command.argv)
    return f"ssh {command.host} {shlex.quote(typed)}" if command.host else typed
