"""The broker that a playbook is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Target"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """name: in the inventory. address: ``host:port``, its name in the list."""

    name: str
    address: str
    agent_port: int

    @property
    def facts(self) -> dict[str, Any]:
        """What a journal keeps of it, beside the name."""
        return {"address": self.address, "agent_port": self.agent_port}
