"""Removal of a broker while everything runs, with nothing lost and nothing doubled.

The order is part of the correctness:

1. The list marks it as draining: publishers that follow the list leave by themselves. Consumers stay.
2. Its agent asks the balancer to send no publisher there. Connections that may publish and are still
   there after a while are closed: such a publisher finds another broker.
   Connections are in the statistics late, too: "nobody" is looked at twice.
3. With nobody publishing, the consumers empty it, and delayed messages come out when their time
   comes. Counts show the past, so "empty" is looked at twice, more than one statistics interval
   apart, and then tried with a basic.get. The connection of a consumer that keeps deliveries without an
   answer for too long is closed: another worker gets them.
4. The list names it no more; consumers disconnect. A client that does not is disconnected. Messages
   that they gave back must not be left behind, so the queues are looked at again.
   Messages that nobody reads, parked and delayed ones go to the other brokers only now (`moves`): no
   consumer is left that could take them meanwhile.
5. On its host the node of that name, by its own word, shuts its doors and counts its messages once more:
   whoever dials it directly, past list and balancer, is confirmed nothing after that count. Its addresses
   must take no connection then, so they are those of the node on that host.
6. It is stopped, and cleared away: only if nobody listens at its addresses, no served list
   names it, no balancer sends publishers there, and none of its files has changed since.
   The balancer forgets it.

The number of other brokers that the inventory demands (`serving_min`) must take publishes: this is checked
first, before each step that keeps publishers away, and again before the stop.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from ops.cluster import checks
from ops.cluster.emptying import HELD_WITHIN_S, Emptying, all_read, in_words
from ops.cluster.view import View
from ops.commands import kits
from ops.commands.supervise import Supervisor
from ops.playbooks import add
from ops.playbooks.add import Target
from ops.run.plan import Command, Plan, Step

# The addresses of a broker, which its agent's is none of.
ENDS = ("address", "management")
# Publishers that follow the list move within a second or two; others renew after minutes.
LEAVE_WITHIN_S = 20.0
HANG_UP_WITHIN_S = 30.0
EMPTY_WITHIN_S = 3600.0
CLIENTS_WITHIN_S = 120.0
STATE_WITHIN_S = 120.0
MOVED_LAGS = 4
# Enough for a broker's disk full of messages, at a few thousand a second.
MOVE_WITHIN_S = 6 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Options of emptying a broker.

    statistics_s: upper bound of the lag of its counts. delayed: number of its delayed messages, and the
    longest
    time in seconds that they wait. moves: messages that nobody takes go to the other brokers. held_within_s:
    time that deliveries may be kept without an answer. serving_min: other brokers that must take publishes.
    """

    statistics_s: float
    delayed: tuple[int, float] = (0, 0.0)
    moves: bool = False
    held_within_s: float = HELD_WITHIN_S
    serving_min: int = 1


def plan(target: Target, view: View, nodes: Supervisor, how: Drain) -> Plan:
    """Plan the removal of a broker."""
    name = target.name
    return Plan(
        name=f"remove {name}",
        steps=(
            others_serve(target, view, how),
            *unpublished(target, view, how),
            *drained(target, view, how),
            *released(target, view, how),
            *stopped_empty(target, view, nodes, how),
            erased(f"clear node {name} away", target, view, nodes, nodes.forget(name)),
            Step(
                name=f"take {name} out of the balancer",
                commands=(
                    kits.ops(view.file, "inventory", "drop", name),
                    kits.lb(view.file, "apply", without=view.absent.balancers),
                    kits.quotas(
                        view.file, without=view.absent.brokers, without_agents=view.absent.agents
                    ),
                ),
            ),
        ),
    )


