"""The two drivers of redundant publishes, over brokers in memory: which goes where, what is waited for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from messagebus import (
    AsyncPublisher,
    BacklogFull,
    Message,
    NotReady,
    Outcome,
    PublisherConfig,
    Refused,
    Unknown,
)
from messagebus._io.amqp.link import Link
from messagebus._io.publish import redundant
from messagebus._io.publish.door import MemoryDoor
from messagebus._io.publish.driver import PublishDriver
from messagebus._io.publish.publishes import PublishCopy
from messagebus.broker import Broker
from messagebus.testing import MemoryBus
from messagebus.testing.links import MemoryLink, MemoryWire
from tests.support.eventually import eventually_async

WITHIN_S = 60
ROUNDS = 10
ONE, TWO, THREE = (f"memory-{number}:5672" for number in (1, 2, 3))


@pytest.fixture
def memory() -> MemoryBus:
    made = MemoryBus(brokers=3)
    made.declare("orders/billing")
    return made


@pytest.fixture
async def publisher(memory: MemoryBus) -> AsyncIterator[AsyncPublisher]:
    async with memory.async_publisher(PublisherConfig(redundant=("orders",))) as made:
        yield made


def stop_all_but(memory: MemoryBus, *left: str) -> None:
    for broker in memory.brokers:
        if broker not in left:
            memory.stop_brokers(broker)


def second(publisher: AsyncPublisher) -> PublishDriver:
    """Return the driver of the second copies."""
    assert publisher._drivers is not None
    assert publisher._drivers.redundant is not None
    made = publisher._drivers.redundant.second
    assert made is not None
    return made


async def test_without_redundant_publishes_there_is_one_link(memory: MemoryBus) -> None:
    async with memory.async_publisher() as publisher:
        await publisher.send_safe("orders", b"x")
        assert publisher._drivers is not None
        assert publisher._drivers.redundant is None
        assert publisher.stats().dials == 1


async def test_the_second_link_is_used_for_redundant_publishes_alone(
    memory: MemoryBus, publisher: AsyncPublisher
) -> None:
    await publisher.send_safe("orders", b"x")
    for _ in range(5):
        plain = await publisher.send_safe("orders", b"y", redundant=False)
        assert plain.broker == publisher.stats().broker
    assert publisher.stats().redundant == 1
    assert publisher.stats().confirmed == 6
    assert len(memory.published("orders")) == 7


async def test_the_second_link_ends_when_nobody_has_used_it_for_long(
    publisher: AsyncPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redundant, "IDLE_MS", 50)
    await publisher.send_safe("orders", b"x")
    assert publisher._drivers is not None
    made = publisher._drivers.redundant
    assert made is not None
    await eventually_async(lambda: made.second is None, within_s=WITHIN_S)
    stats = publisher.stats()
    assert (stats.confirmed, stats.redundant, stats.dials) == (1, 1, 2)
    await publisher.send_safe("orders", b"x")
    assert made.second is not None


@pytest.mark.guarantee("two-copies-two-brokers")
async def test_copies_stay_apart_while_brokers_come_and_go(
    memory: MemoryBus, publisher: AsyncPublisher
) -> None:
    for broker in (ONE, TWO, THREE) * 3:
        futures = [await publisher.submit("orders", b"x") for _ in range(50)]
        memory.stop_brokers(broker)
        futures += [await publisher.submit("orders", b"x") for _ in range(50)]
        ends = await asyncio.gather(*futures)
        assert {(end.outcome, len(set(end.brokers))) for end in ends} == {(Outcome.CONFIRMED, 2)}
        assert all(broker not in end.brokers for end in ends[50:])
        memory.start_brokers(broker)


@pytest.mark.guarantee("two-copies-two-brokers")
async def test_a_copy_that_waited_does_not_follow_the_other_to_its_broker(
    memory: MemoryBus, publisher: AsyncPublisher
) -> None:
    """The links change places now and then: which driver dials the broker that is back is chance."""
    for _ in range(ROUNDS):
        stop_all_but(memory, ONE)
        waiting = [await publisher.submit("orders", b"x") for _ in range(5)]
        await publisher.send_safe("orders", b"all are confirmed there", redundant=False)
        memory.stop_brokers(ONE)
        memory.start_brokers(TWO)
        await publisher.send_safe("orders", b"a link is there", redundant=False)
        memory.start_brokers(ONE)
        ends = await asyncio.wait_for(asyncio.gather(*waiting), WITHIN_S)
        assert {end.outcome for end in ends} == {Outcome.CONFIRMED}
        assert {frozenset(end.brokers) for end in ends} == {frozenset((ONE, TWO))}


@pytest.mark.guarantee("one-broker-left")
async def test_with_one_broker_left_required_waits_and_then_says_where_it_lies(
    memory: MemoryBus, publisher: AsyncPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker that is left is that of the second link. No copy is handed to and fro meanwhile."""
    take_over, handed = MemoryDoor.take_over, []

    def counted(self: MemoryDoor, copies: list[PublishCopy]) -> None:
        handed.extend(copies)
        take_over(self, copies)

    monkeypatch.setattr(MemoryDoor, "take_over", counted)
    both = (await publisher.send_safe("orders", b"w")).brokers
    left = both[1]
    stop_all_but(memory, left)
    with pytest.raises(Unknown, match=f"stored on 1 of 2 brokers: {left}") as raised:
        await publisher.send_safe("orders", Message(body=b"x", message_id="mine"), timeout_s=0.5)
    assert raised.value.message_id == "mine"
    waiting = await publisher.submit("orders", b"y")
    await publisher.send_safe("orders", b"z", redundant=False)
    assert not waiting.done()
    memory.start_brokers(both[0])
    assert set((await waiting).brokers) == set(both)
    stats = publisher.stats()
    assert (stats.unknown, stats.confirmed, stats.redundant, stats.downgraded) == (1, 3, 2, 0)
    assert len(handed) < 10


