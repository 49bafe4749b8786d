"""One inventory to all its balancers: every one is checked before the first is touched, then one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack

from inventory.inventory import Balancer, Inventory
from lb import lint
from lb.apply import Applied, apply, check
from lb.errors import ApplyFailed, LbError
from lb.place import Place
from messagebus.errors import ConfigError

__all__ = ["Reach", "apply_absent", "apply_all", "check_all"]

Reach = Callable[[Balancer], AbstractContextManager[Place]]
"""Have a balancer's machine at hand."""


def check_all(inventory: Inventory, reach: Reach) -> None:
    """Lint, and let every balancer's own HAProxy read its configuration. Touches nothing.

    Raises ConfigError, BalancerUnreachable, ApplyFailed.
    """
    with ExitStack() as stack:
        _check(inventory, reach, stack)


def apply_all(
    inventory: Inventory, reach: Reach, *, reload: bool = False
) -> Iterator[tuple[Balancer, Applied]]:
    """Apply to one balancer after the other; each serves before the next is touched.

    Raises as `check_all` with nothing touched; ApplyFailed that names the balancer, with those
    before it done and those after it as they were.
    """
    with ExitStack() as stack:
        places = _check(inventory, reach, stack)
        for number, (balancer, place) in enumerate(places):
            try:
                yield balancer, apply(inventory.at(balancer), place, reload=reload)
            except LbError as fault:
                left = ", ".join(after.name for after, _ in places[number + 1 :])
                told = f"{fault}; not touched: {left}" if left else str(fault)
                raise type(fault)(f"{_begin(inventory, balancer)}{told}") from fault


def apply_absent(inventory: Inventory, reach: Reach, balancer: Balancer) -> Applied | str:
    """Apply to a balancer that is said to be dead, as far as it is there: its host may be alive.

    Returns why nothing was done, where nothing was.
    """
    try:
        with reach(balancer) as place:
            return apply(inventory.at(balancer), place)
    except (ConfigError, LbError) as fault:
        return str(fault)


def _check(inventory: Inventory, reach: Reach, stack: ExitStack) -> list[tuple[Balancer, Place]]:
    if found := lint.faults(inventory):
        raise ConfigError("balancer: " + "; ".join(found))
    places = []
    for balancer in inventory.balancers:
        try:
            place = stack.enter_context(reach(balancer))
            check(inventory.at(balancer), place)
        except (ConfigError, LbError) as fault:
            kind = ConfigError if isinstance(fault, ConfigError) else ApplyFailed
            raise kind(f"{_begin(inventory, balancer)}{fault}") from fault
        places.append((balancer, place))
    return places


def _begin(inventory: Inventory, balancer: Balancer) -> str:
    return f"{balancer.name}: " if inventory.more else ""
