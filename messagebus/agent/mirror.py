"""The mirror of the broker's disk as DRBD 8.4 shows it in /proc/drbd, in three numbers for an alert.

Looks, and decides nothing: what to do is for `ops storage`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from messagebus.agent.metrics import Figure

__all__ = ["PROC", "MirrorState", "figures_of_mirror", "look", "read"]

PROC = Path("/proc/drbd")
_LINE = r"^\s*{minor}: cs:(\w+)(?: ro:\w+/\w+ ds:(\w+)/(\w+))?"


@dataclass(frozen=True, slots=True)
class MirrorState:
    """copies: disks that are up to date, 0 to 2; 1 is a single copy.

    connected: the hosts talk. alone: this host does not even try to: after a split brain, or by order.
    """

    copies: int
    connected: bool
    alone: bool


def look(device: str, proc: Path = PROC) -> MirrorState | None:
    """At the device of this path, ``/dev/drbd0``. None: DRBD knows no such device."""
    try:
        return read(proc.read_text(), device)
    except OSError:
        return None


def read(text: str, device: str) -> MirrorState | None:
    minor = re.search(r"\d+$", device)
    found = re.search(_LINE.format(minor=minor[0] if minor else "-"), text, re.MULTILINE)
    if not found or found[2] is None:
        return None
    link, *disks = found.groups()
    return MirrorState(
        copies=disks.count("UpToDate"),
        connected=link not in ("StandAlone", "WFConnection", "Unconnected", "Disconnecting"),
        alone=link == "StandAlone",
    )


def figures_of_mirror(device: str, proc: Path = PROC) -> Iterator[Figure]:
    """None for no device; a device that DRBD does not know has no copy."""
    if device:
        seen = look(device, proc) or MirrorState(copies=0, connected=False, alone=False)
        yield Figure("mirror_copies", "Disks that are up to date.", seen.copies)
        yield Figure("mirror_connected", "1 while both hosts talk.", seen.connected)
        yield Figure("mirror_alone", "1 after a split brain, or when cut by order.", seen.alone)
