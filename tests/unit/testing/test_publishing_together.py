"""Options of publishers in random combinations, under random faults and early stops.

Each publish has its end, and what is said of it is true.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from messagebus import (
    AsyncPublisher,
    Batching,
    Hooks,
    Message,
    Outcome,
    Published,
    Publisher,
    PublisherConfig,
    Queue,
    Spool,
    Stopped,
    Subscription,
    Topic,
)
from messagebus.errors import MessageBusError
from messagebus.testing import MemoryBus
from messagebus.testing.journal import messages_of
from tests.support.eventually import eventually_async
from tests.support.examples import examples
from tests.support.together import Drawn, break_links, call, links_left

CASES = examples(320)
SHARES = 8
WITHIN_S = 60.0
# A deadline that passes on a busy machine without any fault.
SHORT_MS = 200
FAULTS = ("cut all", "cut", "freeze", "refuse", "twice", "one away", "all away", "time")


class Case(Drawn):
    """A combination of options and faults."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        draw = self.draw
        self.kind = draw.choice(["topic", "queue", "partitions"])
        is_plain = self.kind != "partitions"
        self.spool = draw.choice(["", "", "behind", "always"]) if is_plain else ""
        self.redundant = is_plain and not self.spool and draw.random() < 0.3
        self.packed = draw.choice([0, 0, 3]) if is_plain and not self.redundant else 0
        self.brokers = draw.choice([2, 3]) if self.redundant else draw.choice([1, 2, 3])
        self.window = draw.choice([1, 2, 8, 512])
        self.backlog = draw.choice([1, 3, 10_000])
        self.deadline_ms = draw.choice([SHORT_MS, 3_000, 30_000])
        self.attempts = draw.choice([1, 2, 20])
        self.retry_unknown = draw.choice([True, True, False])
        self.lifetime_s = draw.choice([1, 600])
        self.count = draw.choice([10, 40])
        self.together = draw.choice([1, 1, 7])
        self.stops_early = draw.random() < 0.3
        self.faults = draw.sample(FAULTS, k=draw.choice([0, 1, 2]))
        self.blocking, self.hooked = draw.random() < 0.3, draw.random() < 0.2

    def config(self, folder: Path) -> PublisherConfig:
        return PublisherConfig(
            window=self.window,
            backlog_messages_max=self.backlog,
            deadline_s=self.deadline_ms / 1000,
            attempts_max=self.attempts,
            retry_unknown=self.retry_unknown,
            connection_lifetime_s=self.lifetime_s,
            batch={"t": Batching(count_max=self.packed)} if self.packed else {},
            spool=Spool(str(folder), always=self.spool == "always") if self.spool else None,
        )


