"""What an operator has to commit, so that the history of a list is in version control.

Looks, and never commits.
"""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

__all__ = ["advice"]

GIT_WITHIN_S = 5.0


def advice(path: Path, message: str) -> str:
    """The command that keeps a changed file, in one line; "" when there is nothing to keep.

    Where git is not to be had, nothing is said; a file outside of every work tree is told.
    """
    argv = ["git", "-C", str(path.parent), "status", "--porcelain", "--ignored", "--", path.name]
    try:
        asked = subprocess.run(
            argv, capture_output=True, text=True, timeout=GIT_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if asked.returncode:
        return f"{path} is under no version control"
    begin = f"git -C {shlex.quote(str(path.parent))}"
    name, said = shlex.quote(path.name), shlex.quote(message)
    match asked.stdout[:2]:
        case "" | "!!":
            return ""
        case "??":
            return f"to keep: {begin} add {name} && {begin} commit -m {said} -- {name}"
        case _:
            return f"to keep: {begin} commit -m {said} -- {name}"
