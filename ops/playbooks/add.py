"""Addition of a broker while everything runs, with nothing lost.

The order is part of the correctness:

1. The node is made and started. Its agent gets the list, which does not name it yet, holds
   publishers back and reads the topology from a majority of the others; the gate opens when every
   queue is there and settled.
2. Then the list names it. Subscriptions exist per broker, so a balancer that sent publishers there
   before consumers know it would leave messages unread.
3. Every live client has applied that list, and every queue that is consumed elsewhere is consumed
   there.
4. Between 1 and 2 a topology change may have been completed without the new agent. Once every agent
   serves the new list, each change asks the new one too. So after that, and before publishes, it is
   checked that the new agent has every entry that another agent has.
5. Then the balancer sends publishers.

The first start of a cluster (`bootstrap`), on hosts that `ops provision` has set up, happens once in its
life. Agents read their topology from a majority of the others before they open a gate. A new cluster has no
such majority, so each agent is told that it begins (genesis). Never bootstrap a cluster that has been one:
its topics would be forgotten.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from inventory.serving import FORCE
from messagebus.terminal import plural
from ops.cluster import checks
from ops.cluster.view import View
from ops.commands import kits
from ops.commands.supervise import Supervisor, SystemdNodes
from ops.run.plan import Plan, Step
from ops.run.waiting import START_AT_MOST_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The broker that a playbook is about. name: in the inventory. address: ``host:port``, as in the list.

    ssh: SSH address of its host, "" on a local cluster. sudo: the SSH user is not root.
    standby, standby_sudo: the same for the other host of its mirror, "" where it has none.
    """

    name: str
    address: str
    agent_port: int
    ssh: str = ""
    sudo: bool = False
    standby: str = ""
    standby_sudo: bool = False

    @property
    def facts(self) -> dict[str, Any]:
        """The values that a journal keeps beside the name: the inventory may not know the broker any more."""
        known = {"address": self.address, "agent_port": self.agent_port}
        known |= {"ssh": self.ssh, "sudo": self.sudo} if self.ssh else {}
        other = {"standby": self.standby, "standby_sudo": self.standby_sudo}
        return known | (other if self.standby else {})


# 5,000 queues are declared and settled in 5 min on a slow disk.
TOPOLOGY_WITHIN_S = 600.0
# Clients fetch the list at least every 30 s, and are dropped from the agents' view after 90 s.
CLIENTS_WITHIN_S = 120.0
PUBLISHES_WITHIN_S = 10.0


def plan(target: Target, view: View, nodes: Supervisor) -> Plan:
    """Plan the addition of a broker. nodes: starts and stops of brokers and agents."""
    name = target.name
    made = Step(
        name=f"make node {name}",
        commands=nodes.provision(name),
        until="it is in the inventory",
        check=lambda: "" if view.node(name) else "it is not",
        undo=nodes.forget(name),
        undo_guard=checks.unused(view, name, target.address),
    )
    return Plan(
        name=f"add {name}",
        steps=(
            made,
            *started(target, view, nodes),
            *joined(target, view),
            *listed(target, view),
            *ready(target, view),
        ),
    )


def started(target: Target, view: View, nodes: Supervisor) -> tuple[Step, ...]:
    """Return steps that start broker and agent."""
    name = target.name
    return (
        dataclasses.replace(
            booted(name, view, nodes),
            # What is forgotten afterwards is empty by its own word, as in `remove`.
            undo=(
                *nodes.start_broker(name),
                *nodes.shut(name, target.address),
                *nodes.stop_broker(name),
            ),
            undo_guard=checks.unused(view, name, target.address),
        ),
        Step(
            name=f"start the agent of {name}",
            commands=nodes.start_agent(name),
            undo=nodes.stop_agent(name),
        ),
    )


def booted(name: str, view: View, nodes: Supervisor) -> Step:
    return Step(
        name=f"start broker {name}",
        commands=nodes.start_broker(name),
        until="it answers",
        check=checks.answers(view, name),
        within_s=START_AT_MOST_S,
        silent_within_s=START_AT_MOST_S,
    )


def joined(target: Target, view: View) -> tuple[Step, ...]:
    """Return steps that give the broker the list and the topology; it takes no publishes yet."""
    name = target.name
    return (
        Step(
            name=f"tell {name} of the others",
            commands=(kits.lists(view.file, "push", without=view.absent.agents),),
            until="every agent serves the list as it is",
            check=checks.agents_serve_the_list(view),
        ),
        Step(
            name=f"hold publishers back from {name}",
            commands=(kits.ops(view.file, "hold", name),),
            until="its agent says so",
            check=checks.holds_back(view, name),
        ),
        topology(name, view),
    )


