"""Remove a broker while everything runs, with nothing lost and nothing doubled.

The order is part of the correctness:

1. The list marks it as draining: publishers that follow the list leave by themselves. Consumers stay.
2. Its agent asks the balancer to send nobody there. Whoever still has a connection that may publish
   after a while is hung up on: such a publisher finds another broker.
   Connections are in the statistics late, too: "nobody" is looked at twice.
3. With nobody publishing, the consumers empty it, and delayed messages come out when their time
   comes. Counts show the past, so "empty" is looked at twice, more than one statistics interval
   apart, and then tried with a basic.get.
4. The list names it no more; consumers let go. Nothing that they gave back may be left behind, so
   it is looked at again.
5. The balancer forgets it, and it is stopped.
"""

from __future__ import annotations

from pathlib import Path

from ops import checks
from ops.commands import balancer, lists
from ops.commands.paths import kit
from ops.commands.supervise import Supervisor
from ops.plan import Plan
from ops.playbooks.target import Target
from ops.step import Step
from ops.view import View

__all__ = ["plan"]

# Publishers that follow the list move within a second or two; others renew after minutes.
LEAVE_WITHIN_S = 15.0
HANG_UP_WITHIN_S = 30.0
EMPTY_WITHIN_S = 3600.0
CLIENTS_WITHIN_S = 120.0


def plan(
    target: Target,
    inventory: Path,
    view: View,
    nodes: Supervisor,
    *,
    statistics_s: float,
    delayed: tuple[int, float] = (0, 0.0),
) -> Plan:
    """Steps that take a broker out.

    statistics_s: how far its counts may lag. delayed: how many delayed messages it has now, and for how
    many seconds at most they wait.
    """
    name, address = target.name, target.address
    where = ("--inventory", str(inventory))
    return Plan(
        name=f"remove {name}",
        steps=(
            Step(
                name=f"mark {name} as draining in the list",
                commands=(lists.drain(inventory, address),),
                done=lambda: _is_draining(view, address),
                # While the list says draining, so does the agent.
                undo=(
                    lists.ready(inventory, address),
                    lists.push(inventory),
                    balancer.ready(inventory, name),
                ),
            ),
            Step(
                name="bring that list to every agent",
                commands=(lists.push(inventory),),
                until="every agent serves it",
                check=checks.agents_serve_the_list(view),
            ),
            Step(
                name=f"send no publishers to {name}",
                commands=(balancer.drain(inventory, name),),
            ),
            Step(
                name=f"wait for publishers to leave {name}",
                until="nobody is connected who may publish, looked at twice",
                check=checks.left_by_publishers(view, name, interval_s=statistics_s),
                within_s=LEAVE_WITHIN_S,
                may_fail=True,
            ),
            Step(
                name=f"hang up on the publishers that are left on {name}",
                commands=(kit("ops", "hangup", name, *where),),
                until="nobody is connected who may publish, looked at twice",
                check=checks.left_by_publishers(view, name, interval_s=statistics_s),
                within_s=HANG_UP_WITHIN_S,
            ),
            Step(
                name=f"wait until {name} is empty",
                until=_empty(*delayed),
                check=checks.Emptying(view, name, interval_s=statistics_s),
                within_s=EMPTY_WITHIN_S + delayed[1],
            ),
            Step(
                name=f"take {name} off the list",
                commands=(lists.remove(inventory, address),),
                done=lambda: address not in view.listed.names,
                is_final=True,
            ),
            Step(
                name=f"bring the list without {name} to every agent",
                commands=(lists.push(inventory),),
                until="every agent serves it",
                check=checks.agents_serve_the_list(view),
            ),
            Step(
                name=f"wait for the clients to let go of {name}",
                until="all have applied the list, and none is connected there",
                check=checks.left_by_clients(view, name, interval_s=statistics_s),
                within_s=CLIENTS_WITHIN_S,
            ),
            Step(
                name=f"see that nothing is left on {name}",
                until="every queue is empty, counted twice and tried",
                check=checks.Emptying(view, name, interval_s=statistics_s),
            ),
            Step(
                name=f"take {name} out of the balancer",
                commands=(
                    kit("ops", "inventory", "drop", name, *where),
                    balancer.apply(inventory),
                ),
            ),
            Step(name=f"stop broker {name}", commands=nodes.stop_broker(name)),
            Step(name=f"stop the agent of {name}", commands=nodes.stop_agent(name)),
            Step(name=f"clear node {name} away", commands=nodes.forget(name)),
        ),
    )


def _empty(delayed: int, longest_s: float) -> str:
    what = "every queue is empty, counted twice and tried"
    if not delayed:
        return what
    return f"{what}, {delayed:,} delayed messages too, which takes {checks.in_words(longest_s)} at most"


def _is_draining(view: View, address: str) -> bool:
    entry = view.listed.find(address)
    return entry is not None and entry.draining
