"""How a playbook is started from the command line: options, plan, confirmation, lock, journal, resume."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console

import lb.inventory
from ops import lock
from ops.errors import OpsError
from ops.journal import Journal, unfinished
from ops.plan import Plan
from ops.runner import HostRunner, carry_out
from ops.runner import undo as take_back

__all__ = ["LOCK", "Go", "carry", "confirm", "go_options", "inventory_option", "journal_of"]

LOCK = "ops.lock"
JOURNALS = "journal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """What the operator said beside the playbook and its broker."""

    file: Path
    dry_run: bool
    yes: bool
    undo: bool


def inventory_option(command: Callable[..., Any]) -> Callable[..., Any]:
    option = click.option(
        "--inventory",
        "file",
        type=click.Path(path_type=Path, dir_okay=False),
        default=lambda: Path(os.environ.get(lb.inventory.ENV_PATH) or lb.inventory.DEFAULT_PATH),
        help=f"Default ${lb.inventory.ENV_PATH}, else {lb.inventory.DEFAULT_PATH}.",
    )
    return option(command)


def go_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every playbook; the command gets them as one `go`."""

    def gathered(file: Path, dry_run: bool, yes: bool, undo: bool, **others: Any) -> Any:
        go = Go(file=file.absolute(), dry_run=dry_run, yes=yes, undo=undo)
        return command(go=go, **others)

    gathered.__doc__, gathered.__name__ = command.__doc__, command.__name__
    gathered.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    wrapped: Callable[..., Any] = gathered
    for option in (
        click.option("--dry-run", is_flag=True, help="Print exactly what would run."),
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--undo", is_flag=True, help="Take back an unfinished run."),
        inventory_option,
    ):
        wrapped = option(wrapped)
    return wrapped


def journal_of(file: Path, name: str) -> Journal:
    """Of the playbook of this name; its unfinished run is taken up."""
    return Journal(file.parent / JOURNALS, name)


def carry(plan: Plan, journal: Journal, go: Go, facts: Mapping[str, Any]) -> None:
    """Print the plan; then, when the operator agrees and nobody else is at it, do it.

    facts: what the run begins with; kept, unless it is taken up again. Raises OpsError, PlanFailed.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for line in plan.lines():
        click.echo(line)
    if go.dry_run:
        return
    if go.undo and not journal.is_resumed:
        raise OpsError(f"no unfinished run of {plan.name!r} to take back")
    if journal.is_resumed:
        console.print(f"taking up the run that did {len(journal.done)} of {len(plan.steps)} steps")
    for other in unfinished(go.file.parent / JOURNALS, but=plan.name):
        console.print(f"[bold]note[/]: {other} was begun and is not finished")
    if not go.yes:
        confirm()
    with lock.held(go.file.parent / LOCK, plan.name), console.status(plan.name) as shown:
        runner = HostRunner(lambda line: shown.update(f"{plan.name}: {line}"))
        if go.undo:
            take_back(plan, runner, journal, say=console.print)
            return
        if not journal.is_resumed:
            journal.begin(dict(facts))
        carry_out(plan, runner, journal, say=console.print, show=shown.update)


def confirm() -> None:
    """Ask whether to go on. Raises OpsError without a yes."""
    try:
        if click.confirm("go on?", err=True):
            return
    except click.Abort:
        click.echo(err=True)
    raise OpsError("not confirmed; nothing was done. --yes does not ask")
