"""`python -m ops drbd`: the two disks of a broker's mirror."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from inventory.inventory import Host
from messagebus.commands.exits import Exit
from messagebus.errors import ConfigError
from messagebus.terminal import say
from ops.commands import hosts
from ops.errors import NoAnswer, OpsError, RunOpen
from ops.mirror import commands as argv
from ops.mirror import disks as playbooks
from ops.mirror import promotion
from ops.mirror.files import partner
from ops.mirror.options import (
    both_answer,
    check_not_dead,
    dead_option,
    give_up_option,
    has_agent,
    of_mirror,
    on_mirror,
    permitted,
    proof_options,
    run,
)
from ops.mirror.records import clear_alone, record_alone
from ops.mirror.state import Status, is_split, lacks
from ops.mirror.view import MirrorView
from ops.run.command import RunOptions, carry, inventory_option, opened

_overwrite_option = click.option(
    "--overwrite",
    "phrases",
    metavar="PHRASE",
    multiple=True,
    help="Erase a disk that is not blank: the exact words of the refusal. Repeatable.",
)


@click.group()
def drbd() -> None:
    """Manage the mirror of a broker's disk. NAME is the broker's.

    \b
    Example:
      python -m ops drbd status
      python -m ops drbd create mb1 --dry-run
    """


@drbd.command(short_help="Write the mirror's files on both hosts.")
@click.argument("name")
@inventory_option
def install(name: str, file: Path) -> None:
    """Write the mirror's files on both hosts, and let them fence each other; changes no data.

    A step of `create`. Run it alone after a change of the inventory, before `connect`.

    \b
    Example:
      python -m ops drbd install mb1
    """
    playbooks.set_up(MirrorView(file.absolute(), name))


@drbd.command(short_help="Create the mirror NAME on two blank disks.")
@on_mirror()
@click.option(
    "--skip-sync",
    is_flag=True,
    help="Declare two new disks identical instead of copying one to the other.",
)
@_overwrite_option
def create(opts: RunOptions, view: MirrorView, skip_sync: bool, phrases: tuple[str, ...]) -> None:
    """Create the mirror NAME on two blank disks, with a file system, mounted on its first host.

    \b
    Example:
      python -m ops drbd create mb1 --dry-run
      python -m ops drbd create mb1 --skip-sync
    """
    for host in view.hosts:
        called = view.output_of(host, ("uname", "-n")).strip()
        if called != host.name:
            raise OpsError(f"{host.name} calls itself {called!r}; DRBD requires the same name")
    _check_node_names(view)
    erase = _to_be_erased(view, phrases, view.hosts)
    agent = has_agent(view, view.hosts[0])
    plan = playbooks.create(view, skip_sync=skip_sync, erase=erase, agent=agent)
    run(plan, opts, view)


def _check_node_names(view: MirrorView) -> None:
    """Check that the broker is the same node on both hosts, since RabbitMQ's data belong to a node.

    Raises OpsError.
    """
    home, standby = view.hosts
    here, there = (_node_name(view, host) for host in (home, standby))
    if here != there:
        raise OpsError(
            f"RabbitMQ would be node {here} on {home.name} and {there} on {standby.name}: it needs one"
            " NODENAME in /etc/rabbitmq/rabbitmq-env.conf, which `ops provision` writes"
        )


def _node_name(view: MirrorView, host: Host) -> str:
    try:
        name = view.output_of(host, hosts.node_name()).strip() or "rabbit"
    except NoAnswer:  # the host answered before: its settings file is missing
        name = "rabbit"
    return name if "@" in name else f"{name}@{host.name}"


def _to_be_erased(
    view: MirrorView, phrases: tuple[str, ...], among: tuple[Host, ...]
) -> dict[str, str]:
    """Return hosts whose disk holds data that the operator gave up, with what it holds.

    Raises OpsError before anything is changed.
    """
    found, refused = dict[str, str](), []
    for host in among:
        holds = playbooks.held(view.output_of(host, argv.signatures(view.mirror.disk)))
        if not holds or _is_ours(view.status(host)):
            continue
        phrase = f"destroy {holds} on {host.name}:{view.mirror.disk}"
        if phrase in phrases:
            found[host.name] = holds
        else:
            refused.append(f'--overwrite "{phrase}"')
    if refused:
        raise OpsError(f"a disk is not blank; to destroy its contents: {' '.join(refused)}")
    return found


def _is_ours(side: Status) -> bool:
    """Return whether an earlier run made the disk: DRBD holds it, or it has metadata and never had data."""
    is_new = side.generations is not None and not side.generations.current
    return is_new or (side.is_up and side.disk != "Diskless")


@drbd.command(short_help="Copy the mirror NAME to the new disk of HOST.")
@on_mirror("host")
@_overwrite_option
def disk(opts: RunOptions, view: MirrorView, host: Host, phrases: tuple[str, ...]) -> None:
    """Copy the mirror NAME from the other host to the new disk of HOST.

    \b
    Example:
      python -m ops drbd disk mb1 db2 --dry-run
    """
    side = view.status(host)
    if side.disk not in ("Diskless", "DUnknown"):
        raise OpsError(f"{host.name} has its disk: {side}")
    erase = _to_be_erased(view, phrases, (host,))
    run(playbooks.new_disk(view, host, erase=erase), opts, view)


@drbd.command(short_help="Resume frozen writes: the other host is dead.")
@on_mirror()
@dead_option(required=True)
@give_up_option
def thaw(opts: RunOptions, view: MirrorView, dead: str, give_up: str) -> None:
    """Resume the frozen writes of the mirror NAME, because the other host is dead.

    \b
    Example:
      python -m ops drbd thaw mb1 --dead db2
    """
    gone = of_mirror(view, dead)
    sides, wanted = view.sides(), partner(view.inventory, view.mirror, gone)
    check_not_dead(dead, sides[gone.name])
    here = sides[wanted.name]
    if isinstance(here, NoAnswer):
        raise here
    if give_up != dead and (reason := lacks(here, view.alone, peer=dead)):
        raise OpsError(f"the writes of {wanted.name} stay frozen: {reason} with --give-up {dead}")
    run(promotion.thaw(view, wanted), opts, view)


@drbd.command(short_help="Record that HOST writes without its peer.")
@click.argument("name")
@click.argument("host")
@inventory_option
def alone(name: str, host: str, file: Path) -> None:
    """Record that HOST writes to the mirror NAME without its peer, if it does; changes no data.

    A step of `promote`, `thaw` and `ops storage failover`. The peer is then not promoted without HOST until
    the mirror was whole again.

    \b
    Example:
      python -m ops drbd alone mb1 db2
    """
    view = MirrorView(file.absolute(), name)
    noted = record_alone(view, of_mirror(view, host))
    say(f"{host} goes on alone" if noted else f"{host} has its partner")


@drbd.command(short_help="Show the state of mirrors.")
@click.argument("name", default="")
@inventory_option
def status(name: str, file: Path) -> int:
    """Show the state of the mirror NAME on both its hosts, or of every mirror. Exit code 7 on any fault.

    \b
    Example:
      python -m ops drbd status
    """
    file = file.absolute()
    inventory = MirrorView(file, name).inventory
    names = [inventory.mirror(name).name] if name else [each.name for each in inventory.mirrors]
    well = [_show(MirrorView(file, each)) for each in names]
    return Exit.DONE if all(well) else Exit.FOUND


def _show(view: MirrorView) -> bool:
    """Print the state of a mirror. Returns whether all is well."""
    sides = view.sides()
    clear_alone(view, sides)
    for host, side in sides.items():
        say(f"{view.name}  {host:12} {side}")
    if alone := view.alone:
        say(f"{view.name}  {alone.host} went on alone on {alone.since}; not seen whole since")
    is_split = view.is_split()
    if is_split:
        say(f"{view.name}  SPLIT BRAIN: python -m ops drbd resolve {view.name}")
    whole = [side.is_whole for side in sides.values() if isinstance(side, Status)]
    if not all(whole) or len(whole) < len(sides):
        say(f"{view.name}  single copy")
        return False
    return not is_split


@drbd.command(short_help="Make HOST primary for the mirror NAME.")
@on_mirror("host")
@proof_options
def promote(opts: RunOptions, view: MirrorView, host: Host, dead: str, give_up: str) -> None:
    """Make HOST primary for the mirror NAME; refused where that could lose a confirmed message.

    `ops storage failover` does this and all that follows.

    \b
    Example:
      python -m ops drbd promote mb1 db2 --dry-run
    """
    how = permitted(view, host, dead=dead, give_up=give_up)
    run(promotion.promote(view, host, **how), opts, view)


@drbd.command(short_help="Make HOST secondary for the mirror NAME.")
@on_mirror("host")
def demote(opts: RunOptions, view: MirrorView, host: Host) -> None:
    """Make HOST secondary for the mirror NAME; its disk must be unmounted.

    \b
    Example:
      python -m ops drbd demote mb1 db1
    """
    run(promotion.demote(view, host), opts, view)


@drbd.command(short_help="Connect both hosts of the mirror NAME.")
@on_mirror()
def connect(opts: RunOptions, view: MirrorView) -> None:
    """Connect both hosts of the mirror NAME, and wait until both disks are identical.

    \b
    Example:
      python -m ops drbd connect mb1
    """
    run(playbooks.connect(view), opts, view)


@drbd.command(short_help="Disconnect HOST from the mirror NAME.")
@on_mirror("host")
def disconnect(opts: RunOptions, view: MirrorView, host: Host) -> None:
    """Disconnect HOST from the mirror NAME for maintenance; its peer goes on with a single copy.

    \b
    Example:
      python -m ops drbd disconnect mb1 db2
    """
    if view.status(host).role == "Primary":
        raise OpsError(f"{host.name} is primary; disconnect its partner")
    run(playbooks.disconnect(view, host), opts, view)


@drbd.command()
@on_mirror()
def verify(opts: RunOptions, view: MirrorView) -> int:
    """Compare the disks of the mirror NAME while everything runs. Exit code 7 where they differ.

    \b
    Example:
      python -m ops drbd verify mb1
    """
    for host, side in both_answer(view, dry_run=opts.dry_run).items():
        if not side.is_whole:
            raise OpsError(f"only a whole mirror is verified; {host} says {side}")
    home = view.hosts[0]
    run(playbooks.verify(view, home), opts, view)
    if opts.dry_run:
        return Exit.DONE
    after = view.status(home)
    if after.out_of_sync_kib:
        say(
            f"{after.out_of_sync_kib:,} KiB differ: `ops drbd disconnect` and `ops drbd connect` "
            "copy them from the primary"
        )
        return Exit.FOUND
    say(f"{after.size_kib:,} KiB compared, all alike")
    return Exit.DONE


@drbd.command(short_help="Set the resync rate to VALUE bytes a second.")
@on_mirror("value")
def rate(opts: RunOptions, view: MirrorView, value: str) -> None:
    """Set the rate of resync and verify of the mirror NAME to VALUE, as 40M, until the next setup.

    \b
    Example:
      python -m ops drbd rate mb1 40M
    """
    if not value.rstrip("KMG").isdigit():
        raise ConfigError(f"{value!r} is no rate; 40M is 40 MiB a second")
    run(playbooks.rate(view, value), opts, view)


@drbd.command(short_help="End a split brain of the mirror NAME.")
@on_mirror()
@click.option("--victim", metavar="HOST", default="", help="Host whose data are discarded.")
def resolve(opts: RunOptions, view: MirrorView, victim: str) -> None:
    """End a split brain of the mirror NAME: show the data of both hosts, and discard those of one.

    Without --victim, the name of that host must be typed.

    \b
    Example:
      python -m ops drbd resolve mb1 --dry-run --victim db2
    """
    with opened(opts, f"drbd resolve {view.name}", [view.name]) as journal:
        began = journal.facts.get("decided")
        if began and victim not in ("", began["victim"]):
            raise RunOpen(f"the unfinished run gives up {began['victim']}, not {victim}")
        facts = began or _choose_victim(view, victim, opts)
        how = {key: value for key, value in facts.items() if key != "victim"}
        plan = playbooks.resolve(view, view.inventory.host(facts["victim"]), **how)
        carry(plan, journal, opts, {"decided": facts}, brokers=[view.name])


def _choose_victim(view: MirrorView, victim: str, opts: RunOptions) -> dict[str, Any]:
    """Show the data of each side, and ask a person which is given up."""
    sides = both_answer(view, dry_run=opts.dry_run)
    if not is_split(sides):
        raise OpsError(f"no split brain of {view.name}: {'; '.join(map(str, sides.values()))}")
    for host in view.hosts:
        say(f"{host.name}: {_data_of(view, host, sides[host.name])}")
    if not victim:
        names = " or ".join(view.mirror.hosts)
        victim = click.prompt(f"whose data to discard permanently, {names}?", err=True)
    loser = of_mirror(view, victim)
    return {
        "victim": loser.name,
        "is_primary": sides[loser.name].role == "Primary",
        "agent": has_agent(view, loser),
    }


def _data_of(view: MirrorView, host: Host, side: Status) -> str:
    """Return the state of a side, in words, for an operator's decision."""
    words = [str(side), f"{side.out_of_sync_kib:,} KiB written since the other was lost"]
    runs = view.succeeds(host, hosts.service("is-active", hosts.BROKER_UNIT))
    words.append("its broker runs" if runs else "no broker runs")
    newest = ("find", str(view.mirror.mount), "-type", "f", "-printf", "%TY-%Tm-%Td %TH:%TM\\n")
    try:
        written = sorted(view.output_of(host, newest).split("\n"))[-1]
        words.append(f"newest file of {written}" if written else "not mounted")
    except NoAnswer:
        words.append("not mounted")
    return "; ".join(words)
