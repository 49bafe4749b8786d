"""What the hosts of a cluster show of the processes on them: closed doors, and who has ended."""

from __future__ import annotations

import socket

import lb.hosts
from inventory import shell
from lb.errors import LbError
from ops.cluster.members import Members

PROBE_WITHIN_S = 3.0


class Hosts:
    """The hosts, asked about their processes without a word of these."""

    def __init__(self, members: Members) -> None:
        self._members = members

    def is_shut(self, name: str, what: str = "address") -> bool:
        """Return whether nobody listens at an address of a node; false where nothing answers in time.

        what: address, which is AMQP's, management or agent.
        """
        try:
            with socket.create_connection(
                getattr(self._members.node(name), what), timeout=PROBE_WITHIN_S
            ):
                return False
        except ConnectionRefusedError:
            return True
        except OSError:
            return False

    def balancer_has_ended(self, name: str) -> bool:
        """Return whether a balancer's host says that none of its processes is left; false without answer."""
        inventory = self._members.inventory
        balancer = inventory.find_balancer(name)
        try:
            with lb.hosts.machine_of(shell, inventory, balancer) as machine:
                return not machine.signal_master(balancer, None)
        except LbError:
            return False
