"""Playbooks that take a broker out and bring the same one back: restart, upgrade and replacement.

Restart, one broker after the other, with nothing lost and nothing doubled: deliveries that consumers hold
without an answer come again when their broker stops under them. So each broker is taken off the list before,
which consumers follow in an orderly way, and put on it afterwards; messages in its queues stay there
meanwhile. The order, for each: publishers leave, consumers disconnect (`remove` without waiting for it to be
empty), stop, start, the gate, then as in `add`. The next one begins when this one takes publishes again.

Upgrade: brokers share nothing, so it is a removal and an addition. The broker is drained to empty as in
`remove`, installed with an empty disk, and brought in as in `add`. It stays in the inventory, which gets the
version. Other brokers may have other versions meanwhile, for any length of time. Whether the version can be
installed is looked at first: a wrong one would show when the broker is drained and erased.

Replacement of a broker that is dead for good by a new, empty one. The messages on its disk are lost; where it
has a mirror, `ops.mirror.failover` promotes that instead. The order:

1. Nothing answers there, its host has no process of it, and all that may be left of it is stopped: an old
   broker that came back beside the new one would have its address.
2. The list and the balancer forget it, so that no client dials it and the other agents are a majority by
   themselves.
3. A new node of the same name is made, while still nothing answers there, and brought in as in `add`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from inventory.serving import FORCE
from ops.cluster import checks
from ops.cluster.absent import has_ended
from ops.cluster.view import View
from ops.commands import kits
from ops.commands.supervise import Supervisor
from ops.playbooks import add, remove
from ops.playbooks.add import Target
from ops.playbooks.remove import Drain
from ops.run.plan import Plan, Step
from ops.run.runner import Runner


def restart(
    targets: Iterable[Target],
    view: View,
    nodes: Supervisor,
    how: Drain,
    *,
    name: str,
) -> Plan:
    """Plan the restarts. name: name of the plan and of its journal."""
    steps = [step for target in targets for step in _restarted(target, view, nodes, how)]
    return Plan(name=name, steps=tuple(steps))


def _restarted(target: Target, view: View, nodes: Supervisor, how: Drain) -> tuple[Step, ...]:
    name = target.name
    return (
        remove.others_serve(target, view, how),
        *remove.unpublished(target, view, how),
        *remove.released(target, view, how),
        Step(
            name=f"see that {name} on its host is the one at its addresses",
            # A run may have been interrupted at its stop.
            commands=(*nodes.start_broker(name), *nodes.named(name, target.address)),
            is_fresh=True,
            until="both call themselves so",
            check=checks.is_itself(view, name),
        ),
        Step(
            name=f"stop broker {name}",
            commands=nodes.stop_broker(name),
            guard=checks.others_serve(view, {name}, wanted=how.serving_min),
            until="nothing listens at its addresses",
            check=checks.fell_silent(view, name, *remove.ENDS),
        ),
        *_brought_in(target, view, nodes),
    )


def upgrade(
    target: Target, view: View, nodes: Supervisor, how: Drain, *, version: str = ""
) -> Plan:
    """Plan the upgrade. version: that of RabbitMQ's package; "" for the one in its host's package sources."""
    name = target.name
    return Plan(
        name=f"upgrade {name}",
        steps=(
            Step(
                name=f"see that the package can be installed on every host of {name}",
                commands=nodes.installable(name, version),
                only_looks=True,
            ),
            remove.others_serve(target, view, how),
            *remove.unpublished(target, view, how),
            *remove.drained(target, view, how),
            *remove.released(target, view, how),
            *remove.stopped_empty(target, view, nodes, how),
            remove.erased(
                f"reinstall {name}, empty", target, view, nodes, nodes.reinstall(name, version)
            ),
            Step(
                name=f"write down the version of {name}",
                commands=(kits.ops(view.file, "inventory", "version", name, version),)
                if version
                else (),
            ),
            *_brought_in(target, view, nodes),
        ),
    )


def replace(
    target: Target,
    view: View,
    nodes: Supervisor,
    *,
    kept: Path,
    runner: Runner,
    version: str = "",
) -> Plan:
    """Plan the replacement. kept: file that holds its entry of the inventory meanwhile.

    runner: asks its host for what runs there. version: as in `upgrade`.
    """
    name, address = target.name, target.address
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
                guard=has_ended(nodes.broker_state(name), runner),
            ),
            Step(
                name=f"take {name} off the list",
                # It is dead, however few others take publishes.
                commands=(kits.lists(view.file, "remove", address, FORCE),),
                done=lambda: address not in view.listed.names,
                is_final=True,
            ),
            Step(
                name=f"take {name} out of the balancer",
                commands=(
                    kits.ops(view.file, "inventory", "drop", name, "--keep", str(kept)),
                    kits.lb(view.file, "apply", without=view.absent.balancers),
                ),
            ),
            add.list_brought(f"bring the list without {name} to every agent", view),
            Step(
                name=f"enter {name} again",
                commands=(kits.ops(view.file, "inventory", "put", str(kept)),),
            ),
            Step(
                name=f"recreate node {name}, empty",
                commands=nodes.reinstall(name, version),
                guard=checks.every(
                    checks.off_the_list(view, name, address), checks.is_dead(view, name)
                ),
            ),
            *_brought_in(target, view, nodes),
        ),
    )


def _brought_in(target: Target, view: View, nodes: Supervisor) -> tuple[Step, ...]:
    return (
        *add.started(target, view, nodes),
        *add.joined(target, view),
        *add.listed(target, view),
        *add.ready(target, view),
    )
