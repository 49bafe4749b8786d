"""``python -m consumer_lists``: the brokers that consumers attach to."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import click
from rich.console import Console
from rich.table import Table

from consumer_lists import listfile, nodes, show
from consumer_lists import push as pushing
from consumer_lists.errors import CODES, AlreadySo, EditRefused
from consumer_lists.nodes import Cluster, Node
from inventory import serving, shell
from inventory.errors import CommandFailed
from inventory.inventory import DEFAULT_PATH, ENV_PATH, Inventory, load
from inventory.inventory import Node as InventoryNode
from inventory.serving import below_serving_min
from messagebus.broker import AGENT_PORT, Broker, BrokerList
from messagebus.commands.exits import Exit, Program
from messagebus.commands.options import NumberRange, option_anywhere, option_value, refuse_typed
from messagebus.errors import ConfigError, ListInvalid
from messagebus.terminal import did_you_mean, plural, say

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The files that the commands work on. file: a list in place of the inventory's, or None."""

    inventory: Path
    file: Path | None

    def cluster(self) -> Cluster:
        return Cluster.of(load(self.inventory))

    def list_file(self) -> Path:
        return self.file or self.cluster().list_file

    def known(self) -> Mapping[str, InventoryNode]:
        """Return the brokers of the inventory by name; {} without one: a file needs no inventory."""
        with suppress(ConfigError):
            return {node.name: node for node in load(self.inventory).brokers}
        return {}

    def find(self, given: str) -> Broker:
        """Return the broker of this name of the inventory, or of this ``HOST:PORT``."""
        node = self.known().get(given)
        return Broker.parse(str(node.address) if node else given)

    def hint(self, given: str) -> str:
        """Return which broker may have been meant, "; did you mean 'mb3'?", or "" for one that is known."""
        known = self.known()
        words = (*known, *(str(node.address) for node in known.values()))
        return "" if given in words else did_you_mean(given, words)

    def called(self, broker: Broker) -> str:
        """Return a broker's name and address in words; the address alone where it has no name."""
        names = [name for name, node in self.known().items() if str(node.address) == broker.name]
        return f"{names[0]} ({broker})" if names else str(broker)


class BrokerType(click.ParamType[str]):
    """An argument: a broker's name in the inventory, or ``HOST:PORT``."""

    name = "NAME|HOST:PORT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            Broker.parse(value)
        except ValueError as fault:
            self.fail(str(fault), param, ctx)
        return str(value)


def _on_a_list(command: Callable[Concatenate[Source, P], R]) -> Callable[P, R]:
    """Give the command the list that the options name."""

    @functools.wraps(command)
    def given(*args: P.args, **kwargs: P.kwargs) -> R:
        inventory = option_value("inventory") or Path(os.environ.get(ENV_PATH) or DEFAULT_PATH)
        return command(Source(inventory=inventory, file=option_value("file")), *args, **kwargs)

    return given


@click.group("consumer_lists", cls=Program, codes=CODES)
def cli() -> None:
    """Edit the consumer list, which names the brokers that consumers attach to, and push it.

    \b
    Example:
      python -m consumer_lists add mb4.example:5672 && python -m consumer_lists push
    """


