"""All balancers of an inventory as one: what each shows, and an order to each that is read back from each.

One that cannot be reached is told by its name, and never counted as anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from inventory.inventory import Balancer, Inventory
from lb import runtime
from lb.errors import BalancerUnreachable, LbError, NotReached
from lb.runtime import SAID, ServerState

__all__ = ["Fleet", "Open", "Seen", "local", "maint", "opened", "set_drain", "set_weight"]

Open = Callable[[Balancer], AbstractContextManager[Path]]
"""Have the admin socket of a balancer of another host here. Raises BalancerUnreachable."""
Condition = Callable[[ServerState], bool]


@dataclass(frozen=True, slots=True)
class Seen:
    """One broker, as the balancers show it. silent: name of a balancer -> why it does not."""

    shown: Mapping[str, ServerState]
    silent: Mapping[str, str]

    def everywhere(self, is_so: Condition) -> bool:
        return not self.silent and all(map(is_so, self.shown.values()))

    def but(self, is_so: Condition) -> str:
        """What those say of which it is not so, in one line."""
        found = {
            name: f"HAProxy says {state.verdict} (check: {state.check}; agent: {state.agent})"
            for name, state in self.shown.items()
            if not is_so(state)
        } | dict(self.silent)
        if len(self.shown) + len(self.silent) == 1:
            return "; ".join(found.values())
        return "; ".join(f"{name}: {said}" for name, said in found.items())


@dataclass(frozen=True, slots=True)
class Fleet:
    """sockets: name of a balancer -> its admin socket here, in the inventory's order.

    away: name -> why it cannot be reached at all.
    """

    sockets: Mapping[str, Path]
    away: Mapping[str, str] = field(default_factory=dict)

    def look(self, name: str) -> Seen:
        """At one broker, on every balancer."""
        shown, silent = {}, dict(self.away)
        for balancer, socket in self.sockets.items():
            try:
                servers = runtime.servers(socket)
            except BalancerUnreachable as fault:
                silent[balancer] = f"HAProxy does not show it: {fault}"
                continue
            if name in servers:
                shown[balancer] = servers[name]
            else:
                silent[balancer] = f"HAProxy knows no server {name!r}: see `lb apply`"
        return Seen(shown, silent)


def local(inventory: Inventory) -> Fleet:
    """All balancers, where they are of this machine."""
    return Fleet({balancer.name: balancer.socket for balancer in inventory.balancers})


@contextmanager
def opened(inventory: Inventory, open_socket: Open) -> Iterator[Fleet]:
    """All balancers, wherever they are; those that are away are told in the fleet."""
    sockets, away = {}, {}
    with ExitStack() as stack:
        for balancer in inventory.balancers:
            try:
                sockets[balancer.name] = (
                    stack.enter_context(open_socket(balancer)) if balancer.host else balancer.socket
                )
            except BalancerUnreachable as fault:
                away[balancer.name] = str(fault)
        yield Fleet(sockets, away)


def maint(fleet: Fleet, name: str, *, on: bool) -> Seen:
    """Take a broker out at once, or back, on every balancer: for one whose agent is dead.

    Raises LbError, before anything is changed, when its agent answers; NotReached as all here.
    """
    if on:
        _refuse_living(fleet, name)
    return _order(
        fleet,
        name,
        lambda socket: runtime.maint(socket, name, on=on),
        lambda state: (state.verdict == "maint") is on,
        "in maintenance" if on else "back from maintenance",
    )


def set_drain(fleet: Fleet, name: str, *, on: bool) -> Seen:
    """Drain a broker whose agent is dead, or take that back. Its agent takes a drain back, too."""
    _refuse_living(fleet, name)
    return _order(
        fleet,
        name,
        lambda socket: runtime.set_drain(socket, name, on=on),
        lambda state: state.drained is on,
        "drained" if on else "ready",
    )


def set_weight(fleet: Fleet, name: str, weight: int) -> Seen:
    """Give a broker its share of new connections on every balancer."""
    return _order(
        fleet,
        name,
        lambda socket: runtime.set_weight(socket, name, weight),
        lambda state: state.weight == weight,
        f"of weight {weight}",
    )


def _refuse_living(fleet: Fleet, name: str) -> None:
    """Each `ready` of an agent would undo what is ordered by hand."""
    for balancer, state in fleet.look(name).shown.items():
        if state.agent in SAID:
            raise LbError(
                f"the agent of {name} answers {balancer} and would undo it: see `lb drain`"
            )


def _order(
    fleet: Fleet, name: str, order: Callable[[Path], None], is_so: Condition, wanted: str
) -> Seen:
    """To every balancer, whatever becomes of the others. Raises NotReached where it is not so."""
    refused = {}
    for balancer, socket in fleet.sockets.items():
        try:
            order(socket)
        except LbError as fault:
            refused[balancer] = str(fault)
    seen = fleet.look(name)
    seen = Seen(seen.shown, {**seen.silent, **refused})
    if not seen.everywhere(is_so):
        raise NotReached(f"{name} is not {wanted} on every balancer: {seen.but(is_so)}")
    return seen
