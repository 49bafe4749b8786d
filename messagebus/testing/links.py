"""Wire to brokers in memory: the links that the drivers need, without sockets.

A link belongs to one asyncio loop; brokers may call it from any thread, and then it only posts.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

from messagebus._io.amqp.frames import Bare
from messagebus._io.amqp.link import Link
from messagebus._io.wire import Follower, Registration, Topology
from messagebus.broker import Broker, BrokerList, ListedBroker
from messagebus.core.headers import STREAM_OFFSET
from messagebus.core.membership import ListKeeper
from messagebus.destination import Delay, Destination, Queue, Subscription
from messagebus.errors import NOT_FOUND, ChannelRefused, LinkError, LinkLost, MessageBusError
from messagebus.testing.brokers import MemoryBroker, MemoryBrokers, Route
from messagebus.testing.queues import Arrived, MemoryStream, Taker
from messagebus.topology import Wanted, topic_of

__all__ = ["MemoryLink", "MemoryWire"]

# Limit for another thread's loop to notice that its link is gone; it has nothing else to do.
NOTICE_TIMEOUT_S = 5.0


class MemoryWire:
    """Way to the brokers of one bus."""

    redial_first_ms = 0

    def __init__(self, brokers: MemoryBrokers) -> None:
        self._brokers = brokers

    def topology(self) -> Topology:
        return _MemoryTopology(self._brokers)

    def follow(
        self, *, subscription: str, interval_s: int, on_list: Callable[[BrokerList], None]
    ) -> Follower:
        return _MemoryFollower(self._brokers.names, on_list)

    async def dial(self, broker: Broker | None, *, timeout_ms: int) -> Link:
        brokers = self._brokers
        if brokers.input.is_frozen:
            await asyncio.wait_for(_thawed(brokers), timeout_ms / 1000)
        site = brokers.balance() if broker is None else brokers.all[broker.name]
        if site.name in brokers.stopped:
            raise LinkLost(site.name, "stopped by the test")
        return cast(Link, MemoryLink(brokers, site))

    async def dial_to_publish(self, broker: Broker, *, timeout_ms: int, waits: bool) -> Link:
        return await self.dial(broker, timeout_ms=timeout_ms)


async def _thawed(brokers: MemoryBrokers) -> None:
    loop = asyncio.get_running_loop()
    thawed = asyncio.Event()
    brokers.input.do(lambda: cast(None, _post(loop, thawed.set)))
    await thawed.wait()


def _post(loop: asyncio.AbstractEventLoop, action: Callable[[], object]) -> bool:
    """Post to the loop from any thread. False: the loop has ended."""
    try:
        loop.call_soon_threadsafe(action)
    except RuntimeError:
        return False
    return True


class _MemoryTopology:
    def __init__(self, brokers: MemoryBrokers) -> None:
        self._brokers = brokers

    async def register(
        self,
        wanted: Sequence[Wanted],
        *,
        timeout_ms: int,
        enough: bool = False,
        on_answer: Callable[[Registration], None] | None = None,
    ) -> Registration:
        options = {str(each): self._brokers.declare(each) for each in wanted}
        found = Registration(True, held=self._brokers.names, options=options)
        if on_answer is not None:
            on_answer(found)
        return found

    async def exists(self, queue: Queue, *, timeout_ms: int) -> bool:
        return self._brokers.is_declared(queue)

    async def plain_sources(self, destinations: Collection[str]) -> list[str]:
        return [name for name in self._brokers.plain_names() if topic_of(name) in destinations]

    async def homes(self, topic: str, known: str, *, wait_s: int) -> str:
        """Return them as they are, in time: in memory they stay."""
        await asyncio.sleep(wait_s)
        return known

    async def verify(
        self, link: Link, destinations: Iterable[Destination | Delay]
    ) -> Mapping[Destination | Delay, MessageBusError]:
        return {}

    async def delete(self, source: Subscription, *, timeout_ms: int) -> None:
        self._brokers.delete(source)


class _MemoryFollower:
    """Consumer list of all brokers, given once."""

    def __init__(self, names: Sequence[str], on_list: Callable[[BrokerList], None]) -> None:
        self.keeper = ListKeeper()
        self.brokers: BrokerList | None = None
        self.until_tried: Callable[[], Awaitable[object]] | None = None
        self._names, self._on_list = names, on_list

    def start(self) -> None:
        listed = tuple(ListedBroker(broker=Broker.parse(name)) for name in self._names)
        self.brokers = BrokerList(listed=listed)
        self._on_list(self.brokers)

    async def stop(self) -> None:
        pass


class MemoryLink:
    """Link with the methods of `_io.amqp.link.Link` that the drivers use."""

    has_heartbeats = True
    properties_max = 131_052
    sent_bytes = unsent_bytes = 0

    def __init__(self, brokers: MemoryBrokers, site: MemoryBroker) -> None:
        self._brokers, self.site = brokers, site
        self.broker, self.address = site.name, Broker.parse(site.name)
        self.is_open = True
        self.taker: Taker | None = None
        self.published = 0
        self.channel = _MemoryChannel(self)
        self.transport = _MemoryTransport(self, brokers)
        self._prefetch = 0
        self._loop, self._thread = asyncio.get_running_loop(), threading.current_thread()
        self._deliveries: deque[Arrived] = deque()
        self._answers: deque[Callable[[], None]] = deque()
        self._woken = False
        self._calls: set[asyncio.Future[None]] = set()
        self._end: LinkError | None = None
        self._on_lost: Callable[[LinkError], None] = lambda _why: None
        with brokers.lock:
            site.sites.add(self)

    # What comes from the broker.
    def bring(self, arrived: list[Arrived]) -> None:
        """Bring deliveries. Under the lock."""
        self._brokers.bring(lambda: self._read_soon(self._deliveries.extend, arrived))

    def confirm(self, answers: list[tuple[int, bool, bool]]) -> None:
        """Bring confirms. Under the lock."""

        def deliver() -> None:
            for tag, multiple, ok in answers:
                self.transport.on_confirm(tag, multiple, ok)

        self._brokers.bring(lambda: self._read_soon(self._answers.append, deliver))

    def send_back(self, exchange: str, key: str, message_id: str) -> None:
        """Bring a returned publish. Under the lock."""
        method = SimpleNamespace(exchange=exchange, routing_key=key)
        properties = SimpleNamespace(message_id=message_id)

        def deliver() -> None:
            for callback in self.channel.on_return:
                callback(self.channel, method, properties, b"")

        self._brokers.bring(lambda: self._read_soon(self._answers.append, deliver))

    def end(self, code: int, reason: str) -> None:
        """Close the channel, as the broker does. Under the lock."""
        fault = ChannelRefused(self.broker, code, reason)
        self._read_soon(self._answers.append, lambda: self._finish(fault))

    def _read_soon(self, put: Callable[[Any], None], what: Any) -> None:
        """Keep the broker's message and wake the loop. Under the lock."""
        put(what)
        if not self._woken:
            self._woken = True
            if threading.current_thread() is self._thread:
                self._loop.call_soon(self._read)
            elif not _post(self._loop, self._read):
                self._leave()  # its loop has ended without a word

    def _read(self) -> None:
        """Read all that has come, and run the callbacks once. On the loop."""
        self._woken = False
        deliveries, answers = self._deliveries, self._answers
        on_contents = self.transport.on_contents
        if deliveries and self.is_open:
            on_contents([deliveries.popleft() for _ in range(len(deliveries))])
        while answers and (self.is_open or self._end is None):
            answers.popleft()()
        if self.is_open:
            self.transport.on_turn()
            self.transport.flush()

    # Calls.
    async def call(self, method: str, **arguments: Any) -> Any:
        """Call one of pika's channel methods that the drivers use, behind all that was written."""
        if self._end is not None:
            raise self._end
        self.transport.flush()
        answered: asyncio.Future[Any] = self._loop.create_future()
        self._calls.add(answered)
        found: list[Any] = [None]

        def deliver() -> None:
            if not answered.done():
                answered.set_result(found[0])

        def carry_out() -> None:
            """Carry out the call under the lock."""
            if not self.is_open:
                return
            attached = self.taker is not None  # attaching itself is never slow
            found[0] = getattr(self, f"_{method}")(**arguments)
            if attached:
                self._brokers.bring(lambda: self._read_soon(self._answers.append, deliver))
            else:
                self._read_soon(self._answers.append, deliver)

        try:
            self._brokers.input.do(carry_out)
            return await answered
        finally:
            self._calls.discard(answered)

    async def try_call(self, method: str, **arguments: Any) -> Any:
        return await self.call(method, **arguments)

    async def refusals(self, exchanges: Sequence[str]) -> dict[str, ChannelRefused]:
        """End the link where an exchange is missing, as `call` does."""
        for exchange in exchanges:
            await self.call("exchange_declare", exchange=exchange, passive=True)
        return {}

    async def open_channel(self) -> MemoryLink:
        """Open a channel: a link of its own."""
        if self._end is not None:
            raise self._end
        return MemoryLink(self._brokers, self.site)

    async def confirm_select(self) -> None:
        """Do nothing: every link confirms."""

    def _basic_qos(self, *, prefetch_count: int) -> None:
        self._prefetch = prefetch_count

    def _queue_declare(self, *, queue: str, passive: bool) -> object:
        if queue not in self.site.queues:
            self.end(NOT_FOUND, f"NOT_FOUND - no queue '{queue}'")
            return None
        found = self.site.queues[queue]
        kept = found.kept if isinstance(found, MemoryStream) else found.ready
        return SimpleNamespace(message_count=len(kept), consumer_count=len(found.takers))

    def _exchange_declare(self, *, exchange: str, passive: bool) -> None:
        if not self.site.has_exchange(exchange):
            self.end(NOT_FOUND, f"NOT_FOUND - no exchange '{exchange}'")

    def _basic_consume(
        self,
        *,
        queue: str,
        consumer_tag: str,
        arguments: Mapping[str, Any] | None = None,
        **_callbacks: Any,
    ) -> None:
        self._queue_declare(queue=queue, passive=True)
        if queue in self.site.queues:
            offset = (arguments or {}).get(STREAM_OFFSET, "next")
            self.site.attach(self, queue, self._prefetch, self.bring, offset)

    def cancel(self, callback: Callable[[Any], None] | None) -> None:
        """Stop deliveries; those that came before may still be answered."""

        def carry_out() -> None:
            if self.taker is not None:
                self.taker.queue.cancel(self.taker)
            if callback is not None:
                told = callback
                self._brokers.bring(
                    lambda: self._read_soon(self._answers.append, lambda: told(None))
                )

        self._brokers.input.do(carry_out)

    # The end.
    def on_lost(self, callback: Callable[[LinkError], None]) -> None:
        if self._end is not None:
            callback(self._end)
        else:
            self._on_lost = callback

    def on_blocked(self, callback: Callable[[bool], None]) -> None:
        """Ignore the callback: brokers in memory have no alarms."""

    def lose(self, reason: str) -> Callable[[], None]:
        """Cut the connection. Under the lock. Returns a function that makes the client notice."""
        self._leave()
        why = LinkLost(self.broker, reason)
        if threading.current_thread() is self._thread:
            return lambda: self._finish(why)
        noticed = threading.Event()

        def notice() -> None:
            try:
                self._finish(why)
            finally:
                noticed.set()

        if _post(self._loop, notice):
            return lambda: cast(None, noticed.wait(NOTICE_TIMEOUT_S))
        return lambda: None

    def _leave(self) -> None:
        with self._brokers.lock:
            self._deliveries.clear()
            self._answers.clear()
            self.is_open = False
            if self in self.site.sites:
                self.site.sites.discard(self)
                self.site.detach(self)
                self._brokers.tell()

    def _finish(self, why: LinkError) -> None:
        if self._end is not None:
            return
        self._end = why
        self._leave()
        for answer in self._calls:
            if not answer.done():
                answer.set_exception(why)
        self._on_lost(why)

    def abort(self) -> None:
        self._finish(LinkLost(self.broker, "hung up"))

    async def hang_up(self) -> None:
        self.abort()

    async def close(self) -> None:
        if self.is_open:
            self.transport.flush()
        self._finish(LinkLost(self.broker, "closed"))


