"""How brokers and agents are started and stopped where they run. Pure.

A local node is a part of `ops local`; elsewhere a node is a host with systemd units.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ops.commands.paths import kit
from ops.step import Command

__all__ = ["LocalNodes", "Supervisor", "SystemdNodes"]

BROKER_UNIT = "rabbitmq-server"
AGENT_UNIT = "messagebus-agent"


class Supervisor(Protocol):
    """Commands that concern one node; none where there is nothing to do."""

    def provision(self, name: str) -> tuple[Command, ...]: ...
    def start_broker(self, name: str) -> tuple[Command, ...]: ...
    def stop_broker(self, name: str) -> tuple[Command, ...]: ...
    def start_agent(self, name: str) -> tuple[Command, ...]: ...
    def stop_agent(self, name: str) -> tuple[Command, ...]: ...
    def forget(self, name: str) -> tuple[Command, ...]: ...


@dataclass(frozen=True, slots=True)
class LocalNodes:
    """dir: of the local cluster."""

    dir: Path

    def provision(self, name: str) -> tuple[Command, ...]:
        return self._local("provision", name)

    def start_broker(self, name: str) -> tuple[Command, ...]:
        return self._local("start", name)

    def stop_broker(self, name: str) -> tuple[Command, ...]:
        return self._local("stop", name)

    def start_agent(self, name: str) -> tuple[Command, ...]:
        return self._local("start", f"{name}-agent")

    def stop_agent(self, name: str) -> tuple[Command, ...]:
        return self._local("stop", f"{name}-agent")

    def forget(self, name: str) -> tuple[Command, ...]:
        return self._local("forget", name)

    def _local(self, word: str, name: str) -> tuple[Command, ...]:
        return (kit("ops", "local", word, name, "--dir", str(self.dir)),)


@dataclass(frozen=True, slots=True)
class SystemdNodes:
    """hosts: name of the node to its host. The host is installed before, and wiped after, by hand."""

    hosts: dict[str, str]

    def provision(self, name: str) -> tuple[Command, ...]:
        return ()

    def start_broker(self, name: str) -> tuple[Command, ...]:
        return self._systemctl("start", BROKER_UNIT, name)

    def stop_broker(self, name: str) -> tuple[Command, ...]:
        return self._systemctl("stop", BROKER_UNIT, name)

    def start_agent(self, name: str) -> tuple[Command, ...]:
        return self._systemctl("start", AGENT_UNIT, name)

    def stop_agent(self, name: str) -> tuple[Command, ...]:
        return self._systemctl("stop", AGENT_UNIT, name)

    def forget(self, name: str) -> tuple[Command, ...]:
        return ()

    def _systemctl(self, word: str, unit: str, name: str) -> tuple[Command, ...]:
        return (Command(("systemctl", word, unit), self.hosts[name]),)
