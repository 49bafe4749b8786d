"""The kit's commands as tasks of Fabric."""

from __future__ import annotations

import sys
from typing import Any

from ops.__main__ import main
from ops.shell import fabric_task

__all__ = ["add", "local", "remove"]


@fabric_task
def add(_context: Any, name: str, dry_run: bool = False, yes: bool = False) -> None:
    """Add the broker NAME while everything runs."""
    _run("add", name, dry_run=dry_run, yes=yes)


@fabric_task
def remove(_context: Any, name: str, dry_run: bool = False, yes: bool = False) -> None:
    """Remove the broker NAME while everything runs: drain it to zero, then stop it."""
    _run("remove", name, dry_run=dry_run, yes=yes)


@fabric_task
def local(_context: Any, what: str) -> None:
    """Bring the local cluster up or down, or show it: fab local up."""
    _run("local", what)


def _run(*words: str, dry_run: bool = False, yes: bool = False) -> None:
    options = [*(["--dry-run"] if dry_run else []), *(["--yes"] if yes else [])]
    sys.exit(main([*words, *options]))
