"""NATS JetStream: nodes for a run, alone or in one cluster; and a client, `nats-py`.

A topic is a stream whose messages go when every subscription has acked them. A subscription is a consumer
that pushes to a group: its consumers share it. Publishes are asynchronous, each with a reply of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StreamConfig

from bench.clients.in_flight import Arrived, Flight
from bench.clients.nodes import Node, Nodes, copies, in_sync, started_nodes, wait_up
from bench.clients.packages import NATS
from bench.harness.interface import Delivered, End, Where
from bench.harness.outcomes import CONFIRMED, OTHERWISE
from bench.load.profile import Profile, places

# The environment variable that gives load processes the nodes' addresses.
NODES = "BENCH_NATS_NODES"
CLIENT_PORT, ROUTE_PORT = 4222, 6222
OPEN_WITHIN_S = 60.0
# Before the server sends an unanswered message again.
ACK_WAIT_S = 600.0
PAYLOAD_BYTES_MAX = 16 << 20


def durability(profile: Profile) -> str:
    nodes = profile.system.brokers
    where = f"{in_sync(nodes)} of {copies(nodes)} copies" if nodes > 1 else "one broker"
    return {
        "fsync": f"fsynced by {where} before the confirm (sync_interval: always)",
        "page-cache": f"in the page cache of {where}, fsynced within two minutes: a power-off of these "
        "loses it (JetStream's own default)",
    }[profile.system.durability]


def configuration(number: int, hosts: Sequence[str], data: Path, durability: str) -> str:
    """Return the configuration of node `number`, counted from 1."""
    host = hosts[number - 1]
    lines = [
        f"server_name: node-{number}",
        f'listen: "{host}:{CLIENT_PORT}"',
        f"max_payload: {PAYLOAD_BYTES_MAX}",
        "jetstream {",
        f'  store_dir: "{data}"',
        *(["  sync_interval: always"] if durability == "fsync" else []),
        "}",
    ]
    if len(hosts) > 1:
        routes = ", ".join(f'"nats://{each}:{ROUTE_PORT}"' for each in hosts)
        lines += ["cluster {", "  name: bench", f'  listen: "{host}:{ROUTE_PORT}"']
        lines += [f"  routes: [{routes}]", "}"]
    return "\n".join(lines) + "\n"


@contextmanager
def started(profile: Profile, network: str, say: Callable[[str], None]) -> Iterator[Nodes]:
    """Run nodes with folders and addresses of their own; remove them afterwards."""
    with started_nodes(NATS, profile, network, say, _all_prepared) as (nodes, children):
        servers = [node.broker for node in nodes]
        about = {
            "nodes": f"{len(nodes)} NATS {NATS.version} with JetStream",
            "path": "each client to one node, by turns",
            "copies": copies(len(nodes)),
        }
        if len(nodes) > 1:
            ask = partial(_answers, servers[0])
            wait_up(nodes, children, ask, "JetStream has a leader")
        yield Nodes(nodes, children, NODES, about, partial(_declare, servers[0]))


def _all_prepared(hosts: Sequence[str], folder: Path, profile: Profile) -> list[Node]:
    return [_prepared(number, hosts, folder, profile) for number in range(1, len(hosts) + 1)]


def _prepared(number: int, hosts: Sequence[str], folder: Path, profile: Profile) -> Node:
    file, data = folder / f"node-{number}.conf", folder / f"data-{number}"
    file.write_text(configuration(number, hosts, data, profile.system.durability))
    ports = (CLIENT_PORT, ROUTE_PORT) if len(hosts) > 1 else (CLIENT_PORT,)
    argv = (str(NATS.folder / "nats-server"), "-c", str(file))
    return Node(number, hosts[number - 1], ports, argv)


def _answers(server: str) -> bool:
    async def ask() -> bool:
        client = await _connected(server)
        try:
            await client.jetstream().account_info()
        except Error:
            return False
        finally:
            await client.close()
        return True

    return asyncio.run(ask())


def _declare(server: str, profile: Profile) -> None:
    asyncio.run(_create(server, profile))


async def _create(server: str, profile: Profile) -> None:
    """Create streams and consumers, where they are not there."""
    client = await _connected(server)
    try:
        for topic, subscription in places(profile):
            await client.jetstream().add_stream(_stream(topic, profile))
            await client.jetstream().add_consumer(topic, _consumer(topic, subscription, profile))
    finally:
        await client.close()


def _stream(topic: str, profile: Profile) -> StreamConfig:
    return StreamConfig(
        name=topic,
        subjects=[topic],
        retention=RetentionPolicy.INTEREST,
        num_replicas=copies(profile.system.brokers),
    )


def _consumer(topic: str, subscription: str, profile: Profile) -> ConsumerConfig:
    load = profile.load
    rivals = -(-load.consumers // len(places(profile)))
    return ConsumerConfig(
        durable_name=subscription,
        deliver_subject=_way(topic, subscription),
        deliver_group=subscription,
        ack_policy=AckPolicy.NONE if load.ack == "none" else AckPolicy.EXPLICIT,
        ack_wait=ACK_WAIT_S,
        # The server counts them over the whole group.
        max_ack_pending=None if load.ack == "none" else load.prefetch * rivals,
    )


def _way(topic: str, subscription: str) -> str:
    return f"to.{topic}.{subscription}"


async def _connected(server: str) -> Client:
    return await nats.connect(
        f"nats://{server}", connect_timeout=OPEN_WITHIN_S, allow_reconnect=False
    )


class _Linked:
    """Client number n at node n modulo their count."""

    def __init__(self, where: Where) -> None:
        nodes = where.env[NODES].split(",")
        self._server = nodes[where.number % len(nodes)]
        self._where = where

    async def open(self) -> None:
        self._client = await _connected(self._server)


class Sender(_Linked):
    def __init__(self, profile: Profile, where: Where) -> None:
        super().__init__(where)
        self._flight = Flight(profile.load.window)

    async def open(self) -> None:
        await super().open()
        most = 1 << 30  # the flight's window is the bound
        self._stream: JetStreamContext = self._client.jetstream(publish_async_max_pending=most)

    async def room(self) -> None:
        await self._flight.room()

    async def send(self, sequence: int, body: bytes, key: str) -> None:
        await self._flight.room()
        self._flight.begin(sequence, sequence)
        answer = await self._stream.publish_async(self._where.topic, body)
        answer.add_done_callback(partial(self._ended, sequence))

    def ends(self) -> list[End]:
        return self._flight.ends()

    async def close(self, timeout_s: float) -> None:
        await self._flight.close(timeout_s, self._server)
        await self._client.close()

    def _ended(self, sequence: int, answer: asyncio.Future[Any]) -> None:
        if not answer.cancelled():  # by a client that is closed: the flight ends it unknown
            outcome = CONFIRMED if answer.exception() is None else OTHERWISE
            self._flight.end(sequence, outcome, self._server)


class Receiver(_Linked):
    def __init__(self, profile: Profile, where: Where) -> None:
        super().__init__(where)
        self._arrived = Arrived()
        self._needs_ack = profile.load.ack != "none"

    async def open(self) -> None:
        await super().open()
        way, group = _way(self._where.topic, self._where.subscription), self._where.subscription
        await self._client.subscribe(way, queue=group, cb=self._on_message)

    async def take(self, max_wait_s: float) -> list[Delivered]:
        return await self._arrived.take(max_wait_s)

    async def close(self) -> None:
        await self._client.drain()

    async def _on_message(self, message: Msg) -> None:
        self._arrived.add(message.data, self._server)
        if self._needs_ack:
            await message.ack()
