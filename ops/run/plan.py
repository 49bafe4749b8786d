"""A playbook as a value: its steps, in order, and its printed form. Runs nothing.

A step has commands, a condition that must hold after them, and commands that undo them.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import ParamSpec

from messagebus.errors import MessageBusError

COMMAND_WITHIN_S = 300.0
# A part that does not answer for this long is down or hangs: an operator must look.
SILENT_WITHIN_S = 60.0

Check = Callable[[], str]
"""Looks at the cluster: "" when its condition holds, else what is still missing. Raises Blocked."""


P = ParamSpec("P")


def as_check(look: Callable[P, str]) -> Callable[P, Check]:
    """Make a function that looks at the cluster one that returns a check: the look with these arguments."""

    @functools.wraps(look)
    def with_arguments(*args: P.args, **kwargs: P.kwargs) -> Check:
        return lambda: look(*args, **kwargs)

    return with_arguments


class Blocked(Exception):
    """Raised by a check when waiting is of no use; the text tells the operator what to do."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command. argv: never read by a shell. host: SSH address; "" is the operator's own machine.

    within_s: time after which the command is ended. call: does the same in this process, where a broker waits
    for it: a process of its own takes half a second to start.
    """

    argv: tuple[str, ...]
    host: str = ""
    within_s: float = COMMAND_WITHIN_S
    call: Callable[[], object] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a plan. name: a spoken order. commands: run in turn.

    done: whether the commands were run before, where they must not be repeated: a run may be
        interrupted between a command and the journal.
    guard: must hold right before the commands are run, each time, whatever the journal says.
    undo_guard: the same for `undo`.
    is_fresh: its proof is valid for the next step alone: a run that is resumed before that one was
        done repeats this one.
    seal: lists the files of a node that the commands have stopped, for `sealed_by`.
    sealed_by: name of the step whose seal must still be whole before the commands are run: there may be
        fewer files than it listed, and none that is new or changed.
    until: condition of `check`, in words. within_s: time for which what is missing may stay the same.
        silent_within_s: time for which no answer may come.
    may_fail: the playbook reports a check that does not come to hold, and goes on.
    tells: the last line that its commands write is a part of the playbook's proof; so is the result of
        `proof` when the step is done.
    only_looks: its commands change nothing: a run that fails there was not begun.
    foresees: what would stop the step as the cluster is now, for a dry run; looks only.
    undo: commands that undo `commands`, when the playbook is undone.
    is_final: there is no way back once this was begun; another playbook undoes the whole.
    """

    name: str
    commands: tuple[Command, ...] = ()
    done: Callable[[], bool] | None = None
    guard: Check | None = None
    undo_guard: Check | None = None
    is_fresh: bool = False
    seal: Command | None = None
    sealed_by: str = ""
    until: str = ""
    check: Check | None = None
    within_s: float = 30.0
    silent_within_s: float = SILENT_WITHIN_S
    may_fail: bool = False
    tells: bool = False
    proof: Callable[[], str] | None = None
    only_looks: bool = False
    foresees: Check | None = None
    undo: tuple[Command, ...] = ()
    is_final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Steps in order. name: ``add mb4``; names its journal too.

    Step names are unique: a journal knows a step by its name.
    """

    name: str
    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        names = [step.name for step in self.steps]
        assert len(set(names)) == len(names), f"{self.name}: a step is there twice"

    def obstacles(self) -> Iterator[str]:
        """Look at the cluster and yield what would stop the plan now, as far as that can be seen.

        Looked at are the steps before the first one that changes something, the guard of that one, and what
        later steps foresee.
        """
        is_begun = False
        for number, step in enumerate(self.steps, start=1):
            changes = bool(step.commands) and not step.only_looks
            looks = (
                () if is_begun else (step.guard, None if changes or step.commands else step.check)
            )
            for look in filter(None, (*looks, step.foresees)):
                if fault := _fault(look):
                    yield f"step {number}, {step.name!r}: {fault}"
            is_begun = is_begun or changes

    def undo_lines(self, begun: int) -> Iterator[str]:
        """Yield what an undo of the first `begun` steps runs, as `lines`."""
        for step in reversed(self.steps[:begun]):
            if step.undo:
                yield f"     undo {step.name}"
            for command in step.undo:
                yield f"     $ {spell(command)}"

    def lines(self, after: int = 0) -> Iterator[str]:
        """Yield the plan as a person confirms it: each step, and exactly the commands that it runs.

        after: number of steps that are done, and left out.
        """
        for number, step in enumerate(self.steps[after:], start=after + 1):
            yield f"{number:3}. {step.name}"
            for command in step.commands:
                yield f"     $ {spell(command)}"
            if step.until:
                yield f"     until {step.until}, {step.within_s:.0f} s without progress at most"


def _fault(look: Check) -> str:
    try:
        return look()
    except (Blocked, MessageBusError, OSError) as fault:
        return str(fault)


def spell(command: Command) -> str:
    """Return a command as it could be typed."""
    typed = shlex.join(command.argv)
    return f"ssh {command.host} {shlex.quote(typed)}" if command.host else typed
