"""Settings of the monitor: a frozen value, checked whole, read from a TOML file or made of the bus's own."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from messagebus import BusConfig, ConfigError, Secret
from messagebus.broker import Broker, is_http
from messagebus.checks import raise_faults
from messagebus.config import NO_AGENTS, read_toml
from messagebus.http.guard import is_loopback, is_public_url
from messagebus.services.monitor.people import PASSWORD_FORM, ROLES, Person, Proxy, Role, Token
from messagebus.terminal import did_you_mean

LISTEN = "127.0.0.1:8085"
MANUAL = "https://github.com/messagebus/messagebus/blob/main/"
_TABLES = {"bus", "balancers", "journal", "actions", "people", "proxy", "tokens", "trace"}
_TEXTS = ("listen", "url", "state_dir", "manual", "prometheus")


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorConfig:
    """One monitor of one bus.

    bus: as every client's. listen: ``host:port``; beyond loopback only with people, tokens or a proxy.
    url: public address where a proxy ends TLS, ``https://bus.example``: cookies are for TLS alone then.
    state_dir: folder of the event log; "" keeps events in memory. manual: address that the manual's
    sections are appended to.
    balancers: addresses of HAProxy's statistics, ``http://lb1:8404``. journal: folder of playbooks' journals.
    prometheus: address of one that has the clients' figures, ``http://prometheus:9090``; "" for none.
    recording: folder of a recorder's rows, which a trace reads.
    token_file: holds the operators' token; "" turns actions off. With it people and state_dir must be given.
    """

    bus: BusConfig
    listen: str = LISTEN
    url: str = ""
    state_dir: str = ""
    manual: str = MANUAL
    balancers: tuple[str, ...] = ()
    prometheus: str = ""
    journal: str = ""
    token_file: str = ""
    recording: str = ""
    people: tuple[Person, ...] = ()
    tokens: tuple[Token, ...] = ()
    proxy: Proxy | None = None
    path: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        """Raise ConfigError for invalid fields."""
        faults = []
        names_people = self.proxy is not None and bool(self.proxy.header)
        try:
            host = Broker.parse(self.listen).host
        except ValueError as fault:
            faults.append(f"listen: {fault}")
        else:
            if not (self.has_logins or is_loopback(host)):
                faults.append(
                    f"listen {self.listen}: beyond loopback somebody must be named ([[people]],"
                    " [[tokens]] or [proxy])"
                )
        if self.token_file and not (self.state_dir and (self.people or names_people)):
            faults.append(
                "actions: who does what must be known and kept: [[people]] or [proxy], and state_dir"
            )
        if self.url and not is_public_url(self.url):
            faults.append(f"url {self.url!r}: an origin such as https://bus.example")
        if not self.bus.list_urls:
            faults.append(NO_AGENTS)
        faults += [
            f"{what}: {url!r}: http:// or https:// address wanted"
            for what, url in (
                *(("balancers", each) for each in self.balancers),
                *([("prometheus", self.prometheus)] if self.prometheus else []),
            )
            if not is_http(url)
        ]
        for what, named in (("people", self.people), ("tokens", self.tokens)):
            names = [each.name for each in named]
            if len(set(names)) < len(names):
                faults.append(f"{what}: a name occurs twice")
        raise_faults(faults)

    @property
    def has_logins(self) -> bool:
        """True when somebody must say who they are."""
        return bool(self.people or self.tokens or (self.proxy and self.proxy.header))

    @property
    def token(self) -> Secret | None:
        """The operators' token, read at each use; None without a file or while it cannot be read."""
        try:
            text = Path(self.token_file).read_text().strip() if self.token_file else ""
        except (OSError, UnicodeDecodeError):
            return None
        return Secret(text) if text else None

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a TOML file; relative paths in it are relative to its folder. Raises ConfigError."""
        values = read_toml(path)
        try:
            return cls(**_read(values, Path(path).absolute().parent), path=str(path))
        except ConfigError as fault:
            raise ConfigError(f"{path}: {fault}") from fault


def _read(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    known = {*_TABLES, *_TEXTS}
    faults = [
        f"unknown setting {key!r}{did_you_mean(key, known)}" for key in values if key not in known
    ]
    made: dict[str, Any] = {}
    for key in _TEXTS:
        if key in values:
            made[key] = _text(faults, key, values[key])
    if made.get("state_dir"):
        made["state_dir"] = str(folder / made["state_dir"])
    balancers = _table(faults, values, "balancers", {"stats"})
    made["balancers"] = tuple(
        _text(faults, "balancers.stats", each)
        for each in _list(faults, balancers, "stats", "balancers.")
    )
    for key, inner, name in (
        ("journal", "folder", "journal"),
        ("actions", "token_file", ""),
        ("trace", "recording", ""),
    ):
        said = _table(faults, values, key, {inner}).get(inner, "")
        text = _text(faults, f"{key}.{inner}", said)
        made[name or inner] = str(folder / text) if text else ""
    made["people"] = tuple(_read_entries(faults, values, "people", _person))
    made["tokens"] = tuple(_read_entries(faults, values, "tokens", _token))
    if "proxy" in values:
        made["proxy"] = _proxy(faults, values)
    try:
        made["bus"] = BusConfig.from_mapping(_bus(values.get("bus", {}), folder))
    except ConfigError as fault:
        faults.append(f"bus: {fault}")
    raise_faults(faults)
    return made


def _bus(values: Any, folder: Path) -> dict[str, Any]:
    """Return the table of the bus with its paths; what is wrong in it BusConfig tells."""
    if not isinstance(values, Mapping):
        raise ConfigError("a table wanted")
    paths = {f.name for f in fields(BusConfig) if f.name.endswith("_file")} | {"list_cache"}
    return {
        key: str(folder / value) if key in paths and isinstance(value, str) and value else value
        for key, value in values.items()
    }


def _text(faults: list[str], key: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    faults.append(f"{key}: a text wanted, not {type(value).__name__}")
    return ""


def _table(faults: list[str], values: Mapping[str, Any], key: str, known: set[str]) -> Any:
    table = values.get(key, {})
    if not isinstance(table, Mapping):
        faults.append(f"{key}: a table wanted")
        return {}
    faults += [
        f"unknown setting '{key}.{each}'{did_you_mean(each, known)}"
        for each in table
        if each not in known
    ]
    return table


def _list(faults: list[str], values: Mapping[str, Any], key: str, table: str = "") -> list[Any]:
    found = values.get(key, [])
    if isinstance(found, list):
        return found
    faults.append(f"{table}{key}: a list wanted")
    return []


def _read_entries(faults: list[str], values: Mapping[str, Any], key: str, read: Any) -> list[Any]:
    made = []
    for number, entry in enumerate(_list(faults, values, key), start=1):
        try:
            made.append(read(entry))
        except (KeyError, TypeError, ValueError) as fault:
            faults.append(f"{key} {number}: {_why(fault)}")
    return made


def _why(fault: Exception) -> str:
    return f"{fault.args[0]}: must be given" if isinstance(fault, KeyError) else str(fault)


def _only(entry: Any, *known: str) -> Mapping[str, Any]:
    if not isinstance(entry, Mapping):
        raise TypeError("a table wanted")
    for key in entry:
        if key not in known:
            raise ValueError(f"unknown setting {key!r}{did_you_mean(key, known)}")
    return entry


def _role(value: Any) -> Role:
    if not isinstance(value, str) or value not in ROLES:
        raise ValueError(f"role {value!r}: {', '.join(ROLES)}")
    return ROLES[value]


def _name(value: Any) -> str:
    if not (isinstance(value, str) and 0 < len(value) <= 100 and value.isprintable()):
        raise ValueError("name: 1 to 100 printing characters")
    return value


def _person(entry: Any) -> Person:
    said = _only(entry, "name", "password", "role")
    password = said["password"]
    if not (isinstance(password, str) and PASSWORD_FORM.fullmatch(password)):
        raise ValueError("password: made by `messagebus monitor --hash-password`")
    return Person(_name(said["name"]), Secret(password), _role(said["role"]))


def _token(entry: Any) -> Token:
    said = _only(entry, "name", "sha256", "role")
    digest = said["sha256"]
    if not isinstance(digest, str) or len(digest) != 2 * hashlib.sha256().digest_size:
        raise ValueError("sha256: 64 hexadecimal digits")
    return Token(_name(said["name"]), bytes.fromhex(digest), _role(said["role"]))


def _proxy(faults: list[str], values: Mapping[str, Any]) -> Proxy | None:
    try:
        said = _only(values["proxy"], "header", "from", "roles", "others")
        named, told = said["from"], said.get("roles", {})
        if not isinstance(named, list) or not all(isinstance(each, str) for each in named):
            raise TypeError("from: a list of networks wanted")
        if not isinstance(told, Mapping):
            raise TypeError("roles: a table wanted")
        networks = tuple(ipaddress.ip_network(each) for each in named)
        roles = {_name(who): _role(role) for who, role in told.items()}
        others = _role(said["others"]) if said.get("others") else None
        return Proxy(str(said.get("header", "")).lower(), networks, roles, others)
    except (KeyError, TypeError, ValueError) as fault:
        faults.append(f"proxy: {_why(fault)}")
        return None
