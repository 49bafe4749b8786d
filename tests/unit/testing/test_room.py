"""Calls of an asyncio publisher that wait for room are served in the order in which they came."""

from __future__ import annotations

import asyncio

from messagebus import PublisherConfig
from messagebus.testing import MemoryBus
from tests.support.eventually import eventually_async


async def test_whoever_waits_for_room_first_is_admitted_first_whatever_the_sizes() -> None:
    bus = MemoryBus()
    bus.declare("orders/a")
    config = PublisherConfig(backlog_bytes_max=100_000, backlog_messages_max=10_000, window=1)
    admitted: list[int] = []
    async with bus.async_publisher(config) as publisher:
        await publisher.send_safe("orders", b"0")
        bus.freeze()

        async def publish(number: int) -> None:
            body = b"%05d" % number + b"x" * (60_000 if number % 3 else 10)
            end = await publisher.submit("orders", body, timeout_s=60)
            admitted.append(number)
            await end

        calls = [asyncio.create_task(publish(number)) for number in range(24)]
        await eventually_async(lambda: len(publisher._admission._plain.tickets) >= 18, within_s=60)
        bus.thaw()
        await asyncio.gather(*calls)
    assert admitted == sorted(admitted)
    bodies = [int(message.body[:5]) for message in bus.published("orders")]
    assert bodies == sorted(bodies)
