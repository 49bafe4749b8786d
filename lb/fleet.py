"""All balancers of an inventory as one: the state that each shows, and orders to each, read back from each.

An inventory is applied one by one, after every balancer has been checked.
A balancer that cannot be reached is reported by its name, and never counted as anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from inventory import serving
from inventory.inventory import Balancer, Inventory
from lb import lint, runtime
from lb.apply import Applied, apply, check
from lb.errors import ApplyFailed, BalancerUnreachable, LbError, NotReached
from lb.hosts import Machine
from lb.runtime import STATES_BY_AGENT, ServerState
from messagebus.errors import ConfigError

OpenSocket = Callable[[Balancer], AbstractContextManager[Path]]
"""Forward the admin socket of a balancer on another host. Raises BalancerUnreachable."""
Condition = Callable[[ServerState], bool]


@dataclass(frozen=True, slots=True)
class BrokerStates:
    """One broker, as the balancers show it. silent: name of a balancer -> why it does not."""

    shown: dict[str, ServerState]
    silent: dict[str, str]

    def everywhere(self, is_so: Condition) -> bool:
        return not self.silent and all(map(is_so, self.shown.values()))

    def differing(self, is_so: Condition) -> str:
        """Return the states that do not meet the condition, and the silent balancers, in one line."""
        found = {
            name: f"HAProxy says {state.verdict} (check: {state.check}; agent: {state.agent})"
            for name, state in self.shown.items()
            if not is_so(state)
        } | self.silent
        if len(self.shown) + len(self.silent) == 1:
            return "; ".join(found.values())
        return "; ".join(f"{name}: {text}" for name, text in found.items())


@dataclass(frozen=True, slots=True)
class Fleet:
    """All balancers. sockets: name of a balancer -> its admin socket here, in the inventory's order.

    unreachable: name -> why it cannot be reached at all.
    """

    sockets: Mapping[str, Path]
    unreachable: Mapping[str, str] = field(default_factory=dict)

    def look(self, name: str) -> BrokerStates:
        """Return the state of one broker on every balancer."""
        return self.look_at([name])[name]

    def look_at(self, names: Iterable[str]) -> dict[str, BrokerStates]:
        """Return the state of each broker on every balancer, of which each is asked once."""
        found = {name: BrokerStates({}, dict(self.unreachable)) for name in names}
        for balancer, socket in self.sockets.items():
            try:
                servers, fault = runtime.servers(socket), ""
            except BalancerUnreachable as silent:
                servers, fault = {}, f"HAProxy does not show it: {silent}"
            for name, states in found.items():
                if name in servers:
                    states.shown[balancer] = servers[name]
                else:
                    unknown = f"HAProxy knows no server {name!r}: see `lb apply`"
                    states.silent[balancer] = fault or unknown
        return found


def refuse_last(fleet: Fleet, inventory: Inventory, name: str) -> None:
    """Refuse to take a broker out where the balancers send publishers to too few others.

    A balancer that does not answer has no say, unless none does. Raises TooFewServe.
    """
    seen = fleet.look_at(node.name for node in inventory.brokers)
    faults = {
        other: ""
        if states.shown and all(state.is_up for state in states.shown.values())
        else states.differing(lambda state: state.is_up)
        for other, states in seen.items()
    }
    shown = seen[name].shown.values()
    if not shown or any(state.is_up for state in shown):
        faults[name] = ""
    serving.refuse_last(name, faults, inventory.serving_min)


def local(inventory: Inventory) -> Fleet:
    """Return all balancers by their own sockets, as balancers of this machine."""
    return Fleet({balancer.name: balancer.socket for balancer in inventory.balancers})


@contextmanager
def opened(inventory: Inventory, open_socket: OpenSocket) -> Iterator[Fleet]:
    """Connect to all balancers, on this machine or another; and collect those that cannot be reached."""
    sockets, unreachable = {}, {}
    with ExitStack() as stack:
        for balancer in inventory.balancers:
            try:
                sockets[balancer.name] = (
                    stack.enter_context(open_socket(balancer)) if balancer.host else balancer.socket
                )
            except BalancerUnreachable as fault:
                unreachable[balancer.name] = str(fault)
        yield Fleet(sockets, unreachable)


def maint(fleet: Fleet, name: str, *, on: bool) -> BrokerStates:
    """Take a broker whose agent is dead out at once, or back, on every balancer.

    Raises LbError, before anything is changed, when its agent answers; NotReached when it is not so
    everywhere.
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


