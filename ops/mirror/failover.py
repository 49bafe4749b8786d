"""Move of a broker to the other host of its mirror: because its host died, or back home.

The order is part of the correctness:

1. The old host is dead, proved by its power controller or an operator's word, or it hands over in good
   order. A silent host proves nothing: two hosts that both write are the one fault that a mirror
   cannot mend.
2. Then the new host is promoted. DRBD asks the fencing handler, which wants the same proof, and refuses
   a host whose data are outdated.
3. The file system is checked before it is mounted, and mounted before the broker starts: a broker
   that found an empty folder would start as a new one.
4. The broker starts under the same node name, or not at all, and at the same address. With consumers
   only: its agent holds publishers back until an operator says `lb ready`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from inventory.inventory import Host
from inventory.serving import FORCE
from ops.cluster.view import View
from ops.commands import hosts, kits
from ops.commands.hosts import on
from ops.mirror import commands
from ops.mirror.files import partner
from ops.mirror.promotion import (
    alone_noted,
    leaving,
    promotion,
    proof_forgotten,
    state_brought,
)
from ops.mirror.records import record_host
from ops.mirror.view import MirrorView, amqp_answers
from ops.playbooks import add
from ops.run.plan import Plan, Step
from ops.run.waiting import START_AT_MOST_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """The arrival of a broker. consume_only: publishers are held back from it.

    agent: the hosts run agents. absent: names of the balancers that are dead.
    """

    consume_only: bool
    agent: bool
    absent: Iterable[str] = ()


def failover(
    view: MirrorView,
    host: Host,
    how: Arrival,
    *,
    is_dead: bool,
    power: bool,
    given_up: bool,
    force: bool,
) -> Plan:
    """Plan the start of the broker on `host`, whose partner is dead; see `promotion`."""
    return Plan(
        name=f"storage failover {view.name}",
        steps=(
            *promotion(view, host, is_dead=is_dead, power=power, given_up=given_up, force=force),
            *_arriving(view, host, how, alone_noted(view, host)),
            proof_forgotten(view, host),
        ),
    )


def start(view: MirrorView, host: Host, how: Arrival) -> Plan:
    """Plan the start of the broker on `host`: the mirror is new, or both hosts were switched off."""
    alone = {"is_dead": False, "power": False, "given_up": False, "force": False}
    return Plan(
        name=f"storage start {view.name}",
        steps=(
            *promotion(view, host, **alone),
            *_arriving(view, host, how, alone_noted(view, host)),
        ),
    )


def stop(view: MirrorView, host: Host, how: Arrival) -> Plan:
    """Plan to stop the broker and release its disk, so that the host may be switched off."""
    return Plan(name=f"storage stop {view.name}", steps=leaving(view, host, agent=how.agent))


def failback(view: MirrorView, host: Host, how: Arrival) -> Plan:
    """Plan the move of the broker to `host` from its partner, both alive and the mirror whole."""
    here = partner(view.inventory, view.mirror, host)
    return Plan(
        name=f"storage failback {view.name}",
        steps=(
            *leaving(view, here, agent=how.agent),
            Step(
                name=f"promote {host.name}",
                commands=on([host], commands.promote(view.name)),
                done=lambda: view.status(host).role == "Primary",
                until="it is primary, and its writes are not frozen",
                check=view.has_role(host, "Primary"),
                undo=on([host], commands.demote(view.name)),
            ),
            *_arriving(view, host, how),
        ),
    )


def _arriving(view: MirrorView, host: Host, how: Arrival, *after: Step) -> tuple[Step, ...]:
    """Return the steps with which a broker arrives. after: steps for which it need not wait."""
    mirror, name = view.mirror, view.name
    mounted = ("findmnt", "--source", str(mirror.device), "--target", str(mirror.mount))
    steps = [
        Step(
            name=f"check the file system, and mount it on {host.name}",
            commands=on(
                [host], hosts.check_disk(mirror.device), hosts.mount(mirror.device, mirror.mount)
            ),
            done=lambda: view.succeeds(host, mounted),
            undo=on([host], hosts.unmount(mirror.mount)),
        ),
        *((state_brought(view, host),) if how.agent else ()),
        Step(
            name=f"bring {mirror.address or 'no address'} to {host.name}",
            commands=on([host], hosts.address("take", mirror.address)) if mirror.address else (),
            undo=on([host], hosts.address("drop", mirror.address)) if mirror.address else (),
        ),
        Step(
            name=f"start broker {name} on {host.name}",
            commands=on(
                [host], hosts.same_node(mirror.mount), hosts.service("start", hosts.BROKER_UNIT)
            ),
            until="it speaks AMQP",
            check=amqp_answers(view),
            within_s=START_AT_MOST_S,
            undo=on([host], hosts.service("stop", hosts.BROKER_UNIT)),
        ),
        Step(
            name=f"write down that {name} runs on {host.name}",
            commands=(
                kits.ops(
                    *(view.file, "inventory", "move", name, host.name),
                    call=partial(record_host, view, host),
                ),
            ),
            is_final=True,
        ),
    ]
    if how.agent:
        steps.extend(_agent_started(view, host, how))
    steps.extend(after)
    if how.agent:
        # Last, because it succeeds only when every agent serves the list, those of other brokers too.
        steps.append(add.list_brought("bring the list to every agent", View(view.file)))
    return tuple(steps)


def _agent_started(view: MirrorView, host: Host, how: Arrival) -> tuple[Step, Step]:
    mirror, name = view.mirror, view.name
    order = (
        kits.ops(view.file, "hold", name, FORCE)
        if how.consume_only
        else kits.lb(view.file, "ready", name, without=how.absent)
    )
    return (
        Step(
            name=f"start the agent of {name} on {host.name}",
            commands=on(
                [host],
                # The cookie is on the disk: this host's own cookie of before differs.
                hosts.hand_over_cookie(mirror.mount),
                hosts.service("start", hosts.AGENT_UNIT),
            ),
        ),
        Step(
            name=f"{'hold publishers back from' if how.consume_only else 'send publishers to'} {name}",
            commands=(order,),
        ),
    )
