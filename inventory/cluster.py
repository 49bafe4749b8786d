"""The part of a cluster that consumer lists need: the list's file, and every node's agent and file.

Reads only those keys of the operators' ``inventory.toml``; `python -m lb check` validates
the whole file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from messagebus.broker import Broker
from messagebus.errors import ConfigError
from messagebus.tls import TlsFiles

__all__ = ["Cluster", "Node", "load", "parse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node. agent: HTTP address ``host:port``. list_file: path from which its agent reads the list.

    hosts: hosts that hold the file, as SSH addresses ``[user@]host[:port]``: both of a mirror, since either
        may run the broker; none for this machine. sudo: hosts whose SSH user is not root.
    tls: certificates for requests to the agent; None for plain HTTP.
    """

    name: str
    agent: str
    list_file: Path
    hosts: tuple[str, ...] = ()
    sudo: frozenset[str] = frozenset()
    tls: TlsFiles | None = None

    @property
    def agent_url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.agent}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One cluster. list_file: the operators' copy, under version control. nodes: in the inventory's order."""

    name: str
    list_file: Path
    nodes: tuple[Node, ...]


def load(path: str | Path) -> Cluster:
    """Read an inventory. Raises ConfigError."""
    path = Path(path)
    try:
        values = tomllib.loads(path.read_text())
    except OSError as fault:
        raise ConfigError(f"inventory {path}: {fault.strerror}") from fault
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as fault:
        raise ConfigError(f"inventory {path}: {fault}") from fault
    return parse(values, base=path.absolute().parent)


def parse(values: Mapping[str, Any], *, base: Path) -> Cluster:
    """Read the keys that consumer lists need. base: folder that relative paths start from."""
    try:
        tls = _tls(values["tls"], base) if "tls" in values else None
        sudo = frozenset(
            _text(each, "ssh") for each in values.get("hosts", []) if each.get("sudo") == "yes"
        )
        nodes = tuple(
            Node(
                name=_text(each, "name"),
                agent=_text(each, "agent"),
                list_file=base / _text(each, "node_list_file"),
                hosts=_hosts(values, each),
                sudo=sudo,
                tls=tls,
            )
            for each in values.get("brokers", [])
        )
        return Cluster(
            name=_text(values, "cluster"),
            list_file=base / _text(values, "list_file"),
            nodes=nodes,
        )
    except (KeyError, ValueError, TypeError, AttributeError) as fault:
        raise ConfigError(f"inventory: {fault}; see `python -m lb check`") from fault


def _hosts(values: Mapping[str, Any], broker: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the hosts on which a broker may run; none on a local cluster, where that is this machine."""
    ssh = {_text(each, "name"): _text(each, "ssh") for each in values.get("hosts", [])}
    for mirror in values.get("mirrors", []):
        if mirror["name"] == broker["name"]:
            return tuple(ssh[name] for name in mirror["hosts"])
    if "host" in broker:
        return (ssh[_text(broker, "host")],)
    if values.get("supervisor") == "systemd":
        return (Broker.parse(_text(broker, "address")).host,)
    return ()


def _tls(table: Mapping[str, Any], base: Path) -> TlsFiles:
    ca_file, cert_file, key_file = (
        str(base / _text(table, key)) for key in ("ca_file", "cert_file", "key_file")
    )
    return TlsFiles(ca_file=ca_file, cert_file=cert_file, key_file=key_file)


def _text(table: Mapping[str, Any], key: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value:
        raise TypeError(f"{key} is missing or no text")
    return value
