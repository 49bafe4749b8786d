"""The operators' view of one cluster: its balancers, its brokers, and the places of their files.

Reads and validates ``inventory.toml``. One `ConfigError` reports all faults, contradictions too: names
that refer to nothing, and names or addresses that are used twice. Relative paths start at the folder of
the file. Decides nothing about the cluster.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import ipaddress
import os
import ssl
import time
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from inventory.tables import (
    Address,
    Balancer,
    Gateway,
    Host,
    Mirror,
    Node,
    Provision,
    Timers,
    Tls,
    User,
)
from messagebus.admin.proof import TokenProof
from messagebus.broker import Broker
from messagebus.config import read_secret
from messagebus.errors import ConfigError
from messagebus.secret import Secret
from messagebus.terminal import did_you_mean
from messagebus.tls import TlsFiles

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

    from inventory import forms

__all__ = [
    "DEFAULT_PATH",
    "ENV_PATH",
    "NEXT",
    "Address",
    "Balancer",
    "Gateway",
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

NEXT = ".next"
"""Suffix of a new password's file, and of a user's name, while a password is changed."""
ENV_PATH = "MESSAGEBUS_INVENTORY"
DEFAULT_PATH = ".local/inventory.toml"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """One cluster. brokers: in the order of the file, names and addresses unique; may be empty.

    mirrors: at most one for each broker, a host in at most one.
    balancers: in the order of the file; at least one.
    tls: None where brokers and agents speak plain TCP and HTTP.
    serving_min: brokers that must take publishes while a playbook takes one out.
    """

    cluster: forms.ClusterName
    list_file: forms.FilePath
    token_file: forms.FilePath
    admin_user: forms.UserName
    admin_password_file: forms.FilePath
    supervisor: Literal["local", "systemd"]
    balancers: tuple[Balancer, ...]
    brokers: tuple[Node, ...] = ()
    gateways: tuple[Gateway, ...] = ()
    hosts: tuple[Host, ...] = ()
    mirrors: tuple[Mirror, ...] = ()
    users: tuple[User, ...] = ()
    provision: Provision = dataclasses.field(default_factory=Provision)
    tls: Tls | None = None
    serving_min: forms.Count = 1

    @property
    def balancer(self) -> Balancer:
        """The first balancer, or the one that `at` was called for."""
        return self.balancers[0]

    @property
    def more(self) -> tuple[Balancer, ...]:
        """The balancers after the first."""
        return self.balancers[1:]

    def at(self, balancer: Balancer) -> Inventory:
        """Return the inventory with this balancer alone."""
        return dataclasses.replace(self, balancers=(balancer,))

    def without(self, names: Collection[str]) -> Inventory:
        """Return the inventory without these balancers.

        Raises ConfigError for an unknown name, and when none is left.
        """
        for name in names:
            self.find_balancer(name)
        left = tuple(each for each in self.balancers if each.name not in names)
        if not left:
            raise ConfigError("no balancer is left: one of them must be there")
        return dataclasses.replace(self, balancers=left)

    def find_balancer(self, name: str) -> Balancer:
        """Return the balancer of this name. Raises ConfigError naming the nearest."""
        return _find("balancer", name, {each.name: each for each in self.balancers})

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

        Raises ConfigError when the files are missing or wrong, or the operators' certificate has ended:
        agents hang up on it without a word.
        """
        if self.tls is None:
            return TlsFiles().client_context()
        end_s = TlsFiles(cert_file=str(self.tls.cert_file)).good_until_s()
        if end_s and end_s < time.time():
            raise ConfigError(f"[tls] cert_file {self.tls.cert_file}: has ended: renew it")
        return self.tls.files.client_context()

    def proof_to(self, node: Node) -> TokenProof:
        """Return the proof of the operators' token for the agent of a broker. Raises ConfigError."""
        token = Secret(read_secret("token_file", str(self.token_file)))
        return TokenProof(lambda: token, to=Broker.parse(str(node.address)).name)

    def find(self, name: str) -> Node:
        """Return the broker of this name or ``host:port``. Raises ConfigError naming the nearest."""
        by_address = {str(node.address): node for node in self.brokers}
        if name in by_address:
            return by_address[name]
        return _find("broker", name, {node.name: node for node in self.brokers})

    def ssh_of(self, node: Node) -> str:
        """Return the SSH address of the host that a broker runs on."""
        return self.host(node.host).ssh if node.host else node.address.host

    def ssh_hosts(self, node: Node) -> tuple[str, ...]:
        """Return the SSH addresses of the hosts on which a broker may run; none for this machine."""
        for mirror in self.mirrors:
            if mirror.name == node.name:
                return tuple(self.host(name).ssh for name in mirror.hosts)
        return (self.ssh_of(node),) if node.host or self.supervisor == "systemd" else ()

    def host(self, name: str) -> Host:
        """Return the host of this name. Raises ConfigError naming the nearest."""
        return _find("host", name, {host.name: host for host in self.hosts})

    def mirror(self, name: str) -> Mirror:
        """Return the mirror of the broker of this name. Raises ConfigError."""
        return _find("mirror of", name, {mirror.name: mirror for mirror in self.mirrors})


