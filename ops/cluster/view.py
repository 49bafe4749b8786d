"""A cluster as it reports itself: questions to agents, management APIs and HAProxy, and orders to them.

Every question has a deadline. A part that does not answer is reported by NoAnswer with its name, never left
out in silence.
"""

# `Members` (nodes of the inventory file, and who of them is absent) is all that the clients share. Nothing
# else is kept between questions:
#
#   View ── members ──┬── agents      HTTP: health, topology, partitions, the served list
#                     ├── balancers   HAProxy's admin sockets: where new connections go; who has ended
#                     └── brokers     management APIs: queues, connections, definitions, users

from __future__ import annotations

import socket
from pathlib import Path

from consumer_lists import listfile
from inventory.inventory import Inventory, Node
from messagebus.broker import BrokerList
from ops.cluster.agents import Agents
from ops.cluster.balancers import Balancers
from ops.cluster.brokers import Brokers
from ops.cluster.members import NOBODY, Absent, Members

PROBE_WITHIN_S = 3.0


class View:
    """The cluster of one inventory.

    file: the inventory's. absent: nodes and balancers that are left out of questions to all.
    """

    def __init__(self, file: Path, absent: Absent = NOBODY) -> None:
        self.file, self.absent = file, absent
        self._members = Members(file, absent)
        self.agents = Agents(self._members)
        self.balancers = Balancers(self._members)
        self.brokers = Brokers(self._members)

    @property
    def inventory(self) -> Inventory:
        """The inventory as it is now. Raises ConfigError."""
        return self._members.inventory

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self._members.nodes

    def node(self, name: str) -> Node:
        """Return the node of this name or ``host:port``. Raises ConfigError naming the nearest."""
        return self._members.node(name)

    def is_shut(self, name: str, what: str = "address") -> bool:
        """Return whether nobody listens at an address of a node; false where nothing answers in time.

        what: address, which is AMQP's, management or agent.
        """
        try:
            with socket.create_connection(getattr(self.node(name), what), timeout=PROBE_WITHIN_S):
                return False
        except ConnectionRefusedError:
            return True
        except OSError:
            return False

    def has_forgotten(self, name: str) -> bool:
        """Return whether a local cluster has no such node any more: it forgets the entry before the files."""
        inventory = self.inventory
        return inventory.supervisor == "local" and name not in {
            node.name for node in inventory.brokers
        }

    @property
    def listed(self) -> BrokerList:
        """The operators' copy of the consumer list. Raises ListInvalid, OSError."""
        return BrokerList.parse(listfile.read(self.inventory.list_file))
