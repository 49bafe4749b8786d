"""``python -m lb``: HAProxy's configuration and what it does at run time."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec

import click
from rich.console import Console
from rich.table import Table

from lb import agents, gate_check, runtime
from lb.apply import apply, check, prepare_start, save_state, write_private
from lb.errors import BalancerUnreachable, LbError
from lb.inventory import DEFAULT_PATH, ENV_PATH, Inventory, load
from lb.render import render
from messagebus.errors import ConfigError

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
            raise click.ClickException(" ".join(str(fault).split())) from fault

    return guarded


@click.group()
@click.option(
    "--inventory",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=lambda: os.environ.get(ENV_PATH, DEFAULT_PATH),
    help=f"Inventory of the cluster. [default: ${ENV_PATH}, else {DEFAULT_PATH}]",
)
@click.pass_context
def cli(context: click.Context, path: Path) -> None:
    """HAProxy in front of the brokers: render, apply, look, drain.

    Example: python -m lb apply && python -m lb status
    """
    context.obj = path


def _inventory() -> Inventory:
    return load(click.get_current_context().find_object(Path) or DEFAULT_PATH)


@cli.command("render")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="With the password."
)
@_one_line_errors
def render_command(output: Path | None) -> None:
    """Print the configuration, the probe's login hidden; or write it whole to a file of mode 600.

    Example: python -m lb render
    """
    inventory = _inventory()
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
    """Lint the inventory's balancer and let HAProxy read the configuration. Touches nothing.

    Example: python -m lb check
    """
    inventory = _inventory()
    check(inventory)
    click.echo(f"good: {len(inventory.brokers)} brokers of {inventory.cluster}")


@cli.command("apply")
@click.option("--reload", is_flag=True, help="Reload even when nothing has changed.")
@_one_line_errors
def apply_command(reload: bool) -> None:
    """Make the running HAProxy serve what the inventory says; the one before, when it does not.

    Example: python -m lb apply
    """
    applied = apply(_inventory(), reload=reload)
    if applied.reloaded:
        click.echo(f"reloaded: process {applied.pid} serves")
    elif applied.pid:
        click.echo("nothing to do")
    else:
        click.echo("written; HAProxy does not run")


@cli.command("prepare-start")
@_one_line_errors
def prepare_start_command() -> None:
    """Write configuration and state for a HAProxy about to be started; it must not run.

    Every broker starts as down until its first check; drains are kept.

    Example: python -m lb prepare-start
    """
    prepare_start(_inventory())


@cli.command("save-state")
@click.option("--every", "every_s", type=click.FloatRange(min=0.1), help="Seconds; else once.")
@_one_line_errors
def save_state_command(every_s: float | None) -> None:
    """Keep what HAProxy knows of the brokers over its next start; best run beside it.

    Example: python -m lb save-state --every 2
    """
    if every_s is None:
        save_state(_inventory())
        return
    stop = threading.Event()
    told = False
    while not stop.wait(every_s):
        try:
            # The inventory is read anew, because an apply may have changed it.
            save_state(_inventory())
            told = False
        except (BalancerUnreachable, ConfigError) as fault:
            if not told:
                click.echo(f"not saved: {fault}", err=True)
            told = True


@cli.command("status")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@_one_line_errors
def status_command(as_json: bool) -> None:
    """Show every broker as HAProxy sees it.

    Example: python -m lb status --json
    """
    inventory = _inventory()
    socket = inventory.balancer.socket
    serving, servers = runtime.process(socket), runtime.servers(socket)
    if as_json:
        shown = {
            "process": dataclasses.asdict(serving),
            "servers": [dataclasses.asdict(server) for server in servers.values()],
        }
        click.echo(json.dumps(shown, indent=2))
        return
    table = Table(
        "broker", "address", "state", "gate check", "agent", "sessions", "queue", "weight", "since"
    )
    for server in servers.values():
        state = f"{server.verdict}, drained" if _hidden_drain(server) else server.verdict
        table.add_row(
            server.name,
            server.address,
            state,
            server.check,
            server.agent,
            str(server.sessions),
            str(server.queue),
            str(server.weight),
            f"{server.changed_s} s",
        )
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _hidden_drain(server: runtime.ServerState) -> bool:
    return server.drained and server.verdict != "drain"


@cli.command("drain")
@click.argument("name")
@click.option(
    "--within", "within_s", default=agents.SEEN_WITHIN_S, show_default=True, help="Seconds."
)
@_one_line_errors
def drain_command(name: str, within_s: float) -> None:
    """Send no new connections to a broker; those that it has live on. Kept over restarts.

    Example: python -m lb drain mb2
    """
    _print(agents.drain(_inventory(), name, within_s=within_s))


@cli.command("ready")
@click.argument("name")
@click.option(
    "--within", "within_s", default=agents.SEEN_WITHIN_S, show_default=True, help="Seconds."
)
@_one_line_errors
def ready_command(name: str, within_s: float) -> None:
    """Send new connections to a broker again.

    Example: python -m lb ready mb2
    """
    _print(agents.ready(_inventory(), name, within_s=within_s))


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
    runtime.maint(inventory.balancer.socket, node.name, on=not off)
    _print(runtime.servers(inventory.balancer.socket)[node.name])


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
    runtime.set_weight(inventory.balancer.socket, node.name, weight)
    _print(runtime.servers(inventory.balancer.socket)[node.name])


def _print(server: runtime.ServerState) -> None:
    click.echo(
        f"{server.name} {server.verdict} sessions={server.sessions} weight={server.weight}"
        f' check="{server.check}" agent="{server.agent}"'
    )


def main() -> None:
    cli(prog_name="python -m lb")


if __name__ == "__main__":
    main()
