"""The operators' view of one cluster: its balancers, its brokers, and the places of their files.

Reads and validates ``inventory.toml``. One `ConfigError` reports all faults, contradictions too: names
that refer to nothing, and names or addresses that are used twice. Relative paths start at the folder of
the file. Decides nothing about the cluster.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import ssl
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from inventory.balancers import Balancer, balancer_tables, read_balancer
from inventory.machines import (
    Host,
    Mirror,
    Node,
    Provision,
    User,
    read_host,
    read_mirror,
    read_node,
    read_provision,
    read_user,
)
from inventory.tables import Address, Table
from messagebus.admin.proof import TokenProof
from messagebus.broker import Broker
from messagebus.errors import ConfigError
from messagebus.secret import Secret
from messagebus.terminal import did_you_mean
from messagebus.tls import TlsFiles

__all__ = [
    "DEFAULT_PATH",
    "ENV_PATH",
    "Address",
    "Balancer",
    "Host",
    "Inventory",
    "Mirror",
    "Node",
    "Provision",
    "Tls",
    "User",
    "load",
    "parse",
]

ENV_PATH = "MESSAGEBUS_INVENTORY"
DEFAULT_PATH = ".local/inventory.toml"

_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOST_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")
_USER = re.compile(r"[!-~]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS of a cluster: brokers and agents speak it, and require certificates of their clients.

    ca_file, cert_file, key_file: the operators' authority, certificate and key.
    server_name: a name in the certificate of every broker and agent, beside its own host.
    old_management: management APIs that still speak plain HTTP are asked by plain HTTP: those of brokers
        that were not restarted since their TLS was configured.
    check_cert_file: certificate and key of HAProxy's checks, in one file; on its host, as ca_file.
    digest: digest of the files that HAProxy reads, so that new ones are a new configuration; "" unless
    loaded.
    """

    ca_file: Path
    cert_file: Path
    key_file: Path
    server_name: str
    check_cert_file: Path
    old_management: bool = False
    digest: str = ""

    @property
    def files(self) -> TlsFiles:
        return TlsFiles(
            ca_file=str(self.ca_file), cert_file=str(self.cert_file), key_file=str(self.key_file)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """One cluster. brokers: in the order of the file, names and addresses unique; may be empty.

    mirrors: at most one for each broker, a host in at most one.
    balancer: the one at hand, or the first; more: those after it, see `balancers`.
    tls: None where brokers and agents speak plain TCP and HTTP.
    serving_min: brokers that must take publishes while a playbook takes one out.
    """

    cluster: str
    list_file: Path
    token_file: Path
    admin_user: str
    admin_password_file: Path
    supervisor: Literal["local", "systemd"]
    balancer: Balancer
    brokers: tuple[Node, ...]
    hosts: tuple[Host, ...] = ()
    mirrors: tuple[Mirror, ...] = ()
    users: tuple[User, ...] = ()
    provision: Provision = dataclasses.field(default_factory=Provision)
    more: tuple[Balancer, ...] = ()
    tls: Tls | None = None
    serving_min: int = 1

    @property
    def balancers(self) -> tuple[Balancer, ...]:
        """All balancers, in the order of the file; at least one."""
        return (self.balancer, *self.more)

    def at(self, balancer: Balancer) -> Inventory:
        """Return the inventory with this balancer alone."""
        return dataclasses.replace(self, balancer=balancer, more=())

    def without(self, names: Collection[str]) -> Inventory:
        """Return the inventory without these balancers.

        Raises ConfigError for an unknown name, and when none is left.
        """
        for name in names:
            self.find_balancer(name)
        left = [each for each in self.balancers if each.name not in names]
        if not left:
            raise ConfigError("no balancer is left: one of them must be there")
        return dataclasses.replace(self, balancer=left[0], more=tuple(left[1:]))

    def find_balancer(self, name: str) -> Balancer:
        """Return the balancer of this name. Raises ConfigError naming the nearest."""
        for balancer in self.balancers:
            if balancer.name == name:
                return balancer
        known = [balancer.name for balancer in self.balancers]
        raise ConfigError(f"no balancer {name!r} in the inventory{did_you_mean(name, known)}")

    @property
    def scheme(self) -> str:
        """The scheme of URLs of agents and management APIs."""
        return "https" if self.tls else "http"

    def agent_url(self, node: Node) -> str:
        return f"{self.scheme}://{node.agent}"

    def management_url(self, node: Node) -> str:
        return f"{self.scheme}://{node.management}"

    def certificates(self) -> ssl.SSLContext:
        """Return the TLS context for requests to agents and management APIs.

        Raises ConfigError when the files are missing or wrong.
        """
        return (self.tls.files if self.tls else TlsFiles()).client_context()

    def proof_to(self, node: Node) -> TokenProof:
        """Return the proof of the operators' token for the agent of a broker. Raises ConfigError."""
        try:
            token = Secret(self.token_file.read_text().strip())
        except OSError as fault:
            raise ConfigError(f"token_file: {fault}") from fault
        return TokenProof(lambda: token, to=Broker.parse(str(node.address)).name)

    def find(self, name: str) -> Node:
        """Return the broker of this name or ``host:port``. Raises ConfigError naming the nearest."""
        for node in self.brokers:
            if name in (node.name, str(node.address)):
                return node
        known = [node.name for node in self.brokers]
        raise ConfigError(f"no broker {name!r} in the inventory{did_you_mean(name, known)}")

    def ssh_of(self, node: Node) -> str:
        """Return the SSH address of the host that a broker runs on."""
        return self.host(node.host).ssh if node.host else node.address.host

    def host(self, name: str) -> Host:
        """Return the host of this name. Raises ConfigError naming the nearest."""
        for host in self.hosts:
            if host.name == name:
                return host
        known = [host.name for host in self.hosts]
        raise ConfigError(f"no host {name!r} in the inventory{did_you_mean(name, known)}")

    def mirror(self, name: str) -> Mirror:
        """Return the mirror of the broker of this name. Raises ConfigError."""
        for mirror in self.mirrors:
            if mirror.name == name:
                return mirror
        known = [mirror.name for mirror in self.mirrors]
        raise ConfigError(f"no mirror of {name!r} in the inventory{did_you_mean(name, known)}")


def load(path: str | Path) -> Inventory:
    """Read an inventory file. Raises ConfigError with every fault in it."""
    path = Path(path)
    try:
        values = tomllib.loads(path.read_text())
    except OSError as fault:
        raise ConfigError(f"inventory {path}: {fault.strerror}") from fault
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as fault:
        raise ConfigError(f"inventory {path}: {fault}") from fault
    inventory = parse(values, base=path.absolute().parent)
    first, *more = (
        dataclasses.replace(each, probe_password=_read_secret(each.probe_password_file))
        for each in inventory.balancers
    )
    tls = inventory.tls
    return dataclasses.replace(
        inventory,
        balancer=first,
        more=tuple(more),
        tls=tls and dataclasses.replace(tls, digest=_digest(tls.ca_file, tls.check_cert_file)),
    )


def parse(values: Mapping[str, Any], *, base: Path) -> Inventory:
    """Validate the values of an inventory file; base: folder that relative paths start from.

    Reads no file. Raises ConfigError with every fault.
    """
    faults: list[str] = []
    top = Table(values, "", base, faults)
    first, *more = map(read_balancer, balancer_tables(top))
    inventory = Inventory(
        cluster=top.text("cluster", _CLUSTER),
        list_file=top.path("list_file"),
        token_file=top.path("token_file"),
        admin_user=top.text("admin_user", _USER),
        admin_password_file=top.path("admin_password_file"),
        supervisor="systemd" if top.choice("supervisor", "local", "systemd") else "local",
        balancer=first,
        more=tuple(more),
        brokers=tuple(read_node(each) for each in top.tables("brokers")),
        hosts=tuple(read_host(each) for each in top.tables("hosts")),
        mirrors=tuple(read_mirror(each) for each in top.tables("mirrors")),
        users=tuple(read_user(each) for each in top.tables("users")),
        provision=read_provision(top.table("provision", required=False), tls="tls" in values)
        if "provision" in values
        else Provision(),
        tls=_read_tls(top.table("tls")) if "tls" in values else None,
        serving_min=top.number("serving_min", 1),
    )
    top.nothing_else()
    faults += _clashes(inventory)
    if faults:
        raise ConfigError("inventory: " + "; ".join(faults))
    return inventory


def _read_tls(table: Table) -> Tls:
    tls = Tls(
        ca_file=table.path("ca_file"),
        cert_file=table.path("cert_file"),
        key_file=table.path("key_file"),
        server_name=table.text("server_name", _HOST_NAME),
        check_cert_file=table.path("check_cert_file"),
        old_management=table.flag("old_management"),
    )
    table.nothing_else()
    return tls


def _digest(*files: Path) -> str:
    """Return a digest of the files' contents. A file that cannot be read adds nothing: HAProxy reports it."""
    summed = hashlib.sha256()
    for file in files:
        with suppress(OSError):
            summed.update(hashlib.sha256(file.read_bytes()).digest())
    return summed.hexdigest()[:16]


def _read_secret(path: Path) -> Secret | None:
    try:
        return Secret(path.read_text().strip())
    except (OSError, UnicodeDecodeError):
        return None


def _clashes(inventory: Inventory) -> list[str]:
    """Return one line for each fault; none when all is well."""
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
            yield f"{where}: no broker of that name{did_you_mean(mirror.name, brokers)}"
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
    """Report why a host cannot hold a mirror.

    Fencing over the replication network would fail together with that network.
    """
    where = f"{where}: host {host.name}"
    if not host.replication:
        yield f"{where} has no replication address"
    elif not host.management:
        yield f"{where} has no management address, by which it is fenced"
    elif host.management == host.replication:
        yield f"{where} has {host.management} for management and replication, one network"


def _of_balancers(inventory: Inventory) -> Iterator[str]:
    """Report clashes of balancers: their names, the files of one host, and the addresses of all."""
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
        yield f"{where}: no host {host!r}{did_you_mean(host, known)}"


def _twice(kind: str, names: Iterable[str]) -> Iterator[str]:
    for name in _repeated(names):
        yield f"{kind} {name} is there twice"


def _repeated(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once, sorted; empty names do not count."""
    return sorted(name for name, count in Counter(names).items() if name and count > 1)
