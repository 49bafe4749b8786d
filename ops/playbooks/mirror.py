"""The two disks of a mirror: made, promoted, connected, compared, and brought together again.

What may lose data is decided before the first step, by `ops.drbd.may_promote` and by what the operator
named; the steps check that it still holds where that can change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from lb.inventory import Host
from ops.commands import drbd, hosts
from ops.commands.hosts import on
from ops.commands.paths import kit
from ops.drbd import COMPARING, No, Status, may_promote
from ops.errors import NoAnswer
from ops.mirror_files import partner, proof_of_death
from ops.mirrors import MirrorView
from ops.plan import Plan
from ops.step import Blocked, Check, Command, Step

__all__ = [
    "connect",
    "create",
    "demote",
    "disconnect",
    "leaving",
    "new_disk",
    "promote",
    "promotion",
    "rate",
    "resolve",
    "thaw",
    "verify",
]

CONNECT_WITHIN_S = 60.0
PROMOTE_WITHIN_S = 60.0
# 10 TB at 100 MB/s take 28 hours.
COPY_WITHIN_S = 48 * 3600.0
POWER_WITHIN_S = 120.0
# The settings of the connection say lost after 4 s.
NOTICE_WITHIN_S = 30.0
# It asks once a second, and for an answer by SSH up to 20 s.
HANDLER_WITHIN_S = 25.0


def create(view: MirrorView, file: Path, *, skip_sync: bool, erase: Sequence[Host]) -> Plan:
    """Steps that make a new mirror on two disks, with a file system, mounted on the first host.

    erase: hosts whose disk holds something that the operator gave up by the exact phrase.
    """
    mirror, (home, standby) = view.mirror, view.hosts
    both = (home, standby)
    name = mirror.name
    steps = (
        Step(name=f"set up the hosts of {name}", commands=_kit(file, "install", name)),
        Step(
            name="load DRBD",
            commands=on(both, drbd.load_module()),
        ),
        *(
            Step(
                name=f"erase what is on {host.name}:{mirror.disk}",
                commands=on([host], hosts.erase(mirror.disk)),
                is_final=True,
            )
            for host in erase
        ),
        Step(
            name="let no broker start by itself, or without its disk",
            commands=(
                *on(both, hosts.disable(hosts.BROKER_UNIT)),
                *on(both, hosts.close_mount_point(mirror.mount)),
            ),
        ),
        *(
            Step(
                name=f"make DRBD's metadata on {host.name}",
                commands=on([host], drbd.create_metadata(name)),
                done=_has_metadata(view, host),
                is_final=True,
            )
            for host in both
        ),
        Step(
            name="connect the two",
            commands=on(both, drbd.adjust(name)),
            until="both are connected",
            check=_is_connected(view, home),
            within_s=CONNECT_WITHIN_S,
        ),
        *(_declared_alike(view, home) if skip_sync else _copied_from(view, home)),
        Step(
            name=f"make a file system on {mirror.device}",
            commands=on([home], hosts.make_file_system(mirror.device)),
            done=_succeeds(view, home, hosts.has_file_system(mirror.device)),
        ),
        Step(
            name=f"mount it on {home.name}",
            commands=(
                *on([home], hosts.mount(mirror.device, mirror.mount)),
                *on([home], hosts.broker_folder(mirror.mount)),
            ),
            done=_succeeds(view, home, ("mountpoint", "-q", str(mirror.mount))),
        ),
        Step(
            name="wait until both disks are alike",
            until="both copies are good",
            check=view.is_whole(home),
            within_s=COPY_WITHIN_S,
        ),
    )
    return Plan(name=f"drbd create {name}", steps=steps)


def _declared_alike(view: MirrorView, home: Host) -> tuple[Step, ...]:
    return (
        Step(
            name="declare both disks alike, without copying",
            commands=on([home], drbd.clear_bitmap(view.name)),
            done=lambda: view.status(home).is_whole,
            until="both copies are good",
            check=view.is_whole(home),
        ),
        Step(
            name=f"promote {home.name}",
            commands=on([home], drbd.promote(view.name)),
            until="it is primary",
            check=view.has_role(home, "Primary"),
        ),
    )


def _copied_from(view: MirrorView, home: Host) -> tuple[Step, ...]:
    return (
        Step(
            name=f"promote {home.name}, and begin to copy its disk",
            commands=on([home], drbd.promote_first(view.name)),
            done=lambda: view.status(home).disk == "UpToDate",
            until="it is primary",
            check=view.has_role(home, "Primary"),
        ),
    )


def promotion(
    view: MirrorView, host: Host, *, is_dead: bool, power: bool, given_up: bool, force: bool
) -> tuple[Step, ...]:
    """Steps that make a host primary; a part of other playbooks.

    is_dead: the other one is, by an operator's word. power: it has a power controller, which is asked.
    given_up: what only the other has may be lost. force: and the data here are marked as outdated.
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
    steps.append(
        Step(
            name=f"promote {host.name}",
            commands=on([host], (drbd.promote_first if force else drbd.promote)(view.name)),
            done=lambda: view.status(host).role == "Primary",
            until="it is primary, and its writes are not frozen",
            check=view.has_role(host, "Primary"),
            within_s=PROMOTE_WITHIN_S,
            is_final=True,
        )
    )
    return tuple(steps)


