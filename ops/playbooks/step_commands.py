"""Commands that plans are made of: hold, hang up, move, edit the inventory."""

from __future__ import annotations

import time
from pathlib import Path

import click

from inventory.inventory import Inventory, load
from inventory.serving import below_serving_min
from lb.agents import set_draining
from messagebus.broker import Broker, BrokerList, ListedBroker
from messagebus.commands.exits import Group
from messagebus.config import BusConfig
from messagebus.destination import SEGMENTS
from messagebus.files import write_whole
from messagebus.terminal import Progress, plural, say
from messagebus.tools.moving import MessagesMoved, move_messages
from messagebus.tools.partitions import spread
from ops.cluster import checks
from ops.cluster.checks import some
from ops.cluster.management import Connection, Queue
from ops.cluster.view import View
from ops.errors import NoAnswer, OpsError
from ops.playbooks.inventory_text import (
    broker_table,
    with_broker,
    with_value,
    without_broker,
)
from ops.run.command import inventory_option

# Partitions that are refused for so long, while none is on its way, stay.
REHOME_EVERY_S, STUCK_S = 1.0, 30.0


@click.command(short_help="Close connections of publishers to NAME.")
@click.argument("name")
@click.option("--holding", is_flag=True, help="Close those with unacknowledged deliveries instead.")
@click.option("--all", "every", is_flag=True, help="Close all connections of applications.")
@inventory_option
def hangup(name: str, holding: bool, every: bool, file: Path) -> None:
    """Close the connections of applications to NAME that may publish and do not consume.

    \b
    Example:
      python -m ops hangup mb2
      python -m ops hangup mb2 --holding
    """
    view = View(file.absolute())

    def is_meant(one: Connection) -> bool:
        return every or (one.unacked > 0 if holding else not one.consumes)

    left = [one for one in view.brokers.connections(name) if is_meant(one)]
    for connection in left:
        view.brokers.close_connection(name, connection.name)
    if left:
        say(f"closed {plural(len(left), 'connection')}: {some([str(each) for each in left])}")


@click.command(short_help="Keep publishers away from NAME by its agent.")
@click.argument("name")
@below_serving_min
@inventory_option
def hold(name: str, forced: bool, file: Path) -> None:
    """Keep publishers away from NAME by its agent, until `python -m lb ready NAME`.

    As `lb drain`, without a check that HAProxy shows it: it may not know NAME yet.

    \b
    Example:
      python -m ops hold mb4
    """
    inventory = load(file)
    if not forced:
        checks.refuse_last(View(file.absolute()), name)
    set_draining(inventory, inventory.find(name), draining=True)


@click.command(short_help="Move messages of NAME to the other brokers.")
@click.argument("name")
@inventory_option
def move(name: str, file: Path) -> None:
    """Move the messages in the queues of NAME to the other brokers; ids, headers and keys stay.

    Each message is acknowledged on NAME after its new broker has confirmed it. Nobody should publish to NAME
    or consume there meanwhile. A broker that takes no publishes, or is in alarm, is left out.

    \b
    Example:
      python -m ops move mb2
    """
    view = View(file.absolute())
    inventory, address = view.inventory, str(view.node(name).address)
    held = {queue.name: queue for queue in view.brokers.queues(name) if queue.messages != 0}
    if not held:
        say("moved 0 messages of 0 queues")
        return
    targets = _targets(view, address)
    count = sum(queue.messages or 0 for queue in held.values())
    with Progress("moved", total=count) as progress:
        moved = move_messages(
            _operator(inventory),
            held,
            source=address,
            targets=targets,
            message_bytes={
                one.name: one.body_bytes // (one.messages or 1) for one in held.values()
            },
            on_progress=lambda moved: progress.at(moved.total, moved.queue),
        )
    _print_moved(moved)


def _targets(view: View, away: str) -> list[str]:
    """Return the addresses of the other brokers that take publishes. Raises OpsError when none does."""
    faults = {
        node: checks.not_ready(view, node.name, str(node.address))
        for node in view.nodes
        if str(node.address) != away
    }
    if left_out := [f"{node.name} ({fault})" for node, fault in faults.items() if fault]:
        say(f"nothing is moved to {some(left_out)}", err=True)
    if not (targets := sorted(str(node.address) for node, fault in faults.items() if not fault)):
        raise OpsError("no other broker takes publishes")
    return targets


def _print_moved(moved: MessagesMoved) -> None:
    """Print how many of each queue were moved. Raises OpsError for queues with a fault."""
    _print_queues(moved)
    for queue, fault in moved.faults.items():
        say(f"{queue}: {fault}", err=True)
    say(
        f"moved {plural(moved.total, 'message')} of {plural(len({q for q, _ in moved.moved}), 'queue')}"
    )
    if moved.faults:
        raise OpsError(f"not moved: {some(list(moved.faults))}")


