"""The execution of a plan: commands, checks, journal. A `Runner` decides where a command runs."""

# One step; whatever raises ends the run, which the same command resumes:
#
#   in the journal ─▶ passed over, unless it is fresh
#   done() already ─────────────────┐
#   guard ─▶ seal compared ─▶ commands ─▶ check, waited for ─▶ seal kept ─▶ recorded, with its proof
#
# Undo takes the begun steps from the last one on: undo_guard, the undo commands, taken back in the journal.
#
# Owners: the `Plan` is a value; the `Journal` has what was done; a `Runner` runs commands. This module holds
# nothing between two steps.

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from itertools import zip_longest
from typing import Protocol

from inventory import shell
from inventory.errors import CommandFailed
from messagebus.errors import MessageBusError
from ops.commands.kits import CHECKOUT
from ops.errors import NoAnswer, PlanFailed
from ops.run.journal import Journal
from ops.run.plan import Blocked, Check, Command, Plan, Step
from ops.run.waiting import Patience

POLL_S = 0.25
# A check whose answer changes has this many times its limit: counts go down, names become fewer.
MOVING_TIMES = 6


class Runner(Protocol):
    def run(self, command: Command) -> str:
        """Run a command to its end and return its output. Raises CommandFailed."""


class HostRunner:
    """Runner of commands: without a host here, in the checkout or in this process; the others over SSH.

    show: gets their output. keeps: locks that a command here holds until its end, also when this process is
    killed before it: nobody else begins while it still works.
    """

    def __init__(
        self, show: Callable[[str], None] = lambda line: None, *, keeps: Collection[int] = ()
    ) -> None:
        self._show, self._keeps = show, keeps

    def run(self, command: Command) -> str:
        if command.call is not None:
            return _called(command.argv, command.call)
        if command.host:
            return shell.run_over_ssh(command.host, command.argv, timeout_s=command.within_s)
        return shell.run(
            command.argv,
            timeout_s=command.within_s,
            cwd=CHECKOUT,
            on_line=self._show,
            keeps=self._keeps,
        )


def _called(argv: tuple[str, ...], call: Callable[[], object]) -> str:
    """Do a command in this process. What ends it with an error is its failure, as that of a process."""
    try:
        call()
    except (MessageBusError, OSError) as fault:
        raise CommandFailed(argv, 1, str(fault)) from fault
    return ""


def carry_out(
    plan: Plan,
    runner: Runner,
    journal: Journal,
    *,
    say: Callable[[str], None],
    show: Callable[[str], None] = lambda text: None,
) -> None:
    """Do every step that is not in the journal yet.

    say: called with one line per step. show: called with the thing waited for now.
    Raises PlanFailed; the journal has the steps that were done, and the same call goes on from there.
    """
    before = done_before(plan, journal)
    for step in plan.steps:
        if step.name in before:
            say(f"   before  {step.name}")
            continue
        show(step.name)
        began = time.monotonic()
        try:
            remark, proof = _do(step, runner, journal, show)
        except PlanFailed:
            begun = plan.steps[: plan.steps.index(step) + 1]
            if all(each.only_looks or not each.commands for each in begun):
                journal.finish()  # they only looked, and nothing was begun
            raise
        took_s = time.monotonic() - began
        if step.name not in journal.done:
            journal.record(step.name, took_s, proof)
        say(f"  {took_s:5.1f} s  {step.name}{f': {remark}' if remark else ''}")
    for proof in journal.proofs:
        say(f"   proved  {proof}")
    journal.finish()


def undo(plan: Plan, runner: Runner, journal: Journal, *, say: Callable[[str], None]) -> None:
    """Undo the steps that were begun by the journal, last first; each undone step is recorded there.

    Raises PlanFailed when a step cannot be undone; the same call goes on from there.
    """
    complete = done_before(plan, journal)
    # The step after these may have run some of its commands, or none.
    begun = plan.steps[: len(complete) + 1]
    if final := [step.name for step in begun if step.is_final]:
        raise PlanFailed(
            "undo",
            f"there is no way back after {final[0]!r}: the same command without --undo finishes it,"
            " --abandon closes it as it stands",
        )
    for step in reversed(begun):
        if step.undo_guard:
            _check_guard(step, step.undo_guard)
        for command in step.undo:
            try:
                runner.run(command)
            except CommandFailed as fault:
                if step.name in complete:
                    told = f"{fault}; the same command resumes, --abandon closes the run"
                    raise PlanFailed(f"undo {step.name}", told) from fault
                say(f"           {fault}")
        if step.name in complete:
            journal.take_back(step.name)
        if step.undo:
            say(f"   undone  {step.name}")
    journal.finish()