def set_drain(fleet: Fleet, name: str, *, on: bool) -> BrokerStates:
    """Drain a broker whose agent is dead, or undo that. An agent that comes back undoes a drain, too."""
    _refuse_living(fleet, name)
    return _order(
        fleet,
        name,
        lambda socket: runtime.set_drain(socket, name, on=on),
        lambda state: state.drained is on,
        "drained" if on else "ready",
    )


def set_weight(fleet: Fleet, name: str, weight: int) -> BrokerStates:
    """Set the weight of a broker, its share of new connections, on every balancer."""
    return _order(
        fleet,
        name,
        lambda socket: runtime.set_weight(socket, name, weight),
        lambda state: state.weight == weight,
        f"of weight {weight}",
    )


def _refuse_living(fleet: Fleet, name: str) -> None:
    """Raise LbError when a broker's agent answers: each of its `ready` would undo an order by hand."""
    for balancer, state in fleet.look(name).shown.items():
        if state.agent in STATES_BY_AGENT:
            raise LbError(
                f"the agent of {name} answers {balancer} and would undo it: see `lb drain`"
            )


def _order(
    fleet: Fleet, name: str, order: Callable[[Path], None], is_so: Condition, wanted: str
) -> BrokerStates:
    """Send an order to every balancer, even if some fail.

    Raises NotReached where the state is not as wanted.
    """
    refused = {}
    for balancer, socket in fleet.sockets.items():
        try:
            order(socket)
        except LbError as fault:
            refused[balancer] = str(fault)
    seen = fleet.look(name)
    seen = BrokerStates(seen.shown, {**seen.silent, **refused})
    if not seen.everywhere(is_so):
        raise NotReached(f"{name} is not {wanted} on every balancer: {seen.differing(is_so)}")
    return seen


Connect = Callable[[Balancer], AbstractContextManager[Machine]]
"""Connect to a balancer's machine."""


def check_all(inventory: Inventory, connect: Connect) -> None:
    """Lint, and let every balancer's own HAProxy check its configuration. Touches nothing.

    Raises ConfigError, BalancerUnreachable, ApplyFailed.
    """
    with ExitStack() as stack:
        _check(inventory, connect, stack)


def apply_all(
    inventory: Inventory, connect: Connect, *, reload: bool = False
) -> Iterator[tuple[Balancer, Applied]]:
    """Apply to one balancer after the other; each serves before the next is touched.

    Raises as `check_all` with nothing touched; ApplyFailed that names the balancer, with those
    before it done and those after it unchanged.
    """
    with ExitStack() as stack:
        machines = _check(inventory, connect, stack)
        for number, (balancer, machine) in enumerate(machines):
            try:
                yield balancer, apply(inventory.at(balancer), machine, reload=reload)
            except LbError as fault:
                left = ", ".join(after.name for after, _ in machines[number + 1 :])
                text = f"{fault}; not touched: {left}" if left else str(fault)
                raise type(fault)(f"{_begin(inventory, balancer)}{text}") from fault


def apply_absent(inventory: Inventory, connect: Connect, balancer: Balancer) -> Applied | str:
    """Apply to a balancer that is said to be dead, as far as it answers: its host may be alive.

    Returns the outcome, or the reason why nothing was done.
    """
    try:
        with connect(balancer) as machine:
            return apply(inventory.at(balancer), machine)
    except (ConfigError, LbError) as fault:
        return str(fault)


def _check(
    inventory: Inventory, connect: Connect, stack: ExitStack
) -> list[tuple[Balancer, Machine]]:
    if found := lint.faults(inventory):
        raise ConfigError("balancer: " + "; ".join(found))
    machines = []
    for balancer in inventory.balancers:
        try:
            machine = stack.enter_context(connect(balancer))
            check(inventory.at(balancer), machine)
        except (ConfigError, LbError) as fault:
            kind = ConfigError if isinstance(fault, ConfigError) else ApplyFailed
            raise kind(f"{_begin(inventory, balancer)}{fault}") from fault
        machines.append((balancer, machine))
    return machines


def _begin(inventory: Inventory, balancer: Balancer) -> str:
    return f"{balancer.name}: " if inventory.more else ""