class _MemoryChannel:
    """Channel with the methods of pika's that the drivers use."""

    def __init__(self, link: MemoryLink) -> None:
        self._link = link
        self.on_return: list[Callable[[Any, Any, Any, bytes], None]] = []

    @property
    def is_open(self) -> bool:
        return self._link.is_open

    def add_on_return_callback(self, callback: Callable[[Any, Any, Any, bytes], None]) -> None:
        self.on_return.append(callback)

    def add_on_cancel_callback(self, callback: Callable[[Any], None]) -> None:
        """Ignore the callback: brokers in memory cancel nobody."""

    def basic_cancel(
        self, consumer_tag: str, callback: Callable[[Any], None] | None = None
    ) -> None:
        self._link.cancel(callback)


class _MemoryTransport:
    """Orders of one link, written with `flush`."""

    backed_up = False

    def __init__(self, link: MemoryLink, brokers: MemoryBrokers) -> None:
        self._link, self._brokers = link, brokers
        self.out: list[Any] = []
        self.on_confirm: Callable[[int, bool, bool], None] = lambda *_: None
        self.on_contents: Callable[[list[Arrived]], None] = lambda _: None
        self.on_turn: Callable[[], None] = lambda: None

    def frames(self, exchange: str, routing_key: str) -> _MemoryFrames:
        return _MemoryFrames(Route(exchange, routing_key))

    def ack(self, tag: int, multiple: bool) -> None:
        self.out.append(("ack", tag, multiple))

    def nack(self, tag: int, requeue: bool) -> None:
        self.out.append(("nack", tag, requeue))

    def flush(self) -> None:
        if self.out:
            orders, self.out = self.out, []
            if self._link.is_open:
                self._brokers.write(self._link.site, self._link, orders)

    def pika_confirm(self, method: Any) -> None:
        raise AssertionError("brokers in memory speak no AMQP")

    def pika_content(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        raise AssertionError("brokers in memory speak no AMQP")


class _MemoryFrames:
    __slots__ = ("_route",)

    def __init__(self, route: Route) -> None:
        self._route = route

    def add(self, out: list[Any], properties: bytes, body: bytes) -> None:
        out.append((self._route, properties, body))

    def uniform(self, target: tuple[bytes, bytes]) -> _MemoryUniformFrames:
        return _MemoryUniformFrames(self._route, target)


class _MemoryUniformFrames:
    __slots__ = ("_after", "_before", "_route")

    def __init__(self, route: Route, target: tuple[bytes, bytes]) -> None:
        self._route, (self._before, self._after) = route, target

    def add(self, out: list[Any], messages: Iterable[Bare]) -> None:
        route, before, after = self._route, self._before, self._after
        out += [(route, before + each.message_id.encode() + after, each.body) for each in messages]
