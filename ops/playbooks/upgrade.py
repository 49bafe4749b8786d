"""New installation of a broker, empty, in another version, while everything runs.

Brokers share nothing, so an upgrade is a removal and an addition: it is drained to empty as in
`remove`, installed with an empty disk, and brought in as in `add`. It stays in the inventory. Other brokers
may have other versions meanwhile, for any length of time.
"""

from __future__ import annotations

from pathlib import Path

from ops.cluster.view import View
from ops.commands.supervise import Supervisor
from ops.playbooks import add, remove
from ops.playbooks.add import Target
from ops.playbooks.remove import Drain
from ops.run.plan import Plan

__all__ = ["plan"]


def plan(
    target: Target,
    inventory: Path,
    view: View,
    nodes: Supervisor,
    how: Drain,
    *,
    version: str = "",
) -> Plan:
    """Plan the upgrade. version: that of RabbitMQ's package; "" for the one in its host's package sources."""
    name = target.name
    return Plan(
        name=f"upgrade {name}",
        steps=(
            remove.others_serve(target, view, how),
            *remove.unpublished(target, inventory, view, how),
            *remove.drained(target, inventory, view, how),
            *remove.released(target, inventory, view, how),
            *remove.stopped_empty(target, inventory, view, nodes, how),
            remove.erased(
                f"install {name} anew, empty", target, view, nodes, nodes.reinstall(name, version)
            ),
            *add.started(target, view, nodes),
            *add.joined(target, inventory, view),
            *add.listed(target, inventory, view),
            *add.ready(target, inventory, view),
        ),
    )
