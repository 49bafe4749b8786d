"""The consumer's driver: fan-in over all brokers of the list, over pika.

Runs on one asyncio loop; every method must be called on it. `core.membership` decides on the attached
brokers, `core.deliveries` on the next delivery and on the link of each answer. A link here only
consumes: a connection that publishes is blocked under an alarm, and its acks with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from messagebus._io.amqp.link import CLOSING_TIMEOUT_S, TOO_LATE, Link
from messagebus._io.consume.copies import Copies
from messagebus._io.consume.idle import IdleLinks
from messagebus._io.consume.inbox import Inbox
from messagebus._io.hooks import HookChain
from messagebus._io.loop import Tasks, now_ms
from messagebus._io.wire import Outage, Registration, Wire, is_absent
from messagebus.broker import Broker, BrokerList
from messagebus.clock import in_seconds, whole_ms
from messagebus.config import BusConfig, ConsumerConfig
from messagebus.core.group import SEGMENT_PREFETCH
from messagebus.core.membership import Action, Dial, Drain, HangUp, Membership, State, Subset
from messagebus.destination import Source, Subscription
from messagebus.errors import (
    LinkError,
    LinkLost,
    LoginRefused,
    MessageBusError,
    RegistrationIncomplete,
    TopologyMismatch,
)
from messagebus.message import SEGMENT_MARK, Delivery, Header
from messagebus.stats import BrokerStats, ConsumerStats

if TYPE_CHECKING:
    from messagebus._io.consume.dedup import Deduplication
    from messagebus._io.consume.runs import ClaimsOfRuns
    from messagebus._io.consume.segments import Segments
    from messagebus.stores import Dedup

log = logging.getLogger("messagebus.consumer")

TICK_MS = 100
# Answers are collected for this time while more is to be handed out. A handler that never waits has one
# run, and one answer, a turn of the loop; a write for each would cost more than the run.
FLUSH_S = 0.001
REGISTER_TIMEOUT_MS = 30_000
REGISTER_RETRY_MS = 1_000
# The first of failed tries for one reason is logged, then one a minute.
REGISTER_TOLD_EVERY = 60
LOGIN_RETRY_MS = 10_000
# For copies of half-answered batches, at the end.
FINISH_TIMEOUT_S = 5.0
# For the deletion of a subscription that goes with its consumer.
DELETE_TIMEOUT_MS = 2_000
# Bound of concurrent dials: many clients that start together would delay each other's handshakes. A dial
# that takes longer than its turn goes on beside others: a broker that never answers must not block the rest.
DIALS_AT_ONCE, DIAL_TURN_S = 8, 0.1
ENDED_EARLY = "ended while attaching"
# A loop without a turn for two heartbeats has lost its links, and reads that first: until then no answer is
# written. A shorter time since the last answers needs no look.
LONG_S, READ_FIRST_S = 1.0, 0.05
# A timer of asyncio may be early by the resolution of its clock.
CLOCK_S = 0.001
# A frozen broker holds the word "applied" up for so long.
APPLIED_HOLD_S = 1.0

_again = itertools.count(1)
"""Numbers of the tags of consumers that a link gets after its first one."""


class ConsumeDriver:
    """All links of one consumer."""

    def __init__(
        self,
        bus: BusConfig,
        source: Source,
        config: ConsumerConfig,
        on_ready: Callable[[], None],
        wire: Wire,
        *,
        withdraw: Callable[[int, bool], list[Delivery]],
        dedup: Dedup | None = None,
        chain: HookChain | None = None,
    ) -> None:
        """Create the driver. on_ready: called when `take` may have a delivery, at most once a turn.

        withdraw: takes back deliveries that wait with the application, unseen: see `IdleLinks`.
        chain: hooks that are told of duplicates.
        """
        self._bus, self._source, self._config, self._on_ready = bus, source, config, on_ready
        self._wire = wire
        self._inbox = Inbox(source, config.handed_out_max, Copies(bus, source, wire), self._turn)
        self.ledgers = self._inbox.ledgers
        """The maker of its links' ledgers: a delivery of another's is another consumer's."""
        self.dedup: Deduplication | None = None
        """The claims on its deliveries; None without deduplication."""
        if dedup is not None:
            self.dedup = self._deduplicate(dedup, chain)
        if config.order != "none":
            self._keep_order(config.order)
        self.fatal: LoginRefused | TopologyMismatch | None = None
        self.registration: Registration | None = None
        """None until an agent answered; `complete` tells whether every broker has the queue."""
        self._topology = wire.topology()
        self.follower = wire.follow(
            subscription=str(source),
            interval_s=config.refresh_interval_s,
            on_list=self._on_list,
        )
        self.follower.until_tried = lambda: self.wait_until(
            lambda: not self._members.untried, APPLIED_HOLD_S
        )
        self._loop = asyncio.get_running_loop()
        self._members = Membership(
            subset=Subset(slot=config.slot, slots=config.slots, cover=config.cover)
            if config.slots
            else None,
            backoff_first_ms=wire.redial_first_ms,
        )
        self.idle = IdleLinks(
            self._inbox,
            config.consumer_timeout_s,
            cancel=self._cancel,
            consume=self._consume_again,
            withdraw=withdraw,
        )
        self._segments: Segments | None = None
        """Of a partitioned topic: they stand in for brokers from then on."""
        self._links: dict[str, Link] = {}
        self._tags: dict[str, str] = {}
        self._leaving: set[str] = set()
        """Brokers whose links, of a single active consumer, end when none of their deliveries is held."""
        self._outage = Outage(log)
        self._misnamed: dict[str, str] = {}  # listed broker -> the other name that it gives
        self._dials: dict[str, asyncio.Task[None]] = {}
        self._dialing = asyncio.Semaphore(DIALS_AT_ONCE)
        self._registering: asyncio.Task[None] | None = None
        self._tasks = Tasks()
        # Links that are hung up. Cut short, a close would take the last acks with it.
        self._closing = Tasks()
        self._timer: asyncio.TimerHandle | None = None
        self._woken = False
        self._flushed_s = 0.0
        self._flushing: asyncio.TimerHandle | None = None
        self._paused = False
        self._stopping = 0.0  # the loop's time until which a stop waits for answers; 0: no stop
        self._prefetch = config.prefetch
        self._changed: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    def _deduplicate(self, dedup: Dedup, chain: HookChain | None) -> Deduplication:
        from messagebus._io.consume.dedup import Deduplication  # only where it is used

        made = Deduplication(
            dedup,
            self._source,
            self._inbox,
            chain=chain,
            on_turn=self._turn,
            on_back=self.asked,
            timeout_s=self._config.consumer_timeout_s,
        )
        self._inbox.deduplicate(made)
        if self._config.order != "none" or self._inbox.in_order:
            made.keep_order()
        return made

    def _keep_order(self, order: str) -> None:
        from messagebus._io.consume.ordering import Ordering  # only where it is used

        self._inbox.keep_order(Ordering(order, self._inbox, self.dedup, self._turn))

    def run_handlers(self) -> ClaimsOfRuns | None:
        """Note that each delivery has an end, as handlers run; return what late ends are told to."""
        order, dedup = self._inbox.order, self.dedup
        if order is not None:
            order.runs_handlers = True
        if dedup is not None:
            dedup.runs_handlers = True
        return order or dedup

    def put_forward(self, ms: int) -> None:
        """Let this time pass for deliveries that rest; for tests."""
        if self._inbox.order is not None:
            self._inbox.order.put_forward(ms)

    async def check_store(self) -> None:
        """Raise ConfigError for a store of deduplication that cannot be used: see `Deduplication.check`."""
        if self.dedup is not None:
            await self.dedup.check()

    # Life.
    def start(self) -> None:
        self._register_soon()
        self.follower.start()
        self._tick()

    def _register_soon(self) -> None:
        """Register at the start, and when a broker lacks the queue: one that expires may have done so."""
        if self._registering is None or self._registering.done():
            self._registering = self._tasks.spawn(self._register())

    async def _register(self) -> None:
        """Create the subscription on every broker; go on until it is complete."""
        complete, told, same = False, "", 0
        while not complete:
            try:
                self.registration = await self._topology.register(
                    [self._source], timeout_ms=REGISTER_TIMEOUT_MS, told=self._registered
                )
            except RegistrationIncomplete as fault:
                self.registration = Registration(False, missing=fault.missing)
                log.warning(
                    "registration incomplete subscription=%s reason=%r", self._source, str(fault)
                )
            except TopologyMismatch as fault:
                log.error(
                    "registration refused subscription=%s reason=%r", self._source, str(fault)
                )
                self.fatal = fault
                self._tell_changed()
                await asyncio.sleep(LOGIN_RETRY_MS / 1000)
            except LoginRefused as fault:
                self._login_refused(fault)
                await asyncio.sleep(LOGIN_RETRY_MS / 1000)
            except MessageBusError as fault:
                same = same + 1 if str(fault) == told else 0
                told = str(fault)
                if same % REGISTER_TOLD_EVERY == 0:
                    log.warning("registration failed subscription=%s reason=%r", self._source, told)
                await asyncio.sleep(REGISTER_RETRY_MS / 1000)
            else:
                complete = self.registration.complete
                self._inbox.exists_as(self.registration.options.get(str(self._source), {}))
                if isinstance(self.fatal, TopologyMismatch):
                    self.fatal = None
            self._tell_changed()

    def _registered(self, found: Registration) -> None:
        """Look whether it is new, and whether the topic has partitions: their segments are consumed from."""
        expires = isinstance(self._source, Subscription) and self._source.expires_s
        if str(self._source) in found.created and not expires:
            told = "nobody had declared it: is the name right?"
            log.warning("created source=%s reason=%r", self._source, told)
        options = found.options.get(str(self._source), {})
        has_segments = options.get("partitions") and options.get("ordered", True)
        if not has_segments or self._segments is not None:
            return
        if self._inbox.order is None:
            told = f"{self._source}: its topic has partitions; consume it with order='key' or 'partition'"
            raise TopologyMismatch(f"{told}, or make it with ordered=False")
        from messagebus._io.consume.segments import Segments  # only where it is used

        assert isinstance(self._source, Subscription)
        self._prefetch = SEGMENT_PREFETCH
        self._segments = Segments(
            self._wire,
            self._source,
            options,
            delivered=self._delivered_by,
            on_change=lambda names: self._perform(self._members.refresh(names, now_ms())),
        )
        self._perform(self._members.refresh(self._segments.names, now_ms()))

    def _delivered_by(self, name: str) -> int:
        """Return how many deliveries the current link of a segment brought."""
        return self._inbox.delivered_by(name) if name in self._links else 0

    def _login_refused(self, fault: LoginRefused) -> None:
        """Report a refused login to the callers that wait in start().

        A running client tries again, slowly: the password may rotate, and one broker's refusal is no reason
        to leave the others.
        """
        log.error("login refused broker=%s reason=%r", fault.broker, fault.reason)
        self.fatal = fault
        self._tell_changed()
        self._on_ready()

    @property
    def is_stopping(self) -> bool:
        """True from the beginning of the stop on."""
        return self._stopping > 0

    def stop(
        self, drain_s: float, *, untouched: Sequence[Delivery] = ()
    ) -> Coroutine[Any, Any, int]:
        """Take no more, wait for answers to handed out deliveries, give the others back, hang up.

        untouched: taken, but the application never saw them. Returns how many deliveries it saw and
        did not answer: they will come again. When it is cancelled, all links are cut.
        """
        self._drain_until(self._loop.time() + drain_s)  # at once: nothing more is taken
        return self._stop(untouched)

    def hurry(self, drain_s: float) -> None:
        """Have a stop under way wait no longer than this for answers."""
        if (until_s := self._loop.time() + drain_s) < self._stopping:
            self._drain_until(until_s)

    def _drain_until(self, until_s: float) -> None:
        self._stopping = until_s
        self._loop.call_at(until_s + CLOCK_S, self._tell_changed)

    def _is_drained(self) -> bool:
        inbox = self._inbox
        return not (inbox.handed_out or inbox.running) or self._loop.time() >= self._stopping

    async def _stop(self, untouched: Sequence[Delivery]) -> int:
        if self._timer is not None:
            self._timer.cancel()
        self._tell_changed()
        inbox = self._inbox
        try:
            await self._tasks.cancel()
            await self.follower.stop()
            if not inbox.in_order:
                self._cancel_all()
            inbox.close(untouched)
            await self._until(self._is_drained)
            left = inbox.handed_out
            if inbox.order is not None:
                inbox.order.stop()
            await inbox.finish(FINISH_TIMEOUT_S)
            if self.dedup is not None:
                await self.dedup.finish(FINISH_TIMEOUT_S)
                inbox.flush()
            if self._segments is not None:
                open_links = list(self._links.values())
                self._closing.spawn(self._stop_segments(self._segments, open_links))
            links, self._links = self._links, {}
            for broker in links:  # answers are stale from now on
                inbox.disconnected(broker)
            for link in links.values():
                self._closing.spawn(link.close())
            await self._closing.finish(CLOSING_TIMEOUT_S)
        finally:
            for link in self._links.values():
                link.abort()
        if isinstance(self._source, Subscription) and self._source.goes_with_consumer:
            await self._delete(self._source)
        return left

    async def _stop_segments(self, segments: Segments, links: list[Link]) -> None:
        """Close their connections behind their channels."""
        await asyncio.gather(*(link.close() for link in links))
        await segments.stop()

    async def _delete(self, source: Subscription) -> None:
        """Delete it by an agent; if none does it in time, the brokers do when it expires."""
        try:
            async with asyncio.timeout(DELETE_TIMEOUT_MS / 1000):
                await self._topology.delete(source, timeout_ms=DELETE_TIMEOUT_MS)
        except (MessageBusError, TimeoutError) as fault:
            log.info("left to expire subscription=%s reason=%r", source, str(fault) or TOO_LATE)

    def _cancel_all(self) -> None:
        """Cancel all deliveries. Buffered ones go back with the channel, in order."""
        for broker, tag in self._tags.items():
            if self._links[broker].is_open:
                self._links[broker].channel.basic_cancel(tag)

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for a condition on links, registration or answers."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._until(condition)
        return condition()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # it may be over again before this task runs
            done = self._loop.create_future()
            self._changed.append((condition, done))
            await done

    def _tell_changed(self) -> None:
        waiting = self._changed
        self._changed = []
        for condition, done in waiting:
            if done.done():
                continue
            if condition():
                done.set_result(None)
            else:
                self._changed.append((condition, done))

    def is_attached_to_one(self) -> bool:
        return State.OPEN in self._members.states.values()

    def is_attached_to_all(self) -> bool:
        states = self._members.states
        registered = self.registration is not None and self.registration.complete
        return registered and bool(states) and all(s is State.OPEN for s in states.values())

    # The application's side.
    def take(self) -> Delivery | None:
        """Return the next delivery; None when there is none or the application holds enough."""
        if self._stopping or self._paused:
            return None
        return self._inbox.take()

    def asked(self) -> None:
        """Resume idle links: the application waits for a delivery."""
        if self.idle and not self._paused:
            self.idle.asked()

    def put_back(self, deliveries: list[Delivery]) -> None:
        """Hand out next the deliveries taken last, which the application never saw."""
        self._inbox.put_back(deliveries)
        self._wake()

    def pause(self) -> None:
        """Hand out nothing until `resume`; the buffers stay full, so the brokers send no more either."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self.asked()
        self._wake()

    @property
    def in_order(self) -> bool:
        return self._inbox.in_order

    def rest(self, prefetch: int) -> None:
        """Give back what nobody has taken, and consume again when `asked`, with this prefetch."""
        if self._segments is None:
            self._prefetch = prefetch
        self.idle.rest()

    def has(self, delivery: Delivery) -> bool:
        """Return whether a delivery came over a current link of ours."""
        return self._inbox.has(delivery)

    def ack(self, delivery: Delivery) -> bool:
        """Ack a delivery. False, and counted: its link has ended, and the broker delivers it again."""
        if not self._woken:
            self._wake()
        return self._inbox.ack(delivery)

    def nack(self, delivery: Delivery, *, requeue: bool) -> bool:
        """Give a delivery back (requeue), or reject it into the parking queue. False: stale."""
        self._wake()
        return self._inbox.nack(delivery, requeue=requeue)

    async def ack_safe(self, delivery: Delivery, timeout_s: float) -> bool:
        """Answer, and return when the broker has received it: after a round trip behind it.

        A part of a batch is received only when the whole batch has been answered.
        """
        if not self._inbox.ack(delivery):
            return False
        if self.dedup is not None and not await self._is_acked(delivery, timeout_s):
            return False
        self._flush()
        link = self._links.get(delivery._ledger.broker)
        try:
            if link is None:
                return False
            async with asyncio.timeout(timeout_s):
                await self._set_prefetch(link)
        except (LinkError, TimeoutError):
            return False
        return True

    async def _is_acked(self, delivery: Delivery, timeout_s: float) -> bool:
        """Wait until the end of a delivery is stored, and its ack may go out."""
        dedup = self.dedup
        assert dedup is not None
        dedup.talk()
        done = await self.wait_until(lambda: not dedup.is_acking(delivery), timeout_s)
        return done and delivery._ledger.is_live

    async def retry(
        self, delivery: Delivery, *, delay_ms: int, headers: Mapping[str, Header]
    ) -> bool:
        """Answer by a copy for another run after this delay: stored first, then the original is acked.

        headers: ours, in place of those of the same names. False: the link ended before; then both exist,
        or only the original. The caller may be cancelled: the copy goes on.
        """
        return await self._inbox.retry(delivery, delay_ms=delay_ms, headers=headers)

    async def park(self, delivery: Delivery, *, headers: Mapping[str, Header]) -> bool:
        """Answer by a copy in the parking queue, as `retry`. An expiring subscription parks nothing."""
        return await self._inbox.park(delivery, headers=headers)

    def never_seen(self, delivery: Delivery) -> None:
        """Take note of a delivery that was taken, whose link has ended, and that nobody will answer."""
        self._inbox.never_seen([delivery])

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Send acks together and call on_ready. Called once a turn of the loop, or after each read."""
        self._woken = False
        since_s = self._loop.time() - self._flushed_s
        if since_s >= FLUSH_S or self._stopping or not self._inbox.buffered:
            if since_s > LONG_S and self._stood_still():
                self._woken = True
                self._loop.call_later(READ_FIRST_S, self._turn)
                return
            self._flush()
        elif self._flushing is None:
            self._flushing = self._loop.call_later(FLUSH_S, self._flush)
        if not self._stopping:
            self._on_ready()
        if self._changed:
            self._tell_changed()

    def _stood_still(self) -> bool:
        """Return whether the loop was blocked for so long that brokers have hung up: it reads first then."""
        heartbeats_s = 2 * self._bus.heartbeat_s
        due_s = self._timer.when() if self._timer is not None else self._loop.time()
        return 0 < heartbeats_s < self._loop.time() - due_s and not self._stopping

    def _flush(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        self._flushed_s = self._loop.time()
        inbox = self._inbox
        if inbox.dedup is not None:
            inbox.dedup.talk()
        inbox.flush()
        if self._members.draining:
            for broker in list(self._members.draining):
                if not self._is_open_to(broker):
                    self._perform(self._members.drained(broker, now_ms()))
        if self._leaving:
            for broker in list(self._leaving):
                if not self._inbox.holds(broker):
                    self._let_go(broker)

    def _is_open_to(self, broker: str) -> bool:
        """Return whether a draining broker still waits for answers of ours."""
        if self._inbox.in_order:
            return self._inbox.holds(broker)
        return self._inbox.owed(broker) > 0

    # Links.
    def _on_list(self, brokers: BrokerList) -> None:
        """Apply a new list. A draining broker is consumed from until it leaves the list."""
        names = brokers.names if self._segments is None else self._segments.names
        self._perform(self._members.refresh(names, now_ms()))

    def _perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Dial() if self._stopping:  # nobody would close its link
                    pass
                case Dial(broker, failures):
                    self._dials[broker] = self._tasks.spawn(self._dial(broker, failures))
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
            async with self._turn_to_dial(), asyncio.timeout(timeout_ms / 1000):
                if self._segments is not None:
                    link = await self._segments.dial(broker, timeout_ms=timeout_ms)
                else:
                    link = await self._wire.dial(Broker.parse(broker), timeout_ms=timeout_ms)
                await self._consume(broker, link)
        except (MessageBusError, TimeoutError) as fault:
            if link is not None:
                link.abort()
                self._closing.spawn(link.hang_up())
            if self._dials.get(broker) is asyncio.current_task():  # its loss may be known by now
                self._dial_failed(broker, fault)
        except asyncio.CancelledError:
            if link is not None:
                await link.hang_up()
            raise
        finally:
            if self._dials.get(broker) is asyncio.current_task():
                del self._dials[broker]

    @contextlib.asynccontextmanager
    async def _turn_to_dial(self) -> AsyncIterator[None]:
        """Hold one of the places for dials, until the dial ends or its turn is over."""
        await self._dialing.acquire()
        holds = [True]

        def leave() -> None:
            if holds:
                holds.clear()
                self._dialing.release()

        late = self._loop.call_later(DIAL_TURN_S, leave)
        try:
            yield
        finally:
            late.cancel()
            leave()

    async def _consume(self, broker: str, link: Link) -> None:
        """Attach. Deliveries may arrive before the broker's answer, so the epoch is set first."""
        if self._segments is None:
            self._note_name(broker, link.broker)
        epoch = self._inbox.connected(broker, link.transport, lambda: self._set_prefetch(link))
        self._links[broker] = link
        link.on_lost(lambda why: self._lost(broker, link, why))
        link.channel.add_on_cancel_callback(lambda _frame: link.abort())
        await self._set_prefetch(link)
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
        self._members.opened(broker)
        if isinstance(self.fatal, LoginRefused):
            self.fatal = None
        self._outage.over(broker)
        log.info("attached broker=%s epoch=%d", broker, epoch)
        self._tell_changed()

    async def _set_prefetch(self, link: Link) -> None:
        await link.call("basic_qos", prefetch_count=self._prefetch)

    def _cancel(self, broker: str) -> bool:
        """Stop the deliveries of this broker for now; its link stays.

        A single active consumer is not cancelled, and its link ends when none of its deliveries is held.
        """
        if self._inbox.in_order:
            self._leaving.add(broker)
            self._wake()
            return False
        link = self._links.get(broker)
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
        self._members.lost(broker, now_ms(), random.random())

    def _consume_again(self, broker: str) -> None:
        link = self._links.get(broker)
        if (
            link is None
            or broker in self._tags
            or broker in self._members.draining
            or self._stopping
        ):
            return  # a dialled link consumes at once, as it no longer rests
        tag = self._tags[broker] = f"messagebus-again-{next(_again)}"
        self._tasks.spawn(self._consume_on(link, tag, self._queue_of(broker)))

    def _queue_of(self, broker: str) -> str:
        return self._source.amqp_queue if self._segments is None else self._segments.queue(broker)

    async def _consume_on(self, link: Link, tag: str, queue: str) -> None:
        with contextlib.suppress(LinkError):  # `_lost` is told
            await self._set_prefetch(link)
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
        log.debug("dial failed broker=%s reason=%r", broker, str(fault) or TOO_LATE)
        if isinstance(fault, LoginRefused):
            self._login_refused(fault)
        elif not self.is_attached_to_one():
            self._outage.dial_failed(broker, str(fault) or TOO_LATE, is_absent=is_absent(fault))
        if is_absent(fault):
            self._register_soon()
        if self._members.states.get(broker) is State.DIALING:
            # A refused certificate locks no account.
            refused, absent = type(fault) is LoginRefused, getattr(fault, "absent", False)
            # Segments that share a dial share its fault, and are dialled together again.
            share = random.Random(id(fault)).random()
            self._members.lost(broker, now_ms(), share, refused=refused, absent=absent)

    def _drain(self, broker: str) -> None:
        """Hand out the buffered deliveries, wait for the answers that are owed, then hang up."""
        log.info("draining broker=%s owed=%d", broker, self._inbox.owed(broker))
        if self._segments is not None:
            if broker in self._links:
                self._inbox.keep_back(broker, ())
            self._wake()
            return
        if self._inbox.in_order:
            self._inbox.shut(broker)
            self._wake()
            return
        link = self._links.get(broker)
        if link is not None and link.is_open and broker in self._tags:
            link.channel.basic_cancel(self._tags.pop(broker), callback=lambda _frame: self._wake())

    def _hang_up(self, broker: str) -> None:
        if task := self._dials.get(broker):
            task.cancel()
        if link := self._forget(broker):
            log.info("detached broker=%s", broker)
            self._closing.spawn(link.close())

    def _lost(self, broker: str, link: Link, why: LinkError) -> None:
        if self._links.get(broker) is not link:
            return  # we hung up ourselves
        self._closing.spawn(link.close())  # `stop` waits for its socket too
        owed = self._inbox.owed(broker)
        was_attached = self._members.states.get(broker) in (State.OPEN, State.DRAINING)
        self._forget(broker)
        if was_attached:
            log.warning("link lost broker=%s owed=%d reason=%r", broker, owed, why.reason)
        self._members.lost(broker, now_ms(), random.random())
        if was_attached:
            self._perform(self._members.tick(now_ms()))
        self._wake()

    def _forget(self, broker: str) -> Link | None:
        link = self._links.pop(broker, None)
        if link is not None:
            self._tags.pop(broker, None)
            self._leaving.discard(broker)
            self.idle.forget(broker)
            self._inbox.disconnected(broker)
        return link

    # Time.
    def _tick(self) -> None:
        self._perform(self._members.tick(now_ms()))
        self.idle.tick(time.monotonic_ns())
        if self.dedup is not None:
            self.dedup.tick()
        if self._segments is not None:
            self._segments.tick()
        self._timer = self._loop.call_later(TICK_MS / 1000, self._tick)

    # Numbers.
    def keep_alive(self) -> bool:
        """Return whether every listed broker's link is open."""
        states = self._members.states
        return bool(states) and all(state is State.OPEN for state in states.values())

    def _broker_stats(self) -> dict[str, BrokerStats]:
        """Return the figures of each broker; those of its segments summed, open when all of them are."""
        found: dict[str, BrokerStats] = {}
        for name, state in sorted(self._members.states.items()):
            broker, told = name.partition(SEGMENT_MARK)[0], state.value
            delivered, owed = self._inbox.delivered.get(name, 0), self._inbox.owed(name)
            if (before := found.get(broker)) is not None:
                told = before.state if before.state != State.OPEN.value else told
                delivered, owed = before.delivered + delivered, before.owed + owed
            found[broker] = BrokerStats(state=told, delivered=delivered, owed=owed)
        return found

    def stats(self) -> ConsumerStats:
        keeper, inbox = self.follower.keeper, self._inbox
        return ConsumerStats(
            brokers=self._broker_stats(),
            delivered=inbox.counters.delivered,
            acked=inbox.counters.acked,
            nacked=inbox.counters.nacked,
            acks_stale=inbox.counters.acks_stale,
            batches_damaged=inbox.counters.batches_damaged,
            retried=inbox.counters.retried,
            parked=inbox.counters.parked,
            given_back=inbox.counters.given_back,
            buffered=inbox.buffered,
            handed_out=inbox.handed_out,
            list_generation=max(keeper.generation, 0),
            list_age_s=in_seconds(keeper.age_ms(now_ms())),
            list_faults=keeper.faults,
            **({} if self.dedup is None else self.dedup.stats()),
            **({} if inbox.order is None else inbox.order.stats()),
        )