@pytest.mark.guarantee("one-broker-left")
async def test_with_one_broker_left_preferred_goes_on_and_warns_once_a_minute(
    memory: MemoryBus, publisher: AsyncPublisher, caplog: pytest.LogCaptureFixture
) -> None:
    stop_all_but(memory, THREE)
    how = {"redundant": "preferred", "timeout_s": 20 * WITHIN_S}
    with caplog.at_level(logging.WARNING, "messagebus.publisher"):
        async with asyncio.timeout(WITHIN_S):
            ends = [await publisher.send_safe("orders", b"x", **how) for _ in range(20)]  # type: ignore[arg-type]
    assert {end.brokers for end in ends} == {(THREE,)}
    assert publisher.stats().downgraded == 20
    told = [record for record in caplog.records if "no second broker" in record.getMessage()]
    assert len(told) == 1
    memory.start_brokers(ONE)
    await eventually_async(
        lambda: redundant.takes_copies(second(publisher), 0),
        within_s=WITHIN_S,
    )

    again = await publisher.send_safe("orders", b"x", redundant="preferred")
    assert len(again.brokers) == 2


async def test_with_one_broker_left_many_that_prefer_two_go_on_together(memory: MemoryBus) -> None:
    config = PublisherConfig(redundant=("orders",), redundancy="preferred")
    async with memory.async_publisher(config) as publisher:
        stop_all_but(memory, THREE)
        ends = await publisher.send_many("orders", [b"x"] * 250, timeout_s=20 * WITHIN_S)
        again = await publisher.send_many("orders", [b"y"] * 250, timeout_s=20 * WITHIN_S)
    assert [end.brokers for end in ends + again] == [(THREE,)] * 500
    assert publisher.stats().downgraded == 500


async def test_many_find_room_in_both_backlogs(memory: MemoryBus) -> None:
    config = PublisherConfig(redundant=("orders",), backlog_messages_max=5)
    bodies = [b"%d" % number for number in range(23)]
    async with memory.async_publisher(config) as publisher:
        stop_all_but(memory, ONE)
        sending = asyncio.create_task(publisher.send_many("orders", bodies))
        await eventually_async(lambda: publisher.stats().backlog >= 5, within_s=WITHIN_S)
        memory.start_brokers(TWO)
        ends = await sending
    assert {frozenset(end.brokers) for end in ends} == {frozenset((ONE, TWO))}
    stored = [message.body for message in memory.published("orders")]
    assert sorted(stored) == sorted(bodies * 2)
    assert len({end.message_id for end in ends}) == len(bodies)


