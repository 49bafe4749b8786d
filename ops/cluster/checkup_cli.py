"""`python -m ops check`: comparison of the inventory with the running cluster."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import click

from inventory.inventory import Inventory, Node, load
from messagebus.commands.exits import Exit
from messagebus.errors import ConfigError, ListInvalid
from messagebus.terminal import plural, say
from messagebus.tls import TlsFiles, certificate_fault
from ops.cluster import checkup
from ops.cluster.checkup import Finding
from ops.cluster.topology_cli import drift
from ops.cluster.view import View
from ops.commands.kits import CHECKOUT, kit
from ops.errors import CommandFailed, NoAnswer, OpsError
from ops.provision.changes import changes
from ops.provision.cli import read_secrets, root_of
from ops.provision.hosts import look
from ops.provision.program import pack
from ops.provision.wanted import BROKER_UNIT, wanted_host
from ops.run import shell
from ops.run.command import inventory_option

__all__ = ["check"]

CONNECT_WITHIN_S = 2.0
STATUS_WITHIN_S = 60.0
AT_ONCE = 16
DISKS = ("/", "/var/lib/rabbitmq")

T = TypeVar("T")


@click.command(short_help="Compare the inventory with what is there.")
@inventory_option
def check(file: Path) -> int:
    """Compare the inventory with reality, and print the differences; changes nothing. Exit code 7 then.

    Hosts: SSH, packages, settings, units, clock, disks. Brokers: ports, versions, names, alarms.
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
        }
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
        yield Finding(node.name, f"nobody listens on its {name}, {getattr(node, name)}")
    try:
        if "agent" not in closed:
            yield from checkup.of_health(node.name, view.health(node.name))
        if "management" not in closed:
            overview, resources = view.overview(node.name), view.resources(node.name)
            yield from checkup.of_broker(node, overview, resources)
    except NoAnswer as fault:
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
            theirs = float(root.run(("date", "+%s.%N")))
            yield from checkup.of_clock(name, theirs - (before + time.time()) / 2)
            yield from checkup.of_disks(name, root.ask(("df", "--output=pcent,target", *DISKS)))
            secrets, program = read_secrets(inventory), pack()
            wanted = wanted_host(inventory, name, secrets, program.digest)
            observed = look(wanted, root)
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
        yield from checkup.of_lists(inventory, view.listed, view.served())
    except (OSError, ListInvalid, ConfigError) as fault:
        yield Finding("list", str(fault))


def _balancers(inventory: Inventory, file: Path) -> Iterator[Finding]:
    argv = kit("lb", "--inventory", str(file), "status", "--json").argv
    try:
        said = shell.run(argv, timeout_s=STATUS_WITHIN_S, cwd=CHECKOUT)
    except CommandFailed as fault:  # a balancer does not answer: the output names it
        said = fault.output
    try:
        yield from checkup.of_balancers(inventory, json.loads(said))
    except ValueError:
        yield Finding("balancers", said.strip()[-300:] or "lb status says nothing")


def _topology(view: View) -> Iterator[Finding]:
    try:
        for each in drift(view):
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
            yield from checkup.of_certificate(where, end_s - time.time())
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
            yield from checkup.of_certificate(where, end_s - time.time())
