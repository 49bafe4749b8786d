"""The publisher's driver: carries out the decisions of `core.pending` and `core.route`, over pika.

Runs on one asyncio loop; every method must be called on it. Each callback translates, makes one core
call, and performs the actions. Sends are coalesced: one `_pump` sends all messages submitted in one
turn of the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import pika.exceptions

from messagebus._io.amqp.frames import HEADER_OVERHEAD
from messagebus._io.amqp.link import CLOSING_TIMEOUT_S, TOO_LATE, Link
from messagebus._io.amqp.properties import due_first, encode, encode_entry
from messagebus._io.loop import Tasks, now_ms
from messagebus._io.publish.destinations import Destinations
from messagebus._io.publish.publishes import (
    Address,
    Bundle,
    Copy,
    Many,
    Publish,
    Sender,
    Target,
    Waiter,
    message_ids,
    place_name,
    tell,
)
from messagebus._io.wire import Follower, Outage, Wire, is_absent
from messagebus.broker import Broker, BrokerList
from messagebus.clock import LogLimit, whole_ms
from messagebus.config import BusConfig, PublisherConfig
from messagebus.core.confirms import Packing
from messagebus.core.pending import (
    DEADLINE_PASSED,
    PUBLISHER_STOPPED,
    REFUSED,
    Entry,
    Item,
    PendingPublishes,
)
from messagebus.core.route import Action, Adopt, Dial, HangUp, Route
from messagebus.destination import PARTS
from messagebus.errors import ChannelRefused, LinkError, LoginRefused, MessageBusError
from messagebus.message import Message
from messagebus.topology import Options

log = logging.getLogger("messagebus.publisher")

# Interval of the check for deadlines, slow confirms, links to hang up, and due dials. A due dial may
# come after TICK_MIN_MS: publishers wait for it.
TICK_MS, TICK_MIN_MS = 100, 5
# A retiring link waits this long for open answers; then these outcomes are unknown.
RETIRE_MS = 10_000
# One line a second for all refused logins of this process: a gateway logs in for many clients.
_refusals = LogLimit(1_000)
# With 16 MiB in flight on a link, a slow network holds no more than that in buffers.
WINDOW_BYTES_MAX = 16 * 1024 * 1024
FOLLOW_INTERVAL_S = 30
# Bytes of properties that fit a frame of RabbitMQ's default; a broker may agree to smaller frames.
PROPERTIES_MAX = 131_072 - HEADER_OVERHEAD
# The code with which a broker ends a channel for one publish: too large, a wrong property, another user.
PRECONDITION_FAILED = 406
# Interval of checks whether the socket takes more: pika does not say when it does.
BACKED_UP_S = 0.005


@dataclass(slots=True)
class Counters:
    """Counts of one publisher. unconfirmed: messages sent for which no confirm was wanted."""

    unconfirmed: int = 0
    links_lost: int = 0
    last_confirm_ms: int = 0


class SpoolCounts(NamedTuple):
    """Counts of a publisher's spool: see `messagebus.stats.PublisherStats`."""

    messages: int = 0
    bytes: int = 0
    oldest_s: float = 0.0
    replayed: int = 0
    failures: int = 0
    damaged: int = 0


def encode_publish(target: Target, message: Message, message_id: str, *, alone: bool) -> bytes:
    if alone:
        is_delayed = target.address.routing_key and not target.address.exchange.startswith(PARTS)
        if is_delayed and message.ttl_s is not None:
            message = due_first(message)
        return encode(message, message_id, int(time.time()), persistent=target.confirms)
    return encode_entry(message, message_id)