async def test_copies_that_wait_for_a_second_broker_stop_no_plain_publish(
    memory: MemoryBus,
) -> None:
    config = PublisherConfig(redundant=("orders",), backlog_messages_max=5)
    async with memory.async_publisher(config) as publisher:
        stop_all_but(memory, ONE)
        waiting = [await publisher.submit("orders", b"x") for _ in range(5)]
        with pytest.raises(BacklogFull, match="the limit is backlog_"):
            await publisher.submit("orders", b"x", timeout_s=0.1)
        one_more = asyncio.create_task(publisher.submit("orders", b"late"))
        await asyncio.sleep(0)
        for _ in range(20):
            await publisher.send_safe("orders", b"plain", redundant=False)
        memory.start_brokers(TWO)
        ends = await asyncio.gather(*waiting)
        assert {len(end.brokers) for end in ends} == {2}
        assert len((await (await one_more)).brokers) == 2


@pytest.fixture
def nameless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers whose cluster_name is no address."""
    dial = MemoryWire.dial

    async def without_a_name(self: MemoryWire, broker: Broker | None, *, timeout_ms: int) -> Link:
        link = await dial(self, broker, timeout_ms=timeout_ms)
        link.broker = ""
        return link

    monkeypatch.setattr(MemoryWire, "dial", without_a_name)


@pytest.mark.guarantee("two-copies-two-brokers")
@pytest.mark.usefixtures("nameless")
async def test_brokers_without_a_name_are_refused_where_two_are_required(
    memory: MemoryBus, publisher: AsyncPublisher
) -> None:
    with pytest.raises(Refused, match="does not say its name"):
        await publisher.send_safe("orders", b"before there is a link")
    with pytest.raises(Refused, match="does not say its name"):
        await publisher.send_safe("orders", b"after")
    many = await publisher.send_many("orders", [b"after"] * 3)
    assert [end.outcome for end in many] == [Outcome.REFUSED] * 3
    assert memory.published("orders") == []
    one = await publisher.send_safe("orders", b"x", redundant="preferred")
    assert (one.outcome, one.brokers) == (Outcome.CONFIRMED, ("memory:5672",))
    assert publisher.stats().downgraded == 1


@pytest.mark.usefixtures("nameless")
async def test_a_start_that_requires_a_link_is_refused_by_a_broker_without_a_name(
    memory: MemoryBus,
) -> None:
    config = PublisherConfig(redundant=("orders",))
    publisher = memory.async_publisher(config)
    with pytest.raises(NotReady, match="does not say its name"):
        await publisher.start(require="one")
    with pytest.raises(NotReady, match="does not say its name"):
        memory.publisher(config).start(require="one")


async def test_what_cannot_be_encoded_is_refused_and_sends_no_copy(
    memory: MemoryBus, publisher: AsyncPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> bytes:
        raise OverflowError

    monkeypatch.setattr(redundant, "encode_publish", fails)
    with pytest.raises(Refused, match="cannot be encoded: OverflowError"):
        await publisher.send_safe("orders", Message(body=b"x", key="k"))
    assert memory.published("orders") == []
    assert publisher.stats().refused == 1


@pytest.mark.parametrize("place", [0, 1])
async def test_headers_above_a_frame_of_either_broker_are_refused_and_send_no_copy(
    memory: MemoryBus, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    small = memory.brokers[place]
    monkeypatch.setattr(
        MemoryLink,
        "properties_max",
        property(lambda link: 4076 if link.broker == small else 131_052),
    )
    stop_all_but(memory, *memory.brokers[:2])
    async with memory.async_publisher(PublisherConfig(redundant=("orders",))) as publisher:
        await publisher.send_safe("orders", b"opens both links")
        with pytest.raises(Refused, match="its broker takes 4076"):
            await publisher.send_safe("orders", b"x", headers={"a": "x" * 5_000})
    assert {each.body for each in memory.published("orders")} == {b"opens both links"}


async def test_what_is_given_up_at_a_stop_is_counted_once(memory: MemoryBus) -> None:
    publisher = memory.async_publisher(PublisherConfig(redundant=("orders",)))
    await publisher.start()
    await publisher.send_safe("orders", b"x")
    memory.freeze()
    futures = [await publisher.submit("orders", b"x") for _ in range(3)]
    futures.append(await publisher.submit("orders", b"x", redundant=False))
    await asyncio.sleep(0)
    assert await publisher.stop(0) == 4
    assert {(await future).outcome for future in futures} == {Outcome.UNKNOWN}
