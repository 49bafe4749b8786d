"""The two disks of a mirror: hosts set up, disks made, connected, compared, and brought together again.

Decisions that may lose data are made before the first step, by the names that the operator gave. The setup of
hosts writes their files, and their keys for each other; it touches no disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from inventory import shell
from inventory.inventory import Host
from ops.commands import hosts, kits
from ops.commands.hosts import on
from ops.errors import NoAnswer
from ops.mirror import commands
from ops.mirror.files import FENCE_KEY, KNOWN_PEERS, authorized_line, files, partner
from ops.mirror.promotion import leaving, proof_forgotten, state_brought
from ops.mirror.state import COMPARING, Status
from ops.mirror.view import MirrorView
from ops.provision.hosts import Root
from ops.provision.wanted import WantedFile
from ops.run.plan import Blocked, Plan, Step, as_check

CONNECT_WITHIN_S = 60.0
# 10 TB at 100 MB/s take 28 hours.
COPY_WITHIN_S = 48 * 3600.0


def create(view: MirrorView, *, skip_sync: bool, erase: Mapping[str, str], agent: bool) -> Plan:
    """Plan a new mirror on two disks, with a file system, mounted on the first host.

    The broker's address is taken there, too: `ops bootstrap` and `ops add` find a host like any other.
    erase: host -> what its disk holds, which the operator gave up by the exact phrase.
    agent: the hosts run agents.
    """
    mirror, (home, standby) = view.mirror, view.hosts
    both = (home, standby)
    name = mirror.name
    steps = (
        Step(
            name=f"set up the hosts of {name}",
            commands=(kits.ops(view.file, "drbd", "install", name),),
        ),
        Step(name="load DRBD", commands=on(both, commands.load_module())),
        *_make_metadata(view, erase),
        Step(
            name="connect the two",
            commands=on(both, commands.adjust(name)),
            until="both are connected",
            check=_is_connected(view, home),
            within_s=CONNECT_WITHIN_S,
        ),
        *(_declared_alike(view, home) if skip_sync else _copied_from(view, home)),
        *_mounted(view, home),
        *((state_brought(view, home),) if agent else ()),
        Step(
            name=f"bring {mirror.address or 'no address'} to {home.name}",
            commands=on([home], hosts.address("take", mirror.address)) if mirror.address else (),
        ),
        Step(
            name="wait until both disks are alike",
            until="both copies are good",
            check=view.is_whole(home),
            within_s=COPY_WITHIN_S,
        ),
    )
    return Plan(name=f"drbd create {name}", steps=steps)


def _make_metadata(view: MirrorView, erase: Mapping[str, str]) -> tuple[Step, ...]:
    """Return the steps that give both disks to DRBD. erase: as of `create`."""
    mirror, both = view.mirror, view.hosts
    return (
        *(
            Step(
                name=f"erase what is on {host.name}:{mirror.disk}",
                commands=on([host], hosts.erase(mirror.disk)),
                guard=_holds(view, host, erase[host.name]),
                is_final=True,
            )
            for host in both
            if host.name in erase
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
                commands=on([host], commands.create_metadata(mirror.name)),
                done=_has_metadata(view, host),
                guard=_holds(view, host),
                is_final=True,
            )
            for host in both
        ),
    )


def _mounted(view: MirrorView, home: Host) -> tuple[Step, ...]:
    """Return the steps that make a file system on the mirror, and mount it on its home."""
    mirror = view.mirror
    return (
        Step(
            name=f"make a file system on {mirror.device}",
            commands=on([home], hosts.make_file_system(mirror.device)),
            done=lambda: view.succeeds(home, hosts.has_file_system(mirror.device)),
        ),
        Step(
            name=f"mount it on {home.name}",
            commands=(
                *on([home], hosts.mount(mirror.device, mirror.mount)),
                *on([home], hosts.broker_folder(mirror.mount)),
            ),
            done=lambda: view.succeeds(home, hosts.is_mounted(mirror.mount)),
        ),
    )


def _declared_alike(view: MirrorView, home: Host) -> tuple[Step, ...]:
    return (
        Step(
            name="declare both disks alike, without copying",
            commands=on([home], commands.clear_bitmap(view.name)),
            done=lambda: view.status(home).is_whole,
            until="both copies are good",
            check=view.is_whole(home),
        ),
        Step(
            name=f"promote {home.name}",
            commands=on([home], commands.promote(view.name)),
            until="it is primary",
            check=view.has_role(home, "Primary"),
        ),
    )


def _copied_from(view: MirrorView, home: Host) -> tuple[Step, ...]:
    return (
        Step(
            name=f"promote {home.name}, and begin to copy its disk",
            commands=on([home], commands.promote_first(view.name)),
            done=lambda: view.status(home).disk == "UpToDate",
            until="it is primary",
            check=view.has_role(home, "Primary"),
        ),
    )


def connect(view: MirrorView) -> Plan:
    """Plan a connection of both hosts; differences are copied from the one that has newer data."""
    home, standby = view.hosts
    step = Step(
        name="connect the two",
        commands=(
            # An interrupted or abandoned run may have called a host dead that is here again.
            *proof_forgotten(view, home).commands,
            *on([home], commands.adjust(view.name)),
            *proof_forgotten(view, standby).commands,
            *on([standby], commands.adjust(view.name)),
        ),
        until="both copies are good",
        check=_whole_or_split(view),
        within_s=COPY_WITHIN_S,
    )
    return Plan(name=f"drbd connect {view.name}", steps=(step, _check_whole(view)))


def disconnect(view: MirrorView, host: Host) -> Plan:
    """Plan to disconnect the host that is not primary; from then on it knows that its data are outdated."""
    return Plan(name=f"drbd disconnect {view.name}", steps=(_disconnected(view, host),))


def verify(view: MirrorView, host: Host) -> Plan:
    """Plan to compare the two disks, block by block, while everything runs."""
    return Plan(
        name=f"drbd verify {view.name}",
        steps=(
            Step(
                name="compare the two disks",
                commands=on([host], commands.verify(view.name)),
                until="every block is compared",
                check=_is_compared(view, host),
                within_s=COPY_WITHIN_S,
            ),
        ),
    )


def new_disk(view: MirrorView, host: Host, *, erase: Mapping[str, str]) -> Plan:
    """Plan a new disk instead of a failed one, on the host that is not primary. erase: as in `create`."""
    mirror = view.mirror
    steps = (
        Step(
            name=f"erase what is on {host.name}:{mirror.disk}",
            commands=on([host], hosts.erase(mirror.disk)) if host.name in erase else (),
            guard=_holds(view, host, erase[host.name]) if host.name in erase else None,
        ),
        Step(
            name=f"make DRBD's metadata on {host.name}",
            commands=on([host], commands.create_metadata(mirror.name)),
            done=_has_metadata(view, host),
            guard=_holds(view, host),
        ),
        Step(
            name="copy everything to it",
            commands=on([host], commands.adjust(mirror.name)),
            until="both copies are good",
            check=view.is_whole(host),
            within_s=COPY_WITHIN_S,
        ),
        _check_whole(view),
    )
    return Plan(name=f"drbd disk {mirror.name}", steps=steps)


@as_check
def _holds(view: MirrorView, host: Host, given_up: str = "") -> str:
    """Check that the disk of a host holds nothing, or what was given up, at this moment."""
    disk = view.mirror.disk
    holds = held(view.output_of(host, commands.signatures(disk)))
    return (
        ""
        if holds in ("", given_up)
        else f"{host.name}:{disk} holds {holds}, which no option permits to destroy"
    )


def held(signatures: str) -> str:
    """Return what a disk holds, in the words of the phrase that gives it up; "" for a blank one."""
    return " and ".join(signatures.split())


def rate(view: MirrorView, value: str) -> Plan:
    """Plan another rate of copying, until the next `adjust`; the inventory's rate is permanent."""
    step = Step(
        name=f"copy and compare with {value} bytes a second",
        commands=on(view.hosts, commands.set_rate(view.name, value)),
    )
    return Plan(name=f"drbd rate {view.name}", steps=(step,))


