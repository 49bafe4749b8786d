"""Questions to the balancers of a cluster through HAProxy's admin sockets, and to their hosts about them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import lb.fleet
import lb.hosts
import lb.runtime
from inventory import shell
from inventory.inventory import Balancer
from lb.errors import BalancerUnreachable, LbError
from lb.runtime import ServerState
from ops.cluster.members import Members
from ops.errors import NoAnswer


class Balancers:
    """The balancers, all of them asked: one that is absent may come back by itself, and need not answer."""

    def __init__(self, members: Members) -> None:
        self._members = members

    def sending(self) -> dict[str, frozenset[str]]:
        """Return the names of the brokers that each balancer sends new connections to. Raises NoAnswer.

        Absent balancers are left out, unless they answer by now.
        """
        found, silent = self._server_states()
        for name, fault in silent.items():
            if name not in self._members.absent.balancers:
                raise NoAnswer(f"balancer {name}: {fault}")
        return {
            name: frozenset(each.name for each in servers.values() if each.verdict == "up")
            for name, servers in found.items()
        }

    def silent_balancers(self) -> list[str]:
        """Return the names of the balancers that do not answer."""
        return list(self._server_states()[1])

    def balancer_has_ended(self, name: str) -> bool:
        """Return whether a balancer's host says that none of its processes is left; false without answer."""
        inventory = self._members.inventory
        balancer = inventory.find_balancer(name)
        try:
            with lb.hosts.machine_of(shell, inventory, balancer) as machine:
                return not machine.signal_master(balancer, None)
        except LbError:
            return False

    def _server_states(self) -> tuple[dict[str, dict[str, ServerState]], dict[str, str]]:
        """Return the state of each broker at each balancer; and for silent balancers the reason."""
        inventory, found = self._members.inventory, dict[str, dict[str, ServerState]]()

        def admin_socket(balancer: Balancer) -> AbstractContextManager[Path]:
            return lb.hosts.forwarded(shell, inventory.host(balancer.host).ssh, balancer)

        with lb.fleet.opened(inventory, admin_socket) as fleet:
            silent = dict(fleet.unreachable)
            for name, socket in fleet.sockets.items():
                try:
                    found[name] = lb.runtime.servers(socket)
                except BalancerUnreachable as fault:
                    silent[name] = str(fault)
        return found, silent
