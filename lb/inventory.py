"""The operators' view of one cluster: its balancer, its brokers, and where their files are.

Reads and validates ``inventory.toml``; all faults are told in one `ConfigError`. Relative paths are
relative to the folder of the file. Decides nothing about the cluster.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import ssl
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lb.provisioning import Provision, User, read_provision, read_user
from lb.tables import Address, Table, nearest
from lb.timers import Timers
from messagebus.errors import ConfigError
from messagebus.secret import Secret
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
SESSIONS_MAX = 8_000
RESYNC_RATE = "100M"
BALANCER = "haproxy"
"""Name of the one that has none of its own."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOST_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")
_USER = re.compile(r"[!-~]{1,128}")
_SSH = re.compile(
    r"([A-Za-z0-9_][A-Za-z0-9_.-]{0,31}@)?[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}(:[0-9]{1,5})?"
)
_IP = re.compile(r"[0-9a-fA-F.:]{2,45}")
_VERSION = re.compile(r"[A-Za-z0-9.+:~-]{1,100}")
_DEVICE = re.compile(r"/dev/[A-Za-z0-9_./-]{1,200}")
_PROGRAM = re.compile(r"/[A-Za-z0-9_./-]{1,200}")
_ON_NETWORK = re.compile(r"[0-9a-fA-F.:]{2,45}/[0-9]{1,3}")
_RATE = re.compile(r"[1-9][0-9]{0,5}[KMG]?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine that is reached over SSH.

    ssh: ``[user@]host[:port]``; keys, known hosts and anything else as ~/.ssh/config says.
    sudo: who logs in is not root and may become it without a password.
    replication: the IP address that DRBD uses there; "" where it mirrors nothing.
    management: the IP address at which the other host of its mirror fences it: of another network.
    power: a program on the other host, and here, called as ``PROGRAM off NAME`` and ``PROGRAM status
        NAME``, which prints ``on`` or ``off``; "" where only a person can tell.
    """

    name: str
    ssh: str
    sudo: bool = False
    replication: str = ""
    management: str = ""
    power: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """The disk of one broker, kept alike on two hosts by DRBD; also the name of the resource.

    name: of the broker. hosts: names; the first is where the broker runs when all is well.
    device: what DRBD makes. disk: what it keeps the data on, on both hosts. mount: the broker's data.
    address: ``IP/PREFIX`` that goes where the broker goes; "" where its name is moved by other means.
    resync_rate: bytes per second of resync and verify, as ``100M``.
    """

    name: str
    hosts: tuple[str, str]
    device: Path
    disk: Path
    mount: Path
    port: int
    address: str = ""
    resync_rate: str = RESYNC_RATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One broker and what runs beside it.

    name: how operators call it, and HAProxy's name of the server.
    host: name of the host that it runs on; "" on a local cluster, and where its address is its host.
    address: AMQP. agent: HTTP. check: the agent-check line. management: RabbitMQ's HTTP API.
    node_list_file: where this node's agent reads the consumer list.
    version: of RabbitMQ's package, "" for any.
    """

    name: str
    host: str
    version: str = ""
    address: Address
    agent: Address
    check: Address
    management: Address
    node_list_file: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Balancer:
    """One HAProxy.

    host: name of the host that it runs on; "" for this machine.
    amqp, list, stats: addresses that it binds.
    config, socket, state_file, master_pid_file: absolute paths on its host.
    probe_password: what the gate check logs in with; None where the file cannot be read, which is
        enough to look at a balancer but not to render its configuration.
    sessions_max: connections at the same time, of all kinds together.
    server_sessions_max: the same for one broker; who comes then waits for `connect_ms` and is refused.
    """

    name: str = BALANCER
    host: str = ""
    amqp: Address
    list: Address
    stats: Address
    config: Path
    socket: Path
    state_file: Path
    master_pid_file: Path
    probe_user: str
    probe_password_file: Path
    probe_password: Secret | None
    sessions_max: int = SESSIONS_MAX
    server_sessions_max: int = SESSIONS_MAX
    timers: Timers = dataclasses.field(default_factory=Timers)

    @property
    def lock_file(self) -> Path:
        """On its host: of who writes configuration or state."""
        return self.config.with_suffix(".lock")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Brokers and agents speak TLS, and want to see certificates.

    ca_file, cert_file, key_file: what operators trust, and who they are.
    server_name: stands in the certificate of every broker and agent, beside its own host.
    check_cert_file: certificate and key of HAProxy's checks, in one file; on its host, as ca_file.
    digest: of what HAProxy reads of these, so that new ones are a new configuration; "" unless loaded.
    """

    ca_file: Path
    cert_file: Path
    key_file: Path
    server_name: str
    check_cert_file: Path
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

    @property
    def balancers(self) -> tuple[Balancer, ...]:
        """All of them, in the order of the file; at least one."""
        return (self.balancer, *self.more)

    def at(self, balancer: Balancer) -> Inventory:
        """The same, with one balancer alone."""
        return dataclasses.replace(self, balancer=balancer, more=())

    def find_balancer(self, name: str) -> Balancer:
        """Raises ConfigError naming the nearest."""
        for balancer in self.balancers:
            if balancer.name == name:
                return balancer
        known = [balancer.name for balancer in self.balancers]
        raise ConfigError(f"no balancer {name!r} in the inventory{nearest(name, known)}")

    def agent_url(self, node: Node) -> str:
        return f"{'https' if self.tls else 'http'}://{node.agent}"

    def certificates(self) -> ssl.SSLContext:
        """To ask agents with. Raises ConfigError when the files are missing or wrong."""
        return (self.tls.files if self.tls else TlsFiles()).client_context()

    def find(self, name: str) -> Node:
        """The broker of this name or ``host:port``. Raises ConfigError naming the nearest."""
        for node in self.brokers:
            if name in (node.name, str(node.address)):
                return node
        known = [node.name for node in self.brokers]
        raise ConfigError(f"no broker {name!r} in the inventory{nearest(name, known)}")

    def ssh_of(self, node: Node) -> str:
        """How the host that a broker runs on is reached."""
        return self.host(node.host).ssh if node.host else node.address.host

    def host(self, name: str) -> Host:
        """Raises ConfigError naming the nearest."""
        for host in self.hosts:
            if host.name == name:
                return host
        known = [host.name for host in self.hosts]
        raise ConfigError(f"no host {name!r} in the inventory{nearest(name, known)}")

    def mirror(self, name: str) -> Mirror:
        """Of the broker of this name. Raises ConfigError."""
        for mirror in self.mirrors:
            if mirror.name == name:
                return mirror
        known = [mirror.name for mirror in self.mirrors]
        raise ConfigError(f"no mirror of {name!r} in the inventory{nearest(name, known)}")


def load(path: str | Path) -> Inventory:
    """Read an inventory file. Raises ConfigError with every fault in it."""
    path = Path(path)
    try:
        values = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as fault:
        raise ConfigError(f"{path}: {fault}") from fault
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
    """Validate what an inventory file says; base: folder that relative paths start from.

    Reads no file. Raises ConfigError with every fault.
    """
    faults: list[str] = []
    top = Table(values, "", base, faults)
    first, *more = map(_read_balancer, _balancer_tables(top))
    inventory = Inventory(
        cluster=top.text("cluster", _CLUSTER),
        list_file=top.path("list_file"),
        token_file=top.path("token_file"),
        admin_user=top.text("admin_user", _USER),
        admin_password_file=top.path("admin_password_file"),
        supervisor="systemd" if top.choice("supervisor", "local", "systemd") else "local",
        balancer=first,
        more=tuple(more),
        brokers=tuple(_read_node(each) for each in top.tables("brokers")),
        hosts=tuple(_read_host(each) for each in top.tables("hosts")),
        mirrors=tuple(_read_mirror(each) for each in top.tables("mirrors")),
        users=tuple(read_user(each) for each in top.tables("users")),
        provision=read_provision(top.table("provision", required=False), tls="tls" in values)
        if "provision" in values
        else Provision(),
        tls=_read_tls(top.table("tls")) if "tls" in values else None,
    )
    top.nothing_else()
    faults += _clashes(inventory.brokers)
    faults += _wrong_names(inventory)
    if faults:
        raise ConfigError("inventory: " + "; ".join(faults))
    return inventory


def _balancer_tables(top: Table) -> list[Table]:
    """``[balancer]`` alone is one; beside ``[[balancers]]`` it says what they have in common."""
    several = top.tables("balancers", common="balancer")
    return several or [top.table("balancer")]


def _read_balancer(table: Table) -> Balancer:
    timers = table.table("timers", required=False)
    host = table.text("host", _NAME, required=False)
    sessions_max = table.number("sessions_max", SESSIONS_MAX)
    balancer = Balancer(
        name=table.text("name", _NAME, required=False) or BALANCER,
        host=host,
        amqp=table.address("amqp"),
        list=table.address("list"),
        stats=table.address("stats"),
        config=table.path("config", absolute=bool(host)),
        socket=table.path("socket", absolute=bool(host)),
        state_file=table.path("state_file", absolute=bool(host)),
        master_pid_file=table.path("master_pid_file", absolute=bool(host)),
        probe_user=table.text("probe_user", _USER),
        probe_password_file=table.path("probe_password_file"),
        probe_password=None,
        sessions_max=sessions_max,
        server_sessions_max=table.number("server_sessions_max", sessions_max),
        timers=Timers(
            **{
                field.name: timers.number(field.name, field.default)
                for field in dataclasses.fields(Timers)
                if isinstance(field.default, int)
            }
        ),
    )
    table.nothing_else()
    timers.nothing_else()
    return balancer


def _read_tls(table: Table) -> Tls:
    tls = Tls(
        ca_file=table.path("ca_file"),
        cert_file=table.path("cert_file"),
        key_file=table.path("key_file"),
        server_name=table.text("server_name", _HOST_NAME),
        check_cert_file=table.path("check_cert_file"),
    )
    table.nothing_else()
    return tls


def _read_node(table: Table) -> Node:
    node = Node(
        name=table.text("name", _NAME),
        host=table.text("host", _NAME, required=False),
        version=table.text("version", _VERSION, required=False),
        address=table.address("address"),
        agent=table.address("agent"),
        check=table.address("check"),
        management=table.address("management"),
        node_list_file=table.path("node_list_file"),
    )
    table.nothing_else()
    return node


def _read_host(table: Table) -> Host:
    host = Host(
        name=table.text("name", _NAME),
        ssh=table.text("ssh", _SSH),
        sudo=table.choice("sudo", "no", "yes", required=False) == 1,
        replication=table.text("replication", _IP, required=False),
        management=table.text("management", _IP, required=False),
        power=table.text("power", _PROGRAM, required=False),
    )
    table.nothing_else()
    return host


def _read_mirror(table: Table) -> Mirror:
    first, second = table.texts("hosts", _NAME, count=2)
    mirror = Mirror(
        name=table.text("name", _NAME),
        hosts=(first, second),
        device=Path(table.text("device", _DEVICE)),
        disk=Path(table.text("disk", _DEVICE)),
        mount=table.path("mount"),
        port=table.number("port", None),
        address=table.text("address", _ON_NETWORK, required=False),
        resync_rate=table.text("resync_rate", _RATE, required=False) or RESYNC_RATE,
    )
    table.nothing_else()
    return mirror


def _clashes(brokers: Iterable[Node]) -> list[str]:
    seen: dict[str, str] = {}
    faults = []
    for node in brokers:
        for what in (node.name, *map(str, (node.address, node.agent, node.check))):
            if what in seen:
                faults.append(f"{what} is used twice, by {seen[what]} and {node.name}")
            seen[what] = node.name
    return faults


def _wrong_names(inventory: Inventory) -> list[str]:
    """Of hosts and brokers that other tables speak of, and what two of them claim."""
    faults = [
        f"user {each} is there twice"
        for each in sorted(
            _twice(
                [
                    inventory.admin_user,
                    inventory.balancer.probe_user,
                    *(user.name for user in inventory.users),
                ]
            )
        )
    ]
    hosts = [host.name for host in inventory.hosts]
    brokers = [node.name for node in inventory.brokers]
    for kind, names in (("host", hosts), ("ssh address", [host.ssh for host in inventory.hosts])):
        faults += [f"{kind} {each} is there twice" for each in sorted(_twice(names))]
    for node in inventory.brokers:
        if node.host and node.host not in hosts:
            faults.append(f"{node.name}: no host {node.host!r}{nearest(node.host, hosts)}")
    for mirror in inventory.mirrors:
        if mirror.name not in brokers:
            faults.append(
                f"mirror {mirror.name}: no broker of that name{nearest(mirror.name, brokers)}"
            )
        for name in mirror.hosts:
            if name not in hosts:
                faults.append(f"mirror {mirror.name}: no host {name!r}{nearest(name, hosts)}")
            else:
                faults += _not_for_mirrors(mirror, inventory.host(name))
    faults += _wrong_balancers(inventory.balancers, hosts)
    of_mirrors = [name for mirror in inventory.mirrors for name in mirror.hosts]
    faults += [f"host {each} is in two mirrors" for each in sorted(_twice(of_mirrors))]
    named = [mirror.name for mirror in inventory.mirrors]
    faults += [f"broker {each} has two mirrors" for each in sorted(_twice(named))]
    return faults


def _not_for_mirrors(mirror: Mirror, host: Host) -> list[str]:
    """Fencing that goes the way of what it is to guard fails with it."""
    where = f"mirror {mirror.name}: host {host.name}"
    if not host.replication:
        return [f"{where} has no replication address"]
    if not host.management:
        return [f"{where} has no management address, by which it is fenced"]
    if host.management == host.replication:
        return [f"{where} has {host.management} for management and replication, one network"]
    return []


def _wrong_balancers(balancers: tuple[Balancer, ...], hosts: list[str]) -> list[str]:
    """Names, files of one host, and the addresses of all."""
    faults = [
        f"balancer {each.name}: no host {each.host!r}{nearest(each.host, hosts)}"
        for each in balancers
        if each.host and each.host not in hosts
    ]
    for kind, names in (
        ("balancer", [each.name for each in balancers]),
        ("balancer address", [str(each.amqp) for each in balancers]),
        ("admin socket", [f"{each.host}:{each.socket}" for each in balancers]),
        ("configuration", [f"{each.host}:{each.config}" for each in balancers]),
        ("state file", [f"{each.host}:{each.state_file}" for each in balancers]),
        ("pid file", [f"{each.host}:{each.master_pid_file}" for each in balancers]),
    ):
        faults += [f"{kind} {each.lstrip(':')} is there twice" for each in sorted(_twice(names))]
    return faults


def _twice(names: Iterable[str]) -> set[str]:
    counted = Counter(names)
    return {name for name, count in counted.items() if name and count > 1}


def _digest(*files: Path) -> str:
    """Of their content; of a file that cannot be read, nothing: HAProxy tells of it."""
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
