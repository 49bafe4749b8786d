"""Options of consumers in random combinations, under random faults: each message has its end, and none waits.

The oracle knows only what was published and confirmed, which runs there were, and what is parked.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pytest

from messagebus import (
    AsyncConsumer,
    Batching,
    Consumer,
    ConsumerConfig,
    Delivery,
    Message,
    Outcome,
    Park,
    PublisherConfig,
    Queue,
    Reject,
    RetryLater,
    RetryPolicy,
    Subscription,
    Topic,
)
from messagebus.destination import Source
from messagebus.stores import Dedup
from messagebus.testing import MemoryBus
from tests.support.eventually import eventually_async
from tests.support.examples import examples
from tests.support.together import Drawn, break_links, call, links_left

CASES = examples(240)
WITHIN_S = 60.0
THREADS_MAX = 32
# Claims outlive all that the clock of the brokers is moved.
LEASE_S = 86_400
ENDS = ("fail", "fail once", "later", "park", "reject")
FAULTS = ("cut all", "cut", "one away", "freeze", "pause", "stop", "store", "reply")


class Case(Drawn):
    """A combination of options and faults."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        draw = self.draw
        self.source_kind = draw.choice(["topic", "topic", "queue", "single active", "partitions"])
        self.order: Literal["none", "key", "partition"] = draw.choice(
            ["none", "key", "key", "partition"]
        )
        self.store_away = draw.choice(["", "wait", "wait", "run"])
        self.consumers = draw.choice([1, 1, 2])
        self.concurrency = draw.choice([1, 2, 5])
        self.batch = draw.choice([None, None, 3]) if self.order != "partition" else None
        self.redundant = self.source_kind != "partitions" and draw.random() < 0.25
        is_packed = not self.redundant and self.source_kind != "partitions" and draw.random() < 0.3
        self.packed = 4 if is_packed else None
        self.brokers = 3 if self.redundant else draw.choice([1, 2, 3])
        least = 1 if self.batch is None else self.batch * (self.concurrency + 1)
        self.prefetch = max(least, draw.choice([1, 3, 20]))
        self.held = max(least, draw.choice([1, 2, 8, 500]))
        thens = ["park", "park", "drop"] + (
            ["park-key", "park-key"] if self.order != "none" else []
        )
        self.then = draw.choice(thens)
        self.attempts = draw.choice([1, 2, 3])
        self.delay_s = draw.choice([0, 0, 1.0])
        self.count = draw.choice([12, 30])
        self.keys = draw.choice([["a"], ["a", "b", "c"], ["", "a", "b"]])
        self.copies = draw.choice([0, 0.2]) if self.store_away else 0
        self.bad = draw.choice([0, 0.1, 0.3])
        self.faults = draw.sample(FAULTS, k=draw.choice([0, 1, 2]))
        self.blocking = self.batch is None and draw.random() < 0.3

    @property
    def source(self) -> Source:
        if self.source_kind == "topic":
            return Subscription(Topic("t"), "s")
        if self.source_kind == "partitions":
            return Subscription(Topic("t", partitions=4), "s", ordered=self.order != "none")
        return Queue("q", single_active=self.source_kind == "single active")


