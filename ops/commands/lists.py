"""Commands that change the consumer list and distribute it to the agents. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ops.commands.kits import kit
from ops.run.plan import Command

__all__ = ["add", "drain", "push", "ready", "recover", "remove"]


def add(inventory: Path, address: str, *, agent_port: int) -> Command:
    """Add a broker to the list. address: the broker's ``host:port``."""
    return _lists(inventory, "add", address, "--agent-port", str(agent_port))


def drain(inventory: Path, address: str) -> Command:
    return _lists(inventory, "drain", address)


def ready(inventory: Path, address: str, *, if_needed: bool = False) -> Command:
    """Take back a drain. if_needed: succeeds also where the broker is not draining."""
    return _lists(inventory, "ready", address, *_if(if_needed))


def remove(inventory: Path, address: str, *, if_needed: bool = False) -> Command:
    """Remove a broker from the list. if_needed: succeeds also where the list does not name it."""
    return _lists(inventory, "remove", address, *_if(if_needed))


def push(inventory: Path, absent: Iterable[str] = ()) -> Command:
    """Push the list; succeeds only when every agent of the inventory serves it, without those of `absent`."""
    without = [word for name in sorted(absent) for word in ("--without", name)]
    return _lists(inventory, "push", *without)


def recover(inventory: Path) -> Command:
    """Push the list after a disaster, under a generation above all known ones."""
    return _lists(inventory, "push", "--recover")


def _if(needed: bool) -> tuple[str, ...]:
    return ("--if-needed",) if needed else ()


def _lists(inventory: Path, *words: str) -> Command:
    return kit("consumer_lists", "--inventory", str(inventory), *words)
