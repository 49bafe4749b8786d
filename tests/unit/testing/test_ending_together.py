"""Starts, stops and cancellations at random turns of the loop: every call ends, and no link is left."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from messagebus import AsyncConsumer, AsyncPublisher, Hooks, Message, Published, PublisherConfig
from messagebus.errors import MessageBusError
from messagebus.testing import MemoryBus
from tests.support.eventually import FACTOR
from tests.support.examples import examples
from tests.support.together import Drawn, break_links, links_left

CASES = examples(4_000)
SHARES = 8
WITHIN_S = 60.0
ACTIONS = ("stop", "stop now", "cancel", "cut all", "freeze", "one away", "turns", "turns")


class Exits(Hooks):
    """A hook that raises what ends a thread or a task, of some publishes."""

    def published(self, destination: str, message: Message, published: Published) -> None:
        if message.body == b"3":
            raise asyncio.CancelledError


class Case(Drawn):
    """Actions on a publisher and a consumer, and the turns at which they happen."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        draw = self.draw
        self.backlog, self.count = draw.choice([1, 3, 100]), draw.choice([1, 8])
        self.hooked = draw.random() < 0.3
        self.require = draw.choice([None, "one"])
        self.actions = [draw.choice(ACTIONS) for _ in range(draw.choice([1, 3, 6]))]

    def turns(self) -> int:
        return self.draw.choice([0, 1, 2, 3, 5, 8, 20, 60])


class World:
    """The calls under way on one bus; each may be cancelled at any turn."""

    def __init__(self, case: Case) -> None:
        self.case, self.calls = case, list[asyncio.Task[Any]]()
        self.bus = MemoryBus(2)
        self.bus.declare("t/s")
        self.publisher = self.bus.async_publisher(
            PublisherConfig(backlog_messages_max=case.backlog, window=1),
            hooks=[Exits()] if case.hooked else [],
        )
        self.consumer = self.bus.async_consumer("t", subscription="s")

    def call(self, work: Coroutine[Any, Any, Any]) -> None:
        self.calls.append(asyncio.create_task(work))

    async def publish(self) -> None:
        await self.publisher.start(require=self.case.require)
        for number in range(self.case.count):
            self.call(self.publisher.send_safe("t", b"%d" % number))
        await self.publisher.send_many("t", [b"many"] * self.case.count)

    async def consume(self) -> None:
        await self.consumer.start(require=self.case.require)
        async for delivery in self.consumer:
            if self.case.draw.random() < 0.8:
                self.consumer.ack(delivery)

    def act(self, action: str) -> None:
        draw = self.case.draw
        clients: list[AsyncPublisher | AsyncConsumer] = [self.publisher, self.consumer]
        client = draw.choice(clients)
        if action == "stop":
            self.call(client.stop(draw.choice([0, 0.01, 10])))
        elif action == "stop now":
            self.call(client.stop(0))
        elif action == "cancel":
            draw.choice(self.calls).cancel()
        else:
            break_links(action, self.bus, draw, self.case.soon_s())

    async def end(self) -> list[str]:
        self.bus.thaw()
        self.bus.start_brokers()
        for client in (self.publisher, self.consumer):
            await client.stop(0)
        _done, late = await asyncio.wait(self.calls, timeout=WITHIN_S * FACTOR)
        strange = [
            repr(fault)
            for each in self.calls
            if each.done() and not each.cancelled() and (fault := each.exception())
            if not isinstance(fault, MessageBusError)
        ]
        return [*strange, *(repr(each) for each in late), *links_left(self.bus)]


async def play(case: Case) -> list[str]:
    """Do all that the case says, stop, and return what did not end."""
    world = World(case)
    world.call(world.publish())
    world.call(world.consume())
    for action in case.actions:
        for _ in range(case.turns()):
            await asyncio.sleep(0)
        world.act(action)
    async with asyncio.timeout(WITHIN_S * FACTOR):
        return await world.end()


@pytest.mark.guarantee("every-wait-is-bounded")
@pytest.mark.parametrize("share", range(SHARES))
async def test_whatever_is_stopped_or_cancelled_at_whichever_turn_every_call_ends(
    share: int,
) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(
        lambda _loop, _context: None
    )  # what the hook raises is the case's own
    for seed in range(share, CASES, SHARES):
        case = Case(seed)
        assert await play(case) == [], case


@pytest.mark.parametrize("brokers", ["here", "away", "frozen"])
async def test_an_application_that_cancels_all_tasks_of_its_loop_ends_no_client(
    brokers: str,
) -> None:
    """Their dials, registrations and openings begin again, at whichever turn they were cancelled."""
    for turns in range(8):
        bus, got = MemoryBus(2), list[bytes]()
        bus.declare("t/s")
        if brokers == "away":
            bus.stop_brokers()
        elif brokers == "frozen":
            bus.freeze()
        publisher, consumer = bus.async_publisher(), bus.async_consumer("t", subscription="s")
        await publisher.start()
        starting = asyncio.create_task(consumer.start(timeout_s=WITHIN_S * FACTOR))
        publishing = asyncio.create_task(publisher.send_safe("t", b"before"))
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task(), starting, publishing}:
            task.cancel()
        bus.thaw()
        bus.start_brokers()
        await starting
        await publishing
        await publisher.send_safe("t", b"behind")
        while len(got) < 2:
            delivery = await consumer.receive(WITHIN_S * FACTOR)
            assert delivery is not None, turns
            got.append(delivery.body)
            consumer.ack(delivery)
        await consumer.stop()
        await publisher.stop()
        assert not links_left(bus)
