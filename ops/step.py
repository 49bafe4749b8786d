"""One step of a playbook: commands, what must hold after them, and how to take them back. Values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Blocked", "Check", "Command", "Step"]

Check = Callable[[], str]
"""Looks at the cluster: "" when what must hold does, else what is still missing. Raises Blocked."""


class Blocked(Exception):
    """Raised by a check when waiting is of no use; the text says what an operator must do."""


@dataclass(frozen=True, slots=True)
class Command:
    """argv: never read by a shell. host: where over SSH; "" is the operator's own machine."""

    argv: tuple[str, ...]
    host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """name: an order, as one would say it aloud. commands: run in turn; each may be repeated.

    until: what `check` waits for, in words. within_s: how long it may take.
    may_fail: the playbook goes on when the check does not come to hold, and says so.
    undo: takes the commands back, when the playbook is undone.
    """

    name: str
    commands: tuple[Command, ...] = ()
    until: str = ""
    check: Check | None = None
    within_s: float = 30.0
    may_fail: bool = False
    undo: tuple[Command, ...] = ()
