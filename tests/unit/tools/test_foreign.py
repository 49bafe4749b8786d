"""`messagebus migrate pull` and `push`: another RabbitMQ, played by a broker that speaks AMQP, and back."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pika
import pytest
from click.testing import CliRunner

from messagebus import BusConfig, ConfigError, NameInvalid, PublisherConfig
from messagebus.__main__ import cli
from messagebus._io.amqp.properties import read_headers, read_message_id
from messagebus.aio import AsyncConsumer
from messagebus.commands.exits import Exit
from messagebus.errors import NotFound
from messagebus.testing import MemoryBus
from messagebus.tools import forward
from messagebus.tools.foreign import (
    ForeignPublisher,
    ForeignQueue,
    ForeignWire,
    look_at,
    moved,
    told_of_version,
)
from messagebus.tools.forward import Forwarder
from tests.support.eventually import eventually_async
from tests.support.fake_amqp import FakeRabbit, Manners, fake_rabbit

WITHIN_S = 60.0
QUEUE, TOPIC = "old.billing:v1", "orders"
MANY = 300


@pytest.fixture
def old() -> Iterator[FakeRabbit]:
    """Another RabbitMQ, which calls itself as a new one does."""
    with fake_rabbit(manners=Manners(cluster_name="rabbit@old")) as made:
        made.declare(QUEUE, exchange="legacy")
        yield made


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryBus]:
    monkeypatch.setattr(forward, "AGAIN_S", 0.01)
    made = MemoryBus(brokers=2)
    made.declare(f"{TOPIC}/billing")
    yield made
    made.close()


def pulling(old: FakeRabbit, bus: MemoryBus) -> Forwarder:
    foreign = BusConfig(broker=old.name)
    consumers = partial(AsyncConsumer, foreign, ForeignQueue(QUEUE), _wire=ForeignWire(foreign))
    return Forwarder(consumers, bus.async_publisher, TOPIC, moved, name="pull")


def pushing(old: FakeRabbit, bus: MemoryBus, exchange: str = "", key: str = QUEUE) -> Forwarder:
    consumers = partial(bus.async_consumer, TOPIC, subscription="billing")
    config = PublisherConfig(deadline_s=1.0)
    publishers = partial(ForeignPublisher, BusConfig(broker=old.name), config, exchange, key)
    return Forwarder(consumers, publishers, key, moved, name="push")


@contextlib.asynccontextmanager
async def running(forwarder: Forwarder) -> AsyncIterator[None]:
    stopped = asyncio.Event()
    task = asyncio.create_task(forwarder.run(stopped))
    try:
        await eventually_async(lambda: forwarder.is_started or task.done(), within_s=WITHIN_S)
        yield
        stopped.set()
        assert await task == 0
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def put(old: FakeRabbit, count: int, *, first: int = 0) -> set[str]:
    ids = {f"{number:04}" for number in range(first, first + count)}
    for message_id in sorted(ids):
        old.put(QUEUE, b"body", pika.BasicProperties(message_id=message_id))
    return ids


def waiting(old: FakeRabbit) -> Counter[str]:
    return old.on_loop(
        lambda: Counter(read_message_id(each.properties) for each in old.queues[QUEUE].messages)
    )


@pytest.mark.guarantee("migrated-there-and-back")
async def test_a_live_queue_moves_here_and_back_without_a_stop_and_nothing_is_lost(
    old: FakeRabbit, bus: MemoryBus
) -> None:
    """The old publisher goes on all the time; the line is cut on both ways."""
    sent = put(old, MANY)
    async with running(pulling(old, bus)):
        sent |= put(old, MANY, first=MANY)
        old.drop_connections()
        sent |= put(old, MANY, first=2 * MANY)
        await eventually_async(
            lambda: {each.message_id for each in bus.published(TOPIC)} == sent, within_s=WITHIN_S
        )
        await eventually_async(lambda: not waiting(old), within_s=WITHIN_S)
    there = len(bus.published(TOPIC)) - len(sent)
    async with running(pushing(old, bus)):
        await eventually_async(lambda: waiting(old).total() > MANY, within_s=WITHIN_S)
        old.drop_connections()
        await eventually_async(lambda: not bus.waiting(TOPIC, "billing"), within_s=WITHIN_S)
        await eventually_async(lambda: waiting(old).keys() == sent, within_s=WITHIN_S)
    back = waiting(old).total() - len(sent)
    print(f"{len(sent)} messages, 0 lost, doubles: {there} there, {back} back")
    # Of what was under way when the line was cut, twice.
    assert there + back <= 2 * forward.HANDED_OUT_MAX


async def test_what_others_wrote_into_a_message_comes_back_as_it_was(
    old: FakeRabbit, bus: MemoryBus
) -> None:
    headers = {
        "task": "shop.bill",
        "retries": 0,
        "argsrepr": "('x',)",
        "expires": None,
        "timelimit": [None, None],
    }
    old.put(
        QUEUE,
        b"[[], {}, {}]",
        pika.BasicProperties(
            message_id="m",
            content_type="application/json",
            content_encoding="utf-8",
            correlation_id="c",
            reply_to="r",
            priority=3,
            headers=headers,
        ),
    )
    async with running(pulling(old, bus)):
        await eventually_async(lambda: len(bus.published(TOPIC)) == 1, within_s=WITHIN_S)
    async with running(pushing(old, bus, "legacy", "any")):
        await eventually_async(lambda: waiting(old) == {"m": 1}, within_s=WITHIN_S)
    (found,) = old.on_loop(lambda: list(old.queues[QUEUE].messages))
    properties = pika.BasicProperties()
    properties.decode(found.properties)
    told = (properties.content_type, properties.content_encoding, properties.correlation_id)
    assert told == ("application/json", "utf-8", "c")
    assert (properties.reply_to, properties.priority, found.body) == ("r", 3, b"[[], {}, {}]")
    assert {**read_headers(found.properties)}.items() >= headers.items()


async def test_a_message_without_an_id_gets_one(old: FakeRabbit, bus: MemoryBus) -> None:
    old.put(QUEUE, b"x")
    async with running(pulling(old, bus)):
        await eventually_async(lambda: len(bus.published(TOPIC)) == 1, within_s=WITHIN_S)
    assert len(bus.published(TOPIC)[0].message_id) == 32


async def test_a_queue_that_vanishes_there_loses_nothing(old: FakeRabbit, bus: MemoryBus) -> None:
    """A message that the other side cannot route waits here."""
    with bus.publisher() as publisher:
        sent = {publisher.send_safe(TOPIC, b"x").message_id for _ in range(20)}
    forwarder = pushing(old, bus, "legacy", "any")
    old.delete_queue(QUEUE)
    async with running(forwarder):
        await eventually_async(lambda: forwarder._is_waiting, within_s=WITHIN_S)
        assert forwarder.forwarded == 0
        old.declare(QUEUE, exchange="legacy")
        await eventually_async(lambda: waiting(old).keys() == sent, within_s=WITHIN_S)


def test_nothing_is_declared_there(old: FakeRabbit, bus: MemoryBus) -> None:
    before = old.on_loop(lambda: (set(old.exchanges), set(old.queues)))

    async def both() -> None:
        async with running(pulling(old, bus)):
            put(old, 1)
            await eventually_async(lambda: len(bus.published(TOPIC)) == 1, within_s=WITHIN_S)
        async with running(pushing(old, bus)):
            await eventually_async(lambda: waiting(old).total() == 1, within_s=WITHIN_S)

    asyncio.run(both())
    assert old.on_loop(lambda: (set(old.exchanges), set(old.queues))) == before


# A look before anything moves.
async def test_what_belongs_to_this_bus_on_one_of_its_brokers_is_refused() -> None:
    own = "mb.sub/orders/billing"
    with fake_rabbit(manners=Manners(cluster_name="mb1:5672")) as found:
        found.declare(own, exchange="mb.topic/orders")
        found.declare(QUEUE)
        foreign, ours = BusConfig(broker=found.name), ["mb1:5672", "mb2:5672"]
        for place in ({"queue": own}, {"exchange": "mb.topic/orders"}):
            with pytest.raises(ConfigError, match="says that it is mb1:5672, a broker of this bus"):
                await look_at(foreign, **place, ours=ours)
        # What was on such a broker before moves as from any other.
        await look_at(foreign, queue=QUEUE, ours=ours)
        # Any other name is its own affair.
        await look_at(foreign, queue=own, ours=["mb2:5672"])


async def test_a_queue_or_exchange_that_is_not_there_is_told_at_once(old: FakeRabbit) -> None:
    foreign = BusConfig(broker=old.name)
    with pytest.raises(NotFound, match="has no queue 'nowhere' in virtual host '/'"):
        await look_at(foreign, queue="nowhere")
    with pytest.raises(NotFound, match="has no exchange 'nowhere' in virtual host '/'"):
        await look_at(foreign, exchange="nowhere")
    # What is not tested is told, and stands in nobody's way.
    told = await look_at(foreign, queue=QUEUE, exchange="legacy")
    assert told == f"{old.name} says that it is fake ?: only RabbitMQ is tested"


@pytest.mark.parametrize(
    ("properties", "told"),
    [
        ({"product": "RabbitMQ", "version": "3.10.8"}, ""),
        ({"product": b"RabbitMQ", "version": b"4.3.0"}, ""),
        (
            {"product": "RabbitMQ", "version": "3.8.35"},
            "b is RabbitMQ 3.8.35: only 3.10 and later are tested",
        ),
        (
            {"product": "LavinMQ", "version": "2.1"},
            "b says that it is LavinMQ 2.1: only RabbitMQ is tested",
        ),
        (
            {"product": "RabbitMQ", "version": "x"},
            "b says that it is RabbitMQ x: only RabbitMQ is tested",
        ),
        ({}, "b says that it is ? ?: only RabbitMQ is tested"),
    ],
)
def test_a_version_that_is_not_tested_is_told_by_what_the_handshake_says(
    properties: dict[str, object], told: str
) -> None:
    assert told_of_version("b", properties) == told


@pytest.mark.parametrize("name", ["", "x" * 256])
def test_a_name_that_no_queue_has_is_refused(name: str) -> None:
    with pytest.raises(NameInvalid):
        ForeignQueue(name)


@pytest.mark.parametrize(
    "words",
    [["pull", "nowhere", "orders", "--from-bus"], ["push", "queue:a", "nowhere", "--to-bus"]],
)
def test_the_commands_say_in_one_line_what_is_missing_there(
    old: FakeRabbit, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "old.toml"
    path.write_text(f'broker = "{old.name}"')
    monkeypatch.setenv("MESSAGEBUS_BROKER", old.name)
    done = CliRunner().invoke(cli, ["migrate", *words, str(path)])
    assert done.exit_code == Exit.ABSENT, done.output
    assert done.output.splitlines()[-1].startswith(f"messagebus: {old.name} has no queue 'nowhere'")


def test_another_rabbitmq_has_no_consumer_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: FakeRabbit
) -> None:
    path = tmp_path / "old.toml"
    path.write_text('list_urls = ["http://127.0.0.1:1/list"]')
    monkeypatch.setenv("MESSAGEBUS_BROKER", old.name)
    done = CliRunner().invoke(cli, ["migrate", "pull", "q", "orders", "--from-bus", str(path)])
    assert (done.exit_code, "has no consumer list" in done.output) == (Exit.USAGE, True)
