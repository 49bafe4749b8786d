"""One change of a cluster at a time: a lock beside its inventory.

It keeps apart whoever works from this copy of the inventory. Two machines with a copy each are not
kept apart by it.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ops.errors import LockHeld

__all__ = ["held"]


@contextmanager
def held(file: Path, what: str) -> Iterator[None]:
    """Hold the lock while `what` is done. Raises LockHeld, at once, with who has it.

    The end of the process frees it, however it ends.
    """
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockHeld(*_holder(fd)) from None
        os.ftruncate(fd, 0)
        who = f"{getpass.getuser()}, pid {os.getpid()}, {what!r}"
        os.pwrite(fd, json.dumps([who, time.strftime("%F %T")]).encode(), 0)
        yield
    finally:
        os.close(fd)


def _holder(fd: int) -> tuple[str, str]:
    try:
        who, since = json.loads(os.pread(fd, 4096, 0))
        return str(who), str(since)
    except (ValueError, TypeError):
        return "somebody", "a moment ago"
