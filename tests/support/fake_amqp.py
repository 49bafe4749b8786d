"""Brokers without RabbitMQ: AMQP 0.9.1 on asyncio, as much as clients use, and wrong on demand.

One loop serves any number of brokers, each on an address of its own:

    with fake_rabbit(manners=Manners(frame_max=4096)) as rabbit:
        BusConfig(broker=rabbit.name)
        rabbit.block("no memory")

`Manners` describes how a broker behaves and may be changed while it runs; the methods of `FakeRabbit`
make something happen now, and may be called from any thread. Exchanges are fanout or direct, queues
live in memory, confirms come together after each read, as RabbitMQ's do. A method that is not known here
closes the connection with 540, as a broker would.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import pika
import pika.spec as spec

from messagebus.topology import LADDER, declarations, parse_wanted
from tests.support.eventually import let_accepted_begin
from tests.support.fake_session import FRAME_END, Connection, Consumer, FakeQueue, Stored

__all__ = [
    "FakeQueue",
    "FakeRabbit",
    "Manners",
    "Stored",
    "fake_rabbit",
    "fake_rabbits",
    "serve",
]

T = TypeVar("T")

# Limit of a call from another thread to the loop; after that the loop is stuck.
CALL_TIMEOUT_S = 10.0
# A client without agents marks a queue as settled by an exchange of this name and the queue's.
SETTLED = "mb.settled/"

Confirms = Literal["multiple", "single", "reversed", "nack", "never"]


@dataclass(kw_only=True)
class Manners:
    """Behaviour of a broker.

    cluster_name: None takes ``host:port``, "" tells none. passwords: user -> password, None takes any.
    forbidden: exchanges and queues that nobody may touch (403). silent_after: answers nothing any more
    after that step. confirms: together after each read, one by one, one by one backwards, refusals,
    or none at all. reads: False leaves the data of clients in the kernel's buffers once they are in;
    for clients that are in already there is `stop_reading`.
    """

    cluster_name: str | None = None
    frame_max: int = 131_072
    channel_max: int = 2_047
    heartbeat_s: int = 60
    passwords: Mapping[str, str] | None = None
    vhosts: frozenset[str] = frozenset({"/"})
    forbidden: set[str] = field(default_factory=set)
    message_bytes_max: int = 134_217_728
    silent_after: Literal["", "connect", "start", "tune", "open"] = ""
    confirms: Confirms = "multiple"
    reads: bool = True


class FakeRabbit:
    """Broker without RabbitMQ.

    accepted: TCP connections. logins: handshakes that got as far as a password. refused: those whose
    password was wrong. published: messages taken, routed or not. cancelled: consumers, by their clients.
    exchanges: name -> type. bindings: (exchange, key, queue or exchange). clients: connections, in
    any state.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        manners: Manners | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.host, self.port, self._tls = host, port, tls
        self.manners = manners or Manners()
        self.exchanges: dict[str, str] = {}
        self.queues: dict[str, FakeQueue] = {}
        self.bindings: set[tuple[str, str, str]] = set()
        self.exchange_bindings: set[tuple[str, str, str]] = set()
        self.logins = self.refused = self.published = self.accepted = self.cancelled = 0
        self.blocked = ""
        self.clients: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def name(self) -> str:
        """The address where it listens: ``host:port``."""
        return f"{self.host}:{self.port}"

    # Life.
    async def start(self) -> None:
        """Listen; from then on this loop is the broker's."""
        self._loop = asyncio.get_running_loop()
        self._server = await self._loop.create_server(
            lambda: Connection(self), self.host, self.port, backlog=1024, ssl=self._tls
        )
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Hang up on everybody and leave the address; `start` may follow."""
        if self._server is not None:
            self._server.close()
            await let_accepted_begin()
            for connection in list(self.clients):
                connection.drop()
            await asyncio.gather(*(connection.ended.wait() for connection in list(self.clients)))
            self._server = None

    def on_loop(self, function: Callable[[], T]) -> T:
        """Call it on the broker's loop, from any thread, and return what it returns."""
        assert self._loop is not None, "not started"
        try:
            if asyncio.get_running_loop() is self._loop:
                return function()
        except RuntimeError:
            pass

        async def call() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(CALL_TIMEOUT_S)

    # Making things happen.
    @property
    def connections(self) -> int:
        """The clients that have got through the handshake and are still there."""
        return sum(connection.is_open for connection in list(self.clients))

    def declare(self, queue: str, *, exchange: str = "") -> FakeQueue:
        """Make a queue, bound to a fanout exchange when one is named."""

        def do() -> FakeQueue:
            made = self.queues.setdefault(queue, FakeQueue(queue))
            if exchange:
                self.exchanges.setdefault(exchange, "fanout")
                self.bindings.add((exchange, "", queue))
            return made

        return self.on_loop(do)

    def hold(self, wanted: str) -> None:
        """Have the exchanges and queues of an entry, ``orders/billing`` or ``queue:jobs``, settled."""

        def do() -> None:
            for parts in (LADDER, declarations(parse_wanted(wanted))):
                for exchange in parts.exchanges:
                    self.exchanges.setdefault(exchange.name, exchange.type)
                for queue in parts.queues:
                    arguments = dict(queue.arguments)
                    self.queues.setdefault(queue.name, FakeQueue(queue.name, arguments))
                    self.exchanges.setdefault(f"{SETTLED}{queue.name}", "fanout")
                for bound in parts.bindings:
                    self.bindings.add((bound.exchange, bound.routing_key, bound.queue))

        self.on_loop(do)

    def put(
        self,
        queue: str,
        body: bytes = b"",
        properties: bytes | pika.BasicProperties | None = None,
        *,
        size: int | None = None,
        frame_end: int = FRAME_END,
    ) -> None:
        """Put a message in, from its raw properties and with lies where told: see `Stored`."""
        raw = properties if isinstance(properties, bytes) else b"\x00\x00"
        if isinstance(properties, pika.BasicProperties):
            raw = b"".join(properties.encode())
        stored = Stored(
            body=body, routing_key=queue, properties=raw, size=size, frame_end=frame_end
        )
        self.on_loop(lambda: self.enqueue(self.queues[queue], stored))

    def cancel_consumers(self, queue: str) -> int:
        """Send Basic.Cancel to each consumer of the queue, as when its leader moves. Returns how many."""
        return self.on_loop(lambda: self._cancel_consumers(self.queues[queue]))

    def delete_queue(self, queue: str) -> int:
        """Delete it with what is in it; its consumers are cancelled. Returns how many messages."""
        return self.on_loop(lambda: self.remove(queue))

    def block(self, reason: str = "low on memory") -> None:
        """Send Connection.Blocked to all clients, and to later ones when they publish; confirm nothing."""
        self.blocked = reason
        self._each(lambda connection: connection.send(0, spec.Connection.Blocked(reason)))

    def unblock(self) -> None:
        self.blocked = ""

        def unblock(connection: Connection) -> None:
            connection.send(0, spec.Connection.Unblocked())
            for channel in list(connection.channels.values()):
                channel.confirm()

        self._each(unblock)

    def close_connections(self, code: int = 320, text: str = "CONNECTION_FORCED") -> None:
        """Send Connection.Close to all clients, as an operator's ``close_all_connections``."""
        self._each(lambda connection: connection.close(code, text))

    def close_channels(self, code: int = 406, text: str = "PRECONDITION_FAILED") -> None:
        """Send Channel.Close on every channel."""

        def close(connection: Connection) -> None:
            for channel in list(connection.channels.values()):
                channel.close(code, text)

        self._each(close)

    def drop_connections(self) -> None:
        """Reset all connections without a word."""
        self._each(lambda connection: connection.drop())

    def send_raw(self, data: bytes) -> None:
        """Send these bytes to all clients, whatever they are."""
        self._each(lambda connection: connection.write(data))

    def mute(self) -> None:
        """Send nothing to any client any more, new connections and heartbeats included: as if frozen."""
        self.manners.silent_after = "connect"
        self._each(lambda connection: connection.mute())

    def stop_reading(self) -> None:
        """Leave the data of clients in the kernel's buffers; deliveries and heartbeats go on."""
        self.manners.reads = False
        self._each(lambda connection: connection.stop_reading())

    def go_on_reading(self) -> None:
        self.manners.reads = True
        self._each(lambda connection: connection.transport.resume_reading())

    def _each(self, function: Callable[[Connection], None]) -> None:
        def do() -> None:
            for connection in list(self.clients):
                if connection.is_open:
                    function(connection)

        self.on_loop(do)

    # On the loop.
    def _cancel_consumers(self, queue: FakeQueue) -> int:
        consumers, queue.consumers = queue.consumers, deque()
        for consumer in consumers:
            consumer.channel.consumers.pop(consumer.tag, None)
            consumer.channel.send(spec.Basic.Cancel(consumer.tag, True))
        return len(consumers)

    def remove(self, name: str) -> int:
        """Delete a queue as `delete_queue` does."""
        queue = self.queues.pop(name)
        self.bindings = {bound for bound in self.bindings if bound[2] != name}
        self._cancel_consumers(queue)
        return len(queue.messages)

    def routed(self, exchange: str, key: str) -> list[FakeQueue]:
        """Return the queues that a publish goes to."""
        if not exchange:
            return [self.queues[key]] if key in self.queues else []
        reached = [exchange]
        for each in reached:
            found = self._bound(self.exchange_bindings, each, key)
            reached += [name for name in found if name not in reached]
        names = [name for each in reached for name in self._bound(self.bindings, each, key)]
        return [self.queues[name] for name in dict.fromkeys(names)]

    def _bound(self, bindings: set[tuple[str, str, str]], exchange: str, key: str) -> list[str]:
        fanout = self.exchanges[exchange] == "fanout"
        return [to for source, k, to in bindings if source == exchange and (fanout or k == key)]

    def enqueue(self, queue: FakeQueue, stored: Stored) -> None:
        queue.messages.append(stored)
        self.deliver(queue)

    def deliver(self, queue: FakeQueue) -> None:
        """Deliver to each consumer in turn that may have more."""
        while queue.messages and (consumer := self._with_room(queue)) is not None:
            consumer.channel.deliver(consumer, queue.messages.popleft())

    @staticmethod
    def _with_room(queue: FakeQueue) -> Consumer | None:
        for _ in range(len(queue.consumers)):
            consumer = queue.consumers[0]
            queue.consumers.rotate(-1)
            if not consumer.prefetch or consumer.owed < consumer.prefetch:
                return consumer
        return None


@asynccontextmanager
async def serve(*rabbits: FakeRabbit) -> AsyncIterator[None]:
    """Run these on the running loop: for a process with nothing but brokers."""
    try:
        for rabbit in rabbits:
            await rabbit.start()
        yield
    finally:
        for rabbit in rabbits:
            await rabbit.stop()


@contextmanager
def fake_rabbits(*rabbits: FakeRabbit) -> Iterator[None]:
    """Run these on one background loop while the block runs."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="fake-rabbits", daemon=True)
    thread.start()

    async def start() -> None:
        for rabbit in rabbits:
            await rabbit.start()

    async def stop() -> None:
        for rabbit in rabbits:
            await rabbit.stop()
        # Handshakes of TLS that clients gave up: their connections are nobody's yet.
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.sleep(0)

    try:
        asyncio.run_coroutine_threadsafe(start(), loop).result(CALL_TIMEOUT_S)
        yield
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(CALL_TIMEOUT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def fake_rabbit(
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    manners: Manners | None = None,
    tls: ssl.SSLContext | None = None,
) -> Iterator[FakeRabbit]:
    """Run one broker on a background loop."""
    rabbit = FakeRabbit(host, port, manners, tls)
    with fake_rabbits(rabbit):
        yield rabbit
