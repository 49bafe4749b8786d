"""``python -m lb``: HAProxy's configuration and what it does at run time."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import ParamSpec

import click
from rich.console import Console

from lb import agents, far, fleet, gate_check, runtime, view
from lb.apply import Applied, prepare_start, save_state
from lb.errors import BalancerUnreachable, LbError
from lb.fleet import Fleet
from lb.here import write_private
from lb.inventory import DEFAULT_PATH, ENV_PATH, Balancer, Inventory, load
from lb.render import render
from lb.rollout import apply_all, check_all
from messagebus.commands.anywhere import option_anywhere, said
from messagebus.errors import ConfigError
from messagebus.terminal import printable, say
from ops import shell

__all__ = ["main"]

SAVE_EVERY_S = 2.0

P = ParamSpec("P")


def _one_line_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Errors that an operator can do something about: one line, exit code 1."""

    @wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except (ConfigError, LbError, OSError) as fault:
            raise click.ClickException(printable(" ".join(str(fault).split()))) from fault

    return guarded


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """HAProxy in front of the brokers: render, apply, look, drain.

    Example: python -m lb apply && python -m lb status
    """


def _inventory() -> Inventory:
    return load(said("inventory") or os.environ.get(ENV_PATH) or DEFAULT_PATH)


@contextmanager
def _fleet(inventory: Inventory) -> Iterator[Fleet]:
    def open_socket(balancer: Balancer) -> far.Socket:
        return far.forwarded(shell, inventory.host(balancer.host).ssh, balancer)

    with fleet.opened(inventory, open_socket) as all_balancers:
        yield all_balancers


def _local(inventory: Inventory) -> list[Inventory]:
    """One for each balancer of this machine. Raises ConfigError when there is none."""
    found = [inventory.at(each) for each in inventory.balancers if not each.host]
    if not found:
        raise ConfigError("no balancer of this machine in the inventory; see lb/keeper.py")
    return found


@cli.command("render")
@click.option("--balancer", "name", help="Which; the first by default.")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="With the password."
)
@_one_line_errors
def render_command(name: str | None, output: Path | None) -> None:
    """Print the configuration, the probe's login hidden; or write it whole to a file of mode 600.

    Example: python -m lb render
    """
    inventory = _inventory()
    if name:
        inventory = inventory.at(inventory.find_balancer(name))
    text = render(inventory)
    if output is not None:
        write_private(output, text)
        return
    balancer = inventory.balancer
    assert balancer.probe_password is not None  # render would have raised
    for step in gate_check.steps(balancer.probe_user, balancer.probe_password):
        if step.secret:
            text = text.replace(step.send.hex(), "***")
    click.echo(text, nl=False)


@cli.command("check")
@_one_line_errors
def check_command() -> None:
    """Lint the inventory's balancers and let each HAProxy read its configuration. Touches nothing.

    Example: python -m lb check
    """
    inventory = _inventory()
    check_all(inventory, lambda balancer: far.place_of(shell, inventory, balancer))
    several = f", {len(inventory.balancers)} balancers" if inventory.more else ""
    say(f"good: {len(inventory.brokers)} brokers of {inventory.cluster}{several}")


@cli.command("apply")
@click.option("--reload", is_flag=True, help="Reload even when nothing has changed.")
@_one_line_errors
def apply_command(reload: bool) -> None:
    """Make every HAProxy serve what the inventory says, one after the other.

    One that does not serve it gets back what it had, and those after it are not touched.

    Example: python -m lb apply
    """
    inventory = _inventory()
    applied = apply_all(
        inventory, lambda balancer: far.place_of(shell, inventory, balancer), reload=reload
    )
    for balancer, done in applied:
        say((f"{balancer.name}: " if inventory.more else "") + _what_was_done(done))


def _what_was_done(applied: Applied) -> str:
    if applied.reloaded:
        return f"reloaded: process {applied.pid} serves"
    return "nothing to do" if applied.pid else "written; HAProxy does not run"


@cli.command("prepare-start")
@_one_line_errors
def prepare_start_command() -> None:
    """Write configuration and state for a HAProxy of this machine; it must not run.

    Every broker starts as down until its first check; drains are kept.

    Example: python -m lb prepare-start
    """
    for inventory in _local(_inventory()):
        prepare_start(inventory)