def topology(name: str, view: View) -> Step:
    return Step(
        name=f"bring the topology to {name}",
        until="everything is there and settled, and the gate is open",
        check=checks.topology_is_there(view, name),
        within_s=TOPOLOGY_WITHIN_S,
        proof=lambda: (
            f"{plural(len(view.agents.settled(name)['queues']), 'queue')} of {name} settled"
        ),
    )


def list_brought(name: str, view: View) -> Step:
    """Make the step that pushes the list. name: name of the step, which is unique in its plan."""
    return Step(
        name=name,
        commands=(kits.lists(view.file, "push", without=view.absent.agents),),
        until="every agent serves it",
        check=checks.agents_serve_the_list(view),
    )


def listed(target: Target, view: View) -> tuple[Step, ...]:
    """Return steps after which every client knows the broker, and consumes there as elsewhere."""
    name, address = target.name, target.address
    return (
        Step(
            name=f"put {name} on the list",
            commands=(
                kits.lists(view.file, "add", address, "--agent-port", str(target.agent_port)),
            ),
            done=lambda: address in view.listed.names,
            undo=(
                # Publishers are held back from it.
                kits.lists(view.file, "remove", address, "--if-needed", FORCE),
                kits.lists(view.file, "push", without=view.absent.agents),
            ),
        ),
        list_brought(f"bring the list with {name} to every agent", view),
        Step(
            name=f"wait for the clients at {name}",
            until="all have applied the list, and consume there as they do elsewhere",
            check=checks.applied_and_attached(view, name),
            within_s=CLIENTS_WITHIN_S,
            proof=lambda: checks.clients_at_generation(view),
        ),
        Step(
            name=f"compare the topology of {name} with the others",
            until="its agent knows whatever any agent knows",
            check=checks.knows_the_topology(view, name),
        ),
    )


def ready(target: Target, view: View) -> tuple[Step, ...]:
    """Return steps that send publishers to the broker."""
    name, absent = target.name, view.absent.balancers
    return (
        Step(
            name=f"send publishers to {name}",
            commands=(
                kits.quotas(
                    view.file, without=view.absent.brokers, without_agents=view.absent.agents
                ),
                kits.lb(view.file, "apply", without=absent),
                kits.lb(view.file, "ready", name, without=absent),
            ),
            guard=checks.listed_ready(view, target.address),
            until="its gate is open and its agent says ready",
            check=checks.takes_publishes(view, name),
            is_final=True,
        ),
        Step(
            name=f"verify that publishes arrive at {name} and are consumed",
            until="both are seen",
            check=checks.publishes_arrive(view, name),
            within_s=PUBLISHES_WITHIN_S,
            may_fail=True,
        ),
    )


def bootstrap(
    names: Iterable[str],
    view: View,
    nodes: SystemdNodes,
    *,
    balancers: Mapping[str, str],
) -> Plan:
    """Plan the first start. names: all brokers. balancers: name -> the SSH address of its host."""
    names = list(names)
    return Plan(
        name="bootstrap cluster",
        steps=(
            Step(
                name="see that there is no cluster yet",
                until="no agent answers",
                check=checks.nobody_answers(view),
            ),
            Step(
                name="write the first list",
                commands=(kits.ops(view.file, "inventory", "first-list"),),
                until="it names every broker",
                check=checks.lists_all(view),
            ),
            *(
                Step(name=f"let the agent of {name} begin", commands=nodes.genesis(name))
                for name in names
            ),
            *(booted(name, view, nodes) for name in names),
            *(
                Step(name=f"start the agent of {name}", commands=nodes.start_agent(name))
                for name in names
            ),
            list_brought("bring the list to every agent", view),
            *(topology(name, view) for name in names),
            Step(
                name="start the balancers",
                commands=(
                    kits.lb(view.file, "apply"),
                    *(nodes.start_balancer(host) for host in balancers.values()),
                ),
            ),
            Step(
                name="send publishers to all",
                commands=tuple(kits.lb(view.file, "ready", name) for name in names),
                until="every gate is open and every agent says ready",
                check=checks.all_ready(view),
            ),
        ),
    )
