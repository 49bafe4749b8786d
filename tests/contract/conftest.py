"""The same cases on the in-memory bus and on RabbitMQ, through the blocking and the asyncio clients.

With MESSAGEBUS_CONTRACT_BROKER=host:port a single RabbitMQ (guest, guest) stands in for the cluster.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, cast

import httpx
import pytest

from clients.conform.proxies import Proxy
from messagebus import (
    AsyncConsumer,
    AsyncPublisher,
    BusConfig,
    Consumer,
    ConsumerConfig,
    Hooks,
    Publisher,
    PublisherConfig,
    Subscription,
    Topic,
)
from messagebus._io.agents.registration import credentials
from messagebus._io.amqp.link import Link, dial
from messagebus._io.amqp.properties import read_library_headers
from messagebus.admin import ParkedFilter, count_parked, redrive_parked
from messagebus.admin import brokers as list_of_brokers
from messagebus.broker import Broker
from messagebus.destination import Destination, Source
from messagebus.testing import MemoryBus
from ops.local.cluster import LocalCluster
from tests.support.eventually import FACTOR
from tests.support.together import call

READY_WITHIN_S = 60 * FACTOR
ARRIVES_WITHIN_S = 60
# Nobody listens there.
NOWHERE = "127.0.0.1:1"


class Client:
    """A client, blocking or asyncio; `call` awaits the result where there is something to await."""

    def __init__(self, inner: Publisher | AsyncPublisher | Consumer | AsyncConsumer) -> None:
        self.inner = inner
        self.blocks = isinstance(inner, Publisher | Consumer)

    @property
    def status(self) -> str:
        return self.inner.status.value

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return await call(self.inner, method, *args, **kwargs)


async def receive_and_ack(consumer: Client, count: int) -> list[Any]:
    got: list[Any] = []
    for _ in range(count):
        delivery = await consumer.call("receive", timeout_s=ARRIVES_WITHIN_S)
        assert delivery is not None, f"{len(got)} of {count} arrived"
        await consumer.call("ack", delivery)
        got.append(delivery)
    return got


async def end_of(future: Any) -> Any:
    """Wait for the end of a publish that `submit` returned."""
    if isinstance(future, Future):
        return await asyncio.wrap_future(future)
    return await cast(Awaitable[Any], future)


class Bus:
    """Factory of clients of one kind, blocking or asyncio; all are stopped at the end of the test."""

    def __init__(
        self,
        face: str,
        config: BusConfig | None,
        stack: AsyncExitStack,
        managements: Sequence[httpx.Client] = (),
    ) -> None:
        self.face, self._config, self._stack = face, config, stack
        self._memory = MemoryBus(brokers=3)
        self._entry: Proxy | None = None
        self._managements = managements
        self.topic = f"contract-{uuid.uuid4().hex[:12]}"

    @property
    def in_memory(self) -> MemoryBus:
        return self._memory

    @property
    def config(self) -> BusConfig:
        assert self._config is not None
        return self._config

    @property
    def is_memory(self) -> bool:
        return self._config is None

    async def publisher(
        self, *, start: bool = True, hooks: Sequence[Hooks] = (), **settings: Any
    ) -> Client:
        config = PublisherConfig(**settings)
        return await self._made(self._publisher(config, self._config, hooks), start)

    async def deaf_publisher(self, *, hooks: Sequence[Hooks] = (), **settings: Any) -> Client:
        """Return a publisher whose publishes nobody answers."""
        config = PublisherConfig(**settings)
        if self._config is None:
            self._memory = MemoryBus()
            self._memory.freeze()
            return await self._made(self._publisher(config, None, hooks), True)
        nowhere = BusConfig(broker=NOWHERE)
        return await self._made(self._publisher(config, nowhere, hooks), True)

    async def away_publisher(self, **settings: Any) -> Client:
        """Return a publisher that finds no broker; `brokers_are_back` for those that follow."""
        if self._config is None:
            self._memory.stop_brokers()
        elif self._entry is None:
            # The same entry before and after: a spool belongs to the bus behind it.
            self._entry = Proxy(self._config.broker)
            self._entry.refusing = True
            self._stack.callback(self._entry.close)
            self._config = replace(self._config, broker=self._entry.address)
        return await self._made(
            self._publisher(PublisherConfig(**settings), self._config, ()), True
        )

    def brokers_are_back(self) -> None:
        self._memory.start_brokers()
        if self._entry is not None:
            self._entry.refusing = False

    def _publisher(
        self, config: PublisherConfig, bus: BusConfig | None, hooks: Sequence[Hooks]
    ) -> Publisher | AsyncPublisher:
        if bus is None:
            memory = self._memory
            return (
                memory.publisher(config, hooks=hooks)
                if self.face == "blocking"
                else memory.async_publisher(config, hooks=hooks)
            )
        return (Publisher if self.face == "blocking" else AsyncPublisher)(bus, config, hooks=hooks)

    async def consumer(
        self,
        subscription: str = "billing",
        *,
        destination: Destination | Source | str = "",
        start: bool = True,
        hooks: Sequence[Hooks] = (),
        dedup: Any = None,
        **settings: Any,
    ) -> Client:
        """Return a consumer that is attached to every broker and registered."""
        config, to = ConsumerConfig(**settings), destination or self.topic
        inner: Consumer | AsyncConsumer
        if self._config is None:
            make = self._memory.consumer if self.face == "blocking" else self._memory.async_consumer
            inner = make(to, subscription=subscription, config=config, hooks=hooks, dedup=dedup)
        else:
            face = Consumer if self.face == "blocking" else AsyncConsumer
            inner = face(
                self._config, to, subscription=subscription, config=config, hooks=hooks, dedup=dedup
            )
        return await self._made(inner, start, require="all", timeout_s=READY_WITHIN_S)

    async def _made(
        self,
        inner: Publisher | AsyncPublisher | Consumer | AsyncConsumer,
        start: bool,
        **how: Any,
    ) -> Client:
        client = Client(inner)
        if start:
            await client.call("start", **how)
            self._stack.push_async_callback(client.call, "stop", 0)
        return client

    async def cut(self, client: Client) -> None:
        """End all its connections at once, without a word."""
        inner: Any = client.inner
        if self._config is None:
            self._memory.lose_connection()
        elif not client.blocks:
            _abort(_links(inner))
        else:
            thread, links = inner._running()[0], _links(inner)
            done = asyncio.Event()
            loop = asyncio.get_running_loop()

            def abort() -> None:
                _abort(links)
                loop.call_soon_threadsafe(done.set)

            thread.call_soon(abort)
            await done.wait()

    def pass_time(self, seconds: float) -> None:
        """Let time pass: in memory at once; on RabbitMQ the test waits for the effect."""
        if self._config is None:
            self._memory.advance(seconds)

    async def set_quota(self, subscription: str, messages: int) -> None:
        """Bound the waiting messages of a subscription on each broker; 0: no bound."""
        if self._config is None:
            self._memory.set_quota(f"{self.topic}/{subscription}", messages)
            return
        queue = Subscription(topic=Topic(self.topic), name=subscription).amqp_queue
        for management in self._managements:
            path = f"/api/policies/%2F/{self.topic}"
            policy = {"pattern": f"^{queue}$", "definition": {"max-length": messages}}
            if messages:
                management.put(path, json=policy).raise_for_status()
            else:
                management.delete(path).raise_for_status()

    async def redrive(self, source: str) -> int:
        """Put the parked messages of a subscription back. Returns their number."""
        if self._config is None:
            return self._memory.redrive(source)
        return (await asyncio.to_thread(redrive_parked, self._config, [source])).total

    async def parked(self, broker: str, subscription: str) -> int:
        """Count messages in the parking queue of the broker."""
        if self._config is None:
            return len(self._memory.parked(self.topic, subscription))
        source = Subscription(topic=Topic(self.topic), name=subscription)
        link = await dial(Broker.parse(broker), credentials(self._config), timeout_ms=5_000)
        answer = await link.call("queue_declare", queue=source.parking_queue, passive=True)
        await link.close()
        return int(answer.message_count)

    async def undelivered(self) -> int:
        """Count messages of this topic that were due and found no queue, over all brokers."""
        if self._config is None:
            return len(self._memory.undelivered())
        where = ParkedFilter(reason=f"mb.topic/{self.topic}")
        found = await asyncio.to_thread(count_parked, self._config, ["undelivered"], where=where)
        return sum(each.count for each in found.counts)

    async def take_parked(self, subscription: str) -> list[dict[str, Any]]:
        """Empty the parking queues of all brokers; return the library's own headers of the messages there."""
        source = Subscription(topic=Topic(self.topic), name=subscription)
        if self._config is None:
            brokers = self._memory._brokers
            return [dict(read_library_headers(each.raw)) for _, each in brokers.parked(source)]
        found = []
        for listed in (await asyncio.to_thread(list_of_brokers, self._config)).listed:
            link = await dial(listed.broker, credentials(self._config), timeout_ms=5_000)
            found += [
                dict(read_library_headers(raw)) for raw in await _take(link, source.parking_queue)
            ]
            await link.close()
        return found


