"""Differences of a cluster from its inventory: `python -m ops check`.

The functions `of_...` are pure: each takes observations and yields findings. Those after the command observe.
"""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from consumer_lists.nodes import Served
from inventory import shell
from inventory.errors import CommandFailed
from inventory.inventory import Inventory, Node, load
from messagebus.broker import BrokerList
from messagebus.commands.exits import Exit
from messagebus.errors import ConfigError, ListInvalid, one_line
from messagebus.observing.rules import RULES, Past
from messagebus.observing.snapshot import Answer, Bus, ObservedBroker
from messagebus.terminal import plural, say
from messagebus.tls import TlsFiles, certificate_fault
from ops.cluster import definitions
from ops.cluster.absent import answering
from ops.cluster.brokers import next_file
from ops.cluster.topology import drift
from ops.cluster.view import View
from ops.commands import kits
from ops.commands.kits import CHECKOUT
from ops.errors import NoAnswer, OpsError
from ops.provision.changes import changes, obstacles
from ops.provision.hosts import look, read_secrets, root_of
from ops.provision.program import pack
from ops.provision.wanted import BROKER_UNIT, all_users, wanted_host
from ops.run.command import inventory_option

# Other machines judge certificates and "parked since" by their own clocks.
CLOCK_S_MAX = 1.0
# Of what a host says in place of a time.
SHOWN_CHARS_MAX = 80
LOSING = "PolicyLosesMessages"
# The rules about one broker that are true or not at one look.
OBSERVED = tuple(
    rule
    for rule in RULES
    if rule.name in ("BrokerAlarm", "BrokerDiskFillsUp", "BrokerMemoryHigh", "Coverage", LOSING)
)
DISK_PERCENT_MAX = 85
# Enough time for an authority, and earlier than the alert of `ops/monitoring`.
CERTIFICATE_DAYS_LEFT = 30
DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference. where: a host, broker, agent, balancer or the list. what: the fault, in words.

    rank: `ops.cluster.definitions.LOSES` or LETS_IN come before all others.
    """

    where: str
    what: str
    rank: int = definitions.DIFFERS

    @property
    def order(self) -> tuple[int, str, str]:
        return self.rank, self.where, self.what

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


def of_lists(inventory: Inventory, ours: BrokerList, served: Iterable[Served]) -> Iterator[Finding]:
    """Yield faults of the operators' list, and of the list that each agent serves."""
    known = {str(node.address) for node in inventory.brokers}
    if ours.cluster and ours.cluster != inventory.cluster:
        yield Finding("list", f"is of cluster {ours.cluster!r}, not {inventory.cluster!r}")
    for name in sorted(known - ours.names):
        yield Finding("list", f"does not name {name}, which is in the inventory")
    for name in sorted(ours.names - known):
        yield Finding("list", f"names {name}, which is not in the inventory")
    for entry in ours:
        if entry.draining:
            yield Finding("list", f"{entry.broker.name} is draining")
    for one in served:
        yield from _of_served(inventory, ours, one)


def _of_served(inventory: Inventory, ours: BrokerList, one: Served) -> Iterator[Finding]:
    where = f"agent of {one.node}"
    if one.served is None:
        yield Finding(where, f"serves no list: {one.fault}")
    elif one.served.cluster and one.served.cluster != inventory.cluster:
        yield Finding(where, f"serves the list of another cluster, {one.served.cluster!r}")
    elif one.generation != ours.generation:
        yield Finding(where, f"serves generation {one.generation}, not {ours.generation}")
    elif one.served != ours:
        yield Finding(where, f"serves another list of generation {one.generation}")


def of_observed(name: str, answer: Answer) -> Iterator[Finding]:
    """Yield faults of a broker by its agent's answer, as the rules of `messagebus.tools` say them."""
    state = answer.state
    if state.verdict != "ready":
        reason = state.reason or "no reason given"
        yield Finding(name, f"takes no new publishers: {state.verdict}, {reason}")
    bus = Bus(at_ms=answer.received_at_ms, brokers=(ObservedBroker(broker=name, last=answer),))
    for rule in OBSERVED:
        rank = definitions.LOSES if rule.name == LOSING else definitions.DIFFERS
        yield from (Finding(name, found.text, rank) for found in rule.find(bus, Past()))


