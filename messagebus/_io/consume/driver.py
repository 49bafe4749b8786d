"""The consumer's driver: its parts put together, the turns in which answers are sent, and the stop.

    Registering   creates the queue on every broker
    ConsumerLinks dials brokers, consumes from them, lets them go
    Inbox         has a ledger of each link: what arrives, what goes back
    Pipeline      the stages between the Inbox and the application: claims, order, answers

    answers ─▶ `_wake`, once a turn of the loop ─▶ `_turn` ─▶ `_flush`, at most once a ms while more waits
    reads   ─▶ `_hand_out`

Runs on one asyncio loop; every method must be called on it.
"""

# Phases: made ─ start ─▶ handing out ◀─ resume, pause ─▶ paused
#                               └─ stop ─▶ draining ─ answered, or drain_s is over ─▶ finishing ─▶ stopped
#
# Draining: `take` returns None, what was not taken goes back, answers are awaited. Finishing: copies and
# the store's last turn, each up to FINISH_TIMEOUT_S, then the links are closed; a cancelled stop cuts
# them. The faces (`Consumer`, `AsyncConsumer`) call it; its parts call `_wake`, `_turn` and `_hand_out`
# back.

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from messagebus._io.consume.copies import CopiedAnswers, Copies
from messagebus._io.consume.inbox import Inbox
from messagebus._io.consume.links import ConsumerLinks
from messagebus._io.consume.pipeline import Pipeline
from messagebus._io.consume.registering import Registering
from messagebus._io.hooks import HookChain
from messagebus._io.loop import Conditions, Tasks
from messagebus._io.wire import Follower, Wire
from messagebus.clock import in_seconds, monotonic_ms
from messagebus.config import BusConfig, ConsumerConfig
from messagebus.destination import Source
from messagebus.errors import LinkError, TopologyMismatch
from messagebus.message import Delivery
from messagebus.stats import ConsumerStats
from messagebus.topology import Options

if TYPE_CHECKING:
    from messagebus.stores import Dedup

log = logging.getLogger("messagebus.consumer")

TICK_MS = 100
# Answers are collected for this time while more is to be handed out. A handler that never waits has one
# run, and one answer, a turn of the loop; a write for each would cost more than the run.
FLUSH_S = 0.001
# For copies of half-answered batches, at the end.
FINISH_TIMEOUT_S = 5.0
# A loop without a turn for two heartbeats has lost its links, and reads that first: until then no answer is
# written. A shorter time since the last answers needs no look.
LONG_S, READ_FIRST_S = 1.0, 0.05
# A timer of asyncio may be early by the resolution of its clock.
CLOCK_S = 0.001
# A frozen broker holds the word "applied" up for so long.
APPLIED_HOLD_S = 1.0


