"""Commands that change HAProxy, and whom it sends publishers to. Pure."""

from __future__ import annotations

from pathlib import Path

from ops.commands.paths import kit
from ops.step import Command

__all__ = ["apply", "drain", "hold", "ready"]


def apply(inventory: Path) -> Command:
    """Make HAProxy's configuration that of the inventory; it reloads when that changes."""
    return _lb(inventory, "apply")


def drain(inventory: Path, name: str) -> Command:
    """The broker's agent asks publishers to stay away, and HAProxy is seen to heed it."""
    return _lb(inventory, "drain", name)


def ready(inventory: Path, name: str) -> Command:
    """The opposite of `drain` and `hold`."""
    return _lb(inventory, "ready", name)


def hold(inventory: Path, name: str) -> Command:
    """As `drain`, for a broker that HAProxy does not know yet."""
    return kit("ops", "hold", name, "--inventory", str(inventory))


def _lb(inventory: Path, *words: str) -> Command:
    return kit("lb", "--inventory", str(inventory), *words)
