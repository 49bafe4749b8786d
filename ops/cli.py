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
from ops.commands.supervise import LocalNodes, Supervisor, SystemdNodes
from ops.errors import OpsError
from ops.inventory_text import without_broker
from ops.journal import Journal
from ops.plan import Plan
from ops.playbooks import add as add_playbook
from ops.playbooks import remove as remove_playbook
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
    view = View(file)
    plan = add_playbook.plan(name, file, view, _nodes(file, view))
    known = [entry.broker.name for entry in view.listed]
    here = [str(node.address) for node in view.nodes if node.name == name]
    journal = _journal(file, plan)
    if not journal.is_resumed and set(here) & set(known):
        raise ConfigError(f"{name} is on the list already")
    _run(plan, file, journal, dry_run=dry_run, yes=yes, undo=undo)


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
    view = View(file)
    is_local = view.inventory.supervisor == "local"
    statistics_s = STATISTICS_LOCAL_S if is_local else STATISTICS_S
    nodes = _nodes(file, view)
    plan = remove_playbook.plan(name, file, view, nodes, statistics_s=statistics_s)
    journal = _journal(file, plan)
    if not journal.is_resumed:
        view.node(name)
        if len(view.nodes) == 1:
            raise ConfigError(f"{name} is the last broker; `python -m ops local down` stops it")
    _run(plan, file, journal, dry_run=dry_run, yes=yes, undo=undo)


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


def _nodes(file: Path, view: View) -> Supervisor:
    inventory = view.inventory
    if inventory.supervisor == "local":
        return LocalNodes(file.parent)
    return SystemdNodes({node.name: node.address.host for node in inventory.brokers})


def _journal(file: Path, plan: Plan) -> Journal:
    return Journal(file.parent / "journal", plan.name)


def _run(plan: Plan, file: Path, journal: Journal, *, dry_run: bool, yes: bool, undo: bool) -> None:
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for line in plan.lines():
        click.echo(line)
    if dry_run:
        return
    if journal.is_resumed:
        console.print(f"resuming after {journal.done[-1]!r}")
    if not yes:
        _confirm()
    with lock.held(file.parent / "ops.lock", plan.name), console.status(plan.name) as shown:
        if undo:
            take_back(plan, HostRunner(), journal, say=console.print)
        else:
            carry_out(plan, HostRunner(), journal, say=console.print, show=shown.update)


def _confirm() -> None:
    try:
        if click.confirm("go on?", err=True):
            return
    except click.Abort:
        click.echo(err=True)
    raise OpsError("not confirmed; nothing was done. --yes does not ask")