def resolve(view: MirrorView, victim: Host, *, is_primary: bool, agent: bool) -> Plan:
    """Plan the end of a split brain: the victim gives up its own changes, and gets the other's data.

    is_primary: the victim was primary at the decision. agent: it runs an agent.
    """
    survivor = partner(view.inventory, view.mirror, victim)
    return Plan(
        name=f"drbd resolve {view.name}",
        steps=(
            *(leaving(view, victim, agent=agent) if is_primary else ()),
            _disconnected(view, victim),
            Step(
                name=f"give up what only {victim.name} has",
                commands=on([victim], commands.connect(view.name, discard_my_data=True)),
                done=lambda: view.status(victim).is_connected,
                is_final=True,
            ),
            Step(
                name=f"connect {survivor.name}, and copy from it",
                commands=on([survivor], commands.adjust(view.name)),
                until="both copies are good",
                check=view.is_whole(survivor),
                within_s=COPY_WITHIN_S,
            ),
            _check_whole(view),
        ),
    )


def _disconnected(view: MirrorView, host: Host) -> Step:
    """Disconnect a host.

    Where the host is alone already, the kernel does not know the connection, and refuses.
    """
    return Step(
        name=f"disconnect {host.name}",
        commands=on([host], commands.disconnect(view.name)),
        done=lambda: view.status(host).link == "StandAlone",
        until="it is alone",
        check=_has_link(view, host, "StandAlone"),
    )


