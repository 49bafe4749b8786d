"""The commands that change a running cluster: add, remove, and the pieces their plans are made of."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

import lb.inventory
from lb.agents import set_draining
from messagebus.errors import ConfigError
from ops import lock
from ops.checks import delayed
from ops.commands.supervise import LocalNodes, Supervisor, SystemdNodes
from ops.errors import NoAnswer, OpsError
from ops.inventory_text import without_broker
from ops.journal import Journal
from ops.local.cluster import LocalCluster
from ops.plan import Plan
from ops.playbooks import add as add_playbook
from ops.playbooks import remove as remove_playbook
from ops.playbooks.target import Target
from ops.runner import HostRunner, carry_out
from ops.runner import undo as take_back
from ops.view import View

__all__ = ["add", "hangup", "hold", "inventory", "remove"]

# How far RabbitMQ's counts lag: its statistics interval and its quorum queues' tick, 5 s each unless
# set otherwise, which `ops local` does.
STATISTICS_S = 6.0
STATISTICS_LOCAL_S = 1.5


def _inventory_option(command: Callable[..., Any]) -> Callable[..., Any]:
    option = click.option(
        "--inventory",
        "file",
        type=click.Path(path_type=Path, dir_okay=False),
        default=lambda: Path(os.environ.get(lb.inventory.ENV_PATH) or lb.inventory.DEFAULT_PATH),
        help=f"Default ${lb.inventory.ENV_PATH}, else {lb.inventory.DEFAULT_PATH}.",
    )
    return option(command)


def _playbook_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.argument("name"),
        click.option("--dry-run", is_flag=True, help="Print exactly what would run."),
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--undo", is_flag=True, help="Take back an unfinished run."),
        _inventory_option,
    ):
        command = option(command)
    return command


@click.command()
@_playbook_options
def add(name: str, file: Path, dry_run: bool, yes: bool, undo: bool) -> None:
    """Add the broker NAME while everything runs.

    On a local cluster NAME is the next node, mb4; elsewhere its host is installed and in the
    inventory. An interrupted run is resumed by the same command.

    \b
    Example:
      python -m ops add mb4 --dry-run
      python -m ops add mb4 --yes
    """
    file = file.absolute()
    view, journal = View(file), _journal(file, "add", name)
    target = _resumed(journal, name) or _new_target(file, view, name)
    if not journal.is_resumed and target.address in view.listed.names:
        raise ConfigError(f"{name} is on the list already")
    plan = add_playbook.plan(target, file, view, _nodes(file, view))
    _run(plan, file, journal, target, dry_run=dry_run, yes=yes, undo=undo)


@click.command()
@_playbook_options
def remove(name: str, file: Path, dry_run: bool, yes: bool, undo: bool) -> None:
    """Remove the broker NAME while everything runs: drain it to zero, then stop it.

    An interrupted run is resumed by the same command.

    \b
    Example:
      python -m ops remove mb2 --dry-run
      python -m ops remove mb2 --yes
    """
    file = file.absolute()
    view, journal = View(file), _journal(file, "remove", name)
    target = _resumed(journal, name) or _known_target(view, name)
    is_local = view.inventory.supervisor == "local"
    plan = remove_playbook.plan(
        target,
        file,
        view,
        _nodes(file, view),
        statistics_s=STATISTICS_LOCAL_S if is_local else STATISTICS_S,
        delayed=_delayed(view, name),
    )
    if not journal.is_resumed and view.listed.names == {target.address}:
        raise ConfigError(f"{name} is the last broker; `python -m ops local down` stops it")
    _run(plan, file, journal, target, dry_run=dry_run, yes=yes, undo=undo)


@click.command()
@click.argument("name")
@_inventory_option
def hangup(name: str, file: Path) -> None:
    """Close the connections to NAME that may publish: of applications, and without a consumer.

    \b
    Example:
      python -m ops hangup mb2
    """
    view = View(file.absolute())
    left = [who for who, consumes in view.client_connections(name).items() if not consumes]
    for connection in left:
        view.hang_up(name, connection)
    click.echo(f"closed {len(left)} connections")


@click.command()
@click.argument("name")
@_inventory_option
def hold(name: str, file: Path) -> None:
    """Have the agent of NAME ask publishers to stay away, until `python -m lb ready NAME`.

    As `lb drain`, but does not look whether HAProxy heeds it, which may not know NAME yet.

    \b
    Example:
      python -m ops hold mb4
    """
    inventory = lb.inventory.load(file)
    set_draining(inventory, inventory.find(name), draining=True)


@click.group()
def inventory() -> None:
    """Edit the inventory.

    \b
    Example:
      python -m ops inventory drop mb2
    """


@inventory.command()
@click.argument("name")
@_inventory_option
def drop(name: str, file: Path) -> None:
    """Take the broker NAME out of the inventory; nothing else is done to it.

    \b
    Example:
      python -m ops inventory drop mb2
    """
    text = file.read_text()
    part = file.with_name(file.name + ".part")
    part.write_text(without_broker(text, name))
    part.replace(file)


def _journal(file: Path, word: str, name: str) -> Journal:
    return Journal(file.parent / "journal", f"{word} {name}")


def _resumed(journal: Journal, name: str) -> Target | None:
    """The inventory may not know the broker any more, or not yet."""
    return Target(name=name, **journal.facts) if journal.is_resumed else None


def _known_target(view: View, name: str) -> Target:
    node = view.node(name)
    return Target(name=node.name, address=str(node.address), agent_port=node.agent.port)


def _new_target(file: Path, view: View, name: str) -> Target:
    """A new local node gets the address of its number; any other is in the inventory before."""
    inventory = view.inventory
    if inventory.supervisor != "local" or any(node.name == name for node in inventory.brokers):
        return _known_target(view, name)
    node = LocalCluster(file.parent).layout.with_node(name).node(name)
    return Target(name=name, address=node.broker, agent_port=node.agent_port)


def _delayed(view: View, name: str) -> tuple[int, float]:
    """Nothing, where the broker cannot be asked: it may be stopped already."""
    try:
        return delayed(view.queues(name))
    except (NoAnswer, ConfigError, OSError):
        return 0, 0.0


def _nodes(file: Path, view: View) -> Supervisor:
    inventory = view.inventory
    if inventory.supervisor == "local":
        return LocalNodes(file.parent)
    return SystemdNodes({node.name: node.address.host for node in inventory.brokers})


def _run(
    plan: Plan,
    file: Path,
    journal: Journal,
    target: Target,
    *,
    dry_run: bool,
    yes: bool,
    undo: bool,
) -> None:
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for line in plan.lines():
        click.echo(line)
    if dry_run:
        return
    if undo and not journal.is_resumed:
        raise OpsError(f"no unfinished run of {plan.name!r} to take back")
    if journal.is_resumed:
        console.print(f"taking up the run that did {len(journal.done)} of {len(plan.steps)} steps")
    if not yes:
        _confirm()
    with lock.held(file.parent / "ops.lock", plan.name), console.status(plan.name) as shown:
        if undo:
            take_back(plan, HostRunner(), journal, say=console.print)
            return
        if not journal.is_resumed:
            journal.begin({"address": target.address, "agent_port": target.agent_port})
        carry_out(plan, HostRunner(), journal, say=console.print, show=shown.update)


def _confirm() -> None:
    try:
        if click.confirm("go on?", err=True):
            return
    except click.Abort:
        click.echo(err=True)
    raise OpsError("not confirmed; nothing was done. --yes does not ask")
