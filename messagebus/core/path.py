"""The path of a message through sites: whether it is forwarded to the next one, and never round and round.

Decides; sends nothing. A *site* is one bus, with its own brokers and list; its name is the cluster's.
A forwarder leads from one site to another and writes the site that it leads from into the header ``mb-path``
of each message. A message goes on only to a site that it has not been at. So it takes each path without a
repeated site at most once, reaches every site that forwarders lead to, and every circle of forwarders ends.

The path is believed as far as it does harm to nobody: who writes a wrong one keeps their own message from
being forwarded, and one that cannot be read counts as none and is replaced.
"""

from __future__ import annotations

import enum
import re

PATH_HEADER = "mb-path"
"""Header: names of the sites that forwarded the message, with commas between them, the first site first."""
HOPS_MAX = 16
# As of a cluster in a consumer list.
_SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# Of HOPS_MAX names of 64 characters. A longer text was not written by a forwarder.
_CHARS_MAX = HOPS_MAX * 65

Path = tuple[str, ...]


class Way(enum.Enum):
    """Decision about a message that a forwarder has received."""

    ON = "on"
    """It is forwarded."""
    BACK = "back"
    """It has been at the next site, or comes to this one again: it is answered and goes nowhere."""
    FAR = "far"
    """It has been forwarded as often as is allowed: it is answered and goes nowhere."""


def is_site(name: str) -> bool:
    """Return whether a name can be that of a site."""
    return _SITE.fullmatch(name) is not None


def read_path(value: object) -> Path:
    """Read the header of a message. Returns () for a message of this site, and for an unreadable one."""
    if not isinstance(value, str) or not value or len(value) > _CHARS_MAX:
        return ()
    names = tuple(value.split(","))
    return names if len(names) <= HOPS_MAX and all(map(is_site, names)) else ()


def way_on(path: Path, here: str, there: str, hops_max: int = HOPS_MAX) -> Way:
    """Return what happens to a message with this path at a forwarder from here to there.

    The path has `here` where a site goes by two names: such a circle ends at its second round.
    """
    if here in path or there in path:
        return Way.BACK
    return Way.FAR if len(path) >= hops_max else Way.ON


def longer(path: Path, here: str) -> str:
    """Return the header of a message that is forwarded from here."""
    return ",".join((*path, here))
