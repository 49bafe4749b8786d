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
    """name: an order, as one would say it aloud. commands: run in turn.

    done: whether the commands were run before, for those that are not to be repeated: a run may be
        interrupted between a command and the journal.
    until: what `check` waits for, in words. within_s: how long it may take.
    may_fail: the playbook goes on when the check does not come to hold, and says so.
    undo: takes the commands back, when the playbook is undone.
    is_final: there is no way back once this was begun; another playbook undoes the whole.
    """

    name: str
    commands: tuple[Command, ...] = ()
    done: Callable[[], bool] | None = None
    until: str = ""
    check: Check | None = None
    within_s: float = 30.0
    may_fail: bool = False
    undo: tuple[Command, ...] = ()
    is_final: bool = False