def of_broker(node: Node, overview: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield faults of a broker by its own answers."""
    version = str(overview.get("rabbitmq_version", ""))
    wanted = node.version.partition("-")[0]
    # The inventory of a local cluster has "4.0", whichever of them Debian's release has.
    if wanted and version != wanted and not version.startswith(f"{wanted}."):
        yield Finding(node.name, f"runs RabbitMQ {version}, not {node.version}")
    own = overview.get("cluster_name")
    if own != str(node.address):
        yield Finding(node.name, f"calls itself {own!r}, not {str(node.address)!r}")


def of_feature_flags(name: str, flags: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield that stable feature flags are not enabled: a new broker has all, one upgraded in place may not.

    Its next release requires them, and does not start without.
    """
    lacking = sorted(
        str(flag["name"])
        for flag in flags
        if flag.get("stability") == "stable" and flag.get("state") == "disabled"
    )
    if lacking:
        yield Finding(
            name,
            f"feature flags are not enabled: {', '.join(lacking)}: rabbitmqctl enable_feature_flag all",
        )


def of_balancers(inventory: Inventory, shown: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield faults by the state that every HAProxy shows. shown: `lb status --json`."""
    names = {node.name for node in inventory.brokers}
    for balancer in shown["balancers"]:
        where = f"balancer {balancer['name']}"
        if balancer["process"] is None:
            yield Finding(where, f"does not answer: {balancer['fault']}")
            continue
        if balancer["current"] is False:
            yield Finding(
                where, "does not serve the configuration of the inventory: python -m lb apply"
            )
        servers = {server["name"]: server for server in balancer["servers"]}
        for name in sorted(names - servers.keys()):
            yield Finding(where, f"does not know {name}")
        for name, server in sorted(servers.items()):
            if name in names and server["verdict"] != "up":
                yield Finding(where, f"has {name} as {server['verdict']} ({server['check']})")


def of_clock(host: str, theirs: str, ours_s: float) -> Iterator[Finding]:
    """Yield a fault of a host's clock. theirs: output of ``date +%s.%N`` at ours_s, in s since 1970."""
    try:
        seconds = float(theirs) - ours_s
    except ValueError:
        told = one_line(theirs, SHOWN_CHARS_MAX)
        yield Finding(host, f"says no time: {told!r}: its login shell must print nothing")
        return
    if abs(seconds) > CLOCK_S_MAX:
        word = "ahead of" if seconds > 0 else "behind"
        yield Finding(host, f"its clock is {abs(seconds):.1f} s {word} this machine's")


def of_disks(host: str, output: str) -> Iterator[Finding]:
    """Yield faults of a host's disks. output: output of ``df --output=pcent,target``."""
    for line in output.splitlines():
        percent, _, target = line.strip().partition(" ")
        if (
            percent.endswith("%")
            and percent[:-1].isdigit()
            and int(percent[:-1]) > DISK_PERCENT_MAX
        ):
            yield Finding(host, f"{target.strip()} is {percent} full")


def of_certificate(where: str, left_s: float) -> Iterator[Finding]:
    """Yield a fault of a certificate. left_s: seconds until it ends."""
    if left_s <= 0:
        yield Finding(where, "its certificate has ended")
    elif left_s < CERTIFICATE_DAYS_LEFT * DAY_S:
        yield Finding(where, f"its certificate ends in {left_s / DAY_S:.0f} days")


def of_inventory(inventory: Inventory) -> Iterator[Finding]:
    """Yield faults that the inventory has by itself, and password changes that are not finished."""
    brokers = len(inventory.brokers)
    if brokers > 1 and inventory.serving_min >= brokers:
        yield Finding(
            "inventory",
            f"serving_min is {inventory.serving_min} of {plural(brokers, 'broker')}: no playbook can"
            " take one out",
        )
    for user in all_users(inventory):
        if next_file(user.password_file).exists():
            yield Finding(
                "inventory",
                f"a change of the password of {user.name} is not finished:"
                f" ops users password {user.name}",
            )


CONNECT_WITHIN_S = 2.0
STATUS_WITHIN_S = 60.0
AT_ONCE = 16
DISKS = ("/", "/var/lib/rabbitmq")

T = TypeVar("T")


@click.command(short_help="Compare the inventory with the running cluster.")
@inventory_option
def check(file: Path) -> int:
    """Compare the inventory with the running cluster, and print differences. Exit code 7 when there are any.

    First those that lose messages or let somebody in. Hosts: SSH, packages, settings, units, clock, disks.
    Brokers: ports, versions, names, alarms, users, rights, policies, parameters, plug-ins.
    Agents: health, list. Balancers: whether they serve the inventory. Topology. Certificates.

    \b
    Example:
      python -m ops check
    """
    file = file.absolute()
    inventory, view = load(file), View(file)
    found = sorted(
        {
            *_everywhere(inventory.brokers, lambda node: _broker(view, node)),
            *_everywhere(inventory.hosts, lambda host: _host(inventory, host.name)),
            *_list(inventory, view),
            *_balancers(inventory, file),
            *_topology(view),
            *_certificates(inventory),
            *of_inventory(inventory),
        },
        key=lambda one: one.order,
    )
    for each in found:
        say(str(each))
    if found:
        say(plural(len(found), "difference"), err=True)
        return Exit.FOUND
    hosts = f", {plural(len(inventory.hosts), 'host')}" if inventory.hosts else ""
    brokers = plural(len(inventory.brokers), "broker")
    say(f"{inventory.cluster} is as its inventory says: {brokers}{hosts}")
    return Exit.DONE


def _everywhere(these: Iterable[T], look_at: Callable[[T], Iterable[Finding]]) -> list[Finding]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [each for found in pool.map(lambda one: list(look_at(one)), these) for each in found]


def _broker(view: View, node: Node) -> Iterator[Finding]:
    closed = [
        name for name in ("address", "agent", "check", "management") if not _is_open(node, name)
    ]
    for name in closed:
        yield Finding(node.name, f"nothing listens on its {name}, {getattr(node, name)}")
    try:
        if "agent" not in closed:
            yield from of_observed(node.name, view.agents.observed(node.name))
        if "management" not in closed:
            yield from of_broker(node, view.brokers.overview(node.name))
            yield from of_feature_flags(node.name, view.brokers.feature_flags(node.name))
            for rank, what in definitions.look(view, node.name):
                yield Finding(node.name, what, rank)
    except (NoAnswer, ConfigError) as fault:
        yield Finding(node.name, str(fault))


def _is_open(node: Node, name: str) -> bool:
    try:
        with socket.create_connection(getattr(node, name), timeout=CONNECT_WITHIN_S):
            return True
    except OSError:
        return False


def _host(inventory: Inventory, name: str) -> Iterator[Finding]:
    """Yield differences of one host; observe it as `ops provision` does."""
    try:
        with root_of(inventory, name) as root:
            before = time.time()
            theirs = root.run(("date", "+%s.%N"))
            yield from of_clock(name, theirs, (before + time.time()) / 2)
            yield from of_disks(name, root.ask(("df", "--output=pcent,target", *DISKS)))
            secrets, program = read_secrets(inventory), pack()
            wanted = wanted_host(inventory, name, secrets, program.digest)
            observed = look(wanted, root)
            for fault in obstacles(wanted, observed):
                yield Finding(name, fault)
            for change in changes(wanted, observed):
                yield Finding(name, f"wanted: {change.what}")
            for unit in wanted.units:
                if unit not in observed.active:
                    is_broker = "; `ops add` starts it" if unit == BROKER_UNIT else ""
                    yield Finding(name, f"{unit} does not run{is_broker}")
    except (CommandFailed, OpsError, ConfigError) as fault:
        yield Finding(name, str(fault))


def _list(inventory: Inventory, view: View) -> Iterator[Finding]:
    try:
        yield from of_lists(inventory, view.listed, view.agents.served())
    except (OSError, ListInvalid, ConfigError) as fault:
        yield Finding("list", str(fault))


def _balancers(inventory: Inventory, file: Path) -> Iterator[Finding]:
    argv = kits.lb(file, "status", "--json").argv
    try:
        output = shell.run(argv, timeout_s=STATUS_WITHIN_S, cwd=CHECKOUT)
    except CommandFailed as fault:  # a balancer does not answer: the output names it
        output = fault.output
    try:
        yield from of_balancers(inventory, json.loads(output))
    except ValueError:
        yield Finding("balancers", output.strip()[-300:] or "lb status says nothing")


def _topology(view: View) -> Iterator[Finding]:
    try:
        for each in drift(answering(view)):
            yield Finding(each.node, f"topology: {each.about} {each.what}")
    except (NoAnswer, ConfigError) as fault:
        yield Finding("topology", f"cannot be compared: {fault}")


def _certificates(inventory: Inventory) -> Iterator[Finding]:
    """Yield faults of certificates: ours as files, those of brokers and agents as they show them.

    A shown certificate may be older than its file.
    """
    if not inventory.tls:
        return
    checks = TlsFiles(cert_file=str(inventory.tls.check_cert_file))
    for where, files in (("operators", inventory.tls.files), ("checks of balancers", checks)):
        if end_s := files.good_until_s():
            yield from of_certificate(where, end_s - time.time())
    yield from _everywhere(inventory.brokers, lambda node: _shown(inventory, node))


def _shown(inventory: Inventory, node: Node) -> Iterator[Finding]:
    assert inventory.tls, "only called where there is TLS"
    for name, where in (("address", node.name), ("agent", f"agent of {node.name}")):
        try:
            context = inventory.certificates()
            with (
                socket.create_connection(getattr(node, name), timeout=CONNECT_WITHIN_S) as plain,
                context.wrap_socket(plain, server_hostname=inventory.tls.server_name) as secure,
            ):
                shown: dict[str, Any] = secure.getpeercert() or {}
        except ConfigError as fault:
            yield Finding("operators", str(fault))
        except ssl.SSLError as fault:
            yield Finding(where, certificate_fault(fault) or str(fault))
        except OSError:
            continue  # nobody listens there, which is reported elsewhere
        else:
            end_s = ssl.cert_time_to_seconds(str(shown["notAfter"]))
            yield from of_certificate(where, end_s - time.time())
