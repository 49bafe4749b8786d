"""Commands that change the consumer list and bring it to the agents. Pure."""

from __future__ import annotations

from pathlib import Path

from ops.commands.paths import kit
from ops.step import Command

__all__ = ["add", "drain", "remove"]


def add(inventory: Path, name: str) -> tuple[Command, ...]:
    """List a broker, or list it without `draining`."""
    return _change(inventory, "add", name)


def drain(inventory: Path, name: str) -> tuple[Command, ...]:
    return _change(inventory, "drain", name)


def remove(inventory: Path, name: str) -> tuple[Command, ...]:
    return _change(inventory, "remove", name)


def _change(inventory: Path, word: str, name: str) -> tuple[Command, ...]:
    where = ("--inventory", str(inventory))
    return (kit("consumer_lists", word, name, *where), kit("consumer_lists", "push", *where))