class PublishDriver:
    """The links of one publisher to one broker after the other."""

    ordered = False
    """As of `PendingPublishes`."""

    def __init__(
        self,
        bus: BusConfig,
        config: PublisherConfig,
        on_room: Callable[[], None],
        wire: Wire,
        *,
        beside: PublishDriver | None = None,
    ) -> None:
        """Create the driver. on_room: called when messages have left the backlog, at most once a turn.

        beside: the driver whose broker this one avoids, and whose consumer list it follows.
        """
        self._bus, self._config, self._on_room, self._wire = bus, config, on_room, wire
        self._beside, self._follows = beside, beside is None
        # Without a consumer list it is the whole bus, and RabbitMQ's own default name says no address.
        self._only_broker = "" if bus.list_urls else bus.address.name
        self.on_displaced: Callable[[PublishDriver, list[Item]], None] | None = None
        """Takes the copies that may not be sent to the broker of the current link."""
        self.on_adopted: Callable[[], None] | None = None
        """Called when a new link has become the current one."""
        self.pending = PendingPublishes(
            messages_max=config.backlog_messages_max,
            bytes_max=config.backlog_bytes_max,
            window=config.window,
            window_bytes_max=WINDOW_BYTES_MAX,
            attempts_max=config.attempts_max,
            retry_unknown=config.retry_unknown,
            ordered=self.ordered,
        )
        self._slow_ms = whole_ms(config.confirm_slow_s)
        self.route = Route(
            lifetime_ms=config.connection_lifetime_s * 1000,
            timeout_first_ms=whole_ms(bus.dial_timeout_s),
            timeout_max_ms=whole_ms(bus.dial_timeout_max_s),
        )
        self.counters = Counters()
        self.fatal: LoginRefused | None = None
        self.connected = asyncio.Event()
        """Set when a link is open, or when a login was refused (`fatal`)."""
        self._ids = message_ids()
        self._sender: Sender | None = None  # of the current link
        self._properties_max = PROPERTIES_MAX  # of the current link
        self.fault = ""
        """The reason why there is no room beside the backlog, "" where there is none to look for."""
        self.replay_ends: dict[str, int] = {}
        """Ends of messages sent from a spool, by outcome; `pending.ended` has them, too."""
        self._unconfirmed: set[str] = set()  # destinations whose publishes need no confirm
        self._follower: Follower = (
            wire.follow(subscription="", interval_s=FOLLOW_INTERVAL_S, on_list=self._on_list)
            if beside is None
            else beside._follower
        )
        self._loop = asyncio.get_running_loop()
        self._links: dict[int, Link] = {}
        self._retire_at_ms: dict[int, int] = {}
        self._tasks = Tasks()
        # Links that are hung up. A close that is cancelled before it began would close nothing.
        self._closing = Tasks()
        self._destinations = Destinations(
            wire.topology(),
            self.pending,
            self._tasks,
            link=lambda: self._links.get(self.route.current or 0),
            settle=self._settle,
            wake=self._wake,
            leave=self.leave,
            on_login_refused=self._login_refused,
        )
        self._known_destinations = self._destinations.known
        self._dials: dict[int, asyncio.Task[None]] = {}
        self._unseen: dict[int, list[Address]] = {}  # dial -> destinations that it did not look at
        self._ever_listed: frozenset[str] = frozenset()
        self._dialed_by_name: dict[str, int] = {}  # broker -> number of the last such dial
        self._last_fault, self._outage = "", Outage(log)
        self._blocked = False
        self._stopping = False
        self._woken = False
        self._slow_until_ms, self._slow = 0, 0  # the link that was slow last
        # Link -> bytes that the other side had taken at the last tick.
        self._taken: dict[int, int] = {}
        self._dead = 0  # the link that did not answer a request
        self._timer: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None
        # Items that each flush waits for; a settled item at the end of its list is dropped.
        self._flushes: list[tuple[list[Item], asyncio.Future[None]]] = []

    # Life.
    def start(self) -> None:
        if self._follows:
            self._follower.start()
        self._tick()

    async def stop(self, timeout_s: float) -> int:
        """Wait for open publishes, settle the rest, hang up. Returns how many were still unsettled.

        When it is cancelled, each publish has its end all the same, and all links are cut.
        """
        until_s = time.monotonic() + timeout_s
        try:
            await self.flush(timeout_s)
        finally:
            left = self.pending.give_up(PUBLISHER_STOPPED)
            count = sum(item.count for item in left)
            if left:
                unknown = sum(item.count for item in left if item.attempts)
                log.warning("stopped too early unknown=%d unsent=%d", unknown, count - unknown)
            self._settle(left)
            self._stopping = True
            self._arm()
            self.connected.set()  # nobody waits for it any more
        try:
            await self._tasks.cancel()
            if self._follows:
                await self._follower.stop()
            links, self._links = self._links, {}
            for link in links.values():
                self._closing.spawn(link.close())
            # A slow line has the rest of the caller's time to take what needs no confirm.
            await self._closing.finish(max(CLOSING_TIMEOUT_S, until_s - time.monotonic()))
        finally:
            for link in self._links.values():
                link.abort()
        return count

    async def flush(self, timeout_s: float) -> int:
        """Wait until all publishes accepted so far are settled. Returns how many are not, in time."""
        items, done = self.unsettled(), self._loop.create_future()
        self.pending.close_batches()
        self._wake()
        if items:
            self._flushes.append((items, done))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await done
        return sum(item.count for item in items if item.end is None)

    def unsettled(self) -> list[Item]:
        """Return the accepted publishes that are not settled, in no order."""
        return list(self.pending.unsettled())

    def spool_counts(self) -> SpoolCounts:
        """Return the counts of the spool; zeros without one."""
        return SpoolCounts()

    # Accepting.
    def submit(
        self,
        target: Target,
        body: bytes,
        message: Message | None,
        timeout_ms: int,
        waiter: Waiter | Many | None,
    ) -> Publish:
        """Accept a publish without a bound: the caller has asked for room.

        message: None for only a body. waiter: gets the end.
        """
        if target.destination not in self._known_destinations:
            self._open_destination(target)
        deadline_ms = time.monotonic_ns() // 1_000_000 + timeout_ms
        if message is None:
            publish = Publish(next(self._ids), target, body, None, deadline_ms, waiter)
            self.pending.accept(publish)
        else:
            message_id = message.message_id or next(self._ids)
            publish = Publish(message_id, target, body, None, deadline_ms, waiter)
            alone = self.goes_alone(target, message)
            try:
                # Encode now: the application may change its headers afterwards.
                publish.properties = encode_publish(target, message, message_id, alone=alone)
            except Exception as fault:  # an AMQP table cannot hold it
                self.pending.refuse(publish, f"cannot be encoded: {type(fault).__name__}")
                self._loop.call_soon(tell, [publish], time.monotonic_ns())
                return publish
            if alone and len(publish.properties) > self._properties_max:
                size, most = len(publish.properties), self._properties_max
                self.pending.refuse(publish, f"headers of {size} bytes: its broker takes {most}")
                self._loop.call_soon(tell, [publish], time.monotonic_ns())
                return publish
            self.pending.accept(publish, alone=alone)
        if not self._woken:
            self._wake()
        return publish

    def on_partitioned(self, take: Callable[[Address, Options, list[Item]], str] | None) -> None:
        """Have publishes of a topic with partitions taken over. take: returns why it takes none, or ""."""
        self._destinations.on_partitioned = take

    def submit_copy(self, copy: Copy) -> None:
        """Accept one of two copies, as `submit`."""
        if copy.target.destination not in self._known_destinations:
            self._open_destination(copy.target)
        self.pending.accept(copy, alone=copy.alone)
        if not self._woken:
            self._wake()

    def take_over(self, copies: list[Copy]) -> None:
        """Accept copies that another driver could not send, ahead of all others, in their order."""
        for copy in reversed(copies):
            if copy.target.destination not in self._known_destinations:
                self._open_destination(copy.target)
            self.pending.accept_first(copy, alone=copy.alone)
        self._wake()

    def submit_encoded(
        self,
        target: Target,
        body: bytes,
        message_id: str,
        properties: bytes,
        timeout_ms: int,
        waiter: Waiter,
    ) -> None:
        """Do as `submit`, for encoded properties with this id; it travels alone."""
        if target.destination not in self._known_destinations:
            self._open_destination(target)
        deadline_ms = now_ms() + timeout_ms
        self.pending.accept(
            Publish(message_id, target, body, properties, deadline_ms, waiter), alone=True
        )
        self._wake()

    def submit_bundle(
        self, target: Target, bodies: list[bytes], size: int, timeout_ms: int, waiter: Many
    ) -> Bundle:
        """Accept bodies that `packing_of` lets travel together, `size` bytes in all. As `submit`."""
        if target.destination not in self._known_destinations:
            self._open_destination(target)
        ids = list(itertools.islice(self._ids, len(bodies)))
        bundle = Bundle(ids, bodies, size, target, now_ms() + timeout_ms, waiter)
        self.pending.accept_bundle(bundle)
        self._wake()
        return bundle

    def packing_of(self, target: Target) -> Packing | None:
        """Return the bounds of a bundle of plain bodies; None where each is its own publish, or lingers."""
        packing = self._packing(target)
        if packing is None or packing.linger_ms:
            return None
        count_max = min(packing.count_max, self._config.backlog_messages_max)
        return packing._replace(count_max=count_max)

    def _open_destination(self, target: Target) -> None:
        packing = self._packing(target)
        if packing is not None:
            self.pending.pack(target.destination, packing)
        if not target.confirms:
            self._unconfirmed.add(target.destination)
        self._destinations.use(target.address)

    def _packing(self, target: Target) -> Packing | None:
        batching = self._config.batch.get(target.address.name)
        if batching is None or target.address.routing_key:
            return None
        return Packing(batching.count_max, batching.bytes_max, whole_ms(batching.linger_s))

    def packed_max(self, target: Target) -> int:
        """Return the size in bytes below which a bare body travels in batches; 0 for none."""
        packing = self._packing(target)
        return 0 if packing is None else packing.bytes_max

    def goes_alone(self, target: Target, message: Message) -> bool:
        """Return whether it is kept out of batches: the broker must see it, or it is too large."""
        packing = self._packing(target)
        return (
            packing is None
            or message.priority is not None
            or message.ttl_s is not None
            or len(message.body) >= packing.bytes_max
        )

    # Sending.
    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Send what the window takes, in one write. Called once a turn of the loop, or after each read."""
        self._woken = False
        link = self._links.get(self.route.current or 0)
        if (
            link is not None
            and link.is_open
            and not self._blocked
            and self._sender is not None
            and (self._beside is None or self.stands_apart)
        ):
            if not link.transport.backed_up:
                self._send(link, self._sender)
            else:
                self._woken = True
                self._loop.call_later(BACKED_UP_S, self._pump)
        self._on_room()

    @property
    def stands_apart(self) -> bool:
        """True when the current link leads to another broker than that of the driver beside it."""
        return self.route.broker not in ("", self._avoided())

    @property
    def is_unnamed(self) -> bool:
        """True when the current link leads to a broker that does not say its name."""
        return self.route.current is not None and not self.route.broker

    def is_usable(self, now_ms: int) -> bool:
        """Return whether copies go out at once: to a broker with a name, which answers."""
        return (
            self.route.current is not None
            and not self._blocked
            and (self.stands_apart if self._beside is not None else bool(self.route.broker))
            and self.pending.unanswered_ms(now_ms) < self._slow_ms
        )

    def _avoided(self) -> str:
        return "" if self._beside is None else self._beside.route.broker

    def _lingered(self) -> None:
        """Send a batch that has lingered long enough; `_send` arms the timer for the next one."""
        self._linger = None
        self._pump()

    def _send(self, link: Link, sender: Sender) -> None:
        sent_ns = time.monotonic_ns()
        sent_ms = sent_ns // 1_000_000
        if self.on_displaced is not None and (
            barred := self.pending.displace(link.broker, sent_ms)
        ):
            self.on_displaced(self, barred)
        entries = self.pending.take(sent_ms)
        if (due_ms := self.pending.lingers_until_ms()) is not None and self._linger is None:
            self._linger = self._loop.call_later((due_ms - now_ms()) / 1000, self._lingered)
        if not entries:
            return
        try:
            sender.send(entries, link.broker or self._only_broker, sent_ns)
            link.transport.flush()
            self.pending.written(link.sent_bytes)
        except (pika.exceptions.AMQPChannelError, pika.exceptions.AMQPConnectionError):
            link.abort()  # it has just ended: they go out on the next one
            return
        if self._unconfirmed:
            self._settle_unconfirmed(entries)

    def _settle_unconfirmed(self, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.destination in self._unconfirmed:
                settled = self.pending.unconfirmed(entry)
                self.counters.unconfirmed += len(settled)
                self._tell(settled)

    # Answers.
    def _login_refused(self, fault: LoginRefused) -> None:
        self.fatal = fault
        self.connected.set()

    def _answered(self, link: int, tag: int, multiple: bool, ok: bool) -> None:
        """Settle publishes, which makes room; the transport calls `_pump` after it."""
        self.counters.last_confirm_ms = now_ms()
        if self._slow_until_ms and link == self.route.current != self._slow:
            self._slow_until_ms = 0  # another one answers: not all brokers are slow
        self._tell(self.pending.answered(link, tag, multiple=multiple, ok=ok))
        if link in self._retire_at_ms:
            self._hang_up_if_answered(link)

    def _settle(self, settled: list[Item]) -> None:
        """Tell the waiters of settled publishes; these may have made room."""
        if settled:
            self._tell(settled)
            self._wake()

    def _tell(self, settled: list[Item]) -> None:
        tell(cast(list[Publish], settled), time.monotonic_ns())
        if self._flushes:
            self._tell_flushes()

    def tell_flushes(self) -> None:
        """Tell those who wait in `flush`, if all that they wait for has ended."""
        if self._flushes:
            self._tell_flushes()

    def _tell_flushes(self) -> None:
        for items, done in self._flushes:
            while items and items[-1].end is not None:
                items.pop()
            if not items and not done.done():
                done.set_result(None)
        self._flushes = [each for each in self._flushes if not each[1].done()]

    def refuse(self, items: Iterable[Item], reason: str) -> None:
        """Settle items that were taken out as refused."""
        self._settle(self.pending.end([*items], REFUSED, reason))

    def withdraw(self, items: Sequence[Item], reason: str) -> None:
        """Settle these before their deadline."""
        self._settle(self.pending.withdraw(items, reason))

    def resume(self) -> None:
        """Send what could not be sent before."""
        self._wake()

    # Links.
    def _perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Dial() if self._stopping:  # nobody would close its link
                    pass
                case Dial(link, timeout_ms, by_name):
                    broker = self._choose(link) if by_name or self.route.stays else None
                    self._dials[link] = self._tasks.spawn(self._dial(link, timeout_ms, broker))
                case Adopt(link):
                    self._adopt(link)
                case HangUp(link):
                    self._hang_up(link)

    def _choose(self, number: int) -> Broker | None:
        """Return the listed broker to dial by its name, in turn; None without one."""
        brokers, avoided = self._follower.brokers, self._avoided()
        listed = () if brokers is None else brokers.listed
        names = {
            each.broker.name: each.broker
            for each in listed
            if not each.draining and each.broker.name != avoided
        }
        if not names:
            return None
        name = min(names, key=lambda name: self._dialed_by_name.get(name, 0))
        self._dialed_by_name[name] = number
        return names[name]

    async def _dial(self, number: int, timeout_ms: int, broker: Broker | None) -> None:
        """Try one dial: connect, log in, ask for confirms, verify the destinations in use.

        broker: None for any that the balancer gives. A broker without a gate that is open is refused.
        """
        link: Link | None = None
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                if broker is None:
                    link = await self._wire.dial(None, timeout_ms=timeout_ms)
                else:
                    dial = self._wire.dial_to_publish
                    link = await dial(broker, timeout_ms=timeout_ms, waits=self.route.stays)
                link.transport.on_confirm = functools.partial(self._answered, number)
                link.transport.on_turn = self._pump
                await link.confirm_select()
                self._unseen[number] = await self._verify(link)
        except (MessageBusError, TimeoutError) as fault:
            if link is not None:
                link.abort()
                self._closing.spawn(link.hang_up())
            self._dial_failed(number, fault)
        except asyncio.CancelledError:
            if link is not None:
                await link.hang_up()
            raise
        else:
            self._opened(number, link)
        finally:
            self._dials.pop(number, None)
            self._unseen.pop(number, None)

    async def _verify(self, link: Link) -> list[Address]:
        """Look which destinations in use a new link has; return those not looked for. Raises LinkLost."""
        return await self._destinations.verify(link)

    def _dial_failed(self, number: int, fault: Exception) -> None:
        reason = str(fault) or TOO_LATE
        log.debug("dial failed broker=%s reason=%r", self._bus.broker, reason)
        if isinstance(fault, LoginRefused):
            if _refusals.allows():
                log.error("login refused broker=%s reason=%r", fault.broker, fault.reason)
            self.fatal = fault
            self.connected.set()
            self._last_fault = f"; login refused: {reason}"
        else:
            if self.route.current is None and self._beside is None:
                self._outage.dial_failed(self._bus.broker, reason, is_absent=is_absent(fault))
            if self.fatal is None:  # else that a later dial had no answer says less
                self._last_fault = f"; last fault: {reason}"
        # A refused certificate locks no account.
        refused, absent = type(fault) is LoginRefused, getattr(fault, "absent", False)
        self.route.lost(number, now_ms(), random.random(), refused=refused, absent=absent)
        self._arm()

    def _opened(self, number: int, link: Link) -> None:
        self._links[number] = link
        link.channel.add_on_return_callback(
            lambda _channel, method, properties, _body: self._returned(
                number, method.exchange, method.routing_key, properties.message_id
            )
        )
        link.on_blocked(lambda blocked: self._on_blocked(number, blocked))
        link.on_lost(lambda why: self._lost(number, link, why))
        avoid = None if self._beside is None else self._avoided()
        if avoid is not None and not link.broker:
            self._last_fault = f"; last fault: the broker at {link.address} does not say its name"
        self._perform(
            self.route.opened(number, link.broker, now_ms(), random.random(), avoid=avoid)
        )
        self._arm()

    def _returned(self, number: int, exchange: str, routing_key: str, message_id: str) -> None:
        for destination in self._destinations.of_place(place_name(exchange, routing_key)):
            self.pending.returned(number, destination, message_id)

    def _adopt(self, number: int) -> None:
        new = self._links[number]
        old = [other for other in self._links if other != number]
        same = [
            other
            for other in old
            if not new.broker or self._links[other].broker in ("", new.broker)
        ]
        self.pending.link_opened(number, after=same)
        self._sender = Sender(new.transport)
        self._properties_max = new.properties_max
        self._refuse_too_long()
        self._blocked = False
        self._destinations.rest(self._unseen.pop(number, []))
        for other in old:
            if other == self._dead and other in same:
                self._hang_up(other)  # its broker answers, only not on this link
                continue
            self._retire_at_ms.setdefault(other, now_ms() + RETIRE_MS)
            self._hang_up_if_answered(other)
        self.fatal, self._last_fault = None, ""
        self.connected.set()
        self._outage.over(new.broker or str(new.address))
        log.info("link opened broker=%s dials=%d", new.broker or new.address, self.route.dials)
        self._wake()
        if self.on_adopted is not None:
            self.on_adopted()

    def _refuse_too_long(self) -> None:
        """Refuse what waits with headers that fill more than a frame of the new link: they would end it."""
        most = self._properties_max
        if most < PROPERTIES_MAX:
            too_long = [
                item
                for item in self.pending.unsettled()
                if len(getattr(item, "properties", None) or b"") > most and not item.attempts
            ]
            if too_long:
                self.withdraw(
                    too_long, f"headers above {most} bytes, which is all its broker takes"
                )

    def _hang_up_if_answered(self, number: int) -> None:
        if self.pending.is_answered(number):
            self._hang_up(number)
            self._wake()

    def _hang_up(self, number: int) -> None:
        self._retire_at_ms.pop(number, None)
        if task := self._dials.get(number):
            task.cancel()
        if link := self._links.pop(number, None):
            self._settle(self.pending.link_lost(number, now_ms()))
            self._destinations.open_held()  # what came back may be for one that was closed meanwhile
            self._wake()
            self._closing.spawn(link.close())

    def _lost(self, number: int, link: Link, why: LinkError) -> None:
        if self._links.pop(number, None) is None:
            return  # we hung up ourselves
        self._closing.spawn(link.close())  # `stop` waits for its socket too
        self._retire_at_ms.pop(number, None)
        self.counters.links_lost += 1
        in_flight = self.pending.in_flight
        refused = isinstance(why, ChannelRefused) and why.code == PRECONDITION_FAILED
        self._settle(self.pending.link_lost(number, now_ms(), why.reason, refused=refused))
        self._destinations.link_lost(why)
        log.warning("link lost broker=%s in_flight=%d reason=%r", why.broker, in_flight, why.reason)
        if self.route.current == number:
            self.connected.clear()
        self.route.lost(number, now_ms(), random.random())
        self._perform(self.route.tick(now_ms()))
        self._wake()  # what it left open may go out on another link at once

    def _on_blocked(self, number: int, blocked: bool) -> None:
        if number == self.route.current:
            self._blocked = blocked
            if blocked:
                broker = self.route.broker or self._only_broker
                log.warning("broker blocked broker=%s", broker)
                self.leave()
            else:
                self._wake()

    def _on_list(self, brokers: BrokerList) -> None:
        """Leave a broker that drains, or that was listed and is no longer.

        A broker that was never listed under its own name is not identified: the list says nothing about it.
        """
        entry = brokers.find(self.route.broker)
        removed = entry is None and self.route.broker in self._ever_listed
        self._ever_listed |= brokers.names
        if removed or (entry is not None and entry.draining):
            self.leave()

    def leave(self) -> None:
        """Move to another broker."""
        self.route.leave(now_ms())
        self._perform(self.route.tick(now_ms()))

    def renew(self) -> None:
        """Dial anew through the balancer."""
        self.route.renew(now_ms())
        self._perform(self.route.tick(now_ms()))

    # Time.
    def put_forward(self, ms: int) -> None:
        """Advance the time by ms: a bus in memory has a clock that can be moved."""
        self.pending.put_forward(ms)
        self._wake()
        self._tick()

    def _tick(self) -> None:
        now = now_ms()
        self._settle(self.pending.expire(now, self._why_late()))
        self._watch_lines(now)
        self._leave_if_slow(now)
        for number in [n for n, at_ms in self._retire_at_ms.items() if at_ms <= now]:
            self._hang_up(number)
        self._perform(self.route.tick(now))
        if self._follower.brokers is not None:
            self._on_list(self._follower.brokers)
        if self._blocked:
            self.route.leave(now)
        self._arm()

    def _why_late(self) -> str:
        return f"{DEADLINE_PASSED}{self._last_fault}"

    def _arm(self) -> None:
        """Arm the one timer: for the next due dial, or for the next tick."""
        if self._timer is not None:
            self._timer.cancel()
        if self._stopping:
            return
        due_ms = self.route.next_due_ms()
        wait_ms = TICK_MS if due_ms is None else min(TICK_MS, max(TICK_MIN_MS, due_ms - now_ms()))
        self._timer = self._loop.call_later(wait_ms / 1000, self._tick)

    def _watch_lines(self, now: int) -> None:
        """Count the time of publishes from their last byte; keep a retiring link whose bytes still move."""
        for number, link in self._links.items():
            unsent = link.unsent_bytes
            taken = link.sent_bytes - unsent
            if taken > self._taken.get(number, 0):
                self.pending.leaving(number, taken, now)
                if unsent and number in self._retire_at_ms:
                    self._retire_at_ms[number] = now + RETIRE_MS
            self._taken[number] = taken
        self._taken = {
            number: taken for number, taken in self._taken.items() if number in self._links
        }

    def _leave_if_slow(self, now: int) -> None:
        """Leave a slow broker, once in 10 * confirm_slow_s until one answers: all may stall at fsync."""
        slow_ms = self._slow_ms
        if now < self._slow_until_ms or self.pending.unanswered_ms(now) < slow_ms:
            return
        self._slow_until_ms, self._slow = now + 10 * slow_ms, self.route.current or 0
        broker = self.route.broker or self._only_broker
        log.warning("broker slow broker=%s unanswered_ms>=%d", broker, slow_ms)
        self.route.leave(now)
        number = self.route.current or 0
        link = self._links.get(number)
        if link is not None and not link.has_heartbeats:
            self._tasks.spawn(self._leave_if_dead(number, link, slow_ms))

    async def _leave_if_dead(self, number: int, link: Link, timeout_ms: int) -> None:
        """Send a request: without heartbeats only that tells a dead path from a broker with a slow disk."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await link.call("basic_qos", prefetch_count=0)
        except LinkError:
            return
        except TimeoutError:
            if number == self.route.current and not self._blocked:
                log.warning("link dead broker=%s unanswered_ms>=%d", link.broker, timeout_ms)
                self._dead = number
                self.route.abandon(now_ms())
                self._perform(self.route.tick(now_ms()))

    @property
    def settling(self) -> int:
        """The number of destinations that are being registered."""
        return self._destinations.opening

    @property
    def list_age_ms(self) -> int | None:
        return self._follower.keeper.age_ms(now_ms())

    @property
    def list_faults(self) -> int:
        return self._follower.keeper.faults
