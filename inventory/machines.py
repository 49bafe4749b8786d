"""Brokers of an inventory, hosts that they run on, mirrors of their disks, users and limits.

Values, and the functions that read them. The defaults of limits suit a host that runs nothing else.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path

from inventory.tables import NAME, Address, Table

__all__ = [
    "ROLES",
    "Host",
    "Mirror",
    "Node",
    "Provision",
    "User",
    "read_host",
    "read_mirror",
    "read_node",
    "read_provision",
    "read_user",
]

RESYNC_RATE = "100M"

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

    ssh: ``[user@]host[:port]``; keys, known hosts and the rest as in ~/.ssh/config.
    sudo: the SSH user is not root and may become root without a password.
    replication: the IP address that DRBD uses there; "" where it mirrors nothing.
    management: the IP address, in another network, at which the other host of its mirror fences it.
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
    """The disk of one broker, replicated between two hosts by DRBD; also the name of the resource.

    name: name of the broker. hosts: names; the first is where the broker runs when all is well.
    device: DRBD's device. disk: the device below it, on both hosts. mount: the broker's data folder.
    address: ``IP/PREFIX`` that moves with the broker; "" where its name is moved by other means.
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
    """One broker and the services beside it.

    name: the operators' name of it, and HAProxy's name of the server.
    host: name of the host that it runs on; "" on a local cluster, and where its address is its host.
    address: AMQP. agent: HTTP. check: the agent-check line. management: RabbitMQ's HTTP API.
    node_list_file: path from which this node's agent reads the consumer list.
    version: version of RabbitMQ's package, "" for any.
    """

    name: str
    host: str
    version: str = ""
    address: Address
    agent: Address
    check: Address
    management: Address
    node_list_file: Path


def read_node(table: Table) -> Node:
    node = Node(
        name=table.text("name", NAME),
        host=table.text("host", NAME, required=False),
        version=table.text("version", _VERSION, required=False),
        address=table.address("address"),
        agent=table.address("agent"),
        check=table.address("check"),
        management=table.address("management"),
        node_list_file=table.path("node_list_file"),
    )
    table.nothing_else()
    return node


def read_host(table: Table) -> Host:
    host = Host(
        name=table.text("name", NAME),
        ssh=table.text("ssh", _SSH),
        sudo=table.choice("sudo", "no", "yes", required=False) == 1,
        replication=table.text("replication", _IP, required=False),
        management=table.text("management", _IP, required=False),
        power=table.text("power", _PROGRAM, required=False),
    )
    table.nothing_else()
    return host


def read_mirror(table: Table) -> Mirror:
    first, second = table.texts("hosts", NAME, count=2)
    mirror = Mirror(
        name=table.text("name", NAME),
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


ROLES = ("agent", "application", "publisher", "consumer", "monitor", "operator")
_USER = re.compile(r"[!-~]{1,128}")

# RabbitMQ's own default of 50 MB leaves no room for the writes that follow after it has stopped publishers.
DISK_FREE_MB = 2_000
# 40 % is RabbitMQ's default; beside it run an agent and the file system's cache.
MEMORY_PERCENT = 40
# RabbitMQ's default of 512 MiB for one file of the write-ahead log.
WAL_MB_MAX = 512
QUEUE_MB_MAX = 8_000


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """One user of every broker. role: one of ROLES, or the gate check's. password_file: on this machine."""

    name: str
    role: str
    password_file: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Provision:
    """Limits of every broker; sizes in MB of 1,000,000 bytes.

    disk_free_mb: with less free disk space the broker takes no publishes.
    memory_percent: percentage of the host's memory; above it the broker takes no publishes either.
    wal_mb_max: size of one file of the write-ahead log. queue_mb_max: size of one queue, which then refuses
    more.
    tls_dir: folder here, with NAME.pem and NAME.key of every broker; None without TLS.
    old_publishers: clients from before the exchanges `mb.to/NAME` may still publish to queues directly.
    """

    disk_free_mb: int = DISK_FREE_MB
    memory_percent: int = MEMORY_PERCENT
    wal_mb_max: int = WAL_MB_MAX
    queue_mb_max: int = QUEUE_MB_MAX
    tls_dir: Path | None = None
    old_publishers: bool = False


def read_user(table: Table) -> User:
    user = User(
        name=table.text("name", _USER),
        role=ROLES[table.choice("role", *ROLES)],
        password_file=table.path("password_file"),
    )
    table.nothing_else()
    return user


def read_provision(table: Table, *, tls: bool) -> Provision:
    """Read the limits. tls: the cluster has TLS, so the brokers' certificates must be named."""
    numbers = {
        field.name: table.number(field.name, field.default)
        for field in dataclasses.fields(Provision)
        if type(field.default) is int
    }
    made = Provision(
        **numbers,
        tls_dir=table.path("tls_dir") if tls else None,
        old_publishers=table.flag("old_publishers"),
    )
    table.nothing_else()
    return made
