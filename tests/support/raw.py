"""Plain AMQP without the library's care: the control of tests about the effect of that care."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import pika

from messagebus._io.amqp.frames import Arrived
from messagebus._io.amqp.link import Credentials, Link, dial
from messagebus.broker import Broker
from messagebus.errors import MessageBusError
from messagebus.secret import Secret

log = logging.getLogger(__name__)

DIAL_TIMEOUT_MS = 5_000
CONFIRMED_WITHIN_S = 10.0
QUORUM = {"x-queue-type": "quorum"}


def declare_queue(broker: str, user: str, password: Secret, *, queue: str) -> None:
    """Declare a quorum queue, and wait for nothing."""
    asyncio.run(_declare(broker, Credentials(user=user, password=password), queue))


async def _declare(broker: str, credentials: Credentials, queue: str) -> None:
    link = await dial(Broker.parse(broker), credentials, timeout_ms=DIAL_TIMEOUT_MS)
    try:
        await link.call("queue_declare", queue=queue, durable=True, arguments=QUORUM)
    finally:
        link.abort()


def publish_to_young_queue(
    broker: str, user: str, password: Secret, *, queue: str, count: int
) -> int:
    """Declare a quorum queue and publish `count` messages to it at once. Returns confirms."""
    credentials = Credentials(user=user, password=password, client_id="control")
    return asyncio.run(_publish(Broker.parse(broker), credentials, queue, count))


async def _publish(broker: Broker, credentials: Credentials, queue: str, count: int) -> int:
    link = await dial(broker, credentials, timeout_ms=DIAL_TIMEOUT_MS)
    try:
        await link.call("queue_declare", queue=queue, durable=True, arguments=QUORUM)
        waiting = _confirmed(link, [Raw("", queue)] * count)
        return await asyncio.wait_for(waiting, CONFIRMED_WITHIN_S)
    finally:
        link.abort()


@dataclass(frozen=True)
class Raw:
    """Publish of a foreign client."""

    exchange: str
    key: str
    properties: pika.BasicProperties | None = None
    body: bytes = b"young"


def publish_raw(broker: str, user: str, password: Secret, messages: Sequence[Raw]) -> None:
    """Publish these to this broker. Raises AssertionError unless all are confirmed."""

    async def publish() -> int:
        credentials = Credentials(user=user, password=password, client_id="raw")
        link = await dial(Broker.parse(broker), credentials, timeout_ms=DIAL_TIMEOUT_MS)
        try:
            return await asyncio.wait_for(_confirmed(link, messages), CONFIRMED_WITHIN_S)
        finally:
            await link.close()

    assert asyncio.run(publish()) == len(messages)


async def _confirmed(link: Link, messages: Sequence[Raw]) -> int:
    confirmed = 0
    all_answered = asyncio.Event()

    def answered(tag: int, multiple: bool, ok: bool) -> None:
        nonlocal confirmed
        confirmed = tag if multiple else confirmed + 1
        if not ok or confirmed >= len(messages):
            all_answered.set()

    link.transport.on_confirm = answered
    await link.confirm_select()
    for each in messages:
        link.channel.basic_publish(each.exchange, each.key, each.body, each.properties)
    await all_answered.wait()
    return confirmed


def count_messages(
    broker: str, user: str, password: Secret, *, queue: str, wanted: int, within_s: float
) -> int:
    """Count messages that come out of a queue until these are there, or the time is over. All stay in it.

    A queue that lost its name gives none: it does not answer.
    """
    credentials = Credentials(user=user, password=password, client_id="count")
    return asyncio.run(_count(Broker.parse(broker), credentials, queue, wanted, within_s))


async def _count(
    broker: Broker, credentials: Credentials, queue: str, wanted: int, within_s: float
) -> int:
    link = await dial(broker, credentials, timeout_ms=DIAL_TIMEOUT_MS)
    count = 0
    all_there = asyncio.Event()

    def arrived(contents: list[Arrived]) -> None:
        nonlocal count
        count += len(contents)
        if count >= wanted:
            all_there.set()

    link.transport.on_contents = arrived
    try:
        async with asyncio.timeout(within_s):
            handed = link.transport.pika_content
            await link.call("basic_consume", queue=queue, on_message_callback=handed)
            await all_there.wait()
    except (TimeoutError, MessageBusError) as fault:
        log.info("%s: %d of %d: %r", queue, count, wanted, fault)
    finally:
        link.abort()
    return count
