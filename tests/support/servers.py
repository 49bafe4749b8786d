"""Real servers for tests: Redis, its replica and sentinels, PostgreSQL, MariaDB, each in a folder of its own.

    server = make("postgresql")
    server.url; server.kill(); server.restart(); server.freeze(); server.thaw()

A program that is missing fails the test, with the command that installs it.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ops.local.single import (
    MakeServer,
    RedisWithReplica,
    SingleServer,
    redis_with_replica,
)
from ops.local.single import server_factory as factory
from tests.support.leaks import LEAKS

__all__ = ["MakeServer", "RedisWithReplica", "SingleServer", "redis_with_replica", "server_factory"]

HOSTS = (f"127.{1 + os.getpid() % 250}.{number % 250}.9" for number in itertools.count(1))


@contextmanager
def server_factory(folder: Path, *, keep: Callable[[], bool]) -> Iterator[MakeServer]:
    """Give a function that makes a server, started. All are ended at the end.

    keep: asked then whether data are to stay, to look at a failure.
    """
    try:
        with factory(folder, HOSTS) as make:
            yield make
    finally:
        LEAKS.look_into(folder)
        if not keep():
            shutil.rmtree(folder, ignore_errors=True)
