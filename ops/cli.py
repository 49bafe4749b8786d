"""The playbooks as commands: each reads the inventory, makes its plan and carries it out."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from messagebus.errors import ConfigError
from ops.carrying import Go, carry, go_options, journal_of
from ops.commands.supervise import LocalNodes, Supervisor, SystemdNodes
from ops.emptying import HELD_WITHIN_S, delayed
from ops.errors import NoAnswer, OpsError
from ops.journal import Journal
from ops.local.cluster import LocalCluster
from ops.mirror_cli import proof_options
from ops.playbooks import add as add_playbook
from ops.playbooks import found as found_playbook
from ops.playbooks import remove as remove_playbook
from ops.playbooks import replace as replace_playbook
from ops.playbooks import restart as restart_playbook
from ops.playbooks import upgrade as upgrade_playbook
from ops.playbooks.remove import Drain
from ops.playbooks.target import Target
from ops.storage_cli import failover
from ops.view import View

__all__ = ["add", "found", "remove", "replace", "restart", "upgrade"]

# How far RabbitMQ's counts lag: its statistics interval and its quorum queues' tick, 5 s each unless
# set otherwise, which `ops local` does.
STATISTICS_S = 6.0
STATISTICS_LOCAL_S = 1.5

_moves = click.option(
    "--move-remaining",
    "moves",
    is_flag=True,
    help="Publish what nobody takes, is parked or delayed to the other brokers.",
)
_held = click.option(
    "--held-for",
    "held_within_s",
    type=click.FloatRange(min=1),
    default=HELD_WITHIN_S,
    show_default=True,
    help="Seconds that deliveries may be kept without an answer.",
)


@click.command()
@click.argument("name")
@go_options
def add(name: str, go: Go) -> None:
    """Add the broker NAME while everything runs.

    On a local cluster NAME is the next node, mb4; elsewhere its host is installed and in the
    inventory. An interrupted run is resumed by the same command.

    \b
    Example:
      python -m ops add mb4 --dry-run
      python -m ops add mb4 --yes
    """
    view, journal = View(go.file), journal_of(go.file, f"add {name}")
    target = _resumed(journal, name) or _new_target(go.file, view, name)
    if not journal.is_resumed and target.address in view.listed.names:
        raise ConfigError(f"{name} is on the list already")
    plan = add_playbook.plan(target, go.file, view, _nodes(go.file, view, [target]))
    carry(plan, journal, go, target.facts)


@click.command()
@click.argument("name")
@_moves
@_held
@go_options
def remove(name: str, moves: bool, held_within_s: float, go: Go) -> None:
    """Remove the broker NAME while everything runs: drain it to zero, then stop it.

    An interrupted run is resumed by the same command; --move-remaining may be said then, too.

    \b
    Example:
      python -m ops remove mb2 --dry-run
      python -m ops remove mb2 --move-remaining --yes
    """
    view, journal = View(go.file), journal_of(go.file, f"remove {name}")
    target = _resumed(journal, name) or _known_target(view, name)
    how = _drain(view, name, moves=moves, held_within_s=held_within_s)
    plan = remove_playbook.plan(target, go.file, view, _nodes(go.file, view, [target]), how)
    if not journal.is_resumed and view.listed.names == {target.address}:
        raise ConfigError(f"{name} is the last broker; `python -m ops local down` stops it")
    carry(plan, journal, go, target.facts)


@click.command()
@click.argument("names", nargs=-1)
@click.option("--rolling", is_flag=True, help="All brokers of the list, one after the other.")
@_held
@go_options
def restart(names: tuple[str, ...], rolling: bool, held_within_s: float, go: Go) -> None:
    """Restart brokers one after the other while everything runs.

    \b
    Example:
      python -m ops restart mb2 --yes
      python -m ops restart --rolling --yes
    """
    if bool(names) == rolling:
        raise click.UsageError("name brokers, or say --rolling for all of them")
    view = View(go.file)
    journal = journal_of(go.file, f"restart {' '.join(names) or 'all'}")
    known = [node.name for node in view.nodes if str(node.address) in view.listed.names]
    wanted = journal.facts.get("names") or list(names) or known
    targets = [_known_target(view, name) for name in wanted]
    if not journal.is_resumed and len(view.listed.names) < 2:
        raise ConfigError("a single broker has no other that takes over meanwhile")
    how = _drain(view, "", moves=False, held_within_s=held_within_s)
    nodes, named = _nodes(go.file, view, targets), f"restart {' '.join(names) or 'all'}"
    plan = restart_playbook.plan(targets, go.file, view, nodes, how, name=named)
    carry(plan, journal, go, {"names": wanted})


@click.command()
@click.argument("name")
@click.option("--to", "version", default="", help="Version of RabbitMQ's package.")
@_moves
@_held
@go_options
def upgrade(name: str, version: str, moves: bool, held_within_s: float, go: Go) -> None:
    """Drain the broker NAME to empty, install it anew in another version, and bring it back.

    \b
    Example:
      python -m ops upgrade mb2 --dry-run
      python -m ops upgrade mb2 --to 3.12.1-1 --yes
    """
    view, journal = View(go.file), journal_of(go.file, f"upgrade {name}")
    target = _resumed(journal, name) or _known_target(view, name)
    if not journal.is_resumed and view.listed.names == {target.address}:
        raise ConfigError(f"{name} is the last broker; add another one before")
    how = _drain(view, name, moves=moves, held_within_s=held_within_s)
    nodes = _nodes(go.file, view, [target])
    plan = upgrade_playbook.plan(target, go.file, view, nodes, how, version=version)
    carry(plan, journal, go, target.facts)


@click.command()
@click.argument("name")
@click.option(
    "--lose-messages", is_flag=True, help="Yes, what lay on its disk is lost; where no mirror is."
)
@proof_options
@go_options
def replace(name: str, lose_messages: bool, dead: str, give_up: str, go: Go) -> None:
    """Replace the dead broker NAME: by its mirror where it has one, else by a new, empty one.

    With a mirror this is `ops storage failover`, which wants a proof that the host is dead.

    \b
    Example:
      python -m ops replace mb2 --dry-run
      python -m ops replace mb2 --dead db2 --yes
      python -m ops replace mb3 --lose-messages --yes
    """
    view, journal = View(go.file), journal_of(go.file, f"replace {name}")
    if any(mirror.name == name for mirror in view.inventory.mirrors):
        proof = {"dead": dead, "give_up": give_up}
        how = {"dry_run": go.dry_run, "yes": go.yes, "undo": go.undo}
        click.get_current_context().invoke(failover, name=name, file=go.file, **proof, **how)
        return
    if dead or give_up:
        raise ConfigError(f"{name} has no mirror that could take over: --lose-messages")
    target = _resumed(journal, name) or _known_target(view, name)
    if view.listed.names == {target.address}:
        raise ConfigError(f"{name} is the last broker: the list must name another one")
    kept = go.file.parent / "journal" / f"replaced-{name}.toml"
    plan = replace_playbook.plan(target, go.file, view, _nodes(go.file, view, [target]), kept=kept)
    if not (go.dry_run or lose_messages or journal.is_resumed):
        raise OpsError(
            f"{name} has no mirror: what lay on its disk is lost for good; say --lose-messages"
        )
    carry(plan, journal, go, target.facts)


@click.command()
@go_options
def found(go: Go) -> None:
    """Start a new cluster for the first time, on hosts that `ops provision` has set up.

    \b
    Example:
      python -m ops provision --yes && python -m ops found --yes
    """
    view, journal = View(go.file), journal_of(go.file, "found cluster")
    inventory = view.inventory
    if inventory.supervisor == "local":
        raise ConfigError("`python -m ops local up` starts a local cluster")
    names = [node.name for node in inventory.brokers]
    hosts = {each.name: inventory.host(each.host).ssh for each in inventory.balancers if each.host}
    plan = found_playbook.plan(
        names, go.file, view, _systemd(_known_target(view, name) for name in names), balancers=hosts
    )
    carry(plan, journal, go, {"names": names})


def _resumed(journal: Journal, name: str) -> Target | None:
    """The inventory may not know the broker any more, or not yet."""
    return Target(name=name, **journal.facts) if journal.is_resumed else None


def _known_target(view: View, name: str) -> Target:
    node = view.node(name)
    inventory = view.inventory
    is_local = inventory.supervisor == "local"
    return Target(
        name=node.name,
        address=str(node.address),
        agent_port=node.agent.port,
        ssh="" if is_local else inventory.ssh_of(node),
        sudo=bool(node.host) and inventory.host(node.host).sudo,
    )


def _new_target(file: Path, view: View, name: str) -> Target:
    """A new local node gets the address of its number; any other is in the inventory before."""
    inventory = view.inventory
    if inventory.supervisor != "local" or any(node.name == name for node in inventory.brokers):
        return _known_target(view, name)
    node = LocalCluster(file.parent).layout.with_node(name).node(name)
    return Target(name=name, address=node.broker, agent_port=node.agent_port)


def _drain(view: View, name: str, *, moves: bool, held_within_s: float) -> Drain:
    is_local = view.inventory.supervisor == "local"
    return Drain(
        statistics_s=STATISTICS_LOCAL_S if is_local else STATISTICS_S,
        delayed=_delayed(view, name),
        moves=moves,
        held_within_s=held_within_s,
    )


def _delayed(view: View, name: str) -> tuple[int, float]:
    """Nothing, where the broker cannot be asked: it may be stopped already."""
    try:
        return delayed(view.queues(name))
    except (NoAnswer, ConfigError, OSError):
        return 0, 0.0


def _nodes(file: Path, view: View, targets: Iterable[Target]) -> Supervisor:
    return LocalNodes(file.parent) if view.inventory.supervisor == "local" else _systemd(targets)


def _systemd(targets: Iterable[Target]) -> SystemdNodes:
    targets = list(targets)
    return SystemdNodes(
        {target.name: target.ssh for target in targets},
        frozenset(target.name for target in targets if target.sudo),
    )
