"""``python -m lb``: HAProxy's configuration, and its state at run time."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import click
from rich.console import Console

from inventory import shell
from inventory.inventory import DEFAULT_PATH, ENV_PATH, Balancer, Inventory, load
from inventory.serving import below_serving_min
from lb import agents, fleet, hosts, runtime, view
from lb.apply import Applied, prepare_start, save_state
from lb.errors import CODES, BalancerUnreachable
from lb.fleet import Fleet, apply_absent, apply_all, check_all
from lb.hosts import Machine
from lb.render import gate_check_steps, render
from messagebus.commands.exits import Exit, Program
from messagebus.commands.options import NumberRange, option_anywhere, option_value, refuse_typed
from messagebus.errors import ConfigError
from messagebus.files import write_whole
from messagebus.terminal import plural, say

SAVE_EVERY_S = 2.0
BY_HAND = "with --by-hand there is nothing to wait for"
NOT_TAKEN_OUT = "the broker is not taken out"


@click.group("lb", cls=Program, codes=CODES)
def cli() -> None:
    """Manage HAProxy in front of the brokers: render, apply, status, drain.

    \b
    Example:
      python -m lb apply && python -m lb status
    """


def _inventory() -> Inventory:
    return load(option_value("inventory") or os.environ.get(ENV_PATH) or DEFAULT_PATH)


_without = click.option(
    "--without",
    metavar="BALANCER",
    multiple=True,
    help="Leave out this balancer, which is dead. Repeatable.",
)


@contextmanager
def _fleet(inventory: Inventory) -> Iterator[Fleet]:
    def open_socket(balancer: Balancer) -> hosts.Socket:
        return hosts.forwarded(shell, inventory.host(balancer.host).ssh, balancer)

    with fleet.opened(inventory, open_socket) as all_balancers:
        yield all_balancers


def _local(inventory: Inventory) -> list[Inventory]:
    """Return one inventory for each balancer of this machine. Raises ConfigError when there is none."""
    found = [inventory.at(each) for each in inventory.balancers if not each.host]
    if not found:
        raise ConfigError("no balancer of this machine in the inventory; see lb/keeper.py")
    return found


@cli.command("render", short_help="Print HAProxy's configuration, or write it.")
@click.option("--balancer", "name", help="Name of the balancer; default the first.")
@click.option(
    "--out",
    "output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to this file, with the password.",
)
def render_command(name: str | None, output: Path | None) -> None:
    """Print the configuration, without the probe's password; or write it with it to a file of mode 600.

    \b
    Example:
      python -m lb render
    """
    inventory = _inventory()
    if name:
        inventory = inventory.at(inventory.find_balancer(name))
    text = render(inventory)
    if output is not None:
        write_whole(output, text)
        return
    balancer = inventory.balancer
    assert balancer.probe_password is not None  # render would have raised
    for step in gate_check_steps(balancer.probe_user, balancer.probe_password):
        if step.secret:
            text = text.replace(step.send.hex(), "***")
    click.echo(text, nl=False)


@cli.command("check", short_help="Check the inventory and HAProxy's configuration.")
def check_command() -> None:
    """Check the inventory's balancers, and each configuration by its HAProxy. Changes nothing.

    \b
    Example:
      python -m lb check
    """
    inventory = _inventory()
    check_all(inventory, lambda balancer: hosts.machine_of(shell, inventory, balancer))
    several = f", {len(inventory.balancers)} balancers" if inventory.more else ""
    say(f"good: {plural(len(inventory.brokers), 'broker')} of {inventory.cluster}{several}")


@cli.command("apply", short_help="Apply the inventory to every HAProxy.")
@click.option("--reload", is_flag=True, help="Reload even when nothing has changed.")
@_without
def apply_command(reload: bool, without: tuple[str, ...]) -> None:
    """Apply the inventory to every HAProxy, one after the other.

    If one does not serve the new configuration, its old one is restored, and those after it are unchanged.

    \b
    Example:
      python -m lb apply
    """
    inventory = _inventory()

    def connect(balancer: Balancer) -> AbstractContextManager[Machine]:
        return hosts.machine_of(shell, inventory, balancer)

    for balancer, done in apply_all(inventory.without(without), connect, reload=reload):
        say((f"{balancer.name}: " if inventory.more else "") + _what_was_done(done))
    for name in without:
        tried = apply_absent(inventory, connect, inventory.find_balancer(name))
        outcome = tried if isinstance(tried, str) else _what_was_done(tried)
        say(f"{name}: {'left out: ' if isinstance(tried, str) else ''}{outcome}")


def _what_was_done(applied: Applied) -> str:
    if applied.reloaded:
        return f"reloaded: process {applied.pid} serves"
    return "nothing to do" if applied.pid else "written; HAProxy does not run"


@cli.command("prepare-start", short_help="Write configuration and state of a stopped HAProxy.")
def prepare_start_command() -> None:
    """Write configuration and state of a HAProxy of this machine, which must not run.

    Every broker is down until its first check; drains are kept.

    \b
    Example:
      python -m lb prepare-start
    """
    for inventory in _local(_inventory()):
        prepare_start(inventory)


@cli.command("save-state", short_help="Save the state of HAProxy for its next start.")
@click.option(
    "--every-s",
    "every_s",
    type=NumberRange(min=0.1),
    help="Repeat after this many seconds; default once.",
)
def save_state_command(every_s: float | None) -> None:
    """Save the state of a HAProxy of this machine for its next start; run this beside HAProxy.

    \b
    Example:
      python -m lb save-state --every-s 2
    """
    if every_s is None:
        for inventory in _local(_inventory()):
            save_state(inventory)
        return
    stop = threading.Event()
    is_reported = False
    while not stop.wait(every_s):
        try:
            # The inventory is read anew, because an apply may have changed it.
            for inventory in _local(_inventory()):
                save_state(inventory)
            is_reported = False
        except (BalancerUnreachable, ConfigError) as fault:
            if not is_reported:
                say(f"not saved: {fault}", err=True)
            is_reported = True


@cli.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def status_command(as_json: bool) -> int:
    """Show every broker in every HAProxy. Exit code 3 when one does not answer, 6 when none does.

    \b
    Example:
      python -m lb status --json
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
            console.print(view.server_table(shown, console.width))
        reasons = agents.reasons(inventory, view.names_not_up(shown))
        for line in view.not_up(shown, reasons):
            console.print(line, soft_wrap=True)
    answered = [each.process is not None for each in shown]
    if all(answered):
        return Exit.DONE
    return Exit.PARTLY if any(answered) else Exit.SILENT


