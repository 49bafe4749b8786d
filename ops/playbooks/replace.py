"""Replacement of a broker that is dead for good by a new, empty one.

The messages on its disk are lost; where it has a mirror, `storage.failover` promotes that instead. The order:

1. Nothing answers there, and all that may be left of it is stopped: an old broker that came back beside
   the new one would have its address.
2. The list and the balancer forget it, so that no client dials it and the other agents are a majority by
   themselves.
3. A new node of the same name is made, while still nothing answers there, and brought in as in `add`.
"""

from __future__ import annotations

from pathlib import Path

from ops.cluster import checks
from ops.cluster.view import View
from ops.commands import balancer, lists
from ops.commands.kits import kit
from ops.commands.supervise import Supervisor
from ops.playbooks import add
from ops.playbooks.add import Target
from ops.run.plan import Plan, Step

__all__ = ["plan"]


def plan(target: Target, inventory: Path, view: View, nodes: Supervisor, *, kept: Path) -> Plan:
    """Plan the replacement. kept: file that holds its entry of the inventory meanwhile."""
    name, address = target.name, target.address
    where = ("--inventory", str(inventory))
    return Plan(
        name=f"replace {name}",
        steps=(
            Step(
                name=f"see that {name} is dead",
                until="neither broker nor agent answers",
                check=checks.is_dead(view, name),
            ),
            Step(
                name=f"stop whatever is left of {name}",
                commands=(*nodes.stop_broker(name), *nodes.stop_agent(name)),
            ),
            Step(
                name=f"take {name} off the list",
                commands=(lists.remove(inventory, address),),
                done=lambda: address not in view.listed.names,
                is_final=True,
            ),
            Step(
                name=f"take {name} out of the balancer",
                commands=(
                    kit("ops", "inventory", "drop", name, "--keep", str(kept), *where),
                    balancer.apply(inventory, view.absent.balancers),
                ),
            ),
            add.list_brought(f"bring the list without {name} to every agent", inventory, view),
            Step(
                name=f"enter {name} again",
                commands=(kit("ops", "inventory", "put", str(kept), *where),),
            ),
            Step(
                name=f"make node {name} anew, empty",
                commands=nodes.reinstall(name, ""),
                guard=checks.both(
                    checks.off_the_list(view, name, address), checks.is_dead(view, name)
                ),
            ),
            *add.started(target, view, nodes),
            *add.joined(target, inventory, view),
            *add.listed(target, inventory, view),
            *add.ready(target, inventory, view),
        ),
    )
