"""The list as a file: read, changed under a lock, replaced atomically and durably.

Keeping its history in version control is advised, and left to the operator.
"""

from __future__ import annotations

import fcntl
import getpass
import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from consumer_lists.edit import Edit
from consumer_lists.errors import Locked
from inventory.files import write_whole
from messagebus.broker import LIST_BYTES_MAX, BrokerList
from messagebus.errors import ListInvalid

__all__ = ["MODE", "advice", "change", "locked", "read"]

# Agents of another user must be able to read the file, and it holds no secret.
MODE = 0o644


def read(path: Path) -> str:
    """Return the text of a valid list. Raises ListInvalid with the line, OSError."""
    with path.open("rb") as file:
        raw = file.read(LIST_BYTES_MAX + 1)
    try:
        text = raw.decode()
    except UnicodeDecodeError as fault:
        line = raw[: fault.start].count(b"\n") + 1
        raise ListInvalid("not UTF-8", line=line) from fault
    BrokerList.parse(text)
    return text


def change(path: Path, edit: Edit) -> BrokerList:
    """Apply an edit to a list file. Returns the list after the edit.

    Raises Locked, ListInvalid, EditRefused; the file is unchanged then.
    """
    with locked(path):
        text = edit(read(path))
        changed = BrokerList.parse(text)
        write_whole(path, text, mode=MODE)
        return changed


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other operators from editing. Raises Locked at once, naming the one who edits.

    The lock ends with the process. Its file stays: removing it would let two hold the same lock.
    """
    with path.with_name(f".{path.name}.lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            who = " ".join(file.read(200).split()) or "somebody"
            raise Locked(f"{path} is being edited by {who}") from None
        file.truncate(0)
        file.write(f"{_user()}, process {os.getpid()}")
        file.flush()
        yield


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"user {os.getuid()}"


GIT_WITHIN_S = 5.0


def advice(path: Path, message: str) -> str:
    """Return the command that commits a changed file, in one line; "" when there is nothing to commit.

    Returns "" where git cannot be run. A file outside of every work tree is reported as such.
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
    name, text = shlex.quote(path.name), shlex.quote(message)
    match asked.stdout[:2]:
        case "" | "!!":
            return ""
        case "??":
            return f"to keep: {begin} add {name} && {begin} commit -m {text} -- {name}"
        case _:
            return f"to keep: {begin} commit -m {text} -- {name}"
