"""The links of one consumer: dialled, consumed from, drained, and dialled again.

States of a broker are those of `core.membership`, which orders what is to be done:

    Dial ─▶ connected, prefetch, consuming ─▶ opened ─▶ lost: dialled again
                                                └─▶ Drain: cancelled, until nothing is owed ─▶ HangUp

Owners: `Membership` has the states, `Inbox` what arrives and goes back, `IdleLinks` whether a link rests;
`ConsumerLinks` has the links and the tags of their consumers. A link here only consumes: a connection that
publishes is blocked under an alarm, and its acks with it. Runs on one asyncio loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING

from messagebus._io.amqp.link import CLOSING_TIMEOUT_S, Link
from messagebus._io.consume.idle import IdleLinks
from messagebus._io.consume.inbox import Inbox
from messagebus._io.consume.pipeline import Pipeline
from messagebus._io.consume.registering import Registering
from messagebus._io.loop import Conditions, Tasks, held
from messagebus._io.wire import TOO_LATE, DialTurns, Outage, Wire, is_absent
from messagebus.broker import Broker, BrokerList
from messagebus.clock import monotonic_ms, whole_ms
from messagebus.config import BusConfig, ConsumerConfig
from messagebus.core.group import SEGMENT_PREFETCH
from messagebus.core.membership import Action, Dial, Drain, HangUp, Membership, State, Subset
from messagebus.destination import Source, Subscription
from messagebus.errors import LinkError, LinkLost, LoginRefused, MessageBusError
from messagebus.message import SEGMENT_MARK, Delivery
from messagebus.stats import BrokerStats
from messagebus.topology import Options

if TYPE_CHECKING:
    from messagebus._io.consume.segments import Segments

log = logging.getLogger("messagebus.consumer")

# Bound of concurrent dials: many clients that start together would delay each other's handshakes. A dial
# that takes longer than its turn goes on beside others: a broker that never answers must not block the rest.
DIALS_AT_ONCE, DIAL_TURN_S = 8, 0.1
ENDED_EARLY = "ended while attaching"

_again = itertools.count(1)
"""Numbers of the tags of consumers that a link gets after its first one."""


class Dials:
    """The dials under way, by broker, and the places for those at the same time."""

    def __init__(self) -> None:
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._free = asyncio.Semaphore(DIALS_AT_ONCE)

    @contextlib.asynccontextmanager
    async def place(self, broker: str, timeout_ms: int, most_s: float) -> AsyncIterator[int]:
        """Hold one of the places, and one among the other clients that dial this broker.

        Yields the time in ms to give the dial: see `DialTurns.timeout_ms`.
        """
        turns, address = DialTurns.here(), broker.partition(SEGMENT_MARK)[0]
        async with held(self._free, lambda: DIAL_TURN_S), turns.turn(address):
            yield turns.timeout_ms(address, timeout_ms, most_s)


class ConsumerLinks:
    """All links of one consumer.

    changed: looked at when one has opened. on_wake: called when one is lost, or may end. withdraw: as of
    `IdleLinks`.
    """

    def __init__(
        self,
        bus: BusConfig,
        source: Source,
        config: ConsumerConfig,
        wire: Wire,
        inbox: Inbox,
        pipeline: Pipeline,
        registering: Registering,
        *,
        tasks: Tasks,
        changed: Conditions,
        on_wake: Callable[[], None],
        withdraw: Callable[[int, bool], list[Delivery]],
    ) -> None:
        self._bus, self.source, self._wire, self._inbox = bus, source, wire, inbox
        self._registering, self._changed, self._wake = registering, changed, on_wake
        self.members = Membership(
            subset=Subset(slot=config.slot, slots=config.slots, cover=config.cover)
            if config.slots
            else None,
            backoff_first_ms=wire.redial_first_ms,
        )
        self.idle = IdleLinks(
            inbox,
            pipeline,
            config.consumer_timeout_s,
            cancel=self._cancel,
            consume=self._consume_again,
            withdraw=withdraw,
        )
        self.segments: Segments | None = None
        """Of a partitioned topic: they stand in for brokers from then on."""
        self.links: dict[str, Link] = {}
        self._tags: dict[str, str] = {}
        self.leaving: set[str] = set()
        """Brokers whose links, of a single active consumer, end when none of their deliveries is held."""
        self.outage = Outage(log)
        self._misnamed: dict[str, str] = {}  # listed broker -> the other name that it gives
        self._dials = Dials()
        self._tasks = tasks
        # Links that are hung up. Cut short, a close would take the last acks with it.
        self._closing = Tasks()
        self.is_stopping = False
        """True when no more are to be dialled: nobody would close them."""
        self.prefetch = config.prefetch

    def partitioned(self, options: Options) -> None:
        """Consume from the segments of a topic with partitions, in place of brokers."""
        from messagebus._io.consume.segments import Segments  # only where it is used

        assert isinstance(self.source, Subscription)
        self.prefetch = SEGMENT_PREFETCH
        self.segments = Segments(
            self._wire,
            self.source,
            options,
            delivered=self._inbox.delivered_by,
            on_change=lambda names: self.perform(self.members.refresh(names, monotonic_ms())),
        )
        self.perform(self.members.refresh(self.segments.names, monotonic_ms()))

    def listed(self, brokers: BrokerList) -> None:
        """Apply a new list. A draining broker is consumed from until it leaves the list."""
        names = brokers.names if self.segments is None else self.segments.names
        self.perform(self.members.refresh(names, monotonic_ms()))

    def perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Dial() if self.is_stopping:  # nobody would close its link
                    pass
                case Dial(broker, failures):
                    self._dials.tasks[broker] = self._tasks.spawn(
                        self._dial(broker, failures),
                        cancelled=functools.partial(self._dial_cancelled, broker),
                    )
                case Drain(broker):
                    self._drain(broker)
                case HangUp(broker):
                    self._hang_up(broker)

    async def _dial(self, broker: str, failures: int) -> None:
        """Try one dial: connect, log in, consume."""
        first_s, last_s = self._bus.dial_timeout_s, self._bus.dial_timeout_max_s
        timeout_ms = whole_ms(min(last_s, first_s * 2 ** min(failures, 10)))
        link: Link | None = None
        try:
            async with self._dials.place(broker, timeout_ms, last_s) as timeout_ms:
                async with asyncio.timeout(timeout_ms / 1000):
                    if self.segments is not None:
                        link = await self.segments.dial(broker, timeout_ms=timeout_ms)
                    else:
                        link = await self._wire.dial(Broker.parse(broker), timeout_ms=timeout_ms)
                    await self._consume(broker, link)
        except (MessageBusError, TimeoutError) as fault:
            if link is not None:
                link.abort()
                self._closing.spawn(link.hang_up())
            if (
                self._dials.tasks.get(broker) is asyncio.current_task()
            ):  # its loss may be known by now
                self._dial_failed(broker, fault)
        except asyncio.CancelledError:
            if link is not None:
                await link.hang_up()
            raise
        finally:
            if self._dials.tasks.get(broker) is asyncio.current_task():
                del self._dials.tasks[broker]

    async def _consume(self, broker: str, link: Link) -> None:
        """Attach. Deliveries may arrive before the broker's answer, so the epoch is set first."""
        if self.segments is None:
            self._note_name(broker, link.broker)
        epoch = self._inbox.connected(broker, link.transport, lambda: self.set_prefetch(link))
        self.links[broker] = link
        link.on_lost(lambda why: self._lost(broker, link, why))
        link.channel.add_on_cancel_callback(lambda _frame: link.abort())
        await self.set_prefetch(link)
        if not link.is_open:  # its tag would be taken for that of the next link
            raise LinkLost(broker, ENDED_EARLY)
        # After `rest` it stays idle, or `_consume_again` has been here.
        if not self.idle.is_idle(broker) and broker not in self._tags:
            tag = self._tags[broker] = f"messagebus-{epoch}"
            await link.call(
                "basic_consume",
                queue=self._queue_of(broker),
                on_message_callback=link.transport.pika_content,
                consumer_tag=tag,
            )
        if not link.is_open:
            raise LinkLost(broker, ENDED_EARLY)
        self.members.opened(broker)
        self._registering.logged_in()
        self._changed.look()
        self.outage.over(broker)
        log.info("attached broker=%s epoch=%d", broker, epoch)

    async def set_prefetch(self, link: Link) -> None:
        await link.call("basic_qos", prefetch_count=self.prefetch)

    def _cancel(self, broker: str) -> bool:
        """Stop the deliveries of this broker for now; its link stays.

        A single active consumer is not cancelled, and its link ends when none of its deliveries is held.
        """
        if self._inbox.in_order:
            self.leaving.add(broker)
            self._wake()
            return False
        link = self.links.get(broker)
        if link is not None and link.is_open and broker in self._tags:
            link.channel.basic_cancel(self._tags.pop(broker))
        return True

    def _let_go(self, broker: str) -> None:
        """End the link, so that its deliveries come again in order, to the next active consumer."""
        rests, link = self.idle.is_idle(broker), self._forget(broker)
        if link is not None:
            self._closing.spawn(link.close())
        if rests:
            self.idle.keep_idle(broker)
        self.members.lost(broker, monotonic_ms(), random.random())

    def _consume_again(self, broker: str) -> None:
        link = self.links.get(broker)
        if (
            link is None
            or broker in self._tags
            or broker in self.members.draining
            or self.is_stopping
        ):
            return  # a dialled link consumes at once, as it no longer rests
        tag = self._tags[broker] = f"messagebus-again-{next(_again)}"
        self._tasks.spawn(self._consume_on(link, tag, self._queue_of(broker)))

    def _queue_of(self, broker: str) -> str:
        return self.source.amqp_queue if self.segments is None else self.segments.queue(broker)

    async def _consume_on(self, link: Link, tag: str, queue: str) -> None:
        with contextlib.suppress(LinkError):  # `_lost` is told
            await self.set_prefetch(link)
            await link.call(
                "basic_consume",
                queue=queue,
                on_message_callback=link.transport.pika_content,
                consumer_tag=tag,
            )

    def _note_name(self, broker: str, named: str) -> None:
        """Log another name of a listed broker. It is consumed from, or its messages would stay there."""
        if (
            self._bus.list_urls
            and named not in ("", broker)
            and self._misnamed.get(broker) != named
        ):
            self._misnamed[broker] = named
            log.warning(
                "misnamed broker=%s named=%s misnamed=%d", broker, named, len(self._misnamed)
            )

    def _dial_failed(self, broker: str, fault: Exception) -> None:
        if self.members.states.get(broker) is State.DIALING:
            # A refused certificate locks no account.
            refused, absent = type(fault) is LoginRefused, getattr(fault, "absent", False)
            # Segments that share a dial share its fault, and are dialled together again.
            share = random.Random(id(fault)).random()
            self.members.lost(broker, monotonic_ms(), share, refused=refused, absent=absent)
        log.debug("dial failed broker=%s reason=%r", broker, str(fault) or TOO_LATE)
        told = fault.reason if isinstance(fault, LinkError) else str(fault)
        self.outage.last_faults[broker] = told or TOO_LATE
        if isinstance(fault, LoginRefused):
            self._registering.login_refused(fault)
        elif not self.is_attached_to_one():
            self.outage.dial_failed(broker, fault)
        if is_absent(fault):
            self._registering.begin()

    def _dial_cancelled(self, broker: str) -> None:
        """Have a broker dialled again, unless it was we who gave its dial up, or dial it by now."""
        task = self._dials.tasks.get(broker)
        is_dialling = task is not None and not task.done()
        if (
            self.members.states.get(broker) is State.DIALING
            and not is_dialling
            and not self.is_stopping
        ):
            self.members.lost(broker, monotonic_ms(), random.random())

    def _drain(self, broker: str) -> None:
        """Hand out the buffered deliveries, wait for the answers that are owed, then hang up."""
        log.info("draining broker=%s owed=%d", broker, self._inbox.owed(broker))
        if self.segments is not None:
            if broker in self.links:
                self._inbox.keep_back(broker, ())
            self._wake()
            return
        if self._inbox.in_order:
            self._inbox.shut(broker)
            self._wake()
            return
        link = self.links.get(broker)
        if link is not None and link.is_open and broker in self._tags:
            link.channel.basic_cancel(self._tags.pop(broker), callback=lambda _frame: self._wake())

    def _hang_up(self, broker: str) -> None:
        if task := self._dials.tasks.get(broker):
            task.cancel()
        if link := self._forget(broker):
            log.info("detached broker=%s", broker)
            self._closing.spawn(link.close())

    def _lost(self, broker: str, link: Link, why: LinkError) -> None:
        if self.links.get(broker) is not link:
            return  # we hung up ourselves
        self._closing.spawn(link.close())  # `stop` waits for its socket too
        owed = self._inbox.owed(broker)
        was_attached = self.members.states.get(broker) in (State.OPEN, State.DRAINING)
        self._forget(broker)
        self.members.lost(broker, monotonic_ms(), random.random())
        self._wake()
        if was_attached:
            self.perform(self.members.tick(monotonic_ms()))
            log.warning(
                "link lost broker=%s owed=%d reason=%r docs=%s", broker, owed, why.reason, why.docs
            )

    def _forget(self, broker: str) -> Link | None:
        link = self.links.pop(broker, None)
        if link is not None:
            self._tags.pop(broker, None)
            self.leaving.discard(broker)
            self.idle.forget(broker)
            self._inbox.disconnected(broker)
        return link

    def flushed(self) -> None:
        """Let links go that wait for answers, when these have been sent."""
        if self.members.draining:
            for broker in list(self.members.draining):
                if not self._is_open_to(broker):
                    self.perform(self.members.drained(broker, monotonic_ms()))
        if self.leaving:
            for broker in list(self.leaving):
                if not self._inbox.holds(broker):
                    self._let_go(broker)

    def _is_open_to(self, broker: str) -> bool:
        """Return whether a draining broker still waits for answers of ours."""
        if self._inbox.in_order:
            return self._inbox.holds(broker)
        return self._inbox.owed(broker) > 0

    def cancel_all(self) -> None:
        """Cancel all deliveries. Buffered ones go back with the channel, in order."""
        for broker, tag in self._tags.items():
            if self.links[broker].is_open:
                self.links[broker].channel.basic_cancel(tag)

    async def _stop_segments(self, segments: Segments, links: list[Link]) -> None:
        """Close their connections behind their channels."""
        await asyncio.gather(*(link.close() for link in links))
        await segments.stop()

    async def stop(self) -> None:
        """Hang up all links, and cut those that do not end in time."""
        try:
            if self.segments is not None:
                open_links = list(self.links.values())
                self._closing.spawn(self._stop_segments(self.segments, open_links))
            links, self.links = self.links, {}
            for broker in links:  # answers are stale from now on
                self._inbox.disconnected(broker)
            for link in links.values():
                self._closing.spawn(link.close())
            await self._closing.finish(CLOSING_TIMEOUT_S)
        finally:
            self.cut()

    def cut(self) -> None:
        """Cut all links."""
        for link in list(self.links.values()):  # a link that ends leaves it
            link.abort()

    def is_attached_to_one(self) -> bool:
        return State.OPEN in self.members.states.values()

    def is_attached_to_all(self) -> bool:
        return self._registering.is_complete and self.keep_alive()

    def keep_alive(self) -> bool:
        """Return whether every listed broker's link is open."""
        states = self.members.states
        return bool(states) and all(state is State.OPEN for state in states.values())

    def stats(self) -> dict[str, BrokerStats]:
        """Return the figures of each broker; those of its segments summed, open when all of them are."""
        found: dict[str, BrokerStats] = {}
        for name, state in sorted(self.members.states.items()):
            broker, told = name.partition(SEGMENT_MARK)[0], state.value
            delivered, owed = self._inbox.delivered.get(name, 0), self._inbox.owed(name)
            if (before := found.get(broker)) is not None:
                told = before.state if before.state != State.OPEN.value else told
                delivered, owed = before.delivered + delivered, before.owed + owed
            found[broker] = BrokerStats(state=told, delivered=delivered, owed=owed)
        return found

    def tick(self) -> None:
        """Look at the time."""
        self.perform(self.members.tick(monotonic_ms()))
        if self.segments is not None:
            self.segments.tick()
