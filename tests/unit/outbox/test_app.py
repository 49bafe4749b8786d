"""Outboxes of applications and their sessions."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from messagebus import App, ConfigError, Hooks, Message, Stopped
from messagebus.dsn import Address
from messagebus.outbox import AsyncRelay, Outbox, Relay, RelayConfig, session
from messagebus.outbox.session import Session
from messagebus.outbox.table import Table
from messagebus.telemetry.prometheus import ClientMetrics
from messagebus.telemetry.tracecontext import TRACEPARENT
from messagebus.testing import MemoryBus
from tests.support.eventually import eventually_async

WITHIN_S = 60
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "shop.db"
    with closing(sqlite3.connect(found)) as connection:
        for statement in Table("sqlite").ddl():
            connection.execute(statement)
    return found


def add(path: Path, outbox: Outbox, *bodies: bytes) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for body in bodies:
            outbox.add(connection, "orders", body)


async def test_an_app_relays_the_outbox_that_its_handlers_add_to(path: Path) -> None:
    bus = MemoryBus()
    bus.declare("invoices/all")
    app = App(outbox=Outbox(database=f"sqlite:///{path}"), relay=RelayConfig(poll_s=0.005))

    @app.subscriber("orders", subscription="billing")
    async def bill(body: bytes) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            app.outbox.add(connection, "invoices", body, key="k")

    app.use(bus, relay=True)
    async with app:
        await app.publish("orders", b"17")
        await eventually_async(
            lambda: (told := app.stats().relay) and told.published, within_s=WITHIN_S
        )
        await eventually_async(
            lambda: (told := app.stats().relay) and told.rows_waiting is not None,
            within_s=WITHIN_S,
            what="the rows of the table are counted",
        )
        stats = app.stats().relay
        assert stats is not None
        assert (stats.published, stats.shards) == (1, 16)
        registry = CollectorRegistry()
        ClientMetrics(registry).watch(app, "shop")
        text = generate_latest(registry).decode()
        assert 'messagebus_relay_published_rows_total{client="shop"} 1.0' in text
        assert 'messagebus_outbox_waiting_rows{client="shop"}' in text
    bus.assert_published("invoices", count=1, body=b"17")


async def test_an_app_that_only_relays_runs(path: Path) -> None:
    bus = MemoryBus()
    bus.declare("orders/billing")
    outbox = Outbox(database=f"sqlite:///{path}")
    add(path, outbox, b"one")
    app = App(outbox=outbox, relay=True)
    app.use(bus, relay=True)
    async with app:
        await eventually_async(lambda: bus.published("orders"), within_s=WITHIN_S)


def test_a_relay_without_an_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="database"):
        App(outbox=Outbox(), relay=True)
    with pytest.raises(ConfigError, match="no outbox"):
        _ = App().outbox


def test_a_relay_in_a_thread_of_its_own(path: Path) -> None:
    bus = MemoryBus()
    bus.declare("orders/billing")
    add(path, Outbox(), b"one", b"two")
    relay = Relay(f"sqlite:///{path}", bus, RelayConfig(poll_s=0.005))
    with pytest.raises(Stopped):
        relay.drained()
    with relay:
        assert relay.drained(WITHIN_S)
        assert relay.stats().published == 2
    assert relay.stop() == 0
    with pytest.raises(Stopped):
        relay.start()
    bus.assert_published("orders", count=2)


async def test_a_relay_that_does_not_run_has_no_end_to_wait_for(path: Path) -> None:
    add(path, Outbox(), b"one")
    bus = MemoryBus()
    bus.declare("orders/billing")
    relay = AsyncRelay(f"sqlite:///{path}", bus, RelayConfig(poll_s=0.005))
    with pytest.raises(Stopped, match="initialized"):
        await relay.drained()
    async with relay:
        assert await relay.drained(WITHIN_S)
    with pytest.raises(Stopped, match="stopped"):
        await relay.drained()


def test_a_relay_that_insists_says_what_is_missing(tmp_path: Path) -> None:
    empty = tmp_path / "empty.db"
    sqlite3.connect(empty).close()
    empty.touch()
    with pytest.raises(ConfigError, match="no outbox"):
        Relay(f"sqlite:///{empty}", MemoryBus()).start(require="one")


def test_hooks_of_the_outbox_add_the_headers_of_the_transaction_s_trace(path: Path) -> None:
    class Traced(Hooks):
        def publishing(self, destination: str, message: Message) -> Message:
            return Message(body=message.body, headers={TRACEPARENT: PARENT})

    bus = MemoryBus()
    bus.declare("orders/billing")
    add(path, Outbox(hooks=[Traced()]), b"one")
    with Relay(f"sqlite:///{path}", bus, RelayConfig(poll_s=0.005)) as relay:
        assert relay.drained(WITHIN_S)
    (message,) = bus.assert_published("orders", count=1)
    assert message.headers[TRACEPARENT] == PARENT


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"batch": 0, "poll_s": -1}, "batch 0: 1 to 10,000; poll_s -1"),
        ({"lease_s": True}, "lease_s True"),
    ],
)
def test_a_wrong_setting_is_refused_with_all_faults(settings: dict[str, int], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        RelayConfig(**settings)  # type: ignore[arg-type]


def test_notifications_need_postgresql(path: Path) -> None:
    with pytest.raises(ConfigError, match="no notifications"):
        Relay(f"sqlite:///{path}", MemoryBus(), RelayConfig(notify=True))


THREADS, ROUNDS, ADDED = 8, 20, 20


def add_many(outbox: Outbox, count: int, begin: threading.Barrier | None = None) -> list[str]:
    """Add messages through a connection of the caller's own; return their ids."""
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in outbox.ddl("sqlite"):
            connection.execute(statement)
        if begin:
            begin.wait(timeout=30)
        return [outbox.add(connection, "orders", b"17") for _ in range(count)]


