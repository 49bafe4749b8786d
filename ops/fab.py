"""The kit's commands as tasks of Fabric: `fab --list` shows them, `fab remove --name mb2 --yes` runs one."""

from __future__ import annotations

import sys
from typing import Any

from ops.__main__ import main
from ops.shell import fabric_task

__all__ = [
    "add",
    "check",
    "local",
    "provision",
    "remove",
    "replace",
    "restart",
    "topology",
    "upgrade",
]


@fabric_task
def add(_context: Any, name: str, dry_run: bool = False, yes: bool = False) -> None:
    """Add the broker NAME while everything runs."""
    _run("add", name, dry_run=dry_run, yes=yes)


@fabric_task
def remove(
    _context: Any,
    name: str,
    dry_run: bool = False,
    yes: bool = False,
    move_remaining: bool = False,
) -> None:
    """Remove the broker NAME while everything runs: drain it to zero, then stop it."""
    _run("remove", name, dry_run=dry_run, yes=yes, move_remaining=move_remaining)


@fabric_task
def restart(
    _context: Any, name: str = "", dry_run: bool = False, yes: bool = False, rolling: bool = False
) -> None:
    """Restart the broker NAME, or all (--rolling), one after the other while everything runs."""
    _run("restart", *([name] if name else []), dry_run=dry_run, yes=yes, rolling=rolling)


@fabric_task
def upgrade(
    _context: Any, name: str, dry_run: bool = False, yes: bool = False, move_remaining: bool = False
) -> None:
    """Drain the broker NAME to empty, install it anew in another version, and bring it back."""
    _run("upgrade", name, dry_run=dry_run, yes=yes, move_remaining=move_remaining)


@fabric_task
def replace(
    _context: Any, name: str, dry_run: bool = False, yes: bool = False, lose_messages: bool = False
) -> None:
    """Replace the dead broker NAME: by its mirror where it has one, else by a new, empty one."""
    _run("replace", name, dry_run=dry_run, yes=yes, lose_messages=lose_messages)


@fabric_task
def topology(_context: Any, what: str) -> None:
    """Compare the topology of all agents and brokers (diff), or bring it about (sync)."""
    _run("topology", what)


@fabric_task
def check(_context: Any) -> None:
    """Compare the inventory with reality, and print what differs; changes nothing."""
    _run("check")


@fabric_task
def provision(_context: Any, name: str = "", dry_run: bool = False, yes: bool = False) -> None:
    """Set up the host NAME, or all: packages, settings, users, policies, the agent, time."""
    _run("provision", *([name] if name else []), dry_run=dry_run, yes=yes)


@fabric_task
def local(_context: Any, what: str) -> None:
    """Bring the local cluster up or down, or show it: fab local up."""
    _run("local", what)


def _run(*words: str, **options: bool) -> None:
    said = [f"--{name.replace('_', '-')}" for name, is_on in options.items() if is_on]
    sys.exit(main([*words, *said]))
