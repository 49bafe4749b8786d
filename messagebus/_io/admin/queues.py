"""Queues of one broker by a link of their own: opened for one task, every call of it bounded in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from messagebus._io.agents.registration import credentials
from messagebus._io.amqp.link import Link, dial
from messagebus.broker import Broker
from messagebus.clock import whole_ms
from messagebus.config import BusConfig
from messagebus.errors import NOT_FOUND, ChannelRefused, LinkLost

CALL_TIMEOUT_S = 10.0


@asynccontextmanager
async def opened(
    bus: BusConfig, broker: str, *, timeout_ms: int, is_named: bool
) -> AsyncIterator[Link]:
    """Open a link to a broker, closed on the way out: unanswered messages go back.

    bus: the login; its broker is ignored. timeout_ms: of the dial, at least. is_named: brokers call
    themselves as the list does, so another one at this address is refused by LinkLost.
    """
    timeout_ms = max(timeout_ms, whole_ms(bus.dial_timeout_s))
    link = await dial(Broker.parse(broker), credentials(bus), timeout_ms=timeout_ms)
    try:
        if is_named and link.broker not in ("", broker):
            raise LinkLost(broker, f"{link.broker} answers there")
        yield link
    finally:
        await link.close()


async def answered(call: Any, link: Link) -> Any:
    """Return a call's answer. Raises LinkLost when there is none within CALL_TIMEOUT_S."""
    try:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            return await call
    except TimeoutError:
        raise LinkLost(link.address.name, f"no answer within {CALL_TIMEOUT_S:g} s") from None


async def ready_messages(link: Link, queue: str) -> int | None:
    """Return how many messages are ready in a queue; None when it does not exist. Raises LinkError."""
    try:
        answer = await answered(link.try_call("queue_declare", queue=queue, passive=True), link)
    except ChannelRefused as refused:
        if refused.code != NOT_FOUND:
            raise
        return None
    return int(answer.message_count)
