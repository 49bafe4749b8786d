"""pytest's plug-in, in runs of its own: its fixtures, and what they leave behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from messagebus.testing import plugin

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
