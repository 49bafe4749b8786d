"""What the commands about mirrors share: their options, their checks before a plan, and running it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

import lb.inventory
from lb.inventory import Host
from messagebus.errors import ConfigError
from ops import lock
from ops.commands import hosts
from ops.drbd import No, Status, may_promote
from ops.errors import NoAnswer, OpsError
from ops.journal import Journal
from ops.mirror_files import partner
from ops.mirrors import MirrorView
from ops.plan import Plan
from ops.runner import HostRunner, carry_out
from ops.runner import undo as take_back

__all__ = [
    "agents",
    "begun",
    "both_answer",
    "inventory_option",
    "of_mirror",
    "permitted",
    "plan_options",
    "proof_options",
    "run",
]


def inventory_option(command: Callable[..., Any]) -> Callable[..., Any]:
    option = click.option(
        "--inventory",
        "file",
        type=click.Path(path_type=Path, dir_okay=False),
        default=lambda: Path(os.environ.get(lb.inventory.ENV_PATH) or lb.inventory.DEFAULT_PATH),
        help=f"Default ${lb.inventory.ENV_PATH}, else {lb.inventory.DEFAULT_PATH}.",
    )
    return option(command)


def plan_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--dry-run", is_flag=True, help="Print exactly what would run."),
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--undo", is_flag=True, help="Take back an unfinished run."),
        inventory_option,
    ):
        command = option(command)
    return command


def proof_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--dead",
            metavar="HOST",
            default="",
            help="You have seen that this host is off, and it will not come back by itself.",
        ),
        click.option(
            "--give-up",
            metavar="HOST",
            default="",
            help="What only this host has may be lost.",
        ),
    ):
        command = option(command)
    return command


def of_mirror(view: MirrorView, name: str) -> Host:
    """Raises ConfigError when the host has nothing to do with the mirror."""
    host = view.inventory.host(name)
    if host.name not in view.mirror.hosts:
        of = " and ".join(view.mirror.hosts)
        raise ConfigError(f"{name} has no part in the mirror {view.name}, which is of {of}")
    return host


def both_answer(view: MirrorView) -> dict[str, Status]:
    """What each host says. Raises NoAnswer when one of them cannot be asked."""
    sides = view.sides()
    for side in sides.values():
        if isinstance(side, NoAnswer):
            raise side
    return {name: side for name, side in sides.items() if isinstance(side, Status)}


def agents(view: MirrorView, host: Host) -> bool:
    """Whether agents run beside brokers here."""
    return view.succeeds(host, ("systemctl", "cat", hosts.AGENT_UNIT))


def permitted(view: MirrorView, host: Host, *, dead: str, give_up: str) -> dict[str, bool]:
    """How the host may be promoted: the arguments of `ops.playbooks.mirror.promotion`.

    Raises OpsError with the reason when it may not.
    """
    other = partner(view.inventory, view.mirror, host)
    for option, value in (("--dead", dead), ("--give-up", give_up)):
        if value not in ("", other.name):
            raise ConfigError(f"{option} {value}: the other host of {view.name} is {other.name}")
    sides = view.sides()
    here, there = sides[host.name], sides[other.name]
    if isinstance(here, NoAnswer):
        raise here
    if dead and isinstance(there, Status):
        raise OpsError(f"{other.name} is not dead: it answers, and says {there}")
    power = isinstance(there, NoAnswer) and bool(other.power) and not dead
    force = bool(give_up) and here.disk != "UpToDate"
    how = {"is_dead": bool(dead), "power": power, "given_up": bool(give_up), "force": force}
    if here.is_connected and (dead or power):
        return how  # it has not noticed yet; the playbook waits for that, and looks again
    verdict = may_promote(
        here,
        None if isinstance(there, NoAnswer) else there,
        peer=other.name,
        peer_is_dead=bool(dead) or power,
        given_up=give_up,
    )
    if isinstance(verdict, No):
        raise OpsError(f"{host.name} is not promoted: {verdict.reason}")
    return how


def begun(file: Path, name: str) -> dict[str, Any]:
    """What an unfinished run of the plan of this name began with; empty where there is none.

    A run that is resumed goes on with what was decided before it, which it may have changed itself.
    """
    return Journal(file.parent / "journal", name).facts


def run(
    plan: Plan,
    file: Path,
    *,
    dry_run: bool,
    yes: bool,
    undo: bool,
    facts: dict[str, Any] | None = None,
) -> None:
    """Print the plan, ask, and carry it out under the cluster's lock; resumes what was interrupted.

    facts: what the plan was made from, for `begun`.
    """
    journal = Journal(file.parent / "journal", plan.name)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for line in plan.lines():
        click.echo(line)
    if dry_run:
        return
    if undo and not journal.is_resumed:
        raise OpsError(f"no unfinished run of {plan.name!r} to take back")
    if journal.is_resumed:
        console.print(f"taking up the run that did {len(journal.done)} of {len(plan.steps)} steps")
    if not yes and not _confirmed():
        raise OpsError("not confirmed; nothing was done. --yes does not ask")
    with lock.held(file.parent / "ops.lock", plan.name), console.status(plan.name) as shown:
        if undo:
            take_back(plan, HostRunner(), journal, say=console.print)
            return
        if not journal.is_resumed:
            journal.begin(facts or {})
        carry_out(plan, HostRunner(), journal, say=console.print, show=shown.update)


def _confirmed() -> bool:
    try:
        return click.confirm("go on?", err=True)
    except click.Abort:
        click.echo(err=True)
        return False