class World:
    """One bus, its clients, and all that the oracle knows."""

    def __init__(self, case: Case) -> None:
        self.case, self.draw = case, case.draw
        self.bus = MemoryBus(brokers=case.brokers)
        self.source = case.source
        self.consumers: list[Consumer | AsyncConsumer] = []
        self.lock = threading.Lock()
        self.works: list[asyncio.Task[int]] = []
        self.stopping: list[asyncio.Task[int]] = []
        self.ends: dict[str, str] = {}
        self.runs: Counter[str] = Counter()
        self.well: Counter[str] = Counter()
        self.running: dict[object, set[str]] = defaultdict(set)
        self.beside: list[str] = []
        self.links_lost = False

    # Consumers.
    async def consume(self) -> None:
        case = self.case
        dedup = None
        if case.store_away:
            dedup = Dedup(self.bus.store, lease_s=LEASE_S, on_store_away=case.store_away)
        config = ConsumerConfig(prefetch=case.prefetch, handed_out_max=case.held, order=case.order)
        make = self.bus.consumer if case.blocking else self.bus.async_consumer
        consumer = make(self.source, config=config, dedup=dedup)
        await call(consumer, "start", require="all")
        number = len(self.works)
        self.consumers.append(consumer)
        policy = RetryPolicy(
            attempts_max=case.attempts,
            first_delay_s=case.delay_s,
            jitter=0,
            then=case.then,  # type: ignore[arg-type]
        )
        options = {} if case.batch is None else {"batch": case.batch, "linger_s": 0.001}
        work = call(
            consumer,
            "run",
            self._handler(number),
            concurrency=case.concurrency,
            retry=policy,
            **options,
        )
        self.works.append(asyncio.create_task(work))

    def _handler(self, number: int) -> Callable[[Any], Any]:
        async def handle(delivery: Delivery) -> None:
            self._begin(number, delivery)
            try:
                await asyncio.sleep(self.draw.choice((0, 0, 0.001)))
            finally:
                self._finish(number, delivery)
            self._end(delivery)

        async def handle_some(deliveries: list[Delivery]) -> dict[Delivery, Exception]:
            for each in deliveries:
                self._begin(number, each)
            try:
                await asyncio.sleep(self.draw.choice((0, 0, 0.001)))
            finally:
                for each in deliveries:
                    self._finish(number, each)
            raised = {}
            for each in deliveries:
                try:
                    self._end(each)
                except Exception as fault:
                    raised[each] = fault
            return raised

        def handle_blocking(delivery: Delivery) -> None:
            with self.lock:
                self._begin(number, delivery)
                wait_s = self.draw.choice((0, 0, 0.001))
            try:
                time.sleep(wait_s)
            finally:
                with self.lock:
                    self._finish(number, delivery)
            with self.lock:
                self._end(delivery)

        if self.case.blocking:
            return handle_blocking
        return handle if self.case.batch is None else handle_some

    def _lane(self, number: int, delivery: Delivery) -> object:
        if self.case.order == "key" and delivery.key:
            return number, delivery.key
        if self.case.order == "partition":
            return number, delivery.broker, delivery.partition
        return None

    def _begin(self, number: int, delivery: Delivery) -> None:
        body, lane = delivery.body.decode(), self._lane(number, delivery)
        self.runs[body] += 1
        if lane is not None:
            self.beside += [f"{body} beside {other}" for other in self.running[lane]]
            self.running[lane].add(body)

    def _finish(self, number: int, delivery: Delivery) -> None:
        self.running[self._lane(number, delivery)].discard(delivery.body.decode())

    def _end(self, delivery: Delivery) -> None:
        body = delivery.body.decode()
        end = self.ends[body]
        if end == "fail" or (end == "fail once" and delivery.attempt < 2):
            raise ValueError("not now")
        if end == "later" and delivery.attempt < 2:
            raise RetryLater(0)
        if end == "park":
            raise Park("why")
        if end == "reject":
            raise Reject("why")
        self.well[body] += 1

    # Faults.
    async def break_something(self) -> None:
        fault, bus, loop = self.draw.choice(self.case.faults), self.bus, asyncio.get_running_loop()
        soon_s = self.case.soon_s()
        self.links_lost |= fault in ("cut all", "cut", "one away", "stop")
        break_links(fault, bus, self.draw, soon_s)
        if fault == "pause":
            self.consumers[-1].pause()
            loop.call_later(soon_s, self.consumers[-1].resume)
        elif fault == "stop":
            self.stopping.append(asyncio.create_task(call(self.consumers.pop(0), "stop")))
            await self.consume()
        elif fault == "store":
            bus.store.lose()
            loop.call_later(soon_s, bus.store.restore)
        elif fault == "reply":
            bus.store.reply_lost()

    def mend(self) -> None:
        self.bus.thaw()
        self.bus.start_brokers()
        self.bus.store.restore()
        for consumer in self.consumers:
            consumer.resume()

    # The end.
    def is_quiet(self) -> bool:
        """Let time pass; return whether nothing is left to do."""
        self.bus.advance(5)
        stats = [each.stats() for each in self.consumers]
        return not (
            self.bus.waiting(self.source)
            or self.bus._brokers.unacked(self.source)
            or self.bus.delayed()
            or any(each.handed_out or each.buffered or each.order_waiting for each in stats)
        )

    def faults(self, confirmed: set[str]) -> list[str]:
        """Return the promises that were broken."""
        parked = Counter(each.body.decode() for each in self.bus.parked(self.source))
        found = list(self.beside)
        for body in sorted(confirmed, key=int):
            # A copy whose confirm was lost with its link is stored again.
            ends = self.well[body] + min(parked[body], 1 if self.links_lost else 2)
            is_dropped = self.case.then == "drop" and self.runs[body] and self.ends[body] != "ok"
            if not ends and not is_dropped:
                found.append(f"{body} has no end: {self.ends[body]!r}, {self.runs[body]} runs")
            if self.case.store_away == "wait" and ends > 1:
                found.append(f"{body} ended well {self.well[body]} times, parked {parked[body]}")
            if not (self.case.store_away or self.links_lost or self.case.redundant) and ends > 1:
                found.append(f"{body} has {ends} ends")
        return found


async def play(case: Case) -> list[str]:
    """Publish through all faults, wait until everything is quiet, and return the broken promises."""
    world, draw = World(case), case.draw
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS_MAX))
    if isinstance(world.source, Subscription):
        world.bus.declare(world.source.topic)
    world.bus.declare(world.source)
    for _ in range(case.consumers):
        await world.consume()
    destination = world.source.topic if isinstance(world.source, Subscription) else world.source
    batch = {} if case.packed is None else {str(destination): Batching(count_max=case.packed)}
    async with world.bus.async_publisher(PublisherConfig(batch=batch)) as publisher:
        sent = []
        for body in map(str, range(case.count)):
            world.ends[body] = draw.choice(ENDS) if draw.random() < case.bad else "ok"
            message = Message.text(body, key=draw.choice(case.keys), message_id=f"id-{body}")
            options: dict[str, Any] = {"redundant": True} if case.redundant else {}
            for _ in range(2 if draw.random() < case.copies else 1):
                sent.append((body, await publisher.submit(destination, message, **options)))
            if draw.random() < 0.3:
                await asyncio.sleep(draw.choice((0, 0, 0.001, 0.003)))
            if case.faults and draw.random() < 0.12:
                await world.break_something()
        ended = [(body, await published) for body, published in sent]
    confirmed = {body for body, published in ended if published.outcome is Outcome.CONFIRMED}
    await asyncio.gather(*world.stopping)
    world.mend()
    try:
        await eventually_async(world.is_quiet, within_s=WITHIN_S)
    except AssertionError:
        return [
            f"not quiet: {[each.stats() for each in world.consumers]}",
            *world.faults(confirmed),
        ]
    for consumer in world.consumers:
        await call(consumer, "stop")
    await asyncio.gather(*world.works)
    return [*links_left(world.bus), *world.faults(confirmed)]


@pytest.mark.guarantee("options-together")
@pytest.mark.parametrize("share", range(8))
async def test_whatever_is_combined_each_message_has_its_end_and_none_waits(share: int) -> None:
    for seed in range(share, CASES, 8):
        case = Case(seed)
        assert await play(case) == [], case
