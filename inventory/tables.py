"""The tables of an inventory as values: balancers, brokers, hosts, mirrors, users, limits and TLS.

`inventory.inventory.parse` validates a file against these types with pydantic. Values that code makes are not
validated. The defaults of limits suit a host that runs nothing else.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    StringConstraints,
    ValidationInfo,
)

from messagebus.broker import Broker
from messagebus.secret import Secret
from messagebus.tls import TlsFiles

__all__ = [
    "ROLES",
    "Address",
    "Balancer",
    "Host",
    "Mirror",
    "Node",
    "Provision",
    "Timers",
    "Tls",
    "User",
]

ROLES = ("agent", "application", "publisher", "consumer", "monitor", "operator")
COUNT_MAX = 10_000_000
RESYNC_RATE = "100M"
SESSIONS_MAX = 8_000
BALANCER = "haproxy"
"""Name of a balancer that has none in the inventory."""

# RabbitMQ's own default of 50 MB leaves no room for the writes that follow after it has stopped publishers.
DISK_FREE_MB = 2_000
# 40 % is RabbitMQ's default; beside it run an agent and the file system's cache.
MEMORY_PERCENT = 40
# RabbitMQ's default of 512 MiB for one file of the write-ahead log.
WAL_MB_MAX = 512
QUEUE_MB_MAX = 8_000

DEVICE = "/dev/[A-Za-z0-9_./-]{1,200}"


class Address(NamedTuple):
    """Host and port of one TCP service."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def _address(value: object) -> Address:
    text = _string(value)
    if ":" not in text.rpartition("]")[2]:
        raise ValueError(f"no port in {text!r}")
    broker = Broker.parse(text)
    return Address(broker.host, broker.port)


def _path(value: object, info: ValidationInfo[Any]) -> Path:
    """Return a path; a relative one starts at the folder in the context."""
    text = _string(value)
    if not text or any(ord(char) < 32 for char in text):
        raise ValueError(f"{text!r} is not a path")
    return Path(info.context["base"] / text)


def _path_on_host(value: object, info: ValidationInfo[Any]) -> Path:
    path = _path(value, info)
    if info.data.get("host") and not str(value).startswith("/"):
        raise ValueError(f"{value!r} is on another host: an absolute path wanted")
    return path


def _device(value: object) -> Path:
    text = _string(value)
    if not re.fullmatch(DEVICE, text):
        raise ValueError(f"{text!r} is not of the form {DEVICE}")
    return Path(text)


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"string wanted, not {type(value).__name__}")
    return value


def _two_different(value: object) -> object:
    if isinstance(value, list) and (len(value) != 2 or value[0] == value[1]):
        raise ValueError(f"{value!r}; 2 different ones wanted")
    return value


def _one_of(*allowed: str) -> Callable[[object], str]:
    def check(value: object) -> str:
        if value not in allowed:
            raise ValueError(f"{value!r}; allowed: {', '.join(allowed)}")
        return str(value)

    return check


def _not_in_file(_value: object) -> Any:
    raise ValueError("unknown key")


def _form(pattern: str) -> StringConstraints:
    return StringConstraints(pattern=f"^(?:{pattern})$")


Name = Annotated[str, _form("[A-Za-z0-9][A-Za-z0-9_-]{0,62}")]
"""Name of a broker, host or balancer."""
UserName = Annotated[str, _form("[!-~]{1,128}")]
HostName = Annotated[str, _form("[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")]
ClusterName = Annotated[str, _form("[A-Za-z0-9][A-Za-z0-9._-]{0,63}")]
Ssh = Annotated[
    str,
    _form("([A-Za-z0-9_][A-Za-z0-9_.-]{0,31}@)?[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}(:[0-9]{1,5})?"),
]
Ip = Annotated[str, _form("[0-9a-fA-F.:]{2,45}")]
IpOnNetwork = Annotated[str, _form("[0-9a-fA-F.:]{2,45}/[0-9]{1,3}")]
Version = Annotated[str, _form("[A-Za-z0-9.+:~-]{1,100}")]
Program = Annotated[str, _form("/[A-Za-z0-9_./-]{1,200}")]
Rate = Annotated[str, _form("[1-9][0-9]{0,5}[KMG]?")]
Device = Annotated[Path, PlainValidator(_device)]
Count = Annotated[int, Field(strict=True, ge=1, le=COUNT_MAX)]
Flag = Annotated[bool, Field(strict=True)]
YesNo = Annotated[bool, PlainValidator(lambda value: _one_of("no", "yes")(value) == "yes")]
Endpoint = Annotated[Address, PlainValidator(_address)]
FilePath = Annotated[Path, PlainValidator(_path)]
PathOnHost = Annotated[Path, PlainValidator(_path_on_host)]
NOT_IN_FILE = PlainValidator(_not_in_file)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """Times of one balancer; `lb.lint` checks that they fit together.

    heartbeat_s: the longest AMQP heartbeat that a client of this bus uses. 60 is RabbitMQ's own
        offer, so it covers clients that set none.
    client_s, server_s: a connection that is silent for this long is cut.
    connect_ms: timeout of a TCP connect to a broker. With leastconn it is also the time that HAProxy waits
        before it tries the next broker after a refused connect: keep it well under a publisher's
        own dial timeout (500 ms).
    check_ms: timeout of the whole login of the gate check. Two late logins in a row cut a broker's sessions,
        so it must be above what a busy broker needs.
    check_inter_ms, check_fast_inter_ms: time between two gate checks, and while the state is changing.
    rise, fall: checks in a row that bring a broker up, or take it down.
    agent_inter_ms: time between two questions to an agent; the upper bound of the delay of a drain.
    list_wait_s: the longest waiting fetch that an agent grants.
    list_server_s: silence that is allowed to an agent.
    connection_lifetime_s: a publisher renews its connection after this time (plus a fifth, at random).
    hard_stop_s: upper bound of the time that a process from before a reload lives on with its connections.
    """

    heartbeat_s: Count = 60
    client_s: Count = 180
    server_s: Count = 180
    connect_ms: Count = 250
    check_ms: Count = 1_000
    check_inter_ms: Count = 1_000
    check_fast_inter_ms: Count = 200
    rise: Count = 2
    fall: Count = 2
    agent_inter_ms: Count = 500
    list_wait_s: Count = 60
    list_server_s: Count = 75
    connection_lifetime_s: Count = 600
    hard_stop_s: Count = 1_800


