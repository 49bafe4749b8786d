"""Errors that end a command of this kit: one line for a person, and an exit code."""

from __future__ import annotations

from messagebus.commands.exits import Codes, Exit

__all__ = ["CODES", "BenchError", "DoesNotHold", "InputInvalid", "Interrupted"]


class BenchError(Exception):
    """Raised when a command cannot do its work; the text is the one line that is printed."""


class InputInvalid(BenchError):
    """Raised when what a command was given cannot be used; correct it and call again."""


class DoesNotHold(BenchError):
    """Raised when the work is done and what was found is not as it should be; the text says what."""


class Interrupted(BenchError):
    """Raised when a person or a supervisor asked to end (Ctrl-C, SIGTERM)."""


CODES: Codes = {
    BenchError: Exit.FAILED,
    InputInvalid: Exit.USAGE,
    DoesNotHold: Exit.FOUND,
    Interrupted: Exit.INTERRUPTED,
}
