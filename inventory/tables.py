"""The tables of an inventory as values: balancers, brokers, hosts, mirrors, users, limits and TLS.

`inventory.inventory.parse` validates a file against `inventory.forms` with pydantic. Values that code makes
are not validated. The defaults of limits suit a host that runs nothing else.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from messagebus.tls import TlsFiles

if TYPE_CHECKING:
    from inventory import forms

ROLES = ("agent", "application", "publisher", "consumer", "mqtt", "monitor", "operator")
RESYNC_RATE = "100M"
SESSIONS_MAX = 8_000
BALANCER = "haproxy"
"""Name of a balancer that has none in the inventory."""
HAPROXY = Path("/usr/sbin/haproxy")
VRRP_ID = 51

# RabbitMQ's own default of 50 MB leaves no room for the writes that follow after it has stopped publishers.
DISK_FREE_MB = 2_000
# 40 % is RabbitMQ's default; beside it run an agent and the file system's cache.
MEMORY_PERCENT = 40
# RabbitMQ's default of 512 MiB for one file of the write-ahead log.
WAL_MB_MAX = 512
QUEUE_MB_MAX = 8_000


class Address(NamedTuple):
    """Host and port of one TCP service."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def is_any(self) -> bool:
        """True for every address of a host, as 0.0.0.0 and [::] are."""
        with suppress(ValueError):
            return ipaddress.ip_address(self.host.strip("[]")).is_unspecified
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """Times of one balancer; `lb.lint` checks that they fit together.

    heartbeat_s: the longest AMQP heartbeat that a client of this bus uses. 60 is RabbitMQ's own
        offer, so it covers clients that set none.
    client_s, server_s: a connection that is silent for this long is cut.
    connect_s: timeout of a TCP connect to a broker. With leastconn it is also the time that HAProxy waits
        before it tries the next broker after a refused connect: keep it well under a publisher's
        own dial timeout (0.5 s).
    check_s: timeout of the whole login of the gate check. Two late logins in a row cut a broker's sessions,
        so it must be above what a busy broker needs.
    check_inter_s, check_fast_inter_s: time between two gate checks, and while the state is changing.
    rise, fall: checks in a row that bring a broker up, or take it down.
    agent_inter_s: time between two questions to an agent; the upper bound of the delay of a drain.
    list_wait_s: the longest waiting fetch that an agent grants.
    list_server_s: silence that is allowed to an agent.
    connection_lifetime_s: a publisher renews its connection after this time (plus a fifth, at random).
    hard_stop_s: upper bound of the time that a process from before a reload lives on with its connections.
    """

    heartbeat_s: forms.Count = 60
    client_s: forms.Count = 180
    server_s: forms.Count = 180
    connect_s: forms.Seconds = 0.1
    check_s: forms.Seconds = 1.0
    check_inter_s: forms.Seconds = 1.0
    check_fast_inter_s: forms.Seconds = 0.2
    rise: forms.Count = 2
    fall: forms.Count = 2
    agent_inter_s: forms.Seconds = 0.5
    list_wait_s: forms.Count = 60
    list_server_s: forms.Count = 75
    connection_lifetime_s: forms.Count = 600
    hard_stop_s: forms.Count = 1_800


