"""Commands that change HAProxy, and the brokers that it sends publishers to. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ops.commands.kits import kit
from ops.run.plan import Command

__all__ = ["apply", "drain", "hold", "ready"]


def apply(inventory: Path, absent: Iterable[str] = ()) -> Command:
    """Make HAProxy's configuration that of the inventory; it reloads when that changes.

    absent: balancers that are dead; their files are written where their hosts can be reached.
    """
    return _lb(inventory, "apply", *_without(absent))


def drain(inventory: Path, name: str, absent: Iterable[str] = ()) -> Command:
    """Make the broker's agent ask publishers to stay away, and check that HAProxy heeds it.

    absent: balancers that are dead; they are not checked.
    """
    return _lb(inventory, "drain", name, *_without(absent))


def ready(inventory: Path, name: str, absent: Iterable[str] = ()) -> Command:
    """Send publishers to a broker again: the opposite of `drain` and `hold`."""
    return _lb(inventory, "ready", name, *_without(absent))


def hold(inventory: Path, name: str) -> Command:
    """Do as `drain`, for a broker that HAProxy does not know yet."""
    return kit("ops", "hold", name, "--inventory", str(inventory))


def _without(absent: Iterable[str]) -> list[str]:
    return [word for name in sorted(absent) for word in ("--without", name)]


def _lb(inventory: Path, *words: str) -> Command:
    return kit("lb", "--inventory", str(inventory), *words)
