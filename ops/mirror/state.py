"""The state of a mirror by DRBD 8.4, as values, and the decisions that it allows. Pure.

A state is read from ``drbdsetup events2 --now --statistics``, which reports the connection in words of
DRBD 9. It is shown in those of 8.4, which operators find in ``drbdadm cstate`` and /proc/drbd. It is never
read from ``drbdadm status``: for a mirror without a connection that shows one healthy host, so that a split
brain looks like nothing. An 8.4 kernel refuses JSON, and DRBD 9 has states that are not here.

Generations (``drbdadm get-gi``) tell which host has newer data: a random number that changes
when a host begins to write alone, with the numbers before it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from ops.errors import OpsError

DOWN = "Unconfigured"
"""The link of a mirror that the kernel does not know."""

# Connections of DRBD 9 -> those of 8.4. Where both are connected, the replication's word is the state.
_LINKS = {"Connecting": "WFConnection"}
_ESTABLISHED = {"Established": "Connected", "Off": "WFReportParams"}
# Set up between both: data are alike, being copied, or being compared.
CONNECTED = frozenset(
    {"Connected", "SyncSource", "SyncTarget", "PausedSyncS", "PausedSyncT", "VerifyS", "VerifyT"}
)
COPYING = frozenset({"SyncSource", "SyncTarget", "PausedSyncS", "PausedSyncT"})
COMPARING = frozenset({"VerifyS", "VerifyT"})
APART = frozenset({"StandAlone", "WFConnection"})
"""Links that stay as they are until something is done; a link in none of these sets passes by itself."""


class UnexpectedOutput(OpsError):
    """Raised when DRBD's output is not that of version 8.4; look at the output."""


@dataclass(frozen=True, slots=True)
class Generations:
    """Generations of a host's data. current: that of the data now.

    base: the peer's when they parted; "" while neither is ahead.
    history: those before, newest first. was_up_to_date: by the flags on the disk.
    """

    current: str
    base: str
    history: tuple[str, ...]
    was_up_to_date: bool


_NONE = 0
_JUST_CREATED = 4
_GENERATIONS = re.compile(r"[0-9A-F]{16}(:[0-9A-F]{16}){3}(:[0-9]){7}")


def parse_generations(text: str) -> Generations | None:
    """Parse the output of ``drbdadm get-gi``. Returns None for a disk without metadata. Raises Bad."""
    line = text.strip().splitlines()[-1].strip() if text.strip() else ""
    if not line:
        return None
    if not _GENERATIONS.fullmatch(line):
        raise UnexpectedOutput(f"generations: {line!r}")
    current, base, *rest = (_bare(word) for word in line.split(":")[:4])
    flags = line.split(":")[4:]
    return Generations(
        current=current,
        base=base,
        history=tuple(each for each in rest if each),
        was_up_to_date=flags[0] == "1" and flags[1] == "1",
    )


def _bare(number: str) -> str:
    """Clear the lowest bit, which says whether the host was primary. Returns "" for no generation."""
    value = int(number, 16) & ~1
    return f"{value:016X}" if value not in (_NONE, _JUST_CREATED) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """The record of a host that wrote without its peer; kept until both were seen whole.

    since: the day and time. generation: that of its writes; "" where that is not known, or not yet.
    """

    host: str
    since: str
    generation: str = ""


class Relation(Enum):
    """The relation of this host's data to the other's."""

    SAME = auto()
    AHEAD = auto()
    BEHIND = auto()
    SPLIT = auto()
    """Both went on alone from the same data."""
    FOREIGN = auto()
    """Never the same, or too long ago to know."""
    EMPTY = auto()
    """One of the two never had data."""


