"""The kit's commands as tasks of Fabric: `fab --list` shows them, `fab remove --name mb2 --yes` runs one."""

from __future__ import annotations

import sys
from typing import Any

from ops.__main__ import main
from ops.run.shell import fabric_task

__all__ = [
    "add",
    "backup",
    "check",
    "drbd",
    "found",
    "local",
    "provision",
    "remove",
    "replace",
    "restart",
    "restore",
    "storage",
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
    _context: Any,
    name: str,
    to: str = "",
    dry_run: bool = False,
    yes: bool = False,
    move_remaining: bool = False,
) -> None:
    """Drain the broker NAME to empty, install it anew in the version TO, and bring it back."""
    _run("upgrade", name, to=to, dry_run=dry_run, yes=yes, move_remaining=move_remaining)


@fabric_task
def replace(
    _context: Any, name: str, dry_run: bool = False, yes: bool = False, lose_messages: bool = False
) -> None:
    """Replace the dead broker NAME: by its mirror where it has one, else by a new, empty one."""
    _run("replace", name, dry_run=dry_run, yes=yes, lose_messages=lose_messages)


@fabric_task
def storage(
    _context: Any, what: str, name: str, dead: str = "", dry_run: bool = False, yes: bool = False
) -> None:
    """Move the broker NAME with its mirrored disk (failover, failback), start or stop it there."""
    _run("storage", what, name, dead=dead, dry_run=dry_run, yes=yes)


@fabric_task
def drbd(
    _context: Any, what: str, name: str = "", dry_run: bool = False, yes: bool = False
) -> None:
    """Manage the mirror NAME: status of one or all, connect, create, verify, resolve."""
    _run("drbd", what, *([name] if name else []), dry_run=dry_run, yes=yes)


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
def found(_context: Any, dry_run: bool = False, yes: bool = False) -> None:
    """Start a new cluster for the first time, on hosts that are provisioned."""
    _run("found", dry_run=dry_run, yes=yes)


@fabric_task
def backup(_context: Any, archive: str, with_secrets: bool = False) -> None:
    """Write inventory, list, topology and definitions to ARCHIVE; messages are not in it."""
    _run("backup", archive, with_secrets=with_secrets)


@fabric_task
def restore(
    _context: Any,
    archive: str,
    files: bool = False,
    users: bool = False,
    topology: str = "",
    dry_run: bool = False,
    yes: bool = False,
) -> None:
    """Bring back what ARCHIVE holds and is missing now, or its files alone (--files)."""
    options: dict[str, str | bool] = {"files": files, "users": users, "topology": topology}
    _run("restore", archive, **options, dry_run=dry_run, yes=yes)


@fabric_task
def local(_context: Any, what: str) -> None:
    """Bring the local cluster up or down, or show it: fab local up."""
    _run("local", what)


def _run(*words: str, **options: str | bool) -> None:
    """Run a command of the kit. options: a flag that is off, or an empty text, is left out."""
    said: list[str] = []
    for name, value in options.items():
        if value:
            said.append(f"--{name.replace('_', '-')}")
            said += [value] if isinstance(value, str) else []
    sys.exit(main([*words, *said]))