@dataclass(frozen=True, slots=True, kw_only=True)
class Balancer:
    """One HAProxy.

    host: name of the host that it runs on; "" for this machine.
    amqp, list, stats: addresses that it binds.
    config, socket, state_file, master_pid_file: absolute paths on its host.
    probe_password: password of the gate check's login; None where the file cannot be read, which is
        enough to look at a balancer but not to render its configuration.
    sessions_max: connections at the same time, of all kinds together.
    server_sessions_max: the same for one broker, `sessions_max` by default; a connection above it waits for
        `connect_ms` and is refused.
    """

    name: Name = BALANCER
    host: Name = ""
    amqp: Endpoint
    list: Endpoint
    stats: Endpoint
    config: PathOnHost
    socket: PathOnHost
    state_file: PathOnHost
    master_pid_file: PathOnHost
    probe_user: UserName
    probe_password_file: FilePath
    probe_password: Annotated[Secret | None, NOT_IN_FILE] = None
    sessions_max: Count = SESSIONS_MAX
    server_sessions_max: Count = 0
    timers: Timers = dataclasses.field(default_factory=Timers)

    def __post_init__(self) -> None:
        if not self.server_sessions_max:
            object.__setattr__(self, "server_sessions_max", self.sessions_max)

    @property
    def lock_file(self) -> Path:
        """The lock file, on the balancer's host, for writers of configuration or state."""
        return self.config.with_suffix(".lock")


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

    name: Name
    ssh: Ssh
    sudo: YesNo = False
    replication: Ip = ""
    management: Ip = ""
    power: Program = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """The disk of one broker, replicated between two hosts by DRBD; also the name of the resource.

    name: name of the broker. hosts: names; the first is where the broker runs when all is well.
    device: DRBD's device. disk: the device below it, on both hosts. mount: the broker's data folder.
    address: ``IP/PREFIX`` that moves with the broker; "" where its name is moved by other means.
    resync_rate: bytes per second of resync and verify, as ``100M``.
    """

    name: Name
    hosts: Annotated[tuple[Name, Name], BeforeValidator(_two_different)]
    device: Device
    disk: Device
    mount: FilePath
    port: Count
    address: IpOnNetwork = ""
    resync_rate: Rate = RESYNC_RATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One broker and the services beside it.

    name: the operators' name of it, and HAProxy's name of the server.
    host: name of the host that it runs on; "" on a local cluster, and where its address is its host.
    address: AMQP. agent: HTTP. check: the agent-check line. management: RabbitMQ's HTTP API.
    node_list_file: path from which this node's agent reads the consumer list.
    version: version of RabbitMQ's package, "" for any.
    """

    name: Name
    host: Name = ""
    version: Version = ""
    address: Endpoint
    agent: Endpoint
    check: Endpoint
    management: Endpoint
    node_list_file: FilePath


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """One user of every broker. role: one of ROLES, or the gate check's. password_file: on this machine."""

    name: UserName
    role: Annotated[str, AfterValidator(_one_of(*ROLES))]
    password_file: FilePath


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

    disk_free_mb: Count = DISK_FREE_MB
    memory_percent: Count = MEMORY_PERCENT
    wal_mb_max: Count = WAL_MB_MAX
    queue_mb_max: Count = QUEUE_MB_MAX
    tls_dir: FilePath | None = None
    old_publishers: Flag = False


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

    ca_file: FilePath
    cert_file: FilePath
    key_file: FilePath
    server_name: HostName
    check_cert_file: FilePath
    old_management: Flag = False
    digest: Annotated[str, NOT_IN_FILE] = ""

    @property
    def files(self) -> TlsFiles:
        return TlsFiles(
            ca_file=str(self.ca_file), cert_file=str(self.cert_file), key_file=str(self.key_file)
        )
