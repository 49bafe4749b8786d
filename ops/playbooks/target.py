"""The broker that a playbook is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Target"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """name: in the inventory. address: ``host:port``, its name in the list.

    ssh: how its host is reached, "" on a local cluster. sudo: who logs in there is not root.
    """

    name: str
    address: str
    agent_port: int
    ssh: str = ""
    sudo: bool = False

    @property
    def facts(self) -> dict[str, Any]:
        """What a journal keeps of it, beside the name: the inventory may not know it any more."""
        known = {"address": self.address, "agent_port": self.agent_port}
        return {**known, "ssh": self.ssh, "sudo": self.sudo} if self.ssh else known
