"""The host of a mirror that writes: how one becomes primary, and how it hands over.

`ops.mirror.state.may_promote` decides whether a promotion may lose data, before the first step, and again
after the proof of the other's death and an operator's time to think.
"""

from __future__ import annotations

from functools import partial

from inventory.inventory import Host
from ops.commands import hosts, kits
from ops.commands.hosts import on
from ops.errors import NoAnswer
from ops.mirror import commands
from ops.mirror.files import partner, proof_of_death
from ops.mirror.records import record_alone
from ops.mirror.state import Refused, may_promote
from ops.mirror.view import MirrorView
from ops.provision.wanted import STATE
from ops.run.plan import Blocked, Command, Plan, Step, as_check

PROMOTE_WITHIN_S = 60.0
POWER_WITHIN_S = 120.0
# The settings of the connection call it lost after 4 s.
NOTICE_WITHIN_S = 30.0
# The handler asks once a second, and waits up to 20 s for an answer by SSH.
HANDLER_WITHIN_S = 25.0


def promotion(
    view: MirrorView, host: Host, *, is_dead: bool, power: bool, given_up: bool, force: bool
) -> tuple[Step, ...]:
    """Return steps that make a host primary; a part of other playbooks, which end with `alone_noted`.

    The record that the host goes on alone is written before it does: its peer, which lacks its writes, may be
    the only one that can be asked later.

    is_dead: the other host is dead, by an operator's word. power: it has a power controller, which is asked.
    given_up: changes that only the other has may be lost. force: as given_up, with data here marked as
    outdated.
    """
    other = partner(view.inventory, view.mirror, host)
    proof = proof_of_death(view.name, other.name)
    steps = []
    if power:
        steps.append(
            Step(
                name=f"switch {other.name} off",
                commands=(Command(hosts.power(other.power, "off", other.name)),),
                until="its power controller says off",
                check=_is_off(view, other),
                within_s=POWER_WITHIN_S,
            )
        )
    if power or is_dead:
        steps.append(
            Step(
                name=f"tell {host.name} that {other.name} is dead",
                commands=on([host], hosts.say_dead(proof)),
                undo=on([host], hosts.forget_death(proof)),
            )
        )
    steps.append(
        Step(
            name=f"see that {host.name} may be promoted",
            until="it has noticed that it is alone, and loses nothing"
            if power or is_dead
            else "so",
            check=_may_promote(view, host, is_dead=power or is_dead, given_up=given_up),
            within_s=NOTICE_WITHIN_S,
        )
    )
    steps.append(_noted(view, host, f"write down that {host.name} goes on alone, if it does"))
    steps.append(
        Step(
            name=f"promote {host.name}",
            commands=on([host], (commands.promote_first if force else commands.promote)(view.name)),
            done=lambda: view.status(host).role == "Primary",
            until="it is primary, and its writes are not frozen",
            check=view.has_role(host, "Primary"),
            within_s=PROMOTE_WITHIN_S,
            is_final=True,
        )
    )
    return tuple(steps)


def alone_noted(view: MirrorView, host: Host) -> Step:
    """Make the step that adds to the record which data a host has alone; for after the promotion.

    Nothing waits for it: until it is done the record says of no data that the peer has them.
    """
    return _noted(view, host, f"write down what {host.name} has alone")


def _noted(view: MirrorView, host: Host, name: str) -> Step:
    """Make the step that records a host that goes on alone; it does nothing where the host has its peer."""
    call = partial(record_alone, view, host)
    return Step(
        name=name, commands=(kits.ops(view.file, "drbd", "alone", view.name, host.name, call=call),)
    )


def promote(
    view: MirrorView, host: Host, *, is_dead: bool, power: bool, given_up: bool, force: bool
) -> Plan:
    """Plan to make one host primary; see `promotion`."""
    steps = promotion(view, host, is_dead=is_dead, power=power, given_up=given_up, force=force)
    forgotten = (proof_forgotten(view, host),) if is_dead or power else ()
    steps = (*steps, alone_noted(view, host), *forgotten)
    return Plan(name=f"drbd promote {view.name}", steps=steps)


def proof_forgotten(view: MirrorView, host: Host) -> Step:
    """Make the step that deletes the proof of death, which is valid for one run.

    A peer that is back and lost again is then outdated, not taken for dead.
    """
    other = partner(view.inventory, view.mirror, host)
    return Step(
        name="forget the proof",
        commands=on([host], hosts.forget_death(proof_of_death(view.name, other.name))),
    )