def _find(kind: str, name: str, known: Mapping[str, T]) -> T:
    """Return the thing of this name. Raises ConfigError naming the nearest."""
    if name not in known:
        raise ConfigError(f"no {kind} {name!r} in the inventory{did_you_mean(name, known)}")
    return known[name]


def load(path: str | Path) -> Inventory:
    """Read an inventory file. Raises ConfigError with every fault in it."""
    return InventoryFile(Path(path)).load()


class InventoryFile:
    """An inventory file that other processes change. Any thread may use it.

    It is parsed (3.6 ms with 8 brokers) only when its text has changed; reading the text takes 0.02 ms. The
    time of change would not do: two changes within one tick of the kernel's clock have the same.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parsed: tuple[str, Inventory] | None = None

    def load(self) -> Inventory:
        """Return the inventory as it is now, with its secrets. Raises ConfigError with every fault in it."""
        path = self.path
        try:
            text = path.read_text(encoding="utf-8-sig")  # some editors write that mark
            parsed = self._parsed
            if parsed is None or parsed[0] != text:
                values = tomllib.loads(text)
                base, name = path.absolute().parent, f"inventory {path}"
                parsed = self._parsed = (text, parse(values, base=base, name=name))
        except FileNotFoundError as fault:
            told = f"name it by --inventory FILE or {ENV_PATH}; `make up` makes a local cluster with one"
            raise ConfigError(f"inventory {path}: {fault.strerror}: {told}") from fault
        except OSError as fault:
            raise ConfigError(f"inventory {path}: {fault.strerror}") from fault
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as fault:
            raise ConfigError(f"inventory {path}: {fault}") from fault
        return _with_secrets(parsed[1])


def _with_secrets(inventory: Inventory) -> Inventory:
    """Return an inventory with what the files that it names hold now."""
    tls = inventory.tls
    return dataclasses.replace(
        inventory,
        balancers=tuple(
            dataclasses.replace(each, probe_password=_read_secret(each.probe_password_file))
            for each in inventory.balancers
        ),
        tls=tls and dataclasses.replace(tls, digest=_digest(tls.ca_file, tls.check_cert_file)),
    )


def parse(values: Mapping[str, Any], *, base: Path, name: str = "inventory") -> Inventory:
    """Validate the values of an inventory file.

    base: folder that relative paths start from. name: what an error calls the inventory.

    Reads no file. Raises ConfigError with every fault of the tables; where they have none, with every
    contradiction between them.
    """
    from pydantic import ValidationError

    try:
        inventory = _adapter().validate_python(_with_balancers(values), context={"base": base})
    except ValidationError as fault:
        faults = [_line_of(each, "balancers" in values) for each in fault.errors(include_url=False)]
    else:
        faults = [*_of_provision(inventory, values), *_clashes(inventory)]
    if faults:
        raise ConfigError(f"{name}: {'; '.join(faults)}")
    return inventory


@functools.cache
def _adapter() -> TypeAdapter[Inventory]:
    """Return what validates an inventory; makes it at the first call, which takes a tenth of a second."""
    from pydantic import ConfigDict, TypeAdapter, with_config

    from inventory import forms  # noqa: F401 - pydantic finds the name of the annotations here

    strict = with_config(ConfigDict(extra="forbid", hide_input_in_errors=True))
    return TypeAdapter(strict(Inventory))


def _with_balancers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with every balancer in ``balancers``.

    ``[balancer]`` alone is one; beside ``[[balancers]]`` it holds the values that they have in common.
    """
    rest = {key: value for key, value in values.items() if key not in ("balancer", "balancers")}
    several = values.get("balancers", [])
    if several == []:
        return rest | ({"balancers": [values["balancer"]]} if "balancer" in values else {})
    common = values.get("balancer", {})
    if not isinstance(several, list) or not isinstance(common, dict):
        return dict(values)
    merged = [common | each if isinstance(each, dict) else each for each in several]
    return rest | {"balancers": merged}


