"""Add a broker while everything runs, with nothing lost.

The order is part of the correctness:

1. The node is made and started. Its agent gets the list, which does not name it yet, holds
   publishers back and reads the topology from a majority of the others; the gate opens when every
   queue is there and settled.
2. Then the list names it. Subscriptions exist per broker, so a balancer that sent publishers there
   before consumers know it would leave messages unread.
3. Every live client has applied that list, and every queue that is consumed elsewhere is consumed
   there.
4. Between 1 and 2 a topology change may have been completed without the new agent. Once every agent
   serves the new list, each change asks the new one too; so after that, and before publishes, it is
   checked that the new agent has whatever any agent has.
5. Then the balancer sends publishers.
"""

from __future__ import annotations

from pathlib import Path

from ops import checks
from ops.commands import balancer, lists
from ops.commands.supervise import Supervisor
from ops.plan import Plan
from ops.playbooks.target import Target
from ops.step import Step
from ops.view import View

__all__ = ["plan"]

BOOT_WITHIN_S = 120.0
TOPOLOGY_WITHIN_S = 120.0
# Clients fetch the list at least every 30 s, and are dropped from the agents' view after 90 s.
CLIENTS_WITHIN_S = 120.0
PUBLISHES_WITHIN_S = 10.0


def plan(target: Target, inventory: Path, view: View, nodes: Supervisor) -> Plan:
    """Steps that bring a broker in. nodes: how it is started where it runs."""
    name, address = target.name, target.address
    return Plan(
        name=f"add {name}",
        steps=(
            Step(
                name=f"make node {name}",
                commands=nodes.provision(name),
                until="it is in the inventory",
                check=lambda: "" if view.node(name) else "it is not",
                undo=nodes.forget(name),
            ),
            Step(
                name=f"start broker {name}",
                commands=nodes.start_broker(name),
                until="it answers",
                check=checks.answers(view, name),
                within_s=BOOT_WITHIN_S,
                undo=nodes.stop_broker(name),
            ),
            Step(
                name=f"start the agent of {name}",
                commands=nodes.start_agent(name),
                undo=nodes.stop_agent(name),
            ),
            Step(
                name=f"tell {name} of the others",
                commands=(lists.push(inventory),),
                until="every agent serves the list as it is",
                check=checks.agents_serve_the_list(view),
            ),
            Step(
                name=f"hold publishers back from {name}",
                commands=(balancer.hold(inventory, name),),
                until="its agent says so",
                check=checks.holds_back(view, name),
            ),
            Step(
                name=f"bring the topology to {name}",
                until="everything is there and settled, and the gate is open",
                check=checks.topology_is_there(view, name),
                within_s=TOPOLOGY_WITHIN_S,
            ),
            Step(
                name=f"list {name}",
                commands=(lists.add(inventory, address, agent_port=target.agent_port),),
                done=lambda: address in view.listed.names,
                undo=(lists.remove(inventory, address), lists.push(inventory)),
            ),
            Step(
                name="bring the list to every agent",
                commands=(lists.push(inventory),),
                until="every agent serves it",
                check=checks.agents_serve_the_list(view),
            ),
            Step(
                name="wait for the clients",
                until="all have applied the list, and consume there what they consume elsewhere",
                check=checks.applied_and_attached(view, name),
                within_s=CLIENTS_WITHIN_S,
            ),
            Step(
                name=f"compare the topology of {name} with the others",
                until="its agent knows whatever any agent knows",
                check=checks.knows_the_topology(view, name),
            ),
            Step(
                name=f"send publishers to {name}",
                commands=(balancer.apply(inventory), balancer.ready(inventory, name)),
                until="its gate is open and its agent says ready",
                check=checks.welcomes(view, name),
                is_final=True,
            ),
            Step(
                name="verify that publishes arrive and are consumed",
                until="both are seen",
                check=checks.publishes_arrive(view, name),
                within_s=PUBLISHES_WITHIN_S,
                may_fail=True,
            ),
        ),
    )
