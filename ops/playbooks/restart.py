"""Restart of brokers one after the other while everything runs, with nothing lost and nothing doubled.

Deliveries that consumers hold without an answer come again when their broker stops under them. So each broker
is taken off the list before, which consumers follow in an orderly way, and put on it afterwards; messages in
its queues stay there meanwhile. The next one begins when this one takes publishes again.

The order, for each: publishers leave, consumers disconnect (`remove` without waiting for it to be
empty), stop, start, the gate, then as in `add`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from ops.cluster import checks
from ops.cluster.view import View
from ops.commands.supervise import Supervisor
from ops.playbooks import add, remove
from ops.playbooks.add import Target
from ops.playbooks.remove import Drain
from ops.run.plan import Plan, Step

__all__ = ["plan"]


def plan(
    targets: Iterable[Target],
    inventory: Path,
    view: View,
    nodes: Supervisor,
    how: Drain,
    *,
    name: str,
) -> Plan:
    """Plan the restarts. name: name of the plan and of its journal."""
    steps = [step for target in targets for step in _steps(target, inventory, view, nodes, how)]
    return Plan(name=name, steps=tuple(steps))


def _steps(
    target: Target, inventory: Path, view: View, nodes: Supervisor, how: Drain
) -> Iterator[Step]:
    name = target.name
    yield remove.others_serve(target, view, how)
    yield from remove.unpublished(target, inventory, view, how)
    yield from remove.released(target, inventory, view, how)
    yield Step(
        name=f"stop broker {name}",
        commands=nodes.stop_broker(name),
        guard=checks.others_serve(view, {name}, wanted=how.serving_min),
    )
    yield from add.started(target, view, nodes)
    yield from add.joined(target, inventory, view)
    yield from add.listed(target, inventory, view)
    yield from add.ready(target, inventory, view)
