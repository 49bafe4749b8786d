"""A loop that a handler blocks for longer than two heartbeats: its answers are void, and are counted so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from messagebus.testing import MemoryBus
from tests.support.eventually import eventually_async

WITHIN_S = 60.0


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    made = MemoryBus()
    made.declare("orders/a")
    yield made
    made.close()


@pytest.mark.parametrize("lost", [True, False], ids=["hung up", "still there"])
async def test_an_answer_behind_a_blocked_loop_is_stale_where_the_broker_hung_up(
    bus: MemoryBus, lost: bool
) -> None:
    async with (
        bus.async_publisher() as publisher,
        bus.async_consumer("orders", subscription="a") as consumer,
    ):
        await publisher.send_safe("orders", b"x")
        delivery = await consumer.receive(WITHIN_S)
        assert delivery is not None
        driver, loop = consumer._driver, asyncio.get_running_loop()
        assert driver is not None
        # As if the loop had stood still for a minute until now: its timer is due since then.
        assert driver._timer is not None
        driver._timer.cancel()
        driver._flushed_s = loop.time() - 60
        driver._timer = loop.call_at(loop.time() - 60, driver._tick)
        consumer.ack(delivery)
        if lost:
            bus.lose_connection()
        await eventually_async(
            lambda: (consumer.stats().acked, consumer.stats().acks_stale) == (not lost, lost),
            within_s=WITHIN_S,
        )
        if lost:
            again = await consumer.receive(WITHIN_S)
            assert again is not None
            assert again.redelivered
            consumer.ack(again)
        await eventually_async(lambda: consumer.stats().acked == 1, within_s=WITHIN_S)
        await eventually_async(lambda: not bus.waiting("orders", "a"), within_s=WITHIN_S)
