"""Errors of a list that operators keep.

ListsError
    EditRefused   the list stays as it is
        AlreadySo     because there is nothing to change
    Locked        another operator is editing it
    PushRefused   nothing was written: the nodes have a list that this one would contradict
"""

from __future__ import annotations

from messagebus.commands.exits import Codes, Exit

__all__ = ["CODES", "AlreadySo", "EditRefused", "ListsError", "Locked", "PushRefused"]


class ListsError(Exception):
    """Root of all errors of this kit; the text is one line for an operator."""


class EditRefused(ListsError):
    """Raised when an edit makes no sense; the list stays as it is."""


class Locked(ListsError):
    """Raised when another operator is editing the list; try again when they are done."""


class PushRefused(ListsError):
    """Raised when nodes serve a list that this one would contradict; see `push --recover`."""


class AlreadySo(EditRefused):
    """Raised when an edit would change nothing; there is nothing to do."""


CODES: Codes = {ListsError: Exit.FAILED}