def demote(view: MirrorView, host: Host) -> Plan:
    """Plan to make a host secondary. One that has its disk mounted refuses, and nothing is changed."""
    step = Step(
        name=f"demote {host.name}",
        commands=on([host], commands.demote(view.name)),
        until="it is secondary",
        check=view.has_role(host, "Secondary"),
    )
    return Plan(name=f"drbd demote {view.name}", steps=(step,))


def thaw(view: MirrorView, host: Host) -> Plan:
    """Plan to let writes of the primary go on: its partner is dead, by an operator's word."""
    other = partner(view.inventory, view.mirror, host)
    return Plan(
        name=f"drbd thaw {view.name}",
        steps=(
            _noted(view, host, f"write down that {host.name} goes on alone"),
            Step(
                name=f"tell {host.name} that {other.name} is dead",
                commands=on([host], hosts.say_dead(proof_of_death(view.name, other.name))),
                until="its fencing handler has asked",
                check=view.has_role(host, "Primary"),
                within_s=HANDLER_WITHIN_S,
                may_fail=True,
            ),
            Step(
                name=f"let the writes of {host.name} go on",
                commands=on([host], commands.thaw(view.name)),
                done=lambda: not view.status(host).frozen,
                until="they do",
                check=view.has_role(host, "Primary"),
            ),
            alone_noted(view, host),
            proof_forgotten(view, host),
        ),
    )


def leaving(view: MirrorView, host: Host, *, agent: bool) -> tuple[Step, ...]:
    """Return steps that take the broker from a host, in order; they can be undone.

    agent: the host runs an agent.
    """
    mirror = view.mirror
    units = (*((hosts.AGENT_UNIT,) if agent else ()), hosts.BROKER_UNIT)
    moved = mirror.address
    return (
        Step(
            name=f"stop the broker on {host.name}",
            commands=on([host], *(hosts.service("stop", unit) for unit in units)),
            undo=on([host], *(hosts.service("start", unit) for unit in reversed(units))),
        ),
        Step(
            name=f"take {moved or 'nothing else'} from {host.name}",
            commands=on([host], hosts.address("drop", moved)) if moved else (),
            undo=on([host], hosts.address("take", moved)) if moved else (),
        ),
        *((_state_left(view, host),) if agent else ()),
        Step(
            name=f"unmount the disk on {host.name}",
            commands=on([host], hosts.unmount(mirror.mount)),
            done=lambda: not view.succeeds(host, hosts.is_mounted(mirror.mount)),
            undo=on([host], hosts.mount(mirror.device, mirror.mount)),
        ),
        Step(
            name=f"demote {host.name}",
            commands=on([host], commands.demote(mirror.name)),
            until="it is secondary",
            check=view.has_role(host, "Secondary"),
            undo=on([host], commands.promote(mirror.name)),
        ),
    )


def _state_left(view: MirrorView, host: Host) -> Step:
    folder = view.mirror.mount
    return Step(
        name=f"take the agent's state from {host.name}",
        commands=on([host], hosts.unmount_state()),
        done=lambda: not view.succeeds(host, hosts.is_mounted(STATE)),
        undo=on([host], hosts.mount_state(folder)),
    )


def state_brought(view: MirrorView, host: Host) -> Step:
    """Make the step that mounts the agent's state from the mirrored disk."""
    folder = view.mirror.mount
    return Step(
        name=f"bring the agent's state to {host.name}",
        commands=on([host], hosts.agent_folder(folder), hosts.mount_state(folder)),
        done=lambda: view.succeeds(host, hosts.is_mounted(STATE)),
        undo=on([host], hosts.unmount_state()),
    )


@as_check
def _may_promote(view: MirrorView, host: Host, *, is_dead: bool, given_up: bool) -> str:
    """Check that the host may be promoted, again after the proof and the operator's confirmation."""
    peer = partner(view.inventory, view.mirror, host).name
    sides = view.sides()
    here, there = sides[host.name], sides[peer]
    if isinstance(here, NoAnswer):
        return str(here)
    if is_dead and here.role != "Primary" and here.is_connected:
        return f"{host.name} is still connected to {peer}: {here}"
    verdict = may_promote(
        here,
        None if isinstance(there, NoAnswer) else there,
        peer=peer,
        peer_is_dead=is_dead,
        given_up=peer if given_up else "",
        alone=view.alone,
    )
    if isinstance(verdict, Refused) and not here.is_passing:
        raise Blocked(verdict.reason)
    return verdict.reason if isinstance(verdict, Refused) else ""


@as_check
def _is_off(view: MirrorView, host: Host) -> str:
    answer = view.power_of(host)
    return "" if answer == "off" else f"its power controller says {answer!r}"