class ConsumeDriver:
    """One consumer, whichever face it has."""

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
        self._on_ready, self._heartbeats_s = on_ready, 2 * bus.heartbeat_s
        answers = CopiedAnswers(Copies.over(bus, source, wire), self._turn)
        self.pipeline = pipeline = Pipeline(
            source,
            config,
            answers,
            dedup=dedup,
            chain=chain,
            on_turn=self._turn,
            on_ready=self._hand_out,
            on_back=self.resume_idle,
        )
        """The stages between the links and the application.

        The first one answers by a copy, which goes on where its caller is cancelled.
        """
        self.inbox = inbox = Inbox(source, pipeline, answers, self._hand_out)
        self.ledgers = inbox.ledgers
        """The maker of its links' ledgers: a delivery of another's is another consumer's."""
        self.take, self._ack = pipeline.first.take, pipeline.first.ack
        """`take` returns the next delivery; None for none, after `pause`, and once the stop has begun."""
        self._tasks, self._changed = Tasks(), Conditions()
        self.wait_until = self._changed.wait_until  # on links, registration or answers
        self.registering = self._registering(source, wire)
        self.links = ConsumerLinks(
            bus,
            source,
            config,
            wire,
            inbox,
            pipeline,
            self.registering,
            tasks=self._tasks,
            changed=self._changed,
            on_wake=self._wake,
            withdraw=withdraw,
        )
        self.follower = self._follow(wire, str(source), config.refresh_interval_s)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.TimerHandle | None = None
        self._woken = self._paused = False
        self._flushed_s = 0.0
        self._stopping = 0.0  # the loop's time until which a stop waits for answers; 0: no stop

    def _registering(self, source: Source, wire: Wire) -> Registering:
        return Registering(
            source,
            wire.topology(),
            self._tasks,
            self._changed,
            on_answer=self._look_for_partitions,
            on_options=self.inbox.exists_as,
            on_ready=self._on_ready,
        )

    def _follow(self, wire: Wire, subscription: str, interval_s: int) -> Follower:
        """Follow the list of brokers to be attached to."""
        links = self.links
        follower = wire.follow(
            subscription=subscription, interval_s=interval_s, on_list=links.listed
        )
        follower.until_tried = lambda: self.wait_until(
            lambda: not links.members.untried, APPLIED_HOLD_S
        )
        return follower

    def _look_for_partitions(self, options: Options) -> None:
        """Consume from the segments of a topic with partitions. Raises TopologyMismatch without an order."""
        has_segments = options.get("partitions") and options.get("ordered", True)
        if not has_segments or self.links.segments is not None:
            return
        if self.pipeline.ordered is None:
            raise TopologyMismatch(
                f"{self.links.source}: its topic has partitions; consume it with order='key' or"
                " 'partition', or make it with ordered=False"
            )
        self.links.partitioned(options)

    # Life.
    def start(self) -> None:
        self.registering.begin()
        self.follower.start()
        self._tick()

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
        self._stopping, self.links.is_stopping = until_s, True
        self.pipeline.plain.pause()
        self._loop.call_at(until_s + CLOCK_S, self._changed.look)

    def _is_drained(self) -> bool:
        return not self.pipeline.running or self._loop.time() >= self._stopping

    async def _stop(self, untouched: Sequence[Delivery]) -> int:
        if self._timer is not None:
            self._timer.cancel()
        self._changed.look()
        inbox, links = self.inbox, self.links
        try:
            await self._tasks.cancel()
            await self.follower.stop()
            if not inbox.in_order:
                links.cancel_all()
            inbox.close(untouched)
            await self._changed.until(self._is_drained)
            left = self.pipeline.plain.handed_out
            self.pipeline.stop()
            await inbox.finish(FINISH_TIMEOUT_S)
            await self.pipeline.finish(FINISH_TIMEOUT_S)
            inbox.flush()
            await links.stop()
        finally:
            links.cut()
            self._changed.look()  # nothing that was waited for comes now
        await self.registering.leave()
        return left

    # The application's side.
    def resume_idle(self) -> None:
        """Resume idle links: the application waits for a delivery."""
        if self.links.idle and not self._paused:
            self.links.idle.resume()

    def put_back(self, deliveries: list[Delivery]) -> None:
        """Hand out next the deliveries taken last, which the application never saw."""
        self.pipeline.first.put_back(deliveries)
        self._wake()

    def pause(self) -> None:
        """Hand out nothing until `resume`; the buffers stay full, so the brokers send no more either."""
        self._paused = True
        self.pipeline.plain.pause()

    def resume(self) -> None:
        self._paused = False
        if not self._stopping:
            self.pipeline.plain.resume()
        self.resume_idle()
        self._wake()

    def rest(self, prefetch: int) -> None:
        """Give back what nobody has taken. `resume_idle` consumes again, with this prefetch."""
        if self.links.segments is None:
            self.links.prefetch = prefetch
        self.links.idle.rest()

    def ack(self, delivery: Delivery) -> bool:
        """Ack a delivery. False, and counted: its link has ended, and the broker delivers it again."""
        if not self._woken:
            self._wake()
        return self._ack(delivery)

    def nack(self, delivery: Delivery, *, requeue: bool) -> bool:
        """Give a delivery back (requeue), or reject it into the parking queue. False: stale."""
        self._wake()
        return self.pipeline.first.nack(delivery, requeue=requeue)

    async def ack_safe(self, delivery: Delivery, timeout_s: float) -> bool:
        """Answer, and return when the broker has received it: after a round trip behind it.

        A part of a batch is received only when the whole batch has been answered.
        """
        if not self._ack(delivery) or not await self._is_acked(delivery, timeout_s):
            return False
        self._flush()
        link = self.links.links.get(delivery._ledger.broker)
        try:
            if link is None:
                return False
            async with asyncio.timeout(timeout_s):
                await self.links.set_prefetch(link)
        except (LinkError, TimeoutError):
            return False
        return True

    async def _is_acked(self, delivery: Delivery, timeout_s: float) -> bool:
        """Wait until the end of a delivery is stored, where it is, and its ack may go out."""
        claimed = self.pipeline.claimed
        if claimed is None:
            return True
        claimed.claims.talk()
        ledger = delivery._ledger
        done = await self.wait_until(
            lambda: not claimed.is_acking(delivery) or not ledger.is_live, timeout_s
        )
        return done and ledger.is_live

    def never_answered(self, delivery: Delivery) -> None:
        """Take note of a delivery that was taken, whose link has ended, and that nobody will answer."""
        self.pipeline.first.never_answered([delivery])

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._loop.call_soon(self._turn)

    def _hand_out(self) -> None:
        """Call on_ready. Called after each read; answers have turns of their own."""
        if not self._stopping:
            self._on_ready()
        if self._changed.waiting:
            self._changed.look()

    def _turn(self) -> None:
        """Send acks together and call on_ready. Called once a turn of the loop, when there are answers."""
        self._woken = False
        since_s = self._loop.time() - self._flushed_s
        if since_s >= FLUSH_S or self._stopping or not self.pipeline.ready:
            if since_s > LONG_S and self._stood_still():
                self._woken = True
                self._loop.call_later(READ_FIRST_S, self._turn)
                return
            self._flush()
        elif self._flushing is None:
            self._flushing = self._loop.call_later(FLUSH_S, self._flush)
        if not self._stopping:
            self._on_ready()
        if self._changed.waiting:
            self._changed.look()

    def _stood_still(self) -> bool:
        """Return whether the loop was blocked for so long that brokers have hung up: it reads first then."""
        due_s = self._timer.when() if self._timer is not None else self._loop.time()
        return 0 < self._heartbeats_s < self._loop.time() - due_s and not self._stopping

    def _flush(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        self._flushed_s = self._loop.time()
        turns, links = self.pipeline.turns, self.links
        if turns is not None and turns.has_news:
            turns.begin()
        self.inbox.flush()
        if links.leaving or links.members.draining:
            links.flushed()

    # Time.
    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_MS / 1000, self._tick)
        self.links.tick()
        self.links.idle.tick(time.monotonic_ns())
        self.pipeline.tick()

    # Numbers.
    def stats(self) -> ConsumerStats:
        keeper, pipeline = self.follower.keeper, self.pipeline
        return ConsumerStats(
            brokers=self.links.stats(),
            **dataclasses.asdict(pipeline.counters),
            buffered=pipeline.first.buffered(),
            handed_out=pipeline.plain.handed_out,
            list_generation=max(keeper.generation, 0),
            list_age_s=in_seconds(keeper.age_ms(monotonic_ms())),
            list_faults=keeper.faults,
            **pipeline.stats(),
        )
