"""What the commands about mirrors share: their options, their checks before a plan, and running it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from lb.inventory import Host
from messagebus.errors import ConfigError
from ops.carrying import Go, carry, opened
from ops.commands import hosts
from ops.drbd import No, Status, may_promote
from ops.errors import CannotTell, NoAnswer, OpsError
from ops.mirror_files import partner
from ops.mirrors import MirrorView
from ops.plan import Plan

__all__ = [
    "agents",
    "both_answer",
    "not_dead",
    "of_mirror",
    "permitted",
    "proof_options",
    "run",
]


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


def not_dead(name: str, answer: Status | NoAnswer) -> None:
    """Raises OpsError when a host that is said to be dead answers, be it that nothing could be seen there."""
    if isinstance(answer, CannotTell):
        raise OpsError(f"{name} is not dead: it answers, and refuses what it is asked: {answer}")
    if isinstance(answer, Status):
        raise OpsError(f"{name} is not dead: it answers, and says {answer}")


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
    if dead:
        not_dead(other.name, there)
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


def run(plan: Plan, go: Go, view: MirrorView) -> None:
    """Print a plan about a mirror, ask, and carry it out."""
    with opened(go, plan.name, [view.name]) as journal:
        carry(plan, journal, go, {}, brokers=[view.name])