_TABLES = {
    "balancers": Balancer,
    "timers": Timers,
    "brokers": Node,
    "gateways": Gateway,
    "hosts": Host,
    "mirrors": Mirror,
    "users": User,
    "provision": Provision,
    "tls": Tls,
}


def _line_of(fault: ErrorDetails, is_array: bool) -> str:
    """Return a fault with the place of its value. The values of unknown keys may be secrets: never shown.

    is_array: the file has ``[[balancers]]``.
    """
    *tables, key = fault["loc"]
    if not is_array and fault["loc"][:1] == ("balancers",):
        where = ".".join(["balancer", *map(str, fault["loc"][2:])])
    else:
        where = "".join(
            f"[{each}]" if isinstance(each, int) else f".{each}" for each in fault["loc"]
        )
    kind, value, context = fault["type"], fault["input"], fault.get("ctx", {})
    match kind:
        case "missing":
            what = "missing"
        case "unexpected_keyword_argument":
            table = next((each for each in reversed(tables) if isinstance(each, str)), "")
            known = [each.name for each in dataclasses.fields(_TABLES.get(table, Inventory))]
            what = f"unknown key{did_you_mean(str(key), known)}"
        case "string_pattern_mismatch":
            what = f"{value!r} is not of the form {context['pattern'][4:-2]}"
        case "int_type" | "greater_than_equal" | "less_than_equal":
            most = context.get("le", 10_000_000)
            what = f"{value!r} is not a whole number from 1 to {most:,}"
        case "literal_error":
            what = f"{value!r}; allowed: {context['expected']}"
        case "value_error":
            what = str(context["error"])
        case _:
            wanted = {"dataclass_type": "table", "tuple_type": "array"}
            what = f"expected {wanted.get(kind, kind.removesuffix('_type'))}, not {type(value).__name__}"
    return f"{where.removeprefix('.')}: {what}"


def _of_provision(inventory: Inventory, values: Mapping[str, Any]) -> Iterator[str]:
    """Report the folder of the brokers' certificates where it is missing, or has no use."""
    if inventory.tls and "provision" in values and not inventory.provision.tls_dir:
        yield "provision.tls_dir: missing"
    if inventory.provision.tls_dir and not inventory.tls:
        yield "provision.tls_dir: unknown key without [tls]"


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
        *_of_gateways(inventory),
    ]


def _of_brokers(inventory: Inventory) -> Iterator[str]:
    # Names of hosts and files may be compared without regard to case.
    yield from _twice("broker", (node.name.lower() for node in inventory.brokers))
    yield from _twice("gateway", (each.name for each in inventory.gateways))
    used = [(each.name, at) for each in inventory.gateways for at in (each.address, each.admin)]
    for node in inventory.brokers:
        used += [(node.name, at) for at in (node.address, node.agent, node.check, node.management)]
    seen: dict[Address, str] = {}
    for name, address in used:
        if (one := _canonical(address)) in seen:
            yield f"{address} is used twice, by {seen[one]} and {name}"
        seen[one] = name
    for node in inventory.brokers:
        if node.host:
            yield from _unknown(node.name, node.host, inventory)


def _canonical(address: Address) -> Address:
    """Return an address in the one way of writing it. Names are not looked up, but for localhost."""
    host = address.host.strip("[]").lower().removesuffix(".")
    with suppress(ValueError):
        host = str(ipaddress.ip_address("127.0.0.1" if host == "localhost" else host))
    return Address(host, address.port)