def others_serve(target: Target, view: View, how: Drain) -> Step:
    """Make the step that checks that its agent can follow, and enough brokers are left without it."""
    wanted = how.serving_min
    return Step(
        name=f"see that others take publishes without {target.name}",
        until=f"{wanted} of them {'does' if wanted == 1 else 'do'}",
        check=checks.every(
            checks.its_agent_answers(view, target.name),
            checks.it_answers(view, target.name),
            checks.others_serve(view, {target.name}, wanted=wanted),
        ),
    )


def stopped_empty(target: Target, view: View, nodes: Supervisor, how: Drain) -> tuple[Step, ...]:
    """Return steps that stop broker and agent when nothing is in it, and seal its files."""
    name = target.name
    return (
        nothing_left(target, view, nodes, how),
        Step(
            name=f"shut the doors of {name}, and look once more",
            commands=nodes.shut(name, target.address),
            guard=checks.is_itself(view, name),
            is_fresh=True,
            until="nothing listens at its addresses",
            check=checks.fell_silent(view, name, *ENDS),
            tells=True,
        ),
        Step(
            name=f"stop broker {name}",
            commands=nodes.stop_broker(name),
            guard=checks.every(
                checks.fell_silent(view, name, *ENDS),
                checks.others_serve(view, {name}, wanted=how.serving_min),
            ),
            seal=nodes.data(name),
        ),
        Step(
            name=f"stop the agent of {name}",
            commands=nodes.stop_agent(name),
            until="nothing listens at its address",
            check=checks.fell_silent(view, name, "agent"),
        ),
    )


def erased(
    name: str, target: Target, view: View, nodes: Supervisor, commands: tuple[Command, ...]
) -> Step:
    """Make the step of this name, which erases the broker's files: unchanged since it was stopped."""
    silent = checks.fell_silent(view, target.name, *ENDS, "agent")
    return Step(
        name=name,
        commands=commands,
        guard=checks.every(
            checks.off_the_list(view, target.name, target.address),
            lambda: "" if view.has_forgotten(target.name) else silent(),
        ),
        seal=nodes.data(target.name),
        sealed_by=f"stop broker {target.name}",
    )


def unpublished(target: Target, view: View, how: Drain) -> tuple[Step, ...]:
    """Return steps after which nobody publishes to it any more; consumers go on."""
    name, address = target.name, target.address
    left = "no connected client can publish, checked twice"
    have_left = checks.left_by_publishers(view, name, interval_s=how.statistics_s)
    enough = checks.others_serve(view, {name}, wanted=how.serving_min)
    return (
        Step(
            name=f"mark {name} as draining in the list",
            commands=(kits.lists(view.file, "drain", address),),
            done=lambda: _is_draining(view, address),
            guard=enough,
            # While the list says draining, the agent says so, too.
            undo=(
                kits.lists(view.file, "ready", address, "--if-needed"),
                kits.lists(view.file, "push", without=view.absent.agents),
                kits.lb(view.file, "ready", name, without=view.absent.balancers),
            ),
        ),
        dataclasses.replace(
            add.list_brought(f"bring the list that drains {name} to every agent", view),
            guard=enough,
        ),
        # Behind the mark, so that no new topic has a home there. Consumers read there still.
        Step(
            name=f"move the partitions of {name} to other brokers",
            commands=(Command(kits.ops(view.file, "rehome", name).argv, within_s=EMPTY_WITHIN_S),),
            until="none is at home there, and all that was there is consumed",
            check=checks.is_no_home(view, name),
            tells=True,
        ),
        Step(
            name=f"send no publishers to {name}",
            commands=(kits.lb(view.file, "drain", name, without=view.absent.balancers),),
            guard=enough,
        ),
        Step(
            name=f"wait for publishers to leave {name}",
            until=left,
            check=have_left,
            within_s=LEAVE_WITHIN_S,
            may_fail=True,
        ),
        Step(
            name=f"hang up on the publishers that are left on {name}",
            commands=(kits.ops(view.file, "hangup", name),),
            until=left,
            check=have_left,
            within_s=HANG_UP_WITHIN_S,
            tells=True,
        ),
    )