async def _take(link: Link, queue: str) -> list[bytes]:
    """Take all messages of the queue; return their properties."""
    answer = await link.call("queue_declare", queue=queue, passive=True)
    loop, found = asyncio.get_running_loop(), []
    for _ in range(answer.message_count):
        got: asyncio.Future[bytes] = loop.create_future()

        def taken(
            _channel: Any, _method: Any, properties: Any, _body: bytes, got: Any = got
        ) -> None:
            got.set_result(b"".join(properties.encode()))

        link.channel.basic_get(queue, taken, auto_ack=True)
        found.append(await asyncio.wait_for(got, 60))
    return found


def _links(client: Any) -> list[Link]:
    if isinstance(client, Publisher | AsyncPublisher):
        assert client._drivers is not None
        return list(client._drivers.own.links.open.values())
    return list(client._driver.links.links.values())


def _abort(links: list[Link]) -> None:
    for link in links:
        link.abort()


@pytest.fixture(params=["memory", "rabbitmq"])
def bus_config(request: pytest.FixtureRequest) -> BusConfig | None:
    if request.param == "memory":
        return None
    if broker := os.environ.get("MESSAGEBUS_CONTRACT_BROKER"):
        return BusConfig(broker=broker)
    return BusConfig.from_env(request.getfixturevalue("cluster").client_env())


@pytest.fixture(params=["blocking", "asyncio"])
async def bus(request: pytest.FixtureRequest, bus_config: BusConfig | None) -> AsyncIterator[Bus]:
    async with AsyncExitStack() as stack:
        managements: list[httpx.Client] = []
        if bus_config is not None:
            managements = [stack.enter_context(each) for each in _managements(request)]
        yield Bus(request.param, bus_config, stack, managements)


def _managements(request: pytest.FixtureRequest) -> list[httpx.Client]:
    """Return a client of the management API of each broker."""
    if broker := os.environ.get("MESSAGEBUS_CONTRACT_BROKER"):
        host = Broker.parse(broker).host
        return [httpx.Client(base_url=f"http://{host}:15672", auth=("guest", "guest"))]
    cluster: LocalCluster = request.getfixturevalue("cluster")
    return [cluster.management(name) for name in cluster.names]