_within = click.option(
    "--within-s",
    "within_s",
    default=agents.STATE_WITHIN_S,
    show_default=True,
    help="Seconds to wait.",
    type=NumberRange(min=0),
)
_by_hand = click.option(
    "--by-hand", is_flag=True, help="Change HAProxy directly, for a broker whose agent is dead."
)


@cli.command("drain", short_help="Send no new connections to a broker.")
@click.argument("name")
@_within
@_by_hand
@below_serving_min
@_without
def drain_command(
    name: str, within_s: float, by_hand: bool, forced: bool, without: tuple[str, ...]
) -> None:
    """Send no new connections to a broker; open connections stay. Kept over restarts.

    The agent of the broker is told, and every HAProxy must show it. With --by-hand, the agent undoes it when
    it is back.

    \b
    Example:
      python -m lb drain mb2
    """
    inventory = _inventory().without(without)
    node = inventory.find(name)
    with _fleet(inventory) as all_balancers:
        if not forced:
            fleet.refuse_last(all_balancers, inventory, node.name)
        if by_hand:
            refuse_typed("within_s", why=BY_HAND)
            _print(inventory, fleet.set_drain(all_balancers, node.name, on=True).shown)
        else:
            _print(inventory, agents.drain(inventory, name, within_s=within_s, fleet=all_balancers))


@cli.command("ready")
@click.argument("name")
@_within
@_by_hand
@_without
def ready_command(name: str, within_s: float, by_hand: bool, without: tuple[str, ...]) -> None:
    """Send new connections to a broker again.

    \b
    Example:
      python -m lb ready mb2
    """
    inventory = _inventory().without(without)
    node = inventory.find(name)
    with _fleet(inventory) as all_balancers:
        if by_hand:
            refuse_typed("within_s", why=BY_HAND)
            _print(inventory, fleet.set_drain(all_balancers, node.name, on=False).shown)
        else:
            _print(inventory, agents.ready(inventory, name, within_s=within_s, fleet=all_balancers))


@cli.command("maint", short_help="Take out a broker whose agent is dead.")
@click.argument("name")
@click.option("--off", is_flag=True, help="End maintenance.")
@below_serving_min
def maint_command(name: str, off: bool, forced: bool) -> None:
    """Put a broker whose agent is dead into maintenance.

    \b
    Example:
      python -m lb maint mb2
    """
    inventory = _inventory()
    node = inventory.find(name)
    if off:
        refuse_typed("forced", why=NOT_TAKEN_OUT)
    with _fleet(inventory) as all_balancers:
        if not (off or forced):
            fleet.refuse_last(all_balancers, inventory, node.name)
        _print(inventory, fleet.maint(all_balancers, node.name, on=not off).shown)


@cli.command("weight", short_help="Set a broker's share of new connections.")
@click.argument("name")
@click.argument("weight", type=click.IntRange(0, runtime.WEIGHT_MAX))
@below_serving_min
def weight_command(name: str, weight: int, forced: bool) -> None:
    """Set a broker's share of new connections; 100 is normal, 0 sends it none.

    \b
    Example:
      python -m lb weight mb2 50
    """
    inventory = _inventory()
    node = inventory.find(name)
    if weight:
        refuse_typed("forced", why=NOT_TAKEN_OUT)
    with _fleet(inventory) as all_balancers:
        if not (weight or forced):
            fleet.refuse_last(all_balancers, inventory, node.name)
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
    cli.main(prog_name="python -m lb")


if __name__ == "__main__":
    main()
