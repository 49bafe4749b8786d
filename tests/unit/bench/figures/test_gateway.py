"""Requests of the gateway's figures, to a gateway that refuses those that name another host."""

from __future__ import annotations

from bench.figures import gateway as figures
from messagebus.testing import MemoryBus
from tests.support.gateway import gateway_on

MESSAGES = 4


async def test_the_figures_requests_are_answered() -> None:
    bus = MemoryBus()
    bus.declare(f"{figures.TOPIC}/{figures.SUBSCRIPTION}")
    async with gateway_on(bus) as served:
        path = f"/v1/topics/{figures.TOPIC}/messages"
        port = int(served.gateway.url.rpartition(":")[2])
        await figures._post(port, path, "application/octet-stream", [b"x"] * MESSAGES, 2)
        assert await figures._pull_rate(port, MESSAGES) > 0
    bus.assert_answered(figures.TOPIC, figures.SUBSCRIPTION, answer="ack", count=MESSAGES)
