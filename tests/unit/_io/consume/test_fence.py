"""Deliveries wait for the number of their link, and for nothing where it has ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from messagebus import Subscription, Topic
from messagebus._io.amqp.frames import Arrived
from messagebus._io.consume import store_turns as module
from messagebus._io.consume.copies import CopiedAnswers
from messagebus._io.consume.inbox import Inbox
from messagebus._io.consume.pipeline import Pipeline
from messagebus.config import ConsumerConfig
from messagebus.errors import LinkLost, StoreAway
from messagebus.message import Delivery
from messagebus.stores import Dedup
from messagebus.stores.memory import MemoryStore
from tests.support.eventually import eventually_async
from tests.unit._io.consume.test_inbox import FakeCopies, FakeTransport

WITHOUT_ID = b"\0\0"
FIRST: Arrived = (1, False, WITHOUT_ID, b"first")
SECOND: Arrived = (2, False, WITHOUT_ID, b"second")
ORDERS = Subscription(Topic("orders"), "billing")


class Store(MemoryStore):
    """A store that is away at first. asked: keys, also then. slow: an answer waits for it."""

    def __init__(self, away: int) -> None:
        super().__init__()
        self.away, self.asked = away, list[bytes]()
        self.slow: asyncio.Event | None = None

    async def next_fence(self, key: bytes) -> int:
        self.asked.append(key)
        if self.slow is not None:
            await self.slow.wait()
        if self.away:
            self.away -= 1
            raise StoreAway("not now")
        return await super().next_fence(key)


class Rig:
    """A link with a fence. got: what was handed out; trips: round trips on its channel."""

    def __init__(self, store: Store, broker: str = "mb1:5672#7.1", *, fence: bool = True) -> None:
        self.broker, self.trips, self.is_lost = broker, 0, False
        self._got: list[Delivery] = []
        copies: Any = FakeCopies()
        answers = CopiedAnswers(copies, lambda: None)
        self.pipeline = Pipeline(
            ORDERS,
            ConsumerConfig(),
            answers,
            dedup=Dedup(store, fence=fence),
            on_turn=lambda: None,
            on_ready=lambda: None,
            on_back=lambda: None,
        )
        self.inbox = Inbox(ORDERS, self.pipeline, answers, lambda: None)
        self.transport = FakeTransport()
        self.inbox.connected(broker, self.transport, self.round_trip)  # type: ignore[arg-type]

    async def round_trip(self) -> None:
        self.trips += 1
        if self.is_lost:
            raise LinkLost("mb1:5672", "cut")

    @property
    def got(self) -> list[tuple[bytes, int]]:
        """Bodies that were handed out, each with its fence."""
        while (delivery := self.pipeline.first.take()) is not None:
            self._got.append(delivery)
        return [(each.body, each.fence) for each in self._got]


async def test_nothing_is_handed_out_before_the_number_is_known_and_the_link_still_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FENCE_AGAIN_S", 0.001)
    store = Store(away=2)
    rig = Rig(store)
    await asyncio.sleep(0)
    assert store.asked == []  # who is served nothing has no number
    rig.transport.on_contents([FIRST])
    rig.transport.on_contents([SECOND])
    assert rig.got == []
    await eventually_async(lambda: rig.got == [(b"first", 1), (b"second", 1)], within_s=10)
    assert (rig.trips, len(store.asked)) == (1, 3)
    rig.transport.on_contents([FIRST])
    assert len(rig.got) == 3


@pytest.mark.parametrize("how", ["in the round trip", "while the store is asked"])
async def test_what_came_over_a_link_that_has_ended_is_not_handed_out(how: str) -> None:
    store = Store(away=0)
    store.slow = asyncio.Event()
    rig = Rig(store)
    rig.is_lost = how == "in the round trip"
    rig.transport.on_contents([FIRST])
    await eventually_async(lambda: store.asked, within_s=10)
    if not rig.is_lost:
        rig.inbox.disconnected(rig.broker)
    store.slow.set()
    await eventually_async(lambda: rig.trips, within_s=10)
    await asyncio.sleep(0)
    assert rig.got == []


async def test_a_partition_counts_on_over_its_homes_and_others_have_their_own() -> None:
    store = Store(away=0)
    brokers = ("mb1:5672#7.1", "mb2:5672#7.2", "mb1:5672#8.1", "mb1:5672")
    rigs = [Rig(store, broker) for broker in brokers]
    for rig in rigs:
        rig.transport.on_contents([FIRST])
    await eventually_async(lambda: all(rig.got for rig in rigs), within_s=10)
    assert [rig.got for rig in rigs] == [[(b"first", fence)] for fence in (1, 2, 1, 1)]


async def test_where_no_fence_is_wanted_nobody_is_asked() -> None:
    rig = Rig(store := Store(away=0), fence=False)
    rig.transport.on_contents([FIRST])
    assert (rig.got, store.asked) == ([(b"first", 0)], [])
