"""Commands that change HAProxy, and whom it sends publishers to. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ops.commands.kits import kit
from ops.run.plan import Command

__all__ = ["apply", "drain", "hold", "ready"]


def apply(inventory: Path, absent: Iterable[str] = ()) -> Command:
    """Make HAProxy's configuration that of the inventory; it reloads when that changes.

    absent: balancers that are dead: what can be written on their hosts is.
    """
    return _lb(inventory, "apply", *_without(absent))


def drain(inventory: Path, name: str, absent: Iterable[str] = ()) -> Command:
    """The broker's agent asks publishers to stay away, and HAProxy is seen to heed it.

    absent: balancers that are dead, of which nothing is seen.
    """
    return _lb(inventory, "drain", name, *_without(absent))


def ready(inventory: Path, name: str, absent: Iterable[str] = ()) -> Command:
    """The opposite of `drain` and `hold`."""
    return _lb(inventory, "ready", name, *_without(absent))


def hold(inventory: Path, name: str) -> Command:
    """Do as `drain`, for a broker that HAProxy does not know yet."""
    return kit("ops", "hold", name, "--inventory", str(inventory))


def _without(absent: Iterable[str]) -> list[str]:
    return [word for name in sorted(absent) for word in ("--without", name)]


def _lb(inventory: Path, *words: str) -> Command:
    return kit("lb", "--inventory", str(inventory), *words)