@dataclass(frozen=True, slots=True, kw_only=True)
class Balancer:
    """One HAProxy.

    host: name of the host that it runs on; "" for this machine.
    amqp, list, stats: addresses that it binds. http: the same for the HTTP gateways, if there are any.
    http_cert_file: certificate, its chain and its key, as PEM, on its host; with it `http` speaks TLS.
    names: hosts by which clients reach it, beside addresses; agents answer to no other name with a dot.
    config, socket, state_file, master_pid_file: absolute paths on its host.
    program: HAProxy, or a script that becomes it, on its host.
    probe_password: password of the gate check's login; None where the file cannot be read, which is
        enough to look at a balancer but not to render its configuration.
    dns: "yes": the DNS servers of its host know the names of brokers, agents and gateways, and HAProxy asks
        them again and again. "no": HAProxy looks names up, also those of /etc/hosts, at a start or reload.
    sessions_max: connections at the same time, of all kinds together.
    server_sessions_max: the same for one broker, `sessions_max` by default; a connection above it waits for
        `connect_s` and is refused.
    vrrp_address: ``IP/PREFIX`` that one of the balancers with the same has at a time; clients call it. ""
        where clients know them by several addresses. It moves by VRRP, with keepalived.
    vrrp_interface: network interface of that address, on its host.
    vrrp_id: virtual router id, 1 to 255, that no other pair in the same network has.
    """

    name: forms.Name = BALANCER
    host: forms.Name = ""
    amqp: forms.Endpoint
    list: forms.Endpoint
    stats: forms.Endpoint
    http: forms.OptionalEndpoint = None
    http_cert_file: forms.PathOnHost | None = None
    names: tuple[forms.HostName, ...] = ()
    config: forms.PathOnHost
    socket: forms.PathOnHost
    state_file: forms.PathOnHost
    master_pid_file: forms.PathOnHost
    program: forms.PathOnHost = HAPROXY
    probe_user: forms.UserName
    probe_password_file: forms.FilePath
    probe_password: forms.NoSecret = None
    dns: forms.YesNo = False
    sessions_max: forms.Count = SESSIONS_MAX
    server_sessions_max: forms.Count = 0
    vrrp_address: forms.IpOnNetwork = ""
    vrrp_interface: forms.Interface = ""
    vrrp_id: forms.VrrpId = VRRP_ID
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

    name: forms.Name
    ssh: forms.Ssh
    sudo: forms.YesNo = False
    replication: forms.Ip = ""
    management: forms.Ip = ""
    power: forms.Program = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """The disk of one broker, replicated between two hosts by DRBD; also the name of the resource.

    name: name of the broker. hosts: names; the first is where the broker runs when all is well.
    device: DRBD's device. disk: the device below it, on both hosts. mount: the broker's data folder.
    address: ``IP/PREFIX`` that moves with the broker; "" where its name is moved by other means.
    resync_rate: bytes per second of resync and verify, as ``100M``.
    """

    name: forms.Name
    hosts: forms.TwoHosts
    device: forms.Device
    disk: forms.Device
    mount: forms.FilePath
    port: forms.Count
    address: forms.IpOnNetwork = ""
    resync_rate: forms.Rate = RESYNC_RATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One broker and the services beside it.

    name: the operators' name of it, and HAProxy's name of the server.
    host: name of the host that it runs on; "" on a local cluster, and where its address is its host.
    address: AMQP. agent: HTTP. check: the agent-check line. management: RabbitMQ's HTTP API.
    node_list_file: path from which this node's agent reads the consumer list.
    version: version of RabbitMQ's package, "" for any.
    """

    name: forms.Name
    host: forms.Name = ""
    version: forms.Version = ""
    address: forms.Endpoint
    agent: forms.Endpoint
    check: forms.Endpoint
    management: forms.Endpoint
    node_list_file: forms.FilePath


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """One HTTP gateway. address: of its service. admin: of /readyz, by which HAProxy checks it.

    host: name of the host that `ops provision` sets it up on; "" for one that others set up. user: the
    application's user, of `users`, by which it speaks to the bus. tokens_file: on this machine.
    """

    name: forms.Name
    address: forms.Endpoint
    admin: forms.Endpoint
    host: forms.Name = ""
    user: forms.Name = ""
    tokens_file: forms.FilePath | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """One user of every broker. role: one of ROLES, or the gate check's. password_file: on this machine."""

    name: forms.UserName
    role: forms.Role
    password_file: forms.FilePath


@dataclass(frozen=True, slots=True, kw_only=True)
class Provision:
    """Limits of every broker; sizes in MB of 1,000,000 bytes.

    disk_free_mb: with less free disk space the broker takes no publishes.
    memory_percent: percentage of the host's memory; above it the broker takes no publishes either.
    wal_mb_max: size of one file of the write-ahead log. queue_mb_max: size of one queue, which then refuses
    more.
    tls_dir: folder here, with NAME.pem and NAME.key of every broker; None without TLS.
    plugins: of RabbitMQ, to be enabled beside ours: "mqtt", "stomp".
    trail_mb: of disk at each agent for what clients tell of some messages, for `trace`; None for no trail.
    """

    disk_free_mb: forms.Count = DISK_FREE_MB
    memory_percent: forms.Count = MEMORY_PERCENT
    wal_mb_max: forms.Count = WAL_MB_MAX
    queue_mb_max: forms.Count = QUEUE_MB_MAX
    tls_dir: forms.FilePath | None = None
    plugins: tuple[Literal["mqtt", "stomp"], ...] = ()
    trail_mb: forms.Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS of a cluster: brokers and agents speak it, and require certificates of their clients.

    ca_file, cert_file, key_file: the operators' authority, certificate and key.
    server_name: a name in the certificate of every broker and agent, beside its own host.
    check_cert_file: certificate and key of HAProxy's checks, in one file; on its host, as ca_file.
    digest: digest of the files that HAProxy reads, so that new ones are a new configuration; "" unless
    loaded.
    """

    ca_file: forms.FilePath
    cert_file: forms.FilePath
    key_file: forms.FilePath
    server_name: forms.HostName
    check_cert_file: forms.FilePath
    digest: forms.NoDigest = ""

    @property
    def files(self) -> TlsFiles:
        return TlsFiles(
            ca_file=str(self.ca_file), cert_file=str(self.cert_file), key_file=str(self.key_file)
        )