def done_before(plan: Plan, journal: Journal) -> list[str]:
    """Return the names of the steps that are not to be done again.

    Raises PlanFailed for a journal of other steps.
    """
    names = [step.name for step in plan.steps]
    count = len(journal.done)
    if list(journal.done) != names[:count]:
        strange = next(name for name, known in zip_longest(journal.done, names) if name != known)
        raise PlanFailed(
            str(strange),
            f"the unfinished run has done this step, and {plan.name!r} does not have it here: the run was"
            " started with other options; see what was done, then close it with --abandon",
        )
    while count and plan.steps[count - 1].is_fresh:
        count -= 1
    return names[:count]


def _do(
    step: Step, runner: Runner, journal: Journal, show: Callable[[str], None]
) -> tuple[str, str]:
    """Do one step. Returns a remark and its proof, mostly "". Raises PlanFailed."""
    written = remark = ""
    try:
        if step.done is None or not step.done():
            if step.guard:
                _check_guard(step, step.guard)
            if step.sealed_by and step.seal:
                _check_seal(step, journal.sealed(step.sealed_by), runner.run(step.seal))
            for command in step.commands:
                written = runner.run(command)
        if step.check:
            remark = _wait(step, step.check, show)
        if step.seal and not step.sealed_by:
            journal.seal(step.name, runner.run(step.seal))
        proofs = [_last_line(written) if step.tells else "", step.proof() if step.proof else ""]
    except (CommandFailed, NoAnswer, Blocked) as fault:
        raise PlanFailed(step.name, str(fault)) from fault
    return remark, "; ".join(proof for proof in proofs if proof)


def _check_guard(step: Step, guard: Check) -> None:
    """Look once. Raises PlanFailed unless the guard holds, also when nothing answers it."""
    try:
        missing = guard()
    except (MessageBusError, OSError, Blocked) as fault:
        missing = str(fault)
    if missing:
        raise PlanFailed(step.name, f"not done, because {missing}")


def _check_seal(step: Step, sealed: str | None, listing: str) -> None:
    """Raise PlanFailed when files were written after the node was seen empty."""
    if sealed is None:
        raise PlanFailed(step.name, f"not done, because {step.sealed_by!r} kept no seal")
    if new := sorted(set(listing.splitlines()) - set(sealed.splitlines())):
        raise PlanFailed(
            step.name,
            f"not done, because its files have changed since {step.sealed_by!r}, such as {new[0]!r}:"
            " the broker has run since it was found empty. Start it, close this run with --abandon,"
            " and start a new run",
        )


def _last_line(written: str) -> str:
    return next((line.strip() for line in reversed(written.splitlines()) if line.strip()), "")


def _wait(step: Step, check: Check, show: Callable[[str], None]) -> str:
    heard = time.monotonic()
    missing = ""
    patience = Patience(
        lambda: missing,
        stalled_s=step.within_s,
        at_most_s=MOVING_TIMES * step.within_s,
        clock=time.monotonic,
    )
    while True:
        missing, silent = _look(check)
        if not missing:
            return ""
        show(f"{step.name}: {missing}")
        now = time.monotonic()
        heard = heard if silent else now
        why = patience.spent()
        if not why and now - heard > step.silent_within_s:
            why = f"after {now - heard:.0f} s of silence"
        if why:
            if step.may_fail:
                return missing
            raise PlanFailed(step.name, f"{why}: {missing}")
        time.sleep(POLL_S)


def _look(check: Check) -> tuple[str, bool]:
    """Return what is missing, and whether that is silence: the next look may get an answer."""
    try:
        return check(), False
    except (MessageBusError, OSError) as fault:
        return str(fault), True
