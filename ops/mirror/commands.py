"""Commands for one mirror on one of its hosts: DRBD 8.4, as drbd-utils 9 drives it. Pure.

mirror: name of the mirror and of the DRBD resource.
"""

from __future__ import annotations

from pathlib import Path

Argv = tuple[str, ...]


def load_module() -> Argv:
    return ("modprobe", "drbd")


def signatures(disk: Path) -> Argv:
    """Print the signatures on the disk, one a line; nothing where it is blank."""
    return ("wipefs", "--no-act", "--noheadings", "--output", "TYPE", str(disk))


def create_metadata(mirror: str) -> Argv:
    """Write metadata over the end of the disk, without asking: look at its signatures before."""
    return _adm("create-md", "--force", mirror)


def adjust(mirror: str) -> Argv:
    """Make the kernel's settings those of the file; brings the mirror up where it is down."""
    return _adm("adjust", mirror)


def events(mirror: str) -> Argv:
    """Print the mirror's whole state at this moment, in words of DRBD 9. `status` leaves things out."""
    return ("drbdsetup", "events2", "--now", "--statistics", mirror)


def generations(mirror: str) -> Argv:
    """Print the generation of the host's data, and those before it. Also where the mirror is down."""
    return _adm("get-gi", mirror)


def promote(mirror: str) -> Argv:
    """Promote this host. DRBD refuses without up-to-date data, and the fencing handler without a proof."""
    return _adm("primary", mirror)


def promote_first(mirror: str) -> Argv:
    """Promote this host and declare its data the good ones, whatever they are. For a new mirror."""
    return _adm("primary", "--force", mirror)


def demote(mirror: str) -> Argv:
    return _adm("secondary", mirror)


def connect(mirror: str, *, discard_my_data: bool = False) -> Argv:
    """Connect to the peer.

    discard_my_data: give up the data that only this host has; DRBD refuses it on a primary.
    """
    return _adm("connect", *(("--discard-my-data",) if discard_my_data else ()), mirror)


def disconnect(mirror: str) -> Argv:
    return _adm("disconnect", mirror)


def thaw(mirror: str) -> Argv:
    """Let writes go on, whatever is known of the peer: it must be dead."""
    return _adm("resume-io", mirror)


def clear_bitmap(mirror: str) -> Argv:
    """Declare the two disks of a new mirror alike, instead of copying one to the other."""
    return _adm("new-current-uuid", "--clear-bitmap", f"{mirror}/0")


def verify(mirror: str) -> Argv:
    """Begin to compare the disks, block by block; differences are marked, and copied by a reconnect."""
    return _adm("verify", mirror)


def set_rate(mirror: str, rate: str) -> Argv:
    """Set bytes per second of resync and verify, until the next adjust. rate: as ``40M``."""
    return _adm("disk-options", f"--resync-rate={rate}", mirror)


def _adm(word: str, *rest: str) -> Argv:
    return ("drbdadm", word, *rest)
