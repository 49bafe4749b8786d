"""The operators' view of one cluster: its balancer, its brokers, and where their files are.

Reads and validates ``inventory.toml``; all faults are told in one `ConfigError`. Relative paths are
relative to the folder of the file. Decides nothing about the cluster.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import re
import ssl
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lb.timers import Timers
from messagebus.broker import Broker
from messagebus.errors import ConfigError
from messagebus.secret import Secret
from messagebus.tls import TlsFiles

__all__ = [
    "DEFAULT_PATH",
    "ENV_PATH",
    "Address",
    "Balancer",
    "Inventory",
    "Node",
    "Tls",
    "load",
    "parse",
]

ENV_PATH = "MESSAGEBUS_INVENTORY"
DEFAULT_PATH = ".local/inventory.toml"
SESSIONS_MAX = 8_000

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOST_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")
_USER = re.compile(r"[!-~]{1,128}")


class Address(NamedTuple):
    """Host and port of one TCP service."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One broker and what runs beside it.

    name: how operators call it, and HAProxy's name of the server.
    address: AMQP. agent: HTTP. check: the agent-check line. management: RabbitMQ's HTTP API.
    node_list_file: where this node's agent reads the consumer list.
    """

    name: str
    address: Address
    agent: Address
    check: Address
    management: Address
    node_list_file: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Balancer:
    """One HAProxy.

    amqp, list, stats: addresses that it binds.
    config, socket, state_file, master_pid_file: absolute paths on its host.
    probe_password: what the gate check logs in with; None where the file cannot be read, which is
        enough to look at a balancer but not to render its configuration.
    sessions_max: connections at the same time, of all kinds together.
    """

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
    timers: Timers = dataclasses.field(default_factory=Timers)


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
    tls: Tls | None = None

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
        raise ConfigError(f"no broker {name!r} in the inventory{_nearest(name, known)}")


def load(path: str | Path) -> Inventory:
    """Read an inventory file. Raises ConfigError with every fault in it."""
    path = Path(path)
    try:
        values = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as fault:
        raise ConfigError(f"{path}: {fault}") from fault
    inventory = parse(values, base=path.absolute().parent)
    balancer = inventory.balancer
    password = _read_secret(balancer.probe_password_file)
    tls = inventory.tls
    return dataclasses.replace(
        inventory,
        balancer=dataclasses.replace(balancer, probe_password=password),
        tls=tls and dataclasses.replace(tls, digest=_digest(tls.ca_file, tls.check_cert_file)),
    )


def parse(values: Mapping[str, Any], *, base: Path) -> Inventory:
    """Validate what an inventory file says; base: folder that relative paths start from.

    Reads no file. Raises ConfigError with every fault.
    """
    faults: list[str] = []
    top = _Table(values, "", base, faults)
    balancer = top.table("balancer")
    inventory = Inventory(
        cluster=top.text("cluster", _CLUSTER),
        list_file=top.path("list_file"),
        token_file=top.path("token_file"),
        admin_user=top.text("admin_user", _USER),
        admin_password_file=top.path("admin_password_file"),
        supervisor="systemd" if top.choice("supervisor", "local", "systemd") else "local",
        balancer=_read_balancer(balancer),
        brokers=tuple(_read_node(each) for each in top.tables("brokers")),
        tls=_read_tls(top.table("tls")) if "tls" in values else None,
    )
    top.nothing_else()
    faults += _clashes(inventory.brokers)
    if faults:
        raise ConfigError("inventory: " + "; ".join(faults))
    return inventory


def _read_balancer(table: _Table) -> Balancer:
    timers = table.table("timers", required=False)
    balancer = Balancer(
        amqp=table.address("amqp"),
        list=table.address("list"),
        stats=table.address("stats"),
        config=table.path("config"),
        socket=table.path("socket"),
        state_file=table.path("state_file"),
        master_pid_file=table.path("master_pid_file"),
        probe_user=table.text("probe_user", _USER),
        probe_password_file=table.path("probe_password_file"),
        probe_password=None,
        sessions_max=table.number("sessions_max", SESSIONS_MAX),
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


def _read_tls(table: _Table) -> Tls:
    tls = Tls(
        ca_file=table.path("ca_file"),
        cert_file=table.path("cert_file"),
        key_file=table.path("key_file"),
        server_name=table.text("server_name", _HOST_NAME),
        check_cert_file=table.path("check_cert_file"),
    )
    table.nothing_else()
    return tls


def _read_node(table: _Table) -> Node:
    node = Node(
        name=table.text("name", _NAME),
        address=table.address("address"),
        agent=table.address("agent"),
        check=table.address("check"),
        management=table.address("management"),
        node_list_file=table.path("node_list_file"),
    )
    table.nothing_else()
    return node


def _clashes(brokers: Iterable[Node]) -> list[str]:
    seen: dict[str, str] = {}
    faults = []
    for node in brokers:
        for what in (node.name, *map(str, (node.address, node.agent, node.check))):
            if what in seen:
                faults.append(f"{what} is used twice, by {seen[what]} and {node.name}")
            seen[what] = node.name
    return faults


class _Table:
    """One table of the file. Collects faults; returns a placeholder for what is wrong."""

    def __init__(
        self, values: Mapping[str, Any], where: str, base: Path, faults: list[str]
    ) -> None:
        self._values = values
        self._where = where
        self._base = base
        self._faults = faults
        self._known: set[str] = set()

    def text(self, key: str, allowed: re.Pattern[str]) -> str:
        value = self._take(key, str)
        if value is not None and not allowed.fullmatch(value):
            self._fault(key, f"{value!r} is not of the form {allowed.pattern}")
        return value or ""

    def choice(self, key: str, *allowed: str) -> int:
        """Index of the value in allowed."""
        value = self._take(key, str)
        if value is not None and value not in allowed:
            self._fault(key, f"{value!r}; allowed: {', '.join(allowed)}")
        return allowed.index(value) if value in allowed else 0

    def path(self, key: str) -> Path:
        value = self._take(key, str)
        if value is not None and (not value or any(ord(sign) < 32 for sign in value)):
            self._fault(key, f"{value!r} is not a path")
        return self._base / (value or ".")

    def address(self, key: str) -> Address:
        value = self._take(key, str)
        try:
            if value is not None and ":" not in value.rpartition("]")[2]:
                raise ValueError(f"no port in {value!r}")
            broker = Broker.parse(value or "none:1")
        except ValueError as fault:
            self._fault(key, str(fault))
            return Address("none", 1)
        return Address(broker.host, broker.port)

    def number(self, key: str, default: int) -> int:
        """A whole number above 0."""
        self._known.add(key)
        value = self._values.get(key, default)
        if type(value) is not int or not 1 <= value <= 10_000_000:
            self._fault(key, f"{value!r} is not a whole number from 1 to 10,000,000")
            return default
        return value

    def table(self, key: str, *, required: bool = True) -> _Table:
        if not required and key not in self._values:
            self._known.add(key)
            return self._sub({}, key)
        return self._sub(self._take(key, dict) or {}, key)

    def tables(self, key: str) -> list[_Table]:
        """An array of tables; none when the key is missing."""
        self._known.add(key)
        values = self._values.get(key, [])
        if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
            self._fault(key, "tables wanted")
            return []
        return [self._sub(value, f"{key}[{index}]") for index, value in enumerate(values)]

    def nothing_else(self) -> None:
        for key in self._values:
            if key not in self._known:
                self._fault(key, f"unknown key{_nearest(key, sorted(self._known))}")

    def _sub(self, values: Mapping[str, Any], key: str) -> _Table:
        return _Table(values, f"{self._where}{key}.", self._base, self._faults)

    def _take(self, key: str, kind: type[Any]) -> Any:
        self._known.add(key)
        if key not in self._values:
            return self._fault(key, "missing")
        value = self._values[key]
        if not isinstance(value, kind):
            return self._fault(key, f"{kind.__name__} wanted, not {type(value).__name__}")
        return value

    def _fault(self, key: str, what: str) -> None:
        self._faults.append(f"{self._where}{key}: {what}")


def _nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


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