def promote(
    view: MirrorView, host: Host, *, is_dead: bool, power: bool, given_up: bool, force: bool
) -> Plan:
    """Steps that make one host primary; see `promotion`."""
    steps = promotion(view, host, is_dead=is_dead, power=power, given_up=given_up, force=force)
    return Plan(name=f"drbd promote {view.name}", steps=steps)


def demote(view: MirrorView, host: Host) -> Plan:
    """A host that has its disk mounted refuses, and nothing is changed."""
    step = Step(
        name=f"demote {host.name}",
        commands=on([host], drbd.demote(view.name)),
        until="it is secondary",
        check=view.has_role(host, "Secondary"),
    )
    return Plan(name=f"drbd demote {view.name}", steps=(step,))


def connect(view: MirrorView) -> Plan:
    """Both hosts look for each other; what differs is copied from the one that has newer data."""
    home, standby = view.hosts
    step = Step(
        name="connect the two",
        commands=on([home, standby], drbd.adjust(view.name)),
        until="both copies are good",
        check=_whole_or_split(view),
        within_s=COPY_WITHIN_S,
    )
    return Plan(name=f"drbd connect {view.name}", steps=(step,))


def disconnect(view: MirrorView, host: Host) -> Plan:
    """The host that is not primary lets go, and knows from then on that its data are outdated."""
    step = Step(
        name=f"disconnect {host.name}",
        commands=on([host], drbd.disconnect(view.name)),
        until="it is alone",
        check=_has_link(view, host, "StandAlone"),
    )
    return Plan(name=f"drbd disconnect {view.name}", steps=(step,))


def verify(view: MirrorView, host: Host) -> Plan:
    """Compare the two disks, block by block, while everything runs."""
    return Plan(
        name=f"drbd verify {view.name}",
        steps=(
            Step(
                name="compare the two disks",
                commands=on([host], drbd.verify(view.name)),
                until="every block is compared",
                check=_is_compared(view, host),
                within_s=COPY_WITHIN_S,
            ),
        ),
    )


def thaw(view: MirrorView, host: Host) -> Plan:
    """Writes of the primary go on: its partner is dead, by an operator's word."""
    other = partner(view.inventory, view.mirror, host)
    return Plan(
        name=f"drbd thaw {view.name}",
        steps=(
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
                commands=on([host], drbd.thaw(view.name)),
                done=lambda: not view.status(host).frozen,
                until="they do",
                check=view.has_role(host, "Primary"),
            ),
        ),
    )


def new_disk(view: MirrorView, host: Host, *, erase: bool) -> Plan:
    """A new disk instead of a failed one, on the host that is not primary.

    erase: it holds something that the operator gave up by the exact phrase.
    """
    mirror = view.mirror
    steps = (
        Step(
            name=f"erase what is on {host.name}:{mirror.disk}",
            commands=on([host], hosts.erase(mirror.disk)) if erase else (),
        ),
        Step(
            name=f"make DRBD's metadata on {host.name}",
            commands=on([host], drbd.create_metadata(mirror.name)),
            done=_has_metadata(view, host),
        ),
        Step(
            name="copy everything to it",
            commands=on([host], drbd.adjust(mirror.name)),
            until="both copies are good",
            check=view.is_whole(host),
            within_s=COPY_WITHIN_S,
        ),
    )
    return Plan(name=f"drbd disk {mirror.name}", steps=steps)