@cli.command("save-state")
@click.option("--every", "every_s", type=click.FloatRange(min=0.1), help="Seconds; else once.")
@_one_line_errors
def save_state_command(every_s: float | None) -> None:
    """Keep what a HAProxy of this machine knows of the brokers over its next start; run it beside it.

    Example: python -m lb save-state --every 2
    """
    if every_s is None:
        for inventory in _local(_inventory()):
            save_state(inventory)
        return
    stop = threading.Event()
    told = False
    while not stop.wait(every_s):
        try:
            # The inventory is read anew, because an apply may have changed it.
            for inventory in _local(_inventory()):
                save_state(inventory)
            told = False
        except (BalancerUnreachable, ConfigError) as fault:
            if not told:
                say(f"not saved: {fault}", err=True)
            told = True


@cli.command("status")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@_one_line_errors
def status_command(as_json: bool) -> None:
    """Show every broker as every HAProxy sees it. Exit code 1 when one does not answer.

    Example: python -m lb status --json
    """
    inventory = _inventory()
    with _fleet(inventory) as all_balancers:
        shown = view.look(inventory, all_balancers)
    if as_json:
        click.echo(json.dumps(view.plain(shown), indent=2))
    else:
        console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
        for line in view.headlines(shown):
            console.print(line)
        if any(each.servers for each in shown):
            console.print(view.server_table(shown))
    if any(each.process is None for each in shown):
        sys.exit(1)


_within = click.option(
    "--within", "within_s", default=agents.SEEN_WITHIN_S, show_default=True, help="Seconds."
)
_by_hand = click.option(
    "--by-hand", is_flag=True, help="In HAProxy itself, for a broker whose agent is dead."
)


@cli.command("drain")
@click.argument("name")
@_within
@_by_hand
@_one_line_errors
def drain_command(name: str, within_s: float, by_hand: bool) -> None:
    """Send no new connections to a broker; those that it has live on. Kept over restarts.

    Its agent is told, and every HAProxy must show it. By hand, the agent takes it back when it is there
    again.

    Example: python -m lb drain mb2
    """
    inventory = _inventory()
    node = inventory.find(name)
    with _fleet(inventory) as all_balancers:
        if by_hand:
            _print(inventory, fleet.set_drain(all_balancers, node.name, on=True).shown)
        else:
            _print(inventory, agents.drain(inventory, name, within_s=within_s, fleet=all_balancers))


@cli.command("ready")
@click.argument("name")
@_within
@_by_hand
@_one_line_errors
def ready_command(name: str, within_s: float, by_hand: bool) -> None:
    """Send new connections to a broker again.

    Example: python -m lb ready mb2
    """
    inventory = _inventory()
    node = inventory.find(name)
    with _fleet(inventory) as all_balancers:
        if by_hand:
            _print(inventory, fleet.set_drain(all_balancers, node.name, on=False).shown)
        else:
            _print(inventory, agents.ready(inventory, name, within_s=within_s, fleet=all_balancers))


@cli.command("maint")
@click.argument("name")
@click.option("--off", is_flag=True, help="Back to what the checks say.")
@_one_line_errors
def maint_command(name: str, off: bool) -> None:
    """Take out a broker whose agent is dead and cannot be asked to drain.

    Example: python -m lb maint mb2
    """
    inventory = _inventory()
    node = inventory.find(name)
    with _fleet(inventory) as all_balancers:
        _print(inventory, fleet.maint(all_balancers, node.name, on=not off).shown)


@cli.command("weight")
@click.argument("name")
@click.argument("weight", type=click.IntRange(0, runtime.WEIGHT_MAX))
@_one_line_errors
def weight_command(name: str, weight: int) -> None:
    """Give a broker a smaller or larger share of new connections; 100 is normal.

    Example: python -m lb weight mb2 50
    """
    inventory = _inventory()
    node = inventory.find(name)
    with _fleet(inventory) as all_balancers:
        _print(inventory, fleet.set_weight(all_balancers, node.name, weight).shown)


def _print(inventory: Inventory, shown: Mapping[str, runtime.ServerState]) -> None:
    for balancer, server in shown.items():
        say(
            (f"{balancer}: " if inventory.more else "")
            + f"{server.name} {server.verdict} sessions={server.sessions} weight={server.weight}"
            f' check="{server.check}" agent="{server.agent}"'
        )


option_anywhere(
    cli,
    click.Option(
        ["--inventory"],
        type=click.Path(dir_okay=False, path_type=Path),
        help=f"Inventory of the cluster. [default: ${ENV_PATH}, else {DEFAULT_PATH}]",
    ),
)


def main() -> None:
    cli(prog_name="python -m lb")


if __name__ == "__main__":
    main()
