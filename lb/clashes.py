"""What contradicts itself in an inventory: names that mean nothing, and what two of them claim. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from lb.machines import Host
from lb.tables import Address, nearest

if TYPE_CHECKING:
    from lb.inventory import Inventory

__all__ = ["clashes"]


def clashes(inventory: Inventory) -> list[str]:
    """One line for each fault; none when all is well."""
    return [
        *_of_brokers(inventory),
        *_of_users(inventory),
        *_of_hosts(inventory),
        *_of_mirrors(inventory),
        *_of_balancers(inventory),
    ]


def _of_brokers(inventory: Inventory) -> Iterator[str]:
    yield from _twice("broker", (node.name for node in inventory.brokers))
    seen: dict[Address, str] = {}
    for node in inventory.brokers:
        for address in (node.address, node.agent, node.check, node.management):
            if address in seen:
                yield f"{address} is used twice, by {seen[address]} and {node.name}"
            seen[address] = node.name
        if node.host:
            yield from _unknown(node.name, node.host, inventory)


def _of_users(inventory: Inventory) -> Iterator[str]:
    users = (user.name for user in inventory.users)
    yield from _twice("user", (inventory.admin_user, inventory.balancer.probe_user, *users))


def _of_hosts(inventory: Inventory) -> Iterator[str]:
    hosts = inventory.hosts
    yield from _twice("host", (host.name for host in hosts))
    yield from _twice("ssh address", (host.ssh for host in hosts))
    yield from _twice("replication address", (host.replication for host in hosts))
    yield from _twice("management address", (host.management for host in hosts))


def _of_mirrors(inventory: Inventory) -> Iterator[str]:
    mirrors = inventory.mirrors
    brokers = [node.name for node in inventory.brokers]
    hosts = {host.name: host for host in inventory.hosts}
    for mirror in mirrors:
        where = f"mirror {mirror.name}"
        if mirror.name not in brokers:
            yield f"{where}: no broker of that name{nearest(mirror.name, brokers)}"
        for name in mirror.hosts:
            yield from _unknown(where, name, inventory)
            if name in hosts:
                yield from _not_for_mirrors(where, hosts[name])
    yield from _twice("address", (mirror.address for mirror in mirrors))
    for name in _repeated(name for mirror in mirrors for name in mirror.hosts):
        yield f"host {name} is in two mirrors"
    for name in _repeated(mirror.name for mirror in mirrors):
        yield f"broker {name} has two mirrors"


def _not_for_mirrors(where: str, host: Host) -> Iterator[str]:
    """Fencing that goes the way of what it is to guard fails with it."""
    where = f"{where}: host {host.name}"
    if not host.replication:
        yield f"{where} has no replication address"
    elif not host.management:
        yield f"{where} has no management address, by which it is fenced"
    elif host.management == host.replication:
        yield f"{where} has {host.management} for management and replication, one network"


def _of_balancers(inventory: Inventory) -> Iterator[str]:
    """Names, files of one host, and the addresses of all."""
    balancers = inventory.balancers
    by_sudo = {host.name for host in inventory.hosts if host.sudo}
    for each in balancers:
        if each.host:
            yield from _unknown(f"balancer {each.name}", each.host, inventory)
        if each.host in by_sudo:
            yield f"balancer {each.name}: who logs in on {each.host} is not root, which a balancer wants"
    yield from _twice("balancer", (each.name for each in balancers))
    yield from _twice("balancer address", (str(each.amqp) for each in balancers))
    for kind, files in (
        ("admin socket", [(each.host, each.socket) for each in balancers]),
        ("configuration", [(each.host, each.config) for each in balancers]),
        ("state file", [(each.host, each.state_file) for each in balancers]),
        ("pid file", [(each.host, each.master_pid_file) for each in balancers]),
    ):
        yield from _twice(kind, (f"{host}:{file}".lstrip(":") for host, file in files))


def _unknown(where: str, host: str, inventory: Inventory) -> Iterator[str]:
    known = [each.name for each in inventory.hosts]
    if host not in known:
        yield f"{where}: no host {host!r}{nearest(host, known)}"


def _twice(kind: str, names: Iterable[str]) -> Iterator[str]:
    for name in _repeated(names):
        yield f"{kind} {name} is there twice"


def _repeated(names: Iterable[str]) -> list[str]:
    """Sorted; what is not there at all is not there twice."""
    return sorted(name for name, count in Counter(names).items() if name and count > 1)