def drained(target: Target, view: View, how: Drain) -> tuple[Step, ...]:
    """Return steps after which its consumers have emptied it, as far as they can."""
    name = target.name
    emptying = Emptying(
        view,
        name,
        interval_s=how.statistics_s,
        moves=how.moves,
        may_be_held=True,
        held_within_s=how.held_within_s,
    )
    wait = Step(
        name=f"wait until {name} is empty",
        until=_empty(how),
        check=emptying,
        within_s=EMPTY_WITHIN_S + (0.0 if how.moves else how.delayed[1]),
        proof=emptying.taken,
        foresees=None if how.moves else all_read(view, name),
    )
    close = Step(
        name=f"hang up on whoever keeps deliveries of {name} without an answer",
        commands=(kits.ops(view.file, "hangup", name, "--holding"),),
        done=lambda: not emptying.is_held,
        tells=True,
    )
    strictly = Emptying(
        view, name, interval_s=how.statistics_s, moves=how.moves, held_within_s=how.held_within_s
    )
    again = Step(
        name=f"wait until others have consumed the messages given back on {name}",
        until=_empty(how) if how.moves else "every queue is empty, counted twice and tried",
        check=strictly,
        within_s=EMPTY_WITHIN_S + (0.0 if how.moves else how.delayed[1]),
    )
    return wait, close, again


def released(target: Target, view: View, how: Drain) -> tuple[Step, ...]:
    """Return steps after which no client is connected to it any more."""
    name, address = target.name, target.address
    nobody = checks.nobody_is_connected(view, name, interval_s=how.statistics_s)
    off = checks.not_listed_again(view, name, address)
    return (
        Step(
            name=f"take {name} off the list",
            commands=(kits.lists(view.file, "remove", address),),
            done=lambda: address not in view.listed.names,
            is_final=True,
        ),
        add.list_brought(f"bring the list without {name} to every agent", view),
        Step(
            name=f"wait for the clients to let go of {name}",
            guard=off,
            until="all have applied the list, and none is connected there",
            check=checks.left_by_clients(view, nobody),
            within_s=CLIENTS_WITHIN_S,
            may_fail=True,
            proof=lambda: checks.clients_at_generation(view),
        ),
        Step(
            name=f"hang up on the clients that are left on {name}",
            commands=(kits.ops(view.file, "hangup", name, "--all"),),
            guard=off,
            until="no client is connected, checked twice",
            check=nobody,
            within_s=HANG_UP_WITHIN_S,
            tells=True,
        ),
    )


def nothing_left(target: Target, view: View, nodes: Supervisor, how: Drain) -> Step:
    """Make the step that checks that no message is left, and moves the rest when it is to be moved.

    A run may have been interrupted at the stop of the broker, so the step starts the broker to look.
    """
    name = target.name
    # Counts of messages that were just moved are late, and later on a busy machine.
    unread_s = MOVED_LAGS * how.statistics_s if how.moves else how.statistics_s
    emptying = Emptying(view, name, interval_s=how.statistics_s, unread_within_s=unread_s)
    move = Command(kits.ops(view.file, "move", name).argv, within_s=MOVE_WITHIN_S)
    return Step(
        name=f"see that nothing is left on {name}",
        commands=(*nodes.start_broker(name), *((move,) if how.moves else ())),
        is_fresh=True,
        until="every queue is empty, counted twice and tried",
        check=emptying,
        within_s=STATE_WITHIN_S,
        tells=how.moves,
        proof=emptying.proof,
    )


def _empty(how: Drain) -> str:
    what = "every queue is empty, counted twice and tried"
    if how.moves:
        return "only messages without consumers are left, which will be moved"
    count, longest_s = how.delayed
    if not count:
        return what
    return f"{what}, {count:,} delayed messages too, which takes {in_words(longest_s)} at most"


def _is_draining(view: View, address: str) -> bool:
    entry = view.listed.find(address)
    return entry is not None and entry.draining
