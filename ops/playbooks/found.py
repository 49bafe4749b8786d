"""Foundation of a cluster: the first start of hosts that `ops provision` has set up.

It happens once in a cluster's life. Agents read their topology from a majority of the others before they
open a gate. A new cluster has no such majority, so each agent is told that it begins (genesis). Never found
a cluster that has been one: its topics would be forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ops.cluster import checks
from ops.cluster.view import View
from ops.commands import balancer
from ops.commands.kits import kit
from ops.commands.supervise import SystemdNodes
from ops.playbooks import add
from ops.run.plan import Plan, Step

__all__ = ["plan"]

# A first start is slow on slow disks.
BOOT_WITHIN_S = 600.0


def plan(
    names: Iterable[str],
    inventory: Path,
    view: View,
    nodes: SystemdNodes,
    *,
    balancers: Mapping[str, str],
) -> Plan:
    """Plan the first start. names: all brokers. balancers: name -> the SSH address of its host."""
    names = list(names)
    return Plan(
        name="found cluster",
        steps=(
            Step(
                name="see that there is no cluster yet",
                until="no agent answers",
                check=checks.nobody_answers(view),
            ),
            Step(
                name="write the first list",
                commands=(kit("ops", "inventory", "first-list", "--inventory", str(inventory)),),
                until="it names every broker",
                check=lambda: checks.lists_all(view),
            ),
            *(
                Step(name=f"let the agent of {name} begin", commands=nodes.genesis(name))
                for name in names
            ),
            *(
                Step(
                    name=f"start broker {name}",
                    commands=nodes.start_broker(name),
                    until="it answers",
                    check=checks.answers(view, name),
                    within_s=BOOT_WITHIN_S,
                    silent_within_s=BOOT_WITHIN_S,
                )
                for name in names
            ),
            *(
                Step(name=f"start the agent of {name}", commands=nodes.start_agent(name))
                for name in names
            ),
            add.list_brought("bring the list to every agent", inventory, view),
            *(add.topology(name, view) for name in names),
            Step(
                name="start the balancers",
                commands=(
                    balancer.apply(inventory),
                    *(nodes.start_balancer(host) for host in balancers.values()),
                ),
            ),
            Step(
                name="send publishers to all",
                commands=tuple(balancer.ready(inventory, name) for name in names),
                until="every gate is open and every agent says ready",
                check=checks.all_welcome(view),
            ),
        ),
    )
