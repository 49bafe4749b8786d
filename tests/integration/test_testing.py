"""pytest's plug-in in runs of its own, and the bus in memory under many threads with every fault."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from messagebus import ConsumerConfig, Outcome, Publisher, RetryLater
from messagebus.message import Delivery
from messagebus.testing import MemoryBus, plugin
from tests.support.eventually import FACTOR

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 300
# By its entry point where the package was installed since it has one; twice would be an error.
INSTALLED = any(each.name == "messagebus" for each in entry_points(group="pytest11"))
LOAD = () if INSTALLED else ("-p", "messagebus.testing.plugin")


INI = """[pytest]
asyncio_default_fixture_loop_scope = function
filterwarnings = error
messagebus_brokers = 1
"""


def run(folder: Path, text: str, *options: str) -> str:
    """Run pytest over one file; return its output."""
    (folder / "test_it.py").write_text(text)
    (folder / "pytest.ini").write_text(INI)
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", *LOAD, *options, "test_it.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    return told.stdout + told.stderr


BLOCKING = """
import threading

import pytest


def test_blocking_clients(messagebus_bus, messagebus_publisher, messagebus_consumer):
    consumer = messagebus_consumer("orders", subscription="billing")
    messagebus_publisher.send_safe("orders", b"one")
    consumer.ack(consumer.receive(timeout_s=5))
    messagebus_bus.wait_handled()
    messagebus_bus.assert_answered("orders", "billing", count=1)
    (message,) = messagebus_bus.assert_published("orders", body=b"one", count=1)
    assert message.message_id


def test_nothing_is_left_of_it(messagebus_bus):
    assert not [each for each in threading.enumerate() if each.name.startswith("messagebus-")]
    assert messagebus_bus.published("orders") == []


@pytest.mark.messagebus(brokers=3, delivery_limit=2)
def test_how_it_is_made_is_said_by_a_mark(messagebus_bus):
    assert len(messagebus_bus.brokers) == 3
"""

ASYNCIO = """
import pytest


@pytest.mark.asyncio
async def test_asyncio_clients(
    messagebus_bus, messagebus_async_publisher, messagebus_async_consumer
):
    consumer = await messagebus_async_consumer("orders", subscription="billing")
    await messagebus_async_publisher.send_safe("orders", b"one")
    consumer.ack(await consumer.receive(timeout_s=5))
    await messagebus_bus.handled()
    messagebus_bus.assert_answered("orders", "billing", count=1)
"""


def test_blocking_clients_and_nothing_is_left_of_them(tmp_path: Path) -> None:
    told = run(tmp_path, BLOCKING, "--strict-markers")
    assert "3 passed" in told, told


def test_clients_for_asyncio(tmp_path: Path) -> None:
    told = run(tmp_path, ASYNCIO)
    assert "1 passed" in told, told


def test_a_failed_assertion_says_what_was_published(tmp_path: Path) -> None:
    text = """
def test_it(messagebus_bus, messagebus_publisher):
    messagebus_bus.declare("orders/billing")
    messagebus_publisher.send_safe("orders", "hello", key="c-7")
    messagebus_bus.assert_published("invoices")
"""
    told = run(tmp_path, text)
    assert "1 failed" in told, told
    assert "at least 1 message(s) wanted on invoices, 0 found" in told
    assert "orders: 1 confirmed" in told


def test_without_a_checkout_there_is_no_cluster_and_one_line_says_so(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("import sys\nsys.modules['ops'] = None\n")
    told = run(tmp_path, "def test_it(messagebus_cluster): pass\n")
    assert "1 skipped" in told, told
    assert "messagebus_cluster needs a checkout of messagebus" in told


def test_with_a_checkout_there_is_a_cluster_of_real_brokers(tmp_path: Path) -> None:
    text = """
from messagebus import BusConfig, Publisher, Queue


def test_it(messagebus_cluster):
    bus = BusConfig.from_env(messagebus_cluster.client_env())
    with Publisher(bus) as publisher:
        assert publisher.send_safe(Queue("jobs", create=True), b"one", timeout_s=60).broker
    assert len(messagebus_cluster.names) == 1
"""
    told = run(tmp_path, text)
    assert "1 passed" in told, told


def test_the_entry_point_is_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["pytest11"] == {"messagebus": plugin.__name__}


@pytest.mark.parametrize("name", plugin.__all__)
def test_every_fixture_is_there(name: str, request: pytest.FixtureRequest) -> None:
    if not INSTALLED:
        assert hasattr(plugin, name)
        return
    assert request._fixturemanager.getfixturedefs(name, request.node)


PUBLISHERS, CONSUMERS, FAULTS = 3, 3, 200
ENDED_WITHIN_S = 60 * FACTOR


def test_many_threads_and_every_fault_lose_nothing() -> None:
    bus, chance = MemoryBus(brokers=3), random.Random(84)
    seen: dict[str, int] = {}
    lock = threading.Lock()

    def handle(delivery: Delivery) -> object:
        with lock:
            seen[delivery.message_id] = seen.get(delivery.message_id, 0) + 1
            fails = chance.random() < 0.05
        return RetryLater(1) if fails else None

    config = ConsumerConfig(prefetch=20, handed_out_max=30)
    consumers = [
        bus.consumer("orders", subscription="billing", config=config) for _ in range(CONSUMERS)
    ]
    for consumer in consumers:
        consumer.start(require="all")
    working = [
        threading.Thread(target=consumer.run, args=(handle,), kwargs={"concurrency": 3})
        for consumer in consumers
    ]
    confirmed, enough = set[str](), threading.Event()

    def publish(publisher: Publisher) -> None:
        while not enough.is_set():
            futures = [publisher.submit("orders", b"x") for _ in range(50)]
            ends = [future.result(ENDED_WITHIN_S) for future in futures]
            assert {end.outcome for end in ends} == {Outcome.CONFIRMED}
            with lock:
                confirmed.update(end.message_id for end in ends)

    publishers = [bus.publisher() for _ in range(PUBLISHERS)]
    for publisher in publishers:
        publisher.start(require="one")
    sending = [threading.Thread(target=publish, args=(publisher,)) for publisher in publishers]
    for thread in [*working, *sending]:
        thread.start()
    for _ in range(FAULTS):
        match chance.randrange(6):
            case 0:
                bus.lose_connection(chance.choice([None, *bus.brokers]))
            case 1:
                bus.freeze()
                time.sleep(0.002)
                bus.thaw()
            case 2:
                bus.duplicate_next("orders", 3)
            case 3:
                bus.slow(0.5)
                bus.advance(0.5)
            case _:
                bus.slow(0)
                bus.advance(0.5)
        time.sleep(0.005)
    bus.slow(0)
    bus.advance(1)
    enough.set()
    for thread in sending:
        thread.join(ENDED_WITHIN_S)
        assert not thread.is_alive()
    until = time.monotonic() + ENDED_WITHIN_S
    while not (bus.delayed() == 0 and confirmed <= seen.keys()):
        bus.advance(1)
        time.sleep(0.02)
        assert time.monotonic() < until, f"{len(confirmed - seen.keys())} confirmed were not seen"
    bus.wait_handled(ENDED_WITHIN_S)
    for publisher in publishers:
        assert publisher.stop(ENDED_WITHIN_S) == 0
    for consumer in consumers:
        assert consumer.stop(ENDED_WITHIN_S) == 0
    for thread in working:
        thread.join(ENDED_WITHIN_S)
        assert not thread.is_alive()
    assert bus.waiting("orders", "billing") == 0
    assert bus.parked("orders", "billing") == []
    assert not [each for each in threading.enumerate() if each.name.startswith("messagebus")]
