"""Where a run writes: made, and seen to be empty, before anything is started for it."""

from __future__ import annotations

import os
from pathlib import Path

from bench.errors import InputInvalid

__all__ = ["made", "made_empty"]


def made(folder: Path) -> Path:
    """Make it if it is not there. Raises InputInvalid when it cannot be, or nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise InputInvalid(f"{folder}: no folder can be made: {fault.strerror}") from fault
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputInvalid(f"{folder}: nothing can be written there")
    return folder


def made_empty(folder: Path) -> Path:
    """The same for one run. Raises InputInvalid also for one that has something in it."""
    if any(made(folder).iterdir()):
        raise InputInvalid(f"{folder}: is not empty; a run has a folder of its own")
    return folder
