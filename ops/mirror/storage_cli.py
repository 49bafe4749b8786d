"""`python -m ops storage`: a broker and its disk on the other host of its mirror."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from inventory.errors import TooFewServe
from inventory.inventory import Host
from inventory.serving import below_serving_min
from messagebus.terminal import say
from ops.cluster import checks
from ops.cluster.absent import dead_balancers
from ops.cluster.view import View
from ops.errors import OpsError
from ops.mirror import failover as playbooks
from ops.mirror.files import partner
from ops.mirror.options import (
    both_answer,
    has_agent,
    of_mirror,
    on_mirror,
    permitted,
    proof_options,
)
from ops.mirror.records import record_host
from ops.mirror.view import MirrorView
from ops.run.command import RunOptions, carry, inventory_option, opened, options_of_run
from ops.run.plan import Plan

_consume_only = click.option(
    "--consume-only", is_flag=True, help="Keep publishers away until `python -m lb ready NAME`."
)


@click.group()
def storage() -> None:
    """Move a broker with its mirrored disk. NAME is the broker's.

    \b
    Example:
      python -m ops storage failover mb1 --dead db1
    """


@storage.command(short_help="Start the broker NAME on its mirror's other host.")
@on_mirror()
@click.option("--to", metavar="HOST", default="", help="Default: the host that it does not run on.")
@_consume_only
@proof_options
def failover(
    opts: RunOptions, view: MirrorView, to: str, consume_only: bool, dead: str, give_up: str
) -> None:
    """Start the broker NAME on the other host of its mirror, because its host is dead.

    The power controller of the host proves that it is dead, or the operator confirms it with --dead.

    \b
    Example:
      python -m ops storage failover mb1 --dead db1 --dry-run
    """

    def decide() -> dict[str, Any]:
        host = of_mirror(view, to) if to else partner(view.inventory, view.mirror, _where(view))
        how = permitted(view, host, dead=dead, give_up=give_up)
        return {**how, "agent": has_agent(view, host), "host": host.name}

    given = {"to": to, "dead": dead, "give_up": give_up, "consume_only": consume_only}
    _carry(opts, view, "failover", playbooks.failover, decide, given)


@storage.command(short_help="Move the broker NAME to its mirror's other host.")
@on_mirror()
@below_serving_min
@_consume_only
def failback(opts: RunOptions, view: MirrorView, consume_only: bool, forced: bool) -> None:
    """Move the broker NAME to the other host of its mirror; both hosts run, and the mirror is whole.

    \b
    Example:
      python -m ops storage failback mb1 --dry-run
    """

    def decide() -> dict[str, Any]:
        for each, side in both_answer(view, dry_run=opts.dry_run).items():
            if not side.is_whole:
                raise OpsError(f"only a whole mirror is moved; {each} says {side}")
        host = partner(view.inventory, view.mirror, _where(view))
        return {"agent": _may_stop(opts, view, host, forced), "host": host.name}

    _carry(opts, view, "failback", playbooks.failback, decide, {"consume_only": consume_only})


@storage.command(short_help="Start the broker NAME on a host of its mirror.")
@on_mirror()
@click.option(
    "--on", "where", metavar="HOST", default="", help="Default: the host that it ran on last."
)
@_consume_only
def start(opts: RunOptions, view: MirrorView, where: str, consume_only: bool) -> None:
    """Start the broker NAME on a host of its mirror, when it is new or both hosts were off.

    \b
    Example:
      python -m ops storage start mb1 --dry-run
    """

    def decide() -> dict[str, Any]:
        host = of_mirror(view, where) if where else _where(view)
        permitted(view, host, dead="", give_up="")
        return {"agent": has_agent(view, host), "host": host.name}

    given = {"on": where, "consume_only": consume_only}
    _carry(opts, view, "start", playbooks.start, decide, given)


@storage.command(short_help="Stop the broker NAME and release its disk.")
@on_mirror()
@below_serving_min
def stop(opts: RunOptions, view: MirrorView, forced: bool) -> None:
    """Stop the broker NAME and release its disk, so that its host may be switched off.

    \b
    Example:
      python -m ops storage stop mb1 --dry-run
    """

    def decide() -> dict[str, Any]:
        host = _where(view)
        return {"agent": _may_stop(opts, view, host, forced), "host": host.name}

    _carry(opts, view, "stop", playbooks.stop, decide, {})


def _carry(
    opts: RunOptions,
    view: MirrorView,
    word: str,
    make: Callable[..., Plan],
    decide: Callable[[], dict[str, Any]],
    given: dict[str, Any],
) -> None:
    """Carry out a plan that a run decides once. given: its options, which are a part of the run.

    A resumed run goes on with the earlier decision, whose basis it may have changed itself.
    """
    name = f"storage {word} {view.name}"
    with opened(opts, name, [view.name]) as journal:
        options = options_of_run(journal, given, dict.fromkeys(given, "") | {"consume_only": False})
        decided = journal.facts.get("decided") or decide()
        how = playbooks.Arrival(
            consume_only=options.get("consume_only", False),
            agent=decided["agent"],
            absent=dead_balancers(View(opts.file), [options.get("dead", "")]),
        )
        proof = {key: decided[key] for key in decided.keys() - {"host", "agent"}}
        plan = make(view, view.inventory.host(decided["host"]), how, **proof)
        facts = {"options": options, "decided": decided}
        carry(plan, journal, opts, facts, brokers=[view.name])


def _may_stop(opts: RunOptions, view: MirrorView, host: Host, forced: bool) -> bool:
    """Return whether agents run beside brokers; then enough others must take publishes.

    Raises TooFewServe, unless forced; a dry run prints that.
    """
    agent = has_agent(view, host)
    try:
        if agent and not forced:
            checks.refuse_last(View(opts.file), view.name)
    except TooFewServe as fault:
        if not opts.dry_run:
            raise
        say(f"would stop now: {fault}")
    return agent


def _where(view: MirrorView) -> Host:
    """Return the host that the broker runs on, by the inventory."""
    return of_mirror(view, view.node.host or view.mirror.hosts[0])


# Of `ops inventory`.
@click.command(short_help="Record that the broker NAME runs on HOST.")
@click.argument("name")
@click.argument("host")
@inventory_option
def move(name: str, host: str, file: Path) -> None:
    """Record that the broker NAME runs on HOST; nothing else is done.

    \b
    Example:
      python -m ops inventory move mb1 db2
    """
    view = MirrorView(file.absolute(), name)
    record_host(view, of_mirror(view, host))
