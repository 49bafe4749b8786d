"""The playbooks as commands: each reads the inventory, makes its plan and carries it out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import click

from messagebus.commands.options import NumberRange
from messagebus.errors import ConfigError
from messagebus.terminal import say
from ops.cluster import checks
from ops.cluster.absent import find_absent
from ops.cluster.emptying import HELD_WITHIN_S, delayed
from ops.cluster.view import View
from ops.commands.supervise import LocalNodes, Supervisor, SystemdNodes
from ops.errors import NoAnswer, OpsError
from ops.local.cluster import LocalCluster
from ops.local.roots import RELEASES
from ops.mirror.options import proof_options
from ops.mirror.storage_cli import failover
from ops.playbooks import add as add_playbook
from ops.playbooks import rejoin
from ops.playbooks import remove as remove_playbook
from ops.playbooks.add import Target
from ops.playbooks.remove import Drain
from ops.run.command import RunOptions, carry, opened, options_of_run, run_options
from ops.run.journal import Journal
from ops.run.plan import Plan
from ops.run.runner import HostRunner

# The lag of RabbitMQ's counts: a queue reports at its tick, and the management plugin takes that at its
# next sample. 5 s each unless set otherwise, which `ops local` does.
STATISTICS_S = 11.0
STATISTICS_LOCAL_S = 2.5

_moves = click.option(
    "--move-remaining",
    "moves",
    is_flag=True,
    help="Publish unread, parked and delayed messages to the other brokers.",
)
_held = click.option(
    "--held-s",
    "held_within_s",
    type=NumberRange(min=1),
    default=HELD_WITHIN_S,
    show_default=True,
    help="Seconds that a consumer may keep deliveries unacknowledged.",
)


_dead = click.option(
    "--dead",
    metavar="NAME",
    multiple=True,
    help="Confirm that the host of this node or balancer is off. Those that are known to be dead need not be"
    " named. Repeatable.",
)


@click.command()
@click.argument("name")
@_dead
@run_options
def add(name: str, dead: tuple[str, ...], opts: RunOptions) -> None:
    """Add the broker NAME while everything runs.

    On a local cluster NAME is the next node, mb4; elsewhere its host is installed and in the
    inventory. An interrupted run is resumed by the same command.

    \b
    Example:
      python -m ops add mb4 --dry-run
      python -m ops add mb4 --yes
    """
    name = _own_name(opts, name)
    with opened(opts, f"add {name}", [name]) as journal:
        view = _view(opts, [name], dead)
        target = _resumed(journal, name) or _new_target(view, name)
        if not journal.is_resumed and target.address in view.listed.names:
            raise ConfigError(
                f"{name} is on the list already: `python -m ops check` names what is wrong with it"
            )
        plan = add_playbook.plan(target, view, _nodes(view, [target]))
        _carry(plan, journal, opts, view, target, {})


@click.command(short_help="Remove the broker NAME: drain it to zero, then stop it.")
@click.argument("name")
@_moves
@_held
@_dead
@run_options
def remove(
    name: str, moves: bool, held_within_s: float, dead: tuple[str, ...], opts: RunOptions
) -> None:
    """Remove the broker NAME while everything runs: drain it to zero, then stop it.

    An interrupted run is resumed by the same command; --move-remaining may be added then, too.

    \b
    Example:
      python -m ops remove mb2 --dry-run
      python -m ops remove mb2 --move-remaining --yes
    """
    name = _own_name(opts, name)
    with opened(opts, f"remove {name}", [name]) as journal:
        view = _view(opts, [name], dead)
        target = _resumed(journal, name) or _known_target(view, name)
        options = _drain_options(journal, moves=moves, held_within_s=held_within_s)
        how = _drain(view, name, **options)
        plan = remove_playbook.plan(target, view, _nodes(view, [target]), how)
        if not journal.is_resumed:
            _refuse_off_the_list(view, [target])
            if view.listed.names == {target.address}:
                raise ConfigError(f"{name} is the last broker; `python -m ops local down` stops it")
        _carry(plan, journal, opts, view, target, options)


@click.command()
@click.argument("names", nargs=-1)
@click.option("--rolling", is_flag=True, help="All brokers of the list, one after the other.")
@_held
@_dead
@run_options
def restart(
    names: tuple[str, ...],
    rolling: bool,
    held_within_s: float,
    dead: tuple[str, ...],
    opts: RunOptions,
) -> None:
    """Restart brokers one after the other while everything runs.

    \b
    Example:
      python -m ops restart mb2 --yes
      python -m ops restart --rolling --yes
    """
    if bool(names) == rolling:
        raise click.UsageError("name brokers, or use --rolling for all of them")
    names = tuple(_own_name(opts, name) for name in names)
    if twice := twice_in(names):
        raise click.UsageError(f"named twice: {', '.join(twice)}")
    called = f"restart {' '.join(names) or '--rolling'}"
    every = [node.name for node in View(opts.file).nodes]
    with opened(opts, called, names or every) as journal:
        view = _view(opts, names, dead)
        listed = view.listed.names
        known = [node.name for node in view.brokers.present if str(node.address) in listed]
        wanted = journal.facts.get("names") or list(names) or known
        targets = [_known_target(view, name) for name in wanted]
        if not journal.is_resumed:
            _refuse_off_the_list(view, targets)
            if len(listed) < 2:
                raise ConfigError("a single broker has no other that takes over meanwhile")
        options = options_of_run(
            journal, {"held_within_s": held_within_s}, {"held_within_s": HELD_WITHIN_S}
        )
        how = _drain(view, "", moves=False, **options)
        nodes = _nodes(view, targets)
        plan = rejoin.restart(targets, view, nodes, how, name=called)
        facts = {"names": wanted, "options": options}
        carry(plan, journal, opts, facts, brokers=wanted, afterwards=_afterwards(view))


@click.command(short_help="Reinstall the broker NAME in another version.")
@click.argument("name")
@click.option(
    "--to",
    "version",
    default="",
    help="Version of RabbitMQ's package; default that of the inventory, which gets it.",
)
@_moves
@_held
@_dead
@run_options
def upgrade(
    name: str,
    version: str,
    moves: bool,
    held_within_s: float,
    dead: tuple[str, ...],
    opts: RunOptions,
) -> None:
    """Drain the broker NAME, reinstall it empty in another version, and put it back into service.

    \b
    Example:
      python -m ops upgrade mb2 --dry-run
      python -m ops upgrade mb2 --to 3.12.1-1 --yes
    """
    name = _own_name(opts, name)
    with opened(opts, f"upgrade {name}", [name]) as journal:
        view = _view(opts, [name], dead)
        target = _resumed(journal, name) or _known_target(view, name)
        if not journal.is_resumed:
            _refuse_off_the_list(view, [target])
            if view.listed.names == {target.address}:
                raise ConfigError(f"{name} is the last broker; add another broker first")
            version = _version(view, name, version)
        options = _drain_options(journal, moves=moves, held_within_s=held_within_s, version=version)
        drain = {key: options[key] for key in ("moves", "held_within_s")}
        nodes, how = _nodes(view, [target]), _drain(view, name, **drain)
        plan = rejoin.upgrade(target, view, nodes, how, version=options["version"])
        _carry(plan, journal, opts, view, target, options)


@click.command(short_help="Replace the dead broker NAME.")
@click.argument("name")
@click.option(
    "--lose-messages",
    is_flag=True,
    help="Accept that the messages on its disk are lost; without a mirror. It stops no broker or agent that"
    " answers.",
)
@proof_options
@run_options
def replace(name: str, lose_messages: bool, dead: str, give_up: str, opts: RunOptions) -> None:
    """Replace the dead broker NAME by its mirror, or by a new, empty broker where it has none.

    With a mirror this is `ops storage failover`, which requires proof that the host is dead.

    \b
    Example:
      python -m ops replace mb2 --dry-run
      python -m ops replace mb2 --dead db2 --yes
      python -m ops replace mb3 --lose-messages --yes
    """
    name = _own_name(opts, name)
    known = View(opts.file).inventory
    if any(mirror.name == name for mirror in known.mirrors):
        proof = {"dead": dead, "give_up": give_up}
        how = {name: getattr(opts, name) for name in RunOptions.__slots__}
        click.get_current_context().invoke(failover, name=name, **proof, **how)
        return
    parts = {one.name for one in known.brokers} | {one.name for one in known.balancers}
    if give_up or (dead and dead not in parts):
        wrong = f"{dead or give_up} is neither a broker nor a balancer"
        instead = wrong if lose_messages else "use --lose-messages"
        raise ConfigError(f"{name} has no mirror that could take over: {instead}")
    with opened(opts, f"replace {name}", [name]) as journal:
        view = _view(opts, [name], [dead] if dead else [])
        target = _resumed(journal, name) or _known_target(view, name)
        if view.listed.names == {target.address}:
            raise ConfigError(f"{name} is the last broker: the list must name another one")
        kept = opts.journals / f"replaced-{name}.toml"
        nodes = _nodes(view, [target])
        options = _drain_options(
            journal, version="" if journal.is_resumed else _version(view, name, "")
        )
        plan = rejoin.replace(target, view, nodes, kept=kept, runner=HostRunner(), **options)
        if not (lose_messages or journal.is_resumed):
            lost = f"{name} has no mirror: the messages on its disk are lost permanently; "
            if not opts.dry_run:
                raise OpsError(f"{lost}confirm with --lose-messages")
            say(f"note: {lost}it will ask for --lose-messages", err=True)
        _carry(plan, journal, opts, view, target, options)


@click.command(short_help="Start a new cluster for the first time.")
@run_options
def bootstrap(opts: RunOptions) -> None:
    """Start a new cluster for the first time, on hosts that `ops provision` has set up.

    \b
    Example:
      python -m ops provision --yes && python -m ops bootstrap --yes
    """
    view = View(opts.file)
    inventory = view.inventory
    if inventory.supervisor == "local":
        raise ConfigError("`python -m ops local up` starts a local cluster")
    names = [node.name for node in inventory.brokers]
    hosts = {each.name: inventory.host(each.host).ssh for each in inventory.balancers if each.host}
    plan = add_playbook.bootstrap(
        names,
        view,
        _systemd(_known_target(view, name) for name in names),
        balancers=hosts,
    )
    with opened(opts, plan.name, names) as journal:
        carry(plan, journal, opts, {"names": names}, brokers=names)


def _carry(
    plan: Plan,
    journal: Journal,
    opts: RunOptions,
    view: View,
    target: Target,
    options: Mapping[str, Any],
) -> None:
    facts = {"target": target.facts, "options": dict(options)}
    carry(plan, journal, opts, facts, brokers=[target.name], afterwards=_afterwards(view))


def twice_in(names: Sequence[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})


def _own_name(opts: RunOptions, given: str) -> str:
    """Return the name of the broker that is given by name or address.

    A run has one journal, however its broker is called. It may not be in the inventory yet, or any more.
    """
    with suppress(ConfigError):
        return View(opts.file).node(given).name
    return given


def _view(opts: RunOptions, but: Collection[str], dead: Iterable[str]) -> View:
    """Return a view of the cluster without dead nodes and balancers, which are reported.

    Raises OpsError when another broker or agent answers at the addresses of a node.
    """
    view = View(opts.file)
    absent = find_absent(view, lambda names: _of(view, names), but, dead)
    if names := absent.in_words():
        say(f"note: dead, and left out: {names}", err=True)
    view = View(opts.file, absent)
    checks.refuse_strangers(view)
    return view


def _of(view: View, names: Iterable[str]) -> Supervisor:
    return _nodes(view, [_known_target(view, name) for name in names])


def _afterwards(view: View) -> list[str]:
    """Return lines on nodes and balancers that were dead during the run, with the commands they will need."""
    return [
        f"{name} was dead meanwhile; when it is back: `python -m consumer_lists push`, and"
        " `python -m ops check` says what else differs"
        for name in view.absent.nodes
    ] + [
        f"{name} was dead meanwhile; when it is back: `python -m lb apply`. Until then it may know other"
        " brokers than there are: their gates and agents keep publishers of it away where they must"
        for name in sorted(view.absent.balancers)
    ]


def _drain_options(journal: Journal, **options: Any) -> dict[str, Any]:
    defaults = {"moves": False, "held_within_s": HELD_WITHIN_S, "version": ""}
    return options_of_run(journal, options, defaults, may_come=("moves",))


def _version(view: View, name: str, wanted: str) -> str:
    """Return the version to install: this one, else the inventory's.

    Raises ConfigError for one that a local cluster cannot run.
    """
    if wanted and view.inventory.supervisor == "local" and wanted not in RELEASES:
        raise ConfigError(f"--to {wanted}: a local cluster can run {', '.join(RELEASES)}")
    return wanted or view.node(name).version


def _resumed(journal: Journal, name: str) -> Target | None:
    """Return the target of a resumed run: the inventory may not know the broker any more, or not yet."""
    return Target(name=name, **journal.facts["target"]) if journal.is_resumed else None


def _known_target(view: View, name: str) -> Target:
    node = view.node(name)
    inventory = view.inventory
    is_local = inventory.supervisor == "local"
    ssh = "" if is_local else inventory.ssh_of(node)
    others = [] if is_local else [each for each in inventory.ssh_hosts(node) if each != ssh]
    by_sudo = {host.ssh for host in inventory.hosts if host.sudo}
    return Target(
        name=node.name,
        address=str(node.address),
        agent_port=node.agent.port,
        ssh=ssh,
        sudo=bool(node.host) and inventory.host(node.host).sudo,
        standby=others[0] if others else "",
        standby_sudo=bool(by_sudo.intersection(others)),
    )


def _new_target(view: View, name: str) -> Target:
    """Return the target of a broker to add.

    A new local node gets the address of its number; any other broker is in the inventory already.
    """
    inventory = view.inventory
    if inventory.supervisor != "local" or any(node.name == name for node in inventory.brokers):
        return _known_target(view, name)
    node = LocalCluster(view.file.parent).layout.with_node(name).node(name)
    return Target(name=name, address=node.broker, agent_port=node.agent_port)


def _refuse_off_the_list(view: View, targets: Iterable[Target]) -> None:
    """Refuse to drain brokers that no consumer reads from. Raises ConfigError."""
    if off := [each.name for each in targets if each.address not in view.listed.names]:
        raise ConfigError(
            f"{off[0]} is off the list, so no consumer reads from it: `python -m ops add {off[0]}` brings it"
            " back into service, then run this again; if its host is dead for good, `python -m ops replace"
            f" {off[0]}`"
        )


def _drain(view: View, name: str, *, moves: bool, held_within_s: float) -> Drain:
    is_local = view.inventory.supervisor == "local"
    return Drain(
        statistics_s=STATISTICS_LOCAL_S if is_local else STATISTICS_S,
        delayed=_delayed(view, name),
        moves=moves,
        held_within_s=held_within_s,
        serving_min=view.inventory.serving_min,
    )


def _delayed(view: View, name: str) -> tuple[int, float]:
    """Return the delayed messages; none where the broker cannot be asked: it may be stopped already."""
    try:
        return delayed(view.brokers.queues(name))
    except (NoAnswer, ConfigError, OSError):
        return 0, 0.0


def _nodes(view: View, targets: Iterable[Target]) -> Supervisor:
    return (
        LocalNodes(view.file.parent) if view.inventory.supervisor == "local" else _systemd(targets)
    )


def _systemd(targets: Iterable[Target]) -> SystemdNodes:
    targets = list(targets)
    return SystemdNodes(
        {target.name: target.ssh for target in targets},
        frozenset(target.name for target in targets if target.sudo),
        {
            target.name: (target.standby, target.standby_sudo)
            for target in targets
            if target.standby
        },
    )
