"""Errors that end a command of this kit: one line for a person, and an exit code."""

from __future__ import annotations

from messagebus.commands.exits import Codes, Exit
from messagebus.recording.manifest import RunInvalid


class BenchError(Exception):
    """Raised when a command cannot do its work; the text is the one line that is printed."""


class InputInvalid(BenchError):
    """Raised when the input of a command cannot be used; correct it and call again."""


class DoesNotHold(BenchError):
    """Raised when the work is done and its result is not as it should be; the text gives the reasons."""


class Interrupted(BenchError):
    """Raised when a person or a supervisor stops the command (Ctrl-C, SIGTERM)."""


CODES: Codes = {
    BenchError: Exit.FAILED,
    InputInvalid: Exit.USAGE,
    RunInvalid: Exit.USAGE,
    DoesNotHold: Exit.FOUND,
    Interrupted: Exit.INTERRUPTED,
}