def rate(view: MirrorView, value: str) -> Plan:
    """Until the next `adjust`; the inventory's is for ever."""
    step = Step(
        name=f"copy and compare with {value} bytes a second",
        commands=on(view.hosts, drbd.set_rate(view.name, value)),
    )
    return Plan(name=f"drbd rate {view.name}", steps=(step,))


def resolve(view: MirrorView, victim: Host, *, is_primary: bool, agent: bool) -> Plan:
    """The victim gives up what only it has, and gets the other's data.

    is_primary: the victim was, when that was decided. agent: it has one.
    """
    survivor = partner(view.inventory, view.mirror, victim)
    return Plan(
        name=f"drbd resolve {view.name}",
        steps=(
            *(leaving(view, victim, agent=agent) if is_primary else ()),
            Step(
                name=f"give up what only {victim.name} has",
                commands=on(
                    [victim],
                    drbd.disconnect(view.name),
                    drbd.connect(view.name, discard_my_data=True),
                ),
                done=lambda: view.status(victim).is_connected,
                is_final=True,
            ),
            Step(
                name=f"connect {survivor.name}, and copy from it",
                commands=on([survivor], drbd.adjust(view.name)),
                until="both copies are good",
                check=view.is_whole(survivor),
                within_s=COPY_WITHIN_S,
            ),
        ),
    )


def leaving(view: MirrorView, host: Host, *, agent: bool) -> tuple[Step, ...]:
    """Steps that take the broker from a host, in order, and can be taken back.

    agent: the host has one.
    """
    mirror = view.mirror
    units = (*((hosts.AGENT_UNIT,) if agent else ()), hosts.BROKER_UNIT)
    is_mounted = _succeeds(view, host, ("mountpoint", "-q", str(mirror.mount)))
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
        Step(
            name=f"unmount the disk on {host.name}",
            commands=on([host], hosts.unmount(mirror.mount)),
            done=lambda: not is_mounted(),
            undo=on([host], hosts.mount(mirror.device, mirror.mount)),
        ),
        Step(
            name=f"demote {host.name}",
            commands=on([host], drbd.demote(mirror.name)),
            until="it is secondary",
            check=view.has_role(host, "Secondary"),
            undo=on([host], drbd.promote(mirror.name)),
        ),
    )


# --------------------------------------------------------------------------- commands, checks
def _kit(file: Path, *words: str) -> tuple[Command, ...]:
    return (kit("ops", "drbd", *words, "--inventory", str(file)),)


def _has_metadata(view: MirrorView, host: Host) -> Callable[[], bool]:
    return lambda: view.status(host).generations is not None


def _succeeds(view: MirrorView, host: Host, argv: tuple[str, ...]) -> Callable[[], bool]:
    return lambda: view.succeeds(host, argv)


def _is_connected(view: MirrorView, host: Host) -> Check:
    def check() -> str:
        status = view.status(host)
        return "" if status.is_connected else str(status)

    return check


def _has_link(view: MirrorView, host: Host, link: str) -> Check:
    def check() -> str:
        status = view.status(host)
        return "" if status.link == link else str(status)

    return check


def _whole_or_split(view: MirrorView) -> Check:
    def check() -> str:
        sides = view.sides()
        if view.is_split():
            raise Blocked(f"split brain: `python -m ops drbd resolve {view.name}`")
        faults = [str(side) for side in sides.values() if isinstance(side, NoAnswer)]
        statuses = [side for side in sides.values() if isinstance(side, Status)]
        late = [str(status) for status in statuses if not status.is_whole]
        return "; ".join([*faults, *late])

    return check


def _may_promote(view: MirrorView, host: Host, *, is_dead: bool, given_up: bool) -> Check:
    """Looked at again after the proof, and after an operator thought about it."""
    peer = partner(view.inventory, view.mirror, host).name

    def check() -> str:
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
        )
        if isinstance(verdict, No) and not here.is_passing:
            raise Blocked(verdict.reason)
        return verdict.reason if isinstance(verdict, No) else ""

    return check


def _is_compared(view: MirrorView, host: Host) -> Check:
    def check() -> str:
        status = view.status(host)
        return str(status) if status.link in COMPARING else ""

    return check


def _is_off(view: MirrorView, host: Host) -> Check:
    def check() -> str:
        said = view.power_of(host)
        return "" if said == "off" else f"its power controller says {said!r}"

    return check
