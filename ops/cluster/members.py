"""Nodes and balancers of one inventory file, and which of them a command leaves out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from inventory.inventory import Inventory, InventoryFile, Node


@dataclass(frozen=True, slots=True)
class Absent:
    """Names of nodes whose broker, or agent, is known to be dead, and of dead balancers.

    Those nodes are never asked. A balancer is asked, because it may come back by itself, and need not
    answer.
    """

    brokers: frozenset[str] = frozenset()
    agents: frozenset[str] = frozenset()
    balancers: frozenset[str] = frozenset()

    @property
    def nodes(self) -> list[str]:
        return sorted(self.brokers | self.agents)

    def in_words(self) -> str:
        """Return each of them in words; "" for none."""
        return ", ".join(self.parts())

    def parts(self) -> list[str]:
        """Return each of them in words."""
        return [
            f"{what} {name}"
            for what, names in (
                ("broker", self.brokers),
                ("agent of", self.agents),
                ("balancer", self.balancers),
            )
            for name in sorted(names)
        ]


NOBODY = Absent()


class Members:
    """Nodes of the inventory file as it is at each question; playbooks change it. Any thread may ask.

    file: the inventory's. absent: nodes and balancers that are left out of questions to all.
    """

    def __init__(self, file: Path, absent: Absent = NOBODY) -> None:
        self.file = file
        self.absent = absent
        self._inventory = InventoryFile(file)

    @property
    def inventory(self) -> Inventory:
        """The inventory as it is now: a question takes it once. Raises ConfigError."""
        return self._inventory.load()

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.inventory.brokers

    def node(self, name: str) -> Node:
        """Return the node of this name or ``host:port``. Raises ConfigError naming the nearest."""
        return self.inventory.find(name)