def _of_users(inventory: Inventory) -> Iterator[str]:
    probes = {each.probe_user: each.probe_password_file for each in inventory.balancers}
    users = [
        (inventory.admin_user, inventory.admin_password_file),
        *probes.items(),
        *((user.name, user.password_file) for user in inventory.users),
    ]
    names = [name for name, _file in users]
    yield from _twice("user", names)
    for name in names:
        if name.removesuffix(NEXT) != name and name.removesuffix(NEXT) in names:
            yield f"user {name}: that name is for the time in which a password of another user changes"
    # A new password is written beside the old one, and replaces it for one user.
    files = [os.path.normpath(file) for _name, file in users]
    files += [f"{file}{NEXT}" for file in set(files)] + [os.path.normpath(inventory.token_file)]
    yield from _twice("password_file", files)


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


def _of_gateways(inventory: Inventory) -> Iterator[str]:
    """Report what `ops provision` lacks of a gateway with a host."""
    roles = {user.name: user.role for user in inventory.users}
    placed = [each for each in inventory.gateways if each.host]
    yield from _twice("host of a gateway", (each.host for each in placed))
    for each in placed:
        where = f"gateway {each.name}"
        yield from _unknown(where, each.host, inventory)
        if roles.get(each.user) != "application":
            yield f"{where}: user {each.user!r}: one of [[users]] with role application wanted"
        if each.tokens_file is None:
            yield f"{where}: tokens_file: missing"
        if not (each.name.isascii() and each.name.isalnum()):
            yield f"{where}: name: letters and digits, which it writes into leases"


def _of_balancers(inventory: Inventory) -> Iterator[str]:
    """Report clashes of balancers: their names, the files of one host, and the addresses of all."""
    balancers = inventory.balancers
    by_sudo = {host.name for host in inventory.hosts if host.sudo}
    for each in balancers:
        if each.host:
            yield from _unknown(f"balancer {each.name}", each.host, inventory)
        if each.host in by_sudo:
            yield f"balancer {each.name}: the SSH user of {each.host} is not root, as a balancer requires"
    yield from _twice("balancer", (each.name for each in balancers))
    yield from _twice("balancer address", map(_bound, balancers))
    for each in balancers:
        if bool(each.http) != bool(inventory.gateways):
            yield f"balancer {each.name}: http and [[gateways]] go together"
        if each.http_cert_file and not each.http:
            yield f"balancer {each.name}: http_cert_file needs http"
        yield from _of_vrrp(each, balancers)
    for kind, files in (
        ("admin socket", [(each.host, each.socket) for each in balancers]),
        ("configuration", [(each.host, each.config) for each in balancers]),
        ("state file", [(each.host, each.state_file) for each in balancers]),
        ("pid file", [(each.host, each.master_pid_file) for each in balancers]),
    ):
        yield from _twice(kind, (f"{host}:{file}".lstrip(":") for host, file in files))


def _bound(balancer: Balancer) -> str:
    """Return where a balancer listens: another place on each host, where it is any address of its host."""
    return f"{balancer.host}:{balancer.amqp}" if balancer.amqp.is_any else str(balancer.amqp)


def _of_vrrp(balancer: Balancer, balancers: Collection[Balancer]) -> Iterator[str]:
    """Report what a balancer lacks to have an address that moves."""
    where = f"balancer {balancer.name}: vrrp_address"
    if not balancer.vrrp_address:
        if balancer.vrrp_interface:
            yield f"balancer {balancer.name}: vrrp_interface needs vrrp_address"
        return
    try:
        ipaddress.ip_interface(balancer.vrrp_address)
    except ValueError as fault:
        yield f"{where}: {fault}"
    for lacking in ("host", "vrrp_interface"):
        if not getattr(balancer, lacking):
            yield f"{where}: {lacking}: missing"
    for key in ("amqp", "list"):
        address: Address = getattr(balancer, key)
        if not address.is_any:
            yield f"{where}: {key} is {address}: only 0.0.0.0:{address.port} is at every address of its host"
    same = [each for each in balancers if each.vrrp_address == balancer.vrrp_address]
    if len(same) < 2:
        yield f"{where}: no other balancer has {balancer.vrrp_address}, so it cannot move"
    if len({each.vrrp_id for each in same}) > 1:
        yield f"{where}: the balancers that share it need the same vrrp_id"


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
