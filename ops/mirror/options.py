"""Common parts of commands about mirrors: their options, their checks before a plan, and running it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import click

from inventory.inventory import Host
from messagebus.errors import ConfigError
from ops.commands import hosts
from ops.errors import CannotTell, NoAnswer, OpsError
from ops.mirror.files import partner
from ops.mirror.records import clear_alone
from ops.mirror.state import Refused, Status, may_promote
from ops.mirror.view import MirrorView
from ops.run.command import RunOptions, carry, opened, run_options
from ops.run.plan import Plan


def on_mirror(*arguments: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the argument NAME, these arguments, and the options of every playbook.

    The command gets the mirror of that name as `view`, and HOST as one of its hosts.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        own = command.__dict__.pop("__click_params__", [])

        @functools.wraps(command)
        def with_view(opts: RunOptions, name: str, **given: Any) -> Any:
            view = MirrorView(opts.file, name)
            if "host" in given:
                given["host"] = of_mirror(view, given["host"])
            return command(opts=opts, view=view, **given)

        wrapped = run_options(with_view)
        wrapped.__click_params__ += own  # type: ignore[attr-defined]
        for argument in reversed(("name", *arguments)):
            wrapped = click.argument(argument)(wrapped)
        return wrapped

    return decorate


dead_option = partial(
    click.option,
    "--dead",
    metavar="HOST",
    help="Confirm that this host is off and will not start again by itself.",
)
give_up_option = click.option(
    "--give-up", metavar="HOST", default="", help="Accept the loss of data that only this host has."
)


def proof_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return give_up_option(dead_option(default="")(command))


def of_mirror(view: MirrorView, name: str) -> Host:
    """Return a host of the mirror. Raises ConfigError when the host is not one of its hosts."""
    host = view.inventory.host(name)
    if host.name not in view.mirror.hosts:
        of = " and ".join(view.mirror.hosts)
        raise ConfigError(f"{name} is not a host of the mirror {view.name}: its hosts are {of}")
    return host


def both_answer(view: MirrorView, *, dry_run: bool) -> dict[str, Status]:
    """Return the state of each host. A whole mirror is recorded, unless this is a dry run.

    Raises NoAnswer when one of them cannot be asked.
    """
    sides = view.sides()
    for side in sides.values():
        if isinstance(side, NoAnswer):
            raise side
    if not dry_run:
        clear_alone(view, sides)
    return {name: side for name, side in sides.items() if isinstance(side, Status)}


def check_not_dead(name: str, answer: Status | NoAnswer) -> None:
    """Raise OpsError when a host that is said to be dead answers, even when its state cannot be read."""
    if isinstance(answer, CannotTell):
        raise OpsError(f"{name} is not dead: it answers, and refuses what it is asked: {answer}")
    if isinstance(answer, Status):
        raise OpsError(f"{name} is not dead: it answers, and says {answer}")


def has_agent(view: MirrorView, host: Host) -> bool:
    """Return whether agents run beside brokers here."""
    return view.succeeds(host, ("systemctl", "cat", hosts.AGENT_UNIT))


def permitted(view: MirrorView, host: Host, *, dead: str, give_up: str) -> dict[str, bool]:
    """Return the arguments of `ops.mirror.promotion.promotion` with which the host may be promoted.

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
    if dead:
        check_not_dead(other.name, there)
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
        alone=view.alone,
    )
    if isinstance(verdict, Refused):
        raise OpsError(f"{host.name} is not promoted: {verdict.reason}")
    return how


def run(plan: Plan, opts: RunOptions, view: MirrorView) -> None:
    """Print a plan about a mirror, ask, and carry it out."""
    with opened(opts, plan.name, [view.name]) as journal:
        carry(plan, journal, opts, {}, brokers=[view.name])