@cli.command("show", short_help="Show the list on nodes and clients.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@_on_a_list
def show_command(source: Source, as_json: bool) -> None:
    """Show the list, the list of each node, and the generations that clients have applied.

    With --file, show only that list.

    \b
    Example:
      python -m consumer_lists show
    """
    text = listfile.read(source.list_file())
    ours = BrokerList.parse(text)
    asked = source.cluster().nodes if source.file is None else ()
    serving, (known, silent) = nodes.served(asked), nodes.clients(asked)
    if as_json:
        tls = any(node.tls for node in asked)
        shown = show.plain(ours, serving, known, silent, tls=tls)
        click.echo(json.dumps(shown, indent=2))
        return
    click.echo(ours.render(), nl=False)
    if asked:
        _print(show.node_table(ours, serving))
        if known:
            _print(show.client_table(ours, known))
        elif not silent:
            say("no client has asked lately")
    for name, fault in silent.items():
        say(f"clients of {name} are not known: {fault}", err=True)


_if_needed = click.option(
    "--if-needed", is_flag=True, help="Succeed also when there is nothing to change."
)


@cli.command("check")
@_on_a_list
def check_command(source: Source) -> int:
    """Check the list; an invalid line is reported by its number. Exit code 7 when it is invalid.

    \b
    Example:
      python -m consumer_lists --file prod.txt check
    """
    path = source.list_file()
    try:
        listed = BrokerList.parse(listfile.read(path))
    except ListInvalid as fault:
        say(f"consumer_lists: {path}: {fault}", err=True)
        return Exit.FOUND
    say(f"good: generation {listed.generation}, {plural(len(listed.listed), 'broker')}")
    return Exit.DONE


@cli.command("add")
@click.argument("broker", type=BrokerType())
@click.option(
    "--agent-port",
    type=click.IntRange(1, 65_535),
    help=f"Port of its agent. Default that of the inventory; with --file {AGENT_PORT}.",
)
@_on_a_list
def add_command(source: Source, broker: str, agent_port: int | None) -> None:
    """Let consumers attach to one more broker, which is in the inventory.

    \b
    Example:
      python -m consumer_lists add mb4
      python -m consumer_lists add mb4.example:5672
    """
    port = agent_port or AGENT_PORT
    if source.file is None:
        port = _known_port(load(source.inventory), broker, agent_port)
    _edit(source, broker, functools.partial(listfile.add, agent_port=port))


def _known_port(inventory: Inventory, broker: str, given: int | None) -> int:
    """Return the port of a broker's agent by the inventory, and refuse another one.

    Agents count those on the list for a majority: one that is nowhere holds up every registration and gate.
    Raises ConfigError for a broker that the inventory does not have, EditRefused.
    """
    address = str(Broker.parse(broker))
    is_address = any(str(node.address) == address for node in inventory.brokers)
    agent = inventory.find(address if is_address else broker).agent
    if given not in (None, agent.port):
        raise EditRefused(f"the agent of {broker} is {agent} in the inventory, not at port {given}")
    return agent.port


@cli.command("drain")
@click.argument("broker", type=BrokerType())
@_if_needed
@below_serving_min
@_on_a_list
def drain_command(source: Source, broker: str, if_needed: bool, forced: bool) -> None:
    """Mark a broker as leaving: publishers move away, consumers stay.

    \b
    Example:
      python -m consumer_lists drain mb2
      python -m consumer_lists drain mb2.example:5672
    """
    edit = listfile.drain if forced else _unless_last(source, listfile.drain)
    _edit(source, broker, edit, if_needed=if_needed)


@cli.command("ready")
@click.argument("broker", type=BrokerType())
@_if_needed
@_on_a_list
def ready_command(source: Source, broker: str, if_needed: bool) -> None:
    """Undo drain.

    \b
    Example:
      python -m consumer_lists ready mb2
      python -m consumer_lists ready mb2.example:5672
    """
    _edit(source, broker, listfile.ready, if_needed=if_needed)


@cli.command("remove")
@click.argument("broker", type=BrokerType())
@_if_needed
@below_serving_min
@_on_a_list
def remove_command(source: Source, broker: str, if_needed: bool, forced: bool) -> None:
    """Disconnect consumers from a broker; the last one stays in any case.

    \b
    Example:
      python -m consumer_lists remove mb2
      python -m consumer_lists remove mb2.example:5672
    """
    edit = listfile.remove if forced else _unless_last(source, listfile.remove)
    _edit(source, broker, edit, if_needed=if_needed)


@cli.command("push")
@click.option(
    "--recover", is_flag=True, help="After a disaster: use a generation above all known ones."
)
@click.option(
    "--jump",
    is_flag=True,
    help=f"With --recover: allow a step of more than {pushing.JUMP_MAX:,} generations.",
)
@click.option(
    "--within-s",
    "within_s",
    default=pushing.SERVED_WITHIN_S,
    show_default=True,
    help="Seconds to wait until every node serves it.",
    type=NumberRange(min=0),
)
@click.option(
    "--without",
    metavar="NODE",
    multiple=True,
    help="Do not wait for this node, whose agent is dead. Repeatable.",
)
@_on_a_list
def push_command(
    source: Source, recover: bool, jump: bool, within_s: float, without: tuple[str, ...]
) -> int:
    """Write the list to every node and wait until each serves it.

    Exit code 3 when one does not, 6 when none does.

    \b
    Example:
      python -m consumer_lists push
    """
    if source.file is not None:
        raise click.UsageError("push takes the list of the inventory, not --file")
    if not recover:
        refuse_typed("jump", why="only with --recover")
    cluster = source.cluster()
    act = functools.partial(pushing.recover, is_jump_meant=jump) if recover else pushing.push
    pushed = act(cluster, write=_write, within_s=within_s, without=without)
    if pushed.jump:
        say(f"recovered {pushed.jump}", err=True)
    for name, fault in pushed.silent.items():
        say(f"{name} may know a newer generation and was not asked: {fault}", err=True)
    for name, fault in pushed.differing.items():
        say(f"{name} differs: {fault}", err=True)
    served = f"{len(pushed.serving)} of {len(cluster.nodes)} nodes"
    say(f"generation {pushed.generation} is served by {served}")
    _say_what_to_commit(cluster.list_file, cluster.name, pushed.generation)
    if pushed.complete:
        return Exit.DONE
    return Exit.PARTLY if pushed.serving else Exit.SILENT


@cli.command("diff", short_help="Compare the list with nodes and clients.")
@_on_a_list
def diff_command(source: Source) -> int:
    """Compare the list with every node and client. Exit code 7 when one differs.

    \b
    Example:
      python -m consumer_lists diff
    """
    ours = BrokerList.parse(listfile.read(source.list_file()))
    asked = source.cluster().nodes
    serving, (known, silent) = nodes.served(asked), nodes.clients(asked)
    found = [
        f"{node.node}: {difference}"
        for node in serving
        for difference in show.differences(ours, node)
    ]
    found += show.behind(ours, known)
    # A node that serves nothing is in the list already.
    found += [
        f"{node.node}: its clients are not known: {silent[node.node]}"
        for node in serving
        if node.served and node.node in silent
    ]
    for line in found:
        say(line)
    if found:
        return Exit.FOUND
    seen = f"{plural(len(serving), 'node')}, {plural(len(known), 'client')}"
    say(f"all have generation {ours.generation}: {seen}")
    return Exit.DONE


def _unless_last(
    source: Source, edit: Callable[[str, Broker], str]
) -> Callable[[str, Broker], str]:
    """Return the edit that takes no broker out where too few others take publishes.

    Whether one does is known by the list and the agents; by the list alone where it is not the inventory's.
    """
    inventory = None if source.file else load(source.inventory)
    known = nodes.readiness(Cluster.of(inventory).nodes) if inventory else {}
    wanted = inventory.serving_min if inventory else 1

    def refusing(text: str, broker: Broker) -> str:
        edited, faults = edit(text, broker), dict[str, str]()
        for one in BrokerList.parse(text).listed:
            agent = known.get(str(one.broker))
            reason = agent.reason if agent else "" if source.file else "not in the inventory"
            if one.broker == broker and (agent is None or agent.is_ready is None):
                reason = ""  # it may take publishes
            faults[source.called(one.broker)] = "draining" if one.draining else reason
        serving.refuse_last(source.called(broker), faults, wanted)
        return edited

    return refusing


def _edit(
    source: Source, given: str, edit: Callable[[str, Broker], str], *, if_needed: bool = False
) -> None:
    """Edit the list. given: the broker, by its name or address."""
    path, broker = source.list_file(), source.find(given)
    try:
        listed = listfile.change(path, lambda text: edit(text, broker))
    except EditRefused as fault:
        if if_needed and isinstance(fault, AlreadySo):
            say(f"nothing to do: {fault}")
            return
        is_known = BrokerList.parse(listfile.read(path)).find(broker.name) is not None
        raise EditRefused(f"{fault}{'' if is_known else source.hint(given)}") from None
    brokers = plural(len(listed.listed), "broker")
    changed = source.called(broker)
    say(f"generation {listed.generation}, {brokers}; changed {changed}, not pushed yet")
    _say_what_to_commit(path, listed.cluster, listed.generation)


def _say_what_to_commit(path: Path, cluster: str, generation: int) -> None:
    if command := listfile.advice(path, f"{cluster or path.stem}: generation {generation}"):
        say(command)


def _write(node: Node, path: Path, text: str) -> None:
    """Write a node's list: on this machine, or on its hosts. Raises OSError when no host could be written."""
    if not node.hosts:
        pushing.write_local(node, path, text)
    asked = [_write_over_ssh(host, path, text, sudo=host in node.sudo) for host in node.hosts]
    faults = [fault for fault in asked if fault]
    if faults and len(faults) == len(node.hosts):
        raise OSError("; ".join(faults))


def _write_over_ssh(host: str, path: Path, text: str, *, sudo: bool) -> str:
    """Write a list on one host. Returns the fault, "" for none: one of a mirror's hosts may be down."""
    try:
        with shell.remote(host) as there:
            there.write(path, text, sudo=sudo)
    except CommandFailed as fault:
        return str(fault)
    return ""


def _print(table: Table) -> None:
    Console(width=None if sys.stdout.isatty() else 160).print(table)


for _option, _help in (
    ("--inventory", f"Inventory of the cluster. [default: ${ENV_PATH}, else {DEFAULT_PATH}]"),
    ("--file", "List to use instead of the inventory's."),
):
    _path = click.Path(dir_okay=False, path_type=Path)
    option_anywhere(cli, click.Option([_option], type=_path, help=_help))


def main() -> None:
    cli.main(prog_name="python -m consumer_lists")


if __name__ == "__main__":
    main()
