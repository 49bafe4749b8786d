"""The files on a host of a mirror: DRBD's resource, fencing, and programs that playbooks call there. Pure.

Nothing here is secret: the key of the fencing handler is made on its host and never leaves it.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path

from inventory.files import Templates
from inventory.inventory import Host, Inventory, Mirror
from ops.provision.wanted import WantedFile

PROGRAMS = "/usr/local/lib/messagebus"
"""Folder on every host of a mirror, with the programs of ops/mirror/on_host/."""
FENCE_KEY = "/etc/messagebus/fence/id_ed25519"
KNOWN_PEERS = "/etc/messagebus/fence/known_hosts"
_SOURCES = Path(__file__).with_name("on_host")
_NAMES = ("check-disk", "fence-peer", "move-address", "outdate-mirror", "same-node", "settle")


def _endpoint(address: str, port: int) -> str:
    if ipaddress.ip_address(address).version == 6:
        return f"ipv6 [{address}]:{port}"
    return f"{address}:{port}"


_TEMPLATES = Templates("ops.mirror", endpoint=_endpoint)


def partner(inventory: Inventory, mirror: Mirror, host: Host) -> Host:
    """Return the other host of the mirror."""
    return inventory.host(next(name for name in mirror.hosts if name != host.name))


def files(inventory: Inventory, mirror: Mirror, host: Host) -> tuple[WantedFile, ...]:
    """Return all files that this host needs for the mirror, in the order in which they are written."""
    names = {
        "mirror": mirror,
        "host": host,
        "peer": partner(inventory, mirror, host),
        "hosts": [inventory.host(name) for name in mirror.hosts],
        "fence_peer": f"{PROGRAMS}/fence-peer",
    }
    programs = (
        WantedFile(path=Path(PROGRAMS, name), text=(_SOURCES / name).read_text(), mode=0o755)
        for name in _NAMES
    )
    return (
        *programs,
        # Without the module drbdadm takes every resource file for one of DRBD 9, and refuses ours.
        WantedFile(path=Path("/etc/modules-load.d/messagebus-drbd.conf"), text="drbd\n"),
        WantedFile(
            path=Path(f"/etc/messagebus/mirrors/{mirror.name}.fence"),
            text=_TEMPLATES.render("mirror.fence.j2", names),
        ),
        WantedFile(
            path=Path(f"/etc/drbd.d/{mirror.name}.res"),
            text=_TEMPLATES.render("mirror.res.j2", names),
        ),
    )


def authorized_line(peer: Host, public_key: str) -> str:
    """Return root's authorized key: it lets the peer outdate this host's data, and nothing else.

    public_key: as ``ssh-keygen`` wrote it; its comment is replaced, so that it is found again.
    """
    kind, key = public_key.split()[:2]
    return f'restrict,command="{PROGRAMS}/outdate-mirror" {kind} {key} messagebus-fence-{peer.name}'


def proof_of_death(mirror: str, host: str) -> str:
    """Return the file that tells the fencing handler that a host is dead; a boot deletes it."""
    return f"/run/messagebus/dead/{mirror}.{host}"
