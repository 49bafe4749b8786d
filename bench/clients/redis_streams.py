"""Redis streams: one server for a run; and a client, `redis-py` on asyncio.

A topic is a stream, a subscription a group of it. Publishes that wait meanwhile go together in the next
pipeline, whose answers are their confirms. A take's deliveries are answered by one XACK. Redis removes no
message that is acked: the stream keeps all of a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import redis
import redis.asyncio

from bench.clients.in_flight import Flight
from bench.clients.nodes import Node, Nodes, started_nodes
from bench.errors import BenchError
from bench.harness.interface import Delivered, End, Where
from bench.harness.outcomes import CONFIRMED, OTHERWISE, UNKNOWN
from bench.load.profile import Profile, places
from bench.processes import run

# The environment variable that gives load processes the server's address.
SERVER = "BENCH_REDIS_SERVER"
PORT = 6379
VERSION_WITHIN_S = 10.0
BODY = b"b"
OPEN_WITHIN_S = 60.0
SYNCED = {"fsync": "always", "page-cache": "everysec"}


class _Installed:
    """The server of the Debian package."""

    name = "redis"

    @property
    def version(self) -> str:
        told = run(["redis-server", "--version"], within_s=VERSION_WITHIN_S, what="redis-server")
        return told.partition(" v=")[2].partition(" ")[0]

    def fetch(self) -> object:
        if not shutil.which("redis-server"):
            raise BenchError("redis-server is not installed: apt-get install redis-server")
        return None


REDIS = _Installed()


def durability(profile: Profile) -> str:
    return {
        "fsync": "fsynced by one broker before the confirm (appendfsync always)",
        "page-cache": "in the page cache of one broker, fsynced within a second: a power-off of it loses it "
        "(appendfsync everysec, Redis' own default)",
    }[profile.system.durability]


@contextmanager
def started(profile: Profile, network: str, say: Callable[[str], None]) -> Iterator[Nodes]:
    """Run a server with a folder and an address of its own; remove it afterwards."""
    with started_nodes(REDIS, profile, network, say, _prepared) as (nodes, children):
        about = {
            "nodes": f"1 Redis {REDIS.version}",
            "path": "each client to the server",
            "appendfsync": SYNCED[profile.system.durability],
        }
        declare = partial(_declare, nodes[0].host)
        yield Nodes(nodes, children, SERVER, about, declare)


def _prepared(hosts: Sequence[str], folder: Path, profile: Profile) -> list[Node]:
    options = {
        "bind": hosts[0],
        "port": str(PORT),
        "dir": str(folder),
        "save": "",
        "appendonly": "yes",
        "appendfsync": SYNCED[profile.system.durability],
    }
    argv = [word for name, value in options.items() for word in (f"--{name}", value)]
    return [Node(1, hosts[0], (PORT,), ("redis-server", *argv))]


def _declare(host: str, profile: Profile) -> None:
    with redis.Redis(host, PORT, socket_timeout=OPEN_WITHIN_S) as client:
        for topic, subscription in places(profile):
            with contextlib.suppress(redis.ResponseError):  # it is there
                client.xgroup_create(topic, subscription, "0", mkstream=True)


def _connected(server: str) -> Any:
    host, _, port = server.rpartition(":")
    return redis.asyncio.Redis(host=host, port=int(port))


class Sender:
    def __init__(self, profile: Profile, where: Where) -> None:
        self._server, self._topic = where.env[SERVER], where.topic
        self._flight = Flight(profile.load.window)
        self._next: list[tuple[int, bytes]] = []
        self._some = asyncio.Event()

    async def open(self) -> None:
        self._client = _connected(self._server)
        await self._client.ping()
        self._sending = asyncio.create_task(self._send_all())

    async def room(self) -> None:
        await self._flight.room()

    async def send(self, sequence: int, body: bytes, key: str) -> None:
        await self._flight.room()
        self._flight.begin(sequence, sequence)
        self._next.append((sequence, body))
        self._some.set()

    def ends(self) -> list[End]:
        return self._flight.ends()

    async def close(self, timeout_s: float) -> None:
        await self._flight.close(timeout_s, self._server)
        self._sending.cancel()
        await self._client.aclose()

    async def _send_all(self) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            going, self._next = self._next, []
            for sequence, outcome in await self._sent(going):
                self._flight.end(sequence, outcome, self._server)

    async def _sent(self, going: list[tuple[int, bytes]]) -> list[tuple[int, int]]:
        pipeline = self._client.pipeline(transaction=False)
        for _, body in going:
            pipeline.xadd(self._topic, {BODY: body})
        try:
            answers = await pipeline.execute(raise_on_error=False)
        except (redis.ConnectionError, redis.TimeoutError):
            return [(sequence, UNKNOWN) for sequence, _ in going]
        return [
            (sequence, OTHERWISE if isinstance(answer, Exception) else CONFIRMED)
            for (sequence, _), answer in zip(going, answers, strict=True)
        ]


class Receiver:
    def __init__(self, profile: Profile, where: Where) -> None:
        self._server, self._where = where.env[SERVER], where
        self._count, self._needs_ack = profile.load.prefetch, profile.load.ack != "none"

    async def open(self) -> None:
        self._client = _connected(self._server)
        await self._client.ping()

    async def take(self, max_wait_s: float) -> list[Delivered]:
        where = self._where
        found = await self._client.xreadgroup(
            where.subscription,
            where.name,
            {where.topic: ">"},
            count=self._count,
            block=max(1, int(max_wait_s * 1000)),
            noack=not self._needs_ack,
        )
        if not found:
            return []
        now_ns = time.monotonic_ns()
        ((_, entries),) = found
        received = [Delivered(fields[BODY], self._server, now_ns) for _, fields in entries]
        if self._needs_ack:
            ids = [each for each, _ in entries]
            await self._client.xack(where.topic, where.subscription, *ids)
        return received

    async def close(self) -> None:
        await self._client.aclose()