def _check_whole(view: MirrorView) -> Step:
    """Make the step that records that no host goes on alone any more."""
    return Step(
        name="see that both hosts say so",
        commands=(kits.ops(view.file, "drbd", "status", view.name),),
    )


def _has_metadata(view: MirrorView, host: Host) -> Callable[[], bool]:
    return lambda: view.status(host).generations is not None


@as_check
def _is_connected(view: MirrorView, host: Host) -> str:
    status = view.status(host)
    return "" if status.is_connected else str(status)


@as_check
def _has_link(view: MirrorView, host: Host, link: str) -> str:
    status = view.status(host)
    return "" if status.link == link else str(status)


@as_check
def _whole_or_split(view: MirrorView) -> str:
    sides = view.sides()
    if view.is_split():
        raise Blocked(f"split brain: `python -m ops drbd resolve {view.name}`")
    faults = [str(side) for side in sides.values() if isinstance(side, NoAnswer)]
    statuses = [side for side in sides.values() if isinstance(side, Status)]
    late = [str(status) for status in statuses if not status.is_whole]
    return "; ".join([*faults, *late])


@as_check
def _is_compared(view: MirrorView, host: Host) -> str:
    status = view.status(host)
    return str(status) if status.link in COMPARING else ""


AUTHORIZED_KEYS = Path("/root/.ssh/authorized_keys")
HOST_KEY = "/etc/ssh/ssh_host_ed25519_key.pub"


def set_up(view: MirrorView) -> None:
    """Set up both hosts; a second call changes nothing.

    Raises CommandFailed, HostUnreachable, SudoRefused.
    """
    with ThreadPoolExecutor(2) as pool:
        home, standby = view.hosts
        of_home, of_standby = pool.map(lambda host: _furnish(view, host), view.hosts)
        list(pool.map(_acquaint, view.hosts, (standby, home), (of_standby, of_home)))


@contextmanager
def _as_root(host: Host) -> Iterator[Root]:
    with shell.remote(host.ssh) as remote:
        yield Root(remote, host=host.name, sudo=host.sudo)


def _furnish(view: MirrorView, host: Host) -> tuple[str, str]:
    """Write the host's files. Returns its host key, and the key of its fencing handler; both public."""
    with _as_root(host) as root:
        for each in files(view.inventory, view.mirror, host):
            root.write(each)
        if not root.ask(("cat", f"{FENCE_KEY}.pub")).startswith("ssh-"):
            root.run(("install", "-d", "-m", "700", str(Path(FENCE_KEY).parent)))
            root.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", FENCE_KEY))
        return root.run(("cat", HOST_KEY)), root.run(("cat", f"{FENCE_KEY}.pub"))


def _acquaint(host: Host, peer: Host, keys: tuple[str, str]) -> None:
    """Write the peer's keys on a host, and allow the peer's fencing handler to log in, for that alone."""
    with _as_root(host) as root:
        _write_keys(root, peer, *keys)


def _write_keys(root: Root, peer: Host, host_key: str, fence_key: str) -> None:
    kind, key = host_key.split()[:2]
    known = f"{peer.name} {kind} {key}\n"
    root.write(WantedFile(path=Path(KNOWN_PEERS), text=known, mode=0o600))
    line = authorized_line(peer, fence_key)
    root.run(("install", "-d", "-m", "700", str(AUTHORIZED_KEYS.parent)))
    root.run(("touch", str(AUTHORIZED_KEYS)))
    has = root.run(("cat", str(AUTHORIZED_KEYS))).splitlines()
    kept = [each for each in has if not each.endswith(f" {line.split()[-1]}")]
    if has != [*kept, line]:
        text = "\n".join([*kept, line]) + "\n"
        root.write(WantedFile(path=AUTHORIZED_KEYS, text=text, mode=0o600))
