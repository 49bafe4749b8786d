"""What ends a command of this kit: one line for a person, and an exit code."""

from __future__ import annotations

__all__ = ["BenchError", "InputInvalid", "Interrupted"]


class BenchError(Exception):
    """Raised when a command cannot do its work; the text is the one line that is printed."""

    exit_code = 1


class InputInvalid(BenchError):
    """Raised when what a command was given cannot be used; correct it and call again."""

    exit_code = 2


class Interrupted(BenchError):
    """Raised when a person or a supervisor asked to end (Ctrl-C, SIGTERM)."""

    exit_code = 130
