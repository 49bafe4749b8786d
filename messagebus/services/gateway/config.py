"""Settings of a gateway: one TOML file, checked as a whole; every fault is told."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

from messagebus import Broker, BusConfig, ConfigError, PublisherConfig
from messagebus.broker import is_http
from messagebus.checks import raise_faults, range_faults
from messagebus.config import read_toml
from messagebus.http.guard import is_loopback, is_public_url, names_faults
from messagebus.message import BODY_BYTES_MAX
from messagebus.terminal import did_you_mean

T = TypeVar("T")

ANONYMOUS = ("", "publish", "consume", "all")
FORMATS = ("raw", "cloudevents")
# Nobody waits longer for an end, or for an answer.
STOP_S_MAX, PUSH_TIMEOUT_S_MAX = 3_600, 3_600
# What browsers say: no login, path or query.
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^\s/?#@]+")
_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "float": (int, float),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds, of a principal where nothing else is said.

    requests_max: under way at once. bodies_bytes_max: of bodies that arrive at once. leases_max,
    leased_bytes_max: deliveries in its hands, and their bodies together, of which the last pull may take
    more. sockets_max: streams and sockets.
    connections_max: of the process. large_bytes_max: of all bodies above 1 MiB together, half of which one
    principal may send. request_s: for a request to arrive, headers and body. admit_wait_s: for room in the
    publisher's backlog.
    """

    requests_max: int = 1_000
    bodies_bytes_max: int = 64 << 20
    leases_max: int = 10_000
    leased_bytes_max: int = 256 << 20
    sockets_max: int = 1_000
    connections_max: int = 10_000
    large_bytes_max: int = 64 << 20
    request_s: float = 30.0
    admit_wait_s: float = 1.0

    def __post_init__(self) -> None:
        faults = [
            f"limits.{each.name} {value!r}: a number above 0"
            for each in dataclasses.fields(self)
            if isinstance(value := getattr(self, each.name), bool)
            or not isinstance(value, int | float)
            or not 0 < value < math.inf
        ]
        raise_faults(faults)

    @property
    def large_turns(self) -> int:
        """The number of large bodies that arrive at once."""
        return max(1, int(self.large_bytes_max) // BODY_BYTES_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class PushConfig:
    """One subscription that is pushed to an address, by signed webhooks.

    subscription: ``orders/billing`` or ``queue:jobs``. url: https, or http. format: "raw" or "cloudevents".
    secret_file: the secrets of Standard Webhooks, ``whsec_...``, one a line. concurrency: requests at once.
    timeout_s: for connecting, and for each part of the answer; three times that for all of it. private: the
    address may be one of this host or of a private network. attempts_max: then it is parked.
    """

    subscription: str
    url: str
    secret_file: str
    format: str = "raw"
    concurrency: int = 8
    timeout_s: float = 10.0
    attempts_max: int = 20
    private: bool = False

    def __post_init__(self) -> None:
        faults = []
        if not is_http(self.url):
            faults.append(f"push.url {self.url!r}: http:// or https:// address")
        if self.format not in FORMATS:
            faults.append(f"push.format {self.format!r}: {' or '.join(FORMATS)}")
        ranges = range_faults(
            self,
            concurrency=(1, 1_000),
            attempts_max=(1, 1_000),
            timeout_s=(0.1, PUSH_TIMEOUT_S_MAX),
        )
        faults += [f"push.{fault}" for fault in ranges]
        raise_faults(faults)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Settings of a gateway.

    listen, admin: ``host:port`` of the service, and of /livez, /readyz and /metrics. name: in leases, shown
    to clients. tokens_file: see docs/guides/gateway.md. bus_login: Basic credentials are those of the bus.
    anonymous: "publish", "consume" or "all" without a login, on a loopback address only. origins: of
    browsers that may call (CORS). drain_s: between "not ready" and the end of pulls. grace_s: for leases.
    tls_client_ca_file: authority of clients' certificates, whose names stand in the file of tokens.
    url: public address where a proxy ends TLS, ``https://bus.example``; its name is a right Host.
    names: hosts by which both ports are called, beside addresses, names without a dot and that in url; empty:
    any name, unless the port listens on a loopback address.
    peers: name -> address of the other gateways, which get the answers to their leases.
    """

    listen: str = "127.0.0.1:8080"
    admin: str = "127.0.0.1:8081"
    name: str = "gw"
    tokens_file: str = ""
    bus_login: bool = False
    anonymous: str = ""
    origins: tuple[str, ...] = ()
    url: str = ""
    names: tuple[str, ...] = ()
    drain_s: float = 5.0
    grace_s: float = 25.0
    tls_cert_file: str = ""
    tls_key_file: str = ""
    tls_client_ca_file: str = ""
    peers: Mapping[str, str] = field(default_factory=dict, hash=False)
    limits: Limits = field(default_factory=Limits)
    bus: BusConfig = field(default_factory=BusConfig)
    publisher: PublisherConfig = field(default_factory=PublisherConfig)
    push: tuple[PushConfig, ...] = ()

    def __post_init__(self) -> None:
        faults = [fault for key in ("listen", "admin") if (fault := self._address_fault(key))]
        faults += self._login_faults(can_listen=not faults)
        if not (self.name.isascii() and self.name.isalnum() and len(self.name) <= 40):
            faults.append(f"name {self.name!r}: 1 to 40 letters and digits")
        faults += range_faults(self, drain_s=(0.0, STOP_S_MAX), grace_s=(0.0, STOP_S_MAX))
        faults += [
            f"origins: {each!r}: an origin such as https://shop.example"
            for each in self.origins
            if not _ORIGIN.fullmatch(each)
        ]
        if self.url and not is_public_url(self.url):
            faults.append(f"url {self.url!r}: an origin such as https://bus.example")
        faults += names_faults(self.names)
        faults += [
            f"peers.{name} {url!r}: http:// or https:// address of another gateway"
            for name, url in self.peers.items()
            if name == self.name or not is_http(str(url))
        ]
        raise_faults(faults)

    def _login_faults(self, *, can_listen: bool) -> list[str]:
        """Return what is wrong with who may call. can_listen: `listen` is an address."""
        faults = []
        if self.anonymous not in ANONYMOUS:
            faults.append(f"anonymous {self.anonymous!r}: one of {', '.join(ANONYMOUS[1:])}")
        elif self.anonymous and can_listen and not is_loopback(_parsed(self.listen).host):
            faults.append(f"anonymous: works on a loopback address only, not on {self.listen}")
        if self.tls_client_ca_file and not (self.tls_cert_file and self.tokens_file):
            faults.append("tls_client_ca_file: needs tls_cert_file and tokens_file")
        if not (self.tokens_file or self.bus_login or self.anonymous):
            faults.append("no login is possible: set tokens_file, bus_login or anonymous")
        return faults

    def _address_fault(self, key: str) -> str:
        try:
            _parsed(getattr(self, key))
        except ValueError as fault:
            return f"{key}: {fault}"
        return ""

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a TOML file. Raises ConfigError with every fault that was found."""
        values = read_toml(path)
        try:
            return cls.from_mapping(values)
        except ConfigError as fault:
            raise ConfigError(f"{path}: {fault}") from fault

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Take settings by name; tables ``limits``, ``bus``, ``publisher`` and a list ``push``."""
        given = dict(values)
        faults = [
            f"{key}: a table wanted, not {type(given[key]).__name__}"
            for key in ("bus", "publisher", "limits", "peers")
            if not isinstance(given.get(key, {}), Mapping)
        ]
        faults += [
            f"{key}: a list of {what} wanted"
            for key, kind, what in (
                ("push", Mapping, "tables"),
                ("origins", str, "texts"),
                ("names", str, "texts"),
            )
            if not isinstance(found := given.get(key, ()), list | tuple)
            or not all(isinstance(each, kind) for each in found)
        ]
        raise_faults(faults)
        for key, read in (("bus", BusConfig), ("publisher", PublisherConfig)):
            try:
                given[key] = read.from_mapping(given.get(key, {}))
            except ConfigError as fault:
                raise ConfigError(f"{key}: {fault}") from fault
        if "limits" in given:
            given["limits"] = _build(Limits, given["limits"], "limits.")
        given["push"] = tuple(_build(PushConfig, each, "push.") for each in given.get("push", ()))
        for key in ("origins", "names"):
            given[key] = tuple(given.get(key, ()))
        return _build(cls, given, "")


def _build(kind: type[T], values: Mapping[str, Any], prefix: str) -> T:
    fields = {each.name: each for each in dataclasses.fields(kind)}  # type: ignore[arg-type]
    faults = [
        f"{prefix}{key}: unknown{did_you_mean(key, fields)}" for key in values if key not in fields
    ]
    for name, each in fields.items():
        if name not in values:
            if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING:
                faults.append(f"{prefix}{name}: missing")
            continue
        wanted = _KINDS.get(str(each.type))
        value = values[name]
        if wanted and (
            not isinstance(value, wanted) or isinstance(value, bool) != (wanted == (bool,))
        ):
            faults.append(f"{prefix}{name} {value!r}: {each.type} wanted")
        elif isinstance(value, str) and not value.isprintable():
            faults.append(f"{prefix}{name} {value!r}: a character that does not print")
    raise_faults(faults)
    return kind(**values)


def _parsed(address: str) -> Broker:
    """Read ``host:port``; port 0 stands for any free one. Raises ValueError."""
    return Broker.parse(f"{address}1" if address.endswith(":0") else address)