@click.command(short_help="Move the partitions of NAME to the other brokers.")
@click.argument("name")
@inventory_option
def rehome(name: str, file: Path) -> None:
    """Move the partitions that are at home on NAME to other brokers; ends when what was there is consumed.

    A move that was begun goes on by itself: run it again to wait for its end.

    \b
    Example:
      python -m ops rehome mb2
    """
    view = View(file.absolute())
    address = str(view.node(name).address)
    moved, stuck_since_s, told = set[tuple[str, int]](), time.monotonic(), ""
    while left := checks.at_home(chains := view.agents.chains(), address):
        refused = dict[str, str]()
        for topic in left:
            homes = [chain.homes[-1].broker for chain in chains[topic]]
            for partition in left[topic]:
                if homes[partition] != address:
                    moved.add((topic, partition))
            if to := spread(homes, _taking(view, address), away=address):
                try:
                    why = view.agents.move_partitions(name, topic, to)
                except NoAnswer as fault:
                    why = dict.fromkeys(to, str(fault))
                refused |= {f"{topic} {p}": each for p, each in why.items()}
            elif address in homes:
                refused[topic] = "no other broker takes publishes"
        waiting = sum(map(len, left.values())) - len(refused)
        if waiting > 0:
            stuck_since_s = time.monotonic()
        elif time.monotonic() - stuck_since_s > STUCK_S:
            raise OpsError("; ".join(sorted({f"{what}: {why}" for what, why in refused.items()})))
        now = f"{plural(sum(map(len, left.values())), 'partition')} of {some(sorted(left))} left"
        if held := {"/".join(q.name.split("/")[1:3]) for q in _segments(view, name) if q.messages}:
            now += f"; messages of {some(sorted(held))}"
        if now != told:
            say(now)
            told = now
        time.sleep(REHOME_EVERY_S)
    say(f"moved {plural(len(moved), 'partition')}")


def _segments(view: View, name: str) -> list[Queue]:
    return [queue for queue in view.brokers.queues(name) if queue.name.startswith(SEGMENTS)]


def _taking(view: View, away: str) -> list[str]:
    """Return the other brokers that take publishes."""
    found = [(node.name, str(node.address)) for node in view.nodes]
    return [each for name, each in found if each != away and not checks.not_ready(view, name, each)]


def _print_queues(moved: MessagesMoved) -> None:
    for (queue, broker), count in sorted(moved.moved.items()):
        say(f"{count:,} of {queue} to {broker}")


def _operator(inventory: Inventory) -> BusConfig:
    tls = inventory.tls
    return BusConfig(
        user=inventory.admin_user,
        password_file=str(inventory.admin_password_file),
        client_id="messagebus ops move",
        tls=tls is not None,
        tls_ca_file=str(tls.ca_file) if tls else "",
        tls_cert_file=str(tls.cert_file) if tls else "",
        tls_key_file=str(tls.key_file) if tls else "",
    )


# Mirrors are a floor above the playbooks.
_OF_MIRRORS = {
    "move": ("ops.mirror.storage_cli:move", "Record that the broker NAME runs on HOST."),
}


@click.group("inventory", cls=Group, later=_OF_MIRRORS)
def inventory() -> None:
    """Edit the inventory.

    \b
    Example:
      python -m ops inventory drop mb2
    """


@inventory.command(short_help="Remove the broker NAME from the inventory.")
@click.argument("name")
@click.option(
    "--keep", type=click.Path(path_type=Path, dir_okay=False), help="Save its entry in this file."
)
@inventory_option
def drop(name: str, keep: Path | None, file: Path) -> None:
    """Remove the broker NAME from the inventory; the broker is not changed.

    \b
    Example:
      python -m ops inventory drop mb2
    """
    text = file.read_text()
    if keep and (table := broker_table(text, name)):
        write_whole(keep, table, mode=None)
    write_whole(file, without_broker(text, name), mode=None)


@inventory.command()
@click.argument("kept", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@inventory_option
def put(kept: Path, file: Path) -> None:
    """Put back the entry that `drop --keep KEPT` saved.

    \b
    Example:
      python -m ops inventory put mb2.toml
    """
    write_whole(file, with_broker(file.read_text(), kept.read_text()), mode=None)


@inventory.command(short_help="Record that the broker NAME is of VERSION.")
@click.argument("name")
@click.argument("version")
@inventory_option
def version(name: str, version: str, file: Path) -> None:
    """Record that RabbitMQ's package on the hosts of the broker NAME is of VERSION; nothing else is done.

    \b
    Example:
      python -m ops inventory version mb2 3.12.1-1
    """
    write_whole(file, with_value(file.read_text(), name, "version", version), mode=None)


@inventory.command("first-list", short_help="Write the consumer list of a new cluster.")
@inventory_option
def first_list(file: Path) -> None:
    """Write the consumer list of a new cluster, with every broker; an existing list is never replaced.

    \b
    Example:
      python -m ops inventory first-list
    """
    inventory = load(file)
    if inventory.list_file.exists():
        say(f"{inventory.list_file} is there")
        return
    listed = tuple(
        ListedBroker(broker=Broker.parse(str(node.address)), agent_port=node.agent.port)
        for node in inventory.brokers
    )
    made = BrokerList(cluster=inventory.cluster, generation=1, listed=listed)
    write_whole(inventory.list_file, made.render(), mode=None)
