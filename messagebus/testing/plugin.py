"""Plug-in for pytest: a bus in memory, clients on it, and a real cluster where it is installed.

    def test_an_order_is_billed(messagebus_bus, messagebus_publisher):
        messagebus_publisher.send_safe("orders", b"...")
        messagebus_bus.wait_handled()
        messagebus_bus.assert_published("invoices", count=1)

Every test run loads this module where messagebus is installed, so it imports nothing else of it;
fixtures do when they are asked for. Those for asyncio are in `plugin_asyncio`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from messagebus.consumer import Consumer
    from messagebus.publisher import Publisher
    from messagebus.testing.bus import MemoryBus
    from messagebus.testing.store import FaultyStore

__all__ = [
    "messagebus_bus",
    "messagebus_cluster",
    "messagebus_consumer",
    "messagebus_publisher",
    "messagebus_store",
]

BROKERS_INI = "messagebus_brokers"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our setting; pytest's hook."""
    parser.addini(BROKERS_INI, "how many brokers messagebus_cluster has", default="3")


def pytest_configure(config: pytest.Config) -> None:
    """Add our mark, and the fixtures for asyncio where a plug-in runs coroutines; pytest's hook."""
    config.addinivalue_line(
        "markers", "messagebus(brokers=1, delivery_limit=None): how messagebus_bus is made"
    )
    # pytest-asyncio wants its own decorator on fixtures; anyio takes any.
    if any(config.pluginmanager.hasplugin(name) for name in ("asyncio", "anyio")):
        fixtures = importlib.import_module("messagebus.testing.plugin_asyncio")
        config.pluginmanager.register(fixtures, "messagebus-asyncio")


@pytest.fixture
def messagebus_bus(request: pytest.FixtureRequest) -> Iterator[MemoryBus]:
    """A new `MemoryBus`; blocking clients that a test leaves running are stopped.

    ``@pytest.mark.messagebus(brokers=3)`` says how it is made.
    """
    from messagebus.testing.bus import MemoryBus

    marker = request.node.get_closest_marker("messagebus")
    bus = MemoryBus(**(marker.kwargs if marker else {}))
    yield bus
    bus.close()


@pytest.fixture
def messagebus_store(messagebus_bus: MemoryBus) -> FaultyStore:
    """The store of deduplication of `messagebus_bus`, for its faults: ``messagebus_store.lose()``."""
    return messagebus_bus.store


@pytest.fixture
def messagebus_publisher(messagebus_bus: MemoryBus) -> Publisher:
    """A running `Publisher` on `messagebus_bus`."""
    publisher = messagebus_bus.publisher()
    publisher.start(require="one")
    return publisher


@pytest.fixture
def messagebus_consumer(messagebus_bus: MemoryBus) -> Callable[..., Consumer]:
    """Function that makes running `Consumer`s: ``messagebus_consumer("orders", subscription="billing")``.

    Arguments are those of `MemoryBus.consumer`.
    """

    def make(*args: Any, **kwargs: Any) -> Consumer:
        consumer = messagebus_bus.consumer(*args, **kwargs)
        consumer.start(require="all")
        return consumer

    return make


@pytest.fixture(scope="session")
def messagebus_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """A running cluster of real brokers on loopback addresses, one for the whole session.

    ``BusConfig.from_env(messagebus_cluster.client_env())`` leads to it. It needs the checkout of
    messagebus on the path, RabbitMQ and HAProxy; where there is no checkout, tests that ask for it are
    skipped. The setting ``messagebus_brokers`` says how many brokers it has.
    """
    try:
        cluster_module = importlib.import_module("ops.local.cluster")
        errors = importlib.import_module("ops.errors")
    except ImportError:
        pytest.skip("messagebus_cluster needs a checkout of messagebus: `ops.local` is not there")
    # Sessions that run side by side are on networks of their own.
    cluster = cluster_module.LocalCluster(
        tmp_path_factory.mktemp("messagebus") / "cluster",
        int(request.config.getini(BROKERS_INI)),
        network=f"127.{1 + os.getpid() % 250}.251",
    )
    try:
        cluster.up()
    except errors.LocalFault as fault:
        pytest.fail(f"messagebus_cluster: {fault}", pytrace=False)
    try:
        yield cluster
    finally:
        cluster.down(wipe=not request.session.testsfailed)