def test_threads_add_to_one_outbox_at_once_and_no_two_ids_are_equal() -> None:
    with ThreadPoolExecutor(THREADS) as threads:
        for _ in range(ROUNDS):
            outbox, begin = Outbox(), threading.Barrier(THREADS)
            adding = [threads.submit(add_many, outbox, ADDED, begin) for _ in range(THREADS)]
            ids = [message_id for each in adding for message_id in each.result()]
            assert len(set(ids)) == THREADS * ADDED


def test_processes_that_were_forked_with_an_outbox_make_ids_of_their_own() -> None:
    """As a web server does that loads the application before it forks."""
    outbox = Outbox()
    add_many(outbox, 1)
    told, tells = os.pipe()
    child = os.fork()
    if not child:
        os.write(tells, "".join(add_many(outbox, 3)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(tells)
    with os.fdopen(told) as pipe:
        of_child = pipe.read()
    assert len(of_child) == 3 * 32
    assert not any(message_id in of_child for message_id in add_many(outbox, 3))


class Frozen:
    """Connection to a server that never answers."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ended = threading.Event()

    def fileno(self) -> int:
        return self.ours.fileno()

    def cursor(self) -> Any:
        return self

    def execute(self, *_: object) -> None:
        self.ours.recv(1)
        raise OSError("the connection was ended")

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()
        self.ended.set()


async def frozen_session(connection: Frozen) -> Session:
    made = Session(Address.parse("postgresql://db/shop"), lambda _address: connection)
    await made.call(lambda _connection: None)
    return made


async def test_a_statement_without_an_answer_ends_with_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "ANSWER_TIMEOUT_S", 0.05)
    connection = Frozen()
    made = await frozen_session(connection)
    with pytest.raises(TimeoutError):
        await made.run([("SELECT 1", ())])
    assert await asyncio.to_thread(connection.ended.wait, WITHIN_S)
    await made.close()


async def test_the_close_of_a_connection_ends_the_statement_that_it_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "CONNECT_TIMEOUT_S", 0.05)
    connection = Frozen()
    made = await frozen_session(connection)
    asked = asyncio.ensure_future(made.run([("SELECT 1", ())]))
    await asyncio.sleep(0)
    await made.close()
    assert await asyncio.to_thread(connection.ended.wait, WITHIN_S)
    with pytest.raises(OSError, match="ended"):
        await asked