def relation(here: Generations, there: Generations) -> Relation:
    """Compare generations as DRBD does at each connection (drbd_uuid_compare), in its order."""
    if not here.current or not there.current:
        return Relation.EMPTY
    if here.current == there.current:
        return Relation.SAME
    if there.current in (here.base, *here.history):
        return Relation.AHEAD
    if here.current in (there.base, *there.history):
        return Relation.BEHIND
    old = {here.base, *here.history} - {""}
    return Relation.SPLIT if old & {there.base, *there.history} else Relation.FOREIGN


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """One host's side of a mirror. The words are DRBD 8.4's; "Unknown" and "DUnknown" where none is known.

    link: state of the connection, or DOWN. frozen: why writes wait, "" when they do not.
    out_of_sync_kib: known differences. size_kib: size of the disk.
    generations: None where they were not asked for, or there are none.
    """

    link: str
    role: str = "Unknown"
    peer_role: str = "Unknown"
    disk: str = "DUnknown"
    peer_disk: str = "DUnknown"
    frozen: str = ""
    out_of_sync_kib: int = 0
    size_kib: int = 0
    generations: Generations | None = None

    @property
    def is_up(self) -> bool:
        return self.link != DOWN

    @property
    def is_connected(self) -> bool:
        return self.link in CONNECTED

    @property
    def is_passing(self) -> bool:
        """True while the mirror changes from one state to another by itself."""
        return self.is_up and self.link not in CONNECTED | APART

    @property
    def is_whole(self) -> bool:
        """True where there are two good copies, and every write reaches both."""
        both = self.disk == self.peer_disk == "UpToDate"
        return both and self.is_connected and not self.frozen

    @property
    def done_percent(self) -> float:
        """The part of the disk that is copied, in percent."""
        if not self.size_kib:
            return 100.0
        return 100.0 * (1 - self.out_of_sync_kib / self.size_kib)

    def __str__(self) -> str:
        if not self.is_up:
            return "down"
        words = [self.link, f"{self.role}/{self.peer_role}", f"{self.disk}/{self.peer_disk}"]
        if self.frozen:
            words.append(f"FROZEN ({self.frozen})")
        if self.link in COPYING:
            words.append(f"{self.done_percent:.0f} % done")
        elif self.out_of_sync_kib:
            words.append(f"{self.out_of_sync_kib:,} KiB differ")
        return "  ".join(words)


def parse_events(text: str, generations: Generations | None = None) -> Status:
    """Parse the output of ``drbdsetup events2 --now`` for one mirror. Raises Bad."""
    found: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        what, kind, *pairs = line.split() or [""] * 2
        if what == "exists" and kind != "-":
            if kind in found:
                raise UnexpectedOutput(
                    f"more than one {kind}, which an 8.4 kernel does not have: {line!r}"
                )
            found[kind] = dict(_pair(word) for word in pairs)
    if "resource" not in found:
        return Status(link=DOWN, generations=generations)
    resource, device = found["resource"], found.get("device", {})
    connection, peer = found.get("connection", {}), found.get("peer-device", {})
    return Status(
        link=_link(connection.get("connection", "StandAlone"), peer.get("replication", "Off")),
        role=resource["role"],
        peer_role=connection.get("role", "Unknown"),
        disk=device.get("disk", "Diskless"),
        peer_disk=peer.get("peer-disk", "DUnknown"),
        frozen=resource.get("suspended", "no").replace("no", "", 1),
        out_of_sync_kib=int(peer.get("out-of-sync", 0)),
        size_kib=int(device.get("size", 0)),
        generations=generations,
    )


def _pair(word: str) -> tuple[str, str]:
    key, colon, value = word.partition(":")
    if not colon:
        raise UnexpectedOutput(f"events2: {word!r}")
    return key, value


def _link(connection: str, replication: str) -> str:
    if connection == "Connected":
        return _ESTABLISHED.get(replication, replication)
    return _LINKS.get(connection, connection)


def is_split(sides: Mapping[str, Status]) -> bool:
    """Return whether both hosts went on alone.

    Generations show it before the two have met again. Two primaries are a split, too, even if
    each believes that the other is outdated. Two that are connected have settled it: while
    one copies from the other, their generations look like those of a split.
    """
    if len(sides) != 2:
        return False
    here, there = sides.values()
    if here.role == there.role == "Primary":
        return True
    if not {here.link, there.link} <= APART | {DOWN}:
        return False
    if here.generations is None or there.generations is None:
        return False
    return relation(here.generations, there.generations) is Relation.SPLIT


