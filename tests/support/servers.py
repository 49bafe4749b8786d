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
    layout_in,
    redis_with_replica,
)
from tests.support.leaks import LEAKS

__all__ = ["MakeServer", "RedisWithReplica", "SingleServer", "redis_with_replica", "server_factory"]

NUMBERS = itertools.count(1)


@contextmanager
def server_factory(folder: Path, *, keep: Callable[[], bool]) -> Iterator[MakeServer]:
    """Give a function that makes a server, started. All are ended at the end.

    keep: asked then whether data are to stay, to look at a failure.
    """
    made: list[SingleServer] = []

    def make(
        kind: str,
        *,
        persistence: str = "everysec",
        master: SingleServer | None = None,
        monitors: str = "",
    ) -> SingleServer:
        number = next(NUMBERS)
        layout = layout_in(
            folder,
            kind,
            host=f"127.{1 + os.getpid() % 250}.{number % 250}.9",
            name=f"{kind}{number}",
            persistence=persistence,
            master=master,
            monitors=monitors,
        )
        server = SingleServer(layout, folder)
        LEAKS.remember(server.password)
        made.append(server)
        server.start()
        return server

    try:
        yield make
    finally:
        for server in made:
            server.kill()
        LEAKS.look_into(folder)
        if not keep():
            shutil.rmtree(folder, ignore_errors=True)
