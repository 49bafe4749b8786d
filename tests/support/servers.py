"""Real servers for tests: Redis, its replica and sentinels, PostgreSQL, MariaDB, each in a folder of its own.

    server = make("postgresql")
    server.url; server.kill(); server.restart(); server.freeze(); server.thaw()

A program that is missing fails the test, with the command that installs it.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import redis

from ops.local.single import SingleServer, layout_in, wait_until
from tests.support.leaks import LEAKS

__all__ = [
    "MONITORED",
    "MakeServer",
    "RedisWithReplica",
    "SingleServer",
    "redis_with_replica",
    "server_factory",
]

SENTINELS = 3
MONITORED = "bus"

HOSTS = (f"127.{1 + os.getpid() % 250}.{number % 250}.9" for number in itertools.count(1))


class MakeServer(Protocol):
    """A function that makes a server of a kind and starts it; the arguments are those of `layout_in`."""

    def __call__(
        self,
        kind: str,
        *,
        persistence: str = "everysec",
        master: SingleServer | None = None,
        monitors: str = "",
    ) -> SingleServer: ...


@contextmanager
def server_factory(folder: Path, *, keep: Callable[[], bool]) -> Iterator[MakeServer]:
    """Give a function that makes a server, started, at the next address. All are killed at the end.

    keep: asked then whether data are to stay, to look at a failure.
    """
    started: list[SingleServer] = []

    def make(
        kind: str,
        *,
        persistence: str = "everysec",
        master: SingleServer | None = None,
        monitors: str = "",
    ) -> SingleServer:
        layout = layout_in(
            folder,
            kind,
            host=next(HOSTS),
            name=f"{kind}{len(started) + 1}",
            persistence=persistence,
            master=master,
            monitors=monitors,
        )
        started.append(SingleServer(layout, folder))
        started[-1].start()
        return started[-1]

    try:
        yield make
    finally:
        for server in started:
            server.kill()
        LEAKS.look_into(folder)
        if not keep():
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class RedisWithReplica:
    """A Redis, its replica, and three sentinels that make the replica the master when the first is gone."""

    first: SingleServer
    replica: SingleServer
    sentinels: Sequence[SingleServer]

    @property
    def password(self) -> str:
        """The password of both Redis servers; the sentinels ask for none."""
        return self.first.password

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The addresses of the sentinels."""
        return [(sentinel.host, sentinel.port) for sentinel in self.sentinels]

    @property
    def url(self) -> str:
        """The address of a store, with the password: whichever is the master."""
        hosts = ",".join(f"{host}:{port}" for host, port in self.addresses)
        return f"redis+sentinel://:{self.password}@{hosts}/{MONITORED}/0"

    @property
    def master(self) -> SingleServer:
        """The server that the first sentinel names as the master."""
        at = _at(_ask(self.sentinels[0]))
        return next(each for each in (self.first, self.replica) if (each.host, each.port) == at)

    def is_whole(self) -> bool:
        """Return whether one of the two copies the other without a lag, and all sentinels agree."""
        try:
            masters = [_ask(each) for each in self.sentinels]
            if len({_at(one) for one in masters}) != 1:
                return False
            for server in (self.first, self.replica):
                with redis.Redis(server.host, server.port, password=self.password) as client:
                    told = client.info("replication")
                if told["role"] == "master":
                    copy = told.get("slave0", {})
                    is_synced = copy.get("state") == "online" and copy.get("lag", 9) <= 1
                    if _at(masters[0]) != (server.host, server.port) or not is_synced:
                        return False
                elif told["master_link_status"] != "up":
                    return False
        except (redis.RedisError, OSError):
            return False
        return all(_knows_all(each) for each in self.sentinels)

    def restart(self) -> None:
        """Start all that does not run."""
        for server in (self.first, self.replica, *self.sentinels):
            server.start()


def redis_with_replica(make: MakeServer) -> RedisWithReplica:
    """Start them, and wait until the sentinels know each other and the replica."""
    first = make("redis", persistence="always")
    replica = make("redis", persistence="always", master=first)
    sentinels = [make("sentinel", master=first, monitors=MONITORED) for _ in range(SENTINELS)]
    for sentinel in sentinels:
        wait_until(lambda: _knows_all(sentinel), "the sentinels know each other")  # noqa: B023
    return RedisWithReplica(first, replica, sentinels)


def _knows_all(sentinel: SingleServer) -> bool:
    known = _ask(sentinel)
    return bool(known["num-slaves"] == 1 and known["num-other-sentinels"] == SENTINELS - 1)


def _at(master: dict[str, Any]) -> tuple[str, int]:
    return str(master["ip"]), int(master["port"])


def _ask(sentinel: SingleServer) -> dict[str, Any]:
    with redis.Redis(sentinel.host, sentinel.port, decode_responses=True) as client:
        known: dict[str, Any] = client.sentinel_master(MONITORED)
    return known