class World:
    """One bus with a publisher, and what became of each publish."""

    def __init__(self, case: Case) -> None:
        self.case, self.draw = case, case.draw
        self.bus = MemoryBus(brokers=case.brokers)
        topic = Topic("t", partitions=4 if case.kind == "partitions" else 0)
        self.source = (
            Queue("q")
            if case.kind == "queue"
            else Subscription(topic, "s", ordered=case.kind == "partitions")
        )
        self.destination = "queue:q" if case.kind == "queue" else "t"
        if case.kind == "partitions":
            self.bus.declare(topic)
        self.bus.declare(self.source)
        self.ends: dict[str, str] = {}

    def publisher(self, folder: Path) -> Publisher | AsyncPublisher:
        make = self.bus.publisher if self.case.blocking else self.bus.async_publisher
        return make(self.case.config(folder), hooks=[Hooks()] if self.case.hooked else [])

    async def publish(self, publisher: Publisher | AsyncPublisher, bodies: Sequence[str]) -> None:
        messages = [
            Message.text(body, key=self.draw.choice("ab"), message_id=f"id-{body}")
            for body in bodies
        ]
        redundant = self.case.redundant
        told = ""
        ends: Sequence[Published] = ()
        try:
            if len(bodies) == 1:
                ends = [
                    await call(
                        publisher, "send_safe", self.destination, *messages, redundant=redundant
                    )
                ]
            else:
                ends = await call(
                    publisher, "send_many", self.destination, messages, redundant=redundant
                )
        except MessageBusError as fault:
            told, ends = type(fault).__name__, fault.ends
        rest = [told] * (len(bodies) - len(ends)) if told else []
        outcomes = [end.outcome.value for end in ends]
        self.ends |= dict(zip(bodies, outcomes + rest, strict=True))

    def break_something(self) -> None:
        fault, bus, loop = self.draw.choice(self.case.faults), self.bus, asyncio.get_running_loop()
        soon_s = self.case.soon_s()
        break_links(fault, bus, self.draw, soon_s)
        if fault == "refuse":
            bus.refuse_next(self.destination)
        elif fault == "twice":
            bus.duplicate_next(self.destination)
        elif fault == "all away":
            bus.stop_brokers()
            loop.call_later(soon_s, bus.start_brokers)
        elif fault == "time":
            bus.advance(self.draw.choice((0.01, 0.3, 2)))

    def mend(self) -> None:
        self.bus.thaw()
        self.bus.start_brokers()
        self.bus._brokers.copies_wanted.clear()

    def stored(self) -> Counter[str]:
        """Return how often each body is stored."""
        with self.bus._brokers.lock:
            return Counter(
                message.body.decode()
                for queue in self.bus._brokers._queues(self.source.amqp_queue)
                for stored in queue.ready
                for message in messages_of(stored.raw, stored.body)
            )

    def faults(self) -> list[str]:
        """Return what was said and is not so."""
        found, stored = [], self.stored()
        wanted = 2 if self.case.redundant else 1
        for body, end in self.ends.items():
            if end == Outcome.CONFIRMED.value and stored[body] < wanted:
                found.append(f"{body} is confirmed, and stored {stored[body]} times")
            if (
                end in ("refused", "Refused", "Unroutable", "BacklogFull", "Stopped")
                and stored[body]
            ):
                found.append(f"{body} is {end}, and stored")
            if end == "spooled" and not stored[body] and not self.case.stops_early:
                found.append(f"{body} is spooled, and was never sent")
        may_be_late = self.case.deadline_ms == SHORT_MS
        if not self.case.faults and not self.case.stops_early and not may_be_late:
            bad = set(self.ends.values()) - {"confirmed", "spooled"}
            found += [f"without a fault one is {end}" for end in bad]
            found += [f"{body} is stored {n} times" for body, n in stored.items() if n != wanted]
        return found


async def play(case: Case, folder: Path) -> list[str]:
    """Publish through all faults, stop, and return what was said and is not so."""
    world, draw = World(case), case.draw
    # A blocking call each of a thread.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(case.count + 2))
    publisher = world.publisher(folder)
    await call(publisher, "start")
    works = []
    for number in range(0, case.count, case.together):
        bodies = [str(number + more) for more in range(case.together)]
        works.append(asyncio.create_task(world.publish(publisher, bodies)))
        if draw.random() < 0.3:
            await asyncio.sleep(draw.choice((0, 0.001, 0.004)))
        if case.faults and draw.random() < 0.1:
            world.break_something()
    if case.stops_early:
        await asyncio.sleep(0)
        await call(publisher, "stop", draw.choice((0, 0.05, 2)))
    await asyncio.sleep(0.03)
    world.mend()
    done, late = await asyncio.wait(works, timeout=case.deadline_ms / 1000 + WITHIN_S)
    await asyncio.gather(*done)
    if late:
        return [f"{len(late)} calls have no end"]
    if case.spool and not case.stops_early:
        await eventually_async(lambda: not publisher.stats().spool_messages, within_s=WITHIN_S)
    await call(publisher, "stop")
    with pytest.raises(Stopped):
        await call(publisher, "submit", world.destination, b"late")
    return [*links_left(world.bus), *world.faults()]


@pytest.mark.guarantee("accepted-before-a-stop")
@pytest.mark.parametrize("share", range(SHARES))
async def test_whatever_is_combined_each_publish_has_its_end_and_it_is_true(
    share: int, tmp_path: Path
) -> None:
    for seed in range(share, CASES, SHARES):
        case = Case(seed)
        assert await play(case, tmp_path / str(seed)) == [], case
