"""Our clients under load, on brokers in memory: every message has its end, and its rows."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bench.clients import messagebus as module
from bench.clients.messagebus import publisher_config
from bench.clients.messagebus_calls import Order, check, content_of
from bench.errors import BenchError
from bench.harness.interface import Delivered, End, Linked, Where
from bench.harness.outcomes import CONFIRMED, OTHERWISE
from bench.harness.workers import open_ended
from bench.load.bodies import Filler, stamped
from bench.load.profile import Profile
from bench.rows import Rows, read_events
from messagebus import (
    AsyncConsumer,
    AsyncPublisher,
    ConsumerConfig,
    Delivery,
    Durability,
    Message,
    Outcome,
    Published,
    PublisherConfig,
    Queue,
    Receipt,
)
from messagebus.payloads import reader
from messagebus.recording.files import anchor_now
from messagebus.recording.manifest import Manifest
from messagebus.testing import MemoryBus
from tests.support.bench_task import bench_task

ENV = {"MESSAGEBUS_BROKER": "b:1", "MESSAGEBUS_LIST_URLS": "http://b/consumer-list"}
FILLER = Filler.of(bytes(60))


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> MemoryBus:
    bus = MemoryBus(brokers=2)
    bus.declare("t/a")

    def publisher(_bus: object, config: PublisherConfig) -> AsyncPublisher:
        return bus.async_publisher(config)

    def consumer(
        _bus: object, topic: str, *, subscription: str, config: ConsumerConfig
    ) -> AsyncConsumer:
        return bus.async_consumer(topic, subscription=subscription, config=config)

    monkeypatch.setattr(module, "AsyncPublisher", publisher)
    monkeypatch.setattr(module, "AsyncConsumer", consumer)
    return bus


def where(folder: Path, name: str, subscription: str = "") -> Where:
    rows = Rows(folder, run_id="r", name=name, topic="t", subscription=subscription)
    return Where(name, "t", subscription, ENV, 0, rows)


async def sent(sender: module.Sender, count: int) -> list[End]:
    await sender.open()
    for number in range(count):
        await sender.send(number, stamped(FILLER, 0, number, 1000 + number), "k")
    await sender.close(30)
    return list(sender.ends())


async def taken(receiver: module.Receiver, count: int) -> list[Delivered]:
    await receiver.open()
    assert isinstance(receiver, Linked)
    assert len(receiver.links()) == 2
    found: list[Delivered] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            found += await receiver.take(0.1)
    await receiver.close()
    return found


def profile() -> Profile:
    return open_ended("x", ["t/a"], publishers=1, rate_per_s=1, body_bytes=60)


async def test_each_message_has_its_end_and_its_rows(memory: MemoryBus, tmp_path: Path) -> None:
    publisher, consumer = where(tmp_path, "p"), where(tmp_path, "c", "a")
    receiver = module.Receiver(profile(), consumer)
    memory.refuse_next("t")
    ends = await sent(module.Sender(profile(), publisher), 10)
    deliveries = await taken(receiver, 9)
    assert [end.sequence for end in ends] == list(range(10))
    assert sorted(end.outcome for end in ends) == [OTHERWISE] + [CONFIRMED] * 9
    assert {each.broker for each in deliveries} <= set(memory.brokers)
    for each in (publisher.rows, consumer.rows):
        assert each
        each.close()
    manifest = Manifest(
        run_id="r",
        topics={"t": ("a",)},
        brokers=memory.brokers,
        start_ns=0,
        anchor=anchor_now("c"),
    )
    events = read_events(tmp_path, manifest)
    assert (events.bad, events.files) == ({}, 2)
    assert [row["intended_ns"] for row in events.published] == list(range(1000, 1010))
    assert sorted(row["outcome"] for row in events.published) == ["confirmed"] * 9 + ["refused"]
    assert {row["key"] for row in (*events.published, *events.delivered)} == {"k"}
    assert [row["ack"] for row in events.delivered] == ["acked"] * 9


def test_what_is_measured_is_a_kilobyte_that_fits_its_type() -> None:
    message = content_of(bench_task(typed=True))
    assert isinstance(message, Message)
    assert len(message.body) == 1024
    order = reader(Order)(Delivery(message, Receipt("b:5672", 1, 1), Queue("q")))
    assert order.number == 17


def test_a_batch_is_asked_for_by_destination() -> None:
    assert not publisher_config(bench_task(window=50).profile.load, "figures").batch
    config = publisher_config(bench_task(window=50, batch=16).profile.load, "figures")
    assert config.batch["figures"].count_max == 16
    assert config.window == 50
    assert config.backlog_messages_max >= 50 * 16


def test_one_outcome_that_is_not_confirmed_spoils_the_turn() -> None:
    good = Published(message_id="1", outcome=Outcome.CONFIRMED, durability=Durability.FSYNC)
    bad = Published(message_id="2", outcome=Outcome.UNKNOWN, durability=Durability.NONE)
    check([good, good])
    with pytest.raises(BenchError, match="1 publishes"):
        check([good, bad])
