"""Settings of an agent: a frozen value, checked whole, read from a TOML file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from messagebus import config
from messagebus.broker import Broker
from messagebus.checks import raise_faults
from messagebus.errors import ConfigError
from messagebus.http.guard import names_faults
from messagebus.secret import Secret
from messagebus.terminal import did_you_mean
from messagebus.tls import TlsFiles

EPMD_PORT = 4369
TRAIL_BYTES_MIN = 1_000_000
_TLS_FILES = ("tls_ca_file", "tls_cert_file", "tls_key_file")
_OPTIONAL = (
    *("management", "data_dir", "node_name", "cookie_file", "erl_call", "mirror_device"),
    *_TLS_FILES,
)
_NOT_TEXT = {
    **{"epmd_port": int, "trail_bytes": int, "names": list, "tls": bool},
}
_ADDRESSES = ("broker", "http", "check", "management")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """One agent, beside one broker.

    broker: the broker as the list names it, ``host:port``. user, password_file: may administrate it.
    http, check: listening addresses, ``host:port``: requests, and the balancer's agent-check.
    list_file: the consumer list. state_dir: kept over restarts. token_file: operators' token.
    management: the broker's management API, ``host:port``; "" for none (then neither alarms nor
    queues of an earlier life of the same name are seen).
    node_name, epmd_port, cookie_file, erl_call: to settle queues in milliseconds; without them it
    takes seconds. data_dir: the broker's data folder, whose file system is synced.
    mirror_device: of DRBD, ``/dev/drbd0``, whose state is shown to monitoring; "" for none.
    names: hosts by which clients reach this agent and its balancers, beside addresses, names without a dot
    and those in broker and http: requests by any other name are refused.
    trail_bytes: of disk for what clients tell of some messages, 1,000,000 or more; 0 for none.
    tls: TLS to the broker, its management API and the other agents, and for requests; callers of an agent
    show a certificate.
    tls_ca_file, tls_cert_file, tls_key_file: as `messagebus.tls.TlsFiles`.
    """

    broker: str
    user: str
    password_file: str
    http: str
    check: str
    list_file: str
    state_dir: str
    token_file: str
    management: str = ""
    data_dir: str = ""
    node_name: str = ""
    epmd_port: int = EPMD_PORT
    cookie_file: str = ""
    erl_call: str = ""
    mirror_device: str = ""
    names: tuple[str, ...] = ()
    trail_bytes: int = 0
    tls: bool = False
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""

    def __post_init__(self) -> None:
        faults = [
            f"{field.name}: must be given"
            for field in dataclasses.fields(self)
            if field.name not in (*_OPTIONAL, *_NOT_TEXT) and not getattr(self, field.name)
        ]
        if not 1 <= self.epmd_port <= 65_535:
            faults.append(f"epmd_port {self.epmd_port}: 1 to 65535")
        if self.trail_bytes and self.trail_bytes < TRAIL_BYTES_MIN:
            faults.append(f"trail_bytes {self.trail_bytes}: 0, or {TRAIL_BYTES_MIN:,} or more")
        faults += names_faults(self.names)
        faults += [fault for key in _ADDRESSES if (fault := self._address_fault(key))]
        faults += self._tls_faults()
        raise_faults(faults)

    def _tls_faults(self) -> list[str]:
        if not self.tls:
            given = [key for key in _TLS_FILES if getattr(self, key)]
            return [f"{key}: without effect while tls is off" for key in given]
        faults = self.tls_files.faults()
        return faults if self.tls_cert_file else [*faults, "tls_cert_file: must be given"]

    @property
    def tls_files(self) -> TlsFiles:
        return TlsFiles(
            ca_file=self.tls_ca_file, cert_file=self.tls_cert_file, key_file=self.tls_key_file
        )

    @property
    def address(self) -> Broker:
        return Broker.parse(self.broker)

    @property
    def hosts(self) -> frozenset[str]:
        """The names of hosts by which the agent is called, in lower case; addresses are right anyway."""
        own = (Broker.parse(each).host for each in (self.broker, self.http))
        return frozenset(each.lower() for each in (*own, *self.names))

    @property
    def password(self) -> Secret:
        """The password, read at every dial, so that it can rotate. Raises ConfigError."""
        return read_secret("password_file", self.password_file)

    @property
    def token(self) -> Secret:
        return read_secret("token_file", self.token_file)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Take settings by field name. Raises ConfigError for an unknown key or a wrong type."""
        known = {field.name for field in dataclasses.fields(cls)}
        wanted = {key: _NOT_TEXT.get(key, str) for key in known}
        faults = [_unknown(key, known) for key in values if key not in known]
        faults += [
            f"{key}: {wanted[key].__name__} wanted, not {type(value).__name__}"
            for key, value in values.items()
            if key in known and type(value) is not wanted[key]
        ]
        required = known - {*_OPTIONAL, *_NOT_TEXT}
        faults += [f"{key}: must be given" for key in sorted(required - values.keys())]
        raise_faults(faults)
        return cls(**{**values, "names": tuple(values.get("names", ()))})

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a TOML file; relative paths in it are relative to its folder."""
        values = config.read_toml(path)
        folder = Path(path).absolute().parent
        for key in (
            "password_file",
            "list_file",
            "state_dir",
            "token_file",
            "data_dir",
            "cookie_file",
            *_TLS_FILES,
        ):
            if isinstance(value := values.get(key), str) and value:
                values[key] = str(folder / value)
        return cls.from_mapping(values)

    def _address_fault(self, key: str) -> str:
        text = getattr(self, key)
        try:
            if text:
                Broker.parse(text)
        except ValueError as fault:
            return f"{key}: {fault}"
        return ""


def read_secret(key: str, path: str) -> Secret:
    """Read a file's text without surrounding blanks. Raises ConfigError naming the key."""
    text = config.read_secret(key, path)
    if not text:
        raise ConfigError(f"{key}: {path} is empty")
    return Secret(text)


def _unknown(key: str, known: set[str]) -> str:
    return f"unknown setting {key!r}{did_you_mean(key, known)}"