@dataclass(frozen=True, slots=True)
class Allowed:
    """The verdict that no write is lost, or only writes that the operator gave up by name."""

    def __bool__(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Refused:
    """The verdict that writes may be lost. reason: one line, and the remedy."""

    reason: str

    def __bool__(self) -> bool:
        return False


Verdict = Allowed | Refused

_TO_BE_KNOWN = (
    "prove that {peer} is dead (its power controller, or an operator's word), or reach it"
)
_GIVE_UP = "to give up what only {peer} has, name it"


def may_promote(
    here: Status,
    there: Status | None,
    *,
    peer: str,
    peer_is_dead: bool = False,
    given_up: str = "",
    alone: Alone | None = None,
) -> Verdict:
    """Return whether all writes that were ever confirmed survive the promotion of this host.

    there: the peer's own state; None where it cannot be asked, which proves nothing. A peer that is
        down, and whose generations cannot be read, proves nothing either.
    peer: its name. peer_is_dead: proved by a power controller, or by an operator's word.
    given_up: the peer's name, typed by an operator who knows that changes that only it has are lost.
    alone: the host that went on alone, as far as operators know. It counts where the peer cannot be asked.
    """
    if not here.is_up:
        return Refused("the mirror is down here; bring it up first")
    if there is None and given_up != peer and (reason := lacks(here, alone, peer=peer)):
        return Refused(reason)
    if here.role == "Primary":
        if there and there.role == "Primary":
            return Refused(f"{peer} is primary, too: resolve the split brain")
        return Allowed()
    if there and there.role == "Primary":
        return Refused(f"{peer} is primary; demote it first")
    if here.is_passing:
        return Refused(f"the connection is {here.link}, which passes; look again")
    if here.link in CONNECTED:
        return _with_a_peer(here, peer)
    return _alone(here, there, peer, peer_is_dead, given_up == peer)


def lacks(here: Status, alone: Alone | None, *, peer: str) -> str:
    """Return why this host lacks writes of its peer alone; "" where it has them, or there are none."""
    if alone is None or alone.host != peer:
        return ""
    mine = here.generations
    if mine and alone.generation in ({mine.current, mine.base, *mine.history} - {""}):
        return ""
    return (
        f"{peer} went on alone on {alone.since}, and was not seen whole with this host since:"
        f" reach it, or {_GIVE_UP.format(peer=peer)}"
    )


def _with_a_peer(here: Status, peer: str) -> Verdict:
    if here.peer_role == "Primary":
        return Refused(f"{peer} is primary; demote it first")
    if here.disk == "UpToDate":
        return Allowed()
    if here.link in COPYING:
        return Refused(f"the data here are {here.disk}; wait until they are copied from {peer}")
    if here.disk == here.peer_disk == "Inconsistent":
        return Refused("neither host ever had data; create the mirror")
    return Refused(
        f"the data here are {here.disk}, those of {peer} are {here.peer_disk}; promote {peer}"
    )


def _alone(
    here: Status, there: Status | None, peer: str, peer_is_dead: bool, is_given_up: bool
) -> Verdict:
    if here.disk not in ("UpToDate", "Outdated", "Consistent"):
        return Refused(f"the data here are {here.disk}; there is nothing to go on with")
    between = _between(here, there)
    if between in (Relation.SPLIT, Relation.FOREIGN) and not is_given_up:
        return Refused(f"{peer} has data that this host never had: resolve the split brain")
    if between is Relation.BEHIND and not is_given_up:
        return Refused(f"{peer} has newer data; promote it, or {_GIVE_UP.format(peer=peer)}")
    if here.disk == "UpToDate" and here.peer_disk in ("Outdated", "Inconsistent"):
        return Allowed()  # the peer cannot have gone on: it knows that it must not
    if there is None and not peer_is_dead:
        return Refused(f"nothing is known of {peer}; {_TO_BE_KNOWN.format(peer=peer)}")
    if there and not there.is_up and there.generations is None and not is_given_up:
        return Refused(
            f"{peer} answers, and nothing is known of its data: bring the mirror up there, "
            f"or {_GIVE_UP.format(peer=peer)}"
        )
    if is_given_up:
        return Allowed()
    if between in (Relation.SAME, Relation.AHEAD) and here.disk == "UpToDate":
        return Allowed()
    if here.disk == "UpToDate" and here.link == "WFConnection":
        # Until the connection broke this host had every write, and without outdating it the peer
        # confirmed none afterwards: its writes were frozen.
        return Allowed()
    return Refused(
        f"{here.disk} and {here.link}: {peer} may have gone on alone; "
        f"bring it back, or {_GIVE_UP.format(peer=peer)}"
    )


def _between(here: Status, there: Status | None) -> Relation | None:
    if here.generations is None or there is None or there.generations is None:
        return None
    return relation(here.generations, there.generations)
