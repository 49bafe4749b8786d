"""The asyncio clients: the same promises on the caller's own loop."""

from __future__ import annotations

from messagebus import AsyncConsumer, AsyncPublisher, BusConfig, Outcome, Queue
from tests.support.eventually import FACTOR

READY_WITHIN_S = 20.0
MANY = 500


async def test_what_asyncio_publishes_asyncio_consumes_by_ids(bus: BusConfig, topic: str) -> None:
    consumer = AsyncConsumer(bus, f"queue:{topic}")
    await consumer.start(require="all", timeout_s=READY_WITHIN_S * FACTOR)
    async with AsyncPublisher(bus) as publisher:
        done = await publisher.send_many(Queue(topic, create=True), [b"x"] * MANY)
    assert {each.outcome for each in done} == {Outcome.CONFIRMED}
    expected = {each.message_id for each in done}
    got: list[str] = []
    async for delivery in consumer:
        got.append(delivery.message_id)
        assert consumer.ack(delivery)
        if len(got) == MANY:
            break
    assert await consumer.stop() == 0
    assert sorted(got) == sorted(expected)


async def test_an_async_consumer_that_stops_gives_back_what_it_did_not_answer(
    bus: BusConfig, topic: str
) -> None:
    async with AsyncPublisher(bus) as publisher:
        sent = await publisher.send_safe(Queue(topic, create=True), b"x")
    consumer = AsyncConsumer(bus, f"queue:{topic}")
    await consumer.start(require="all", timeout_s=READY_WITHIN_S * FACTOR)
    first = await consumer.receive(READY_WITHIN_S)
    assert first is not None
    assert await consumer.stop(0) == 1
    async with AsyncConsumer(bus, f"queue:{topic}") as other:
        again = await other.receive(READY_WITHIN_S)
        assert again is not None
        assert (again.message_id, again.redelivered) == (sent.message_id, True)
        assert await other.ack_safe(again)
