"""A store that waiting does not help: the start raises, and the log says what to do."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from messagebus import App, Dedup, Outbox, RelayConfig
from messagebus.errors import ConfigError
from messagebus.stores.sql import SqlStore
from messagebus.testing import MemoryBus
from tests.support.eventually import eventually_async

WITHIN_S = 60
MAKE = "table messagebus_dedup does not exist: `messagebus dedup ddl --database sqlite`"


async def test_a_start_without_the_tables_of_its_store_says_what_makes_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/app.db"
    bus = MemoryBus()
    consumer = bus.consumer("orders", subscription="billing", dedup=Dedup(SqlStore(url)))
    with pytest.raises(ConfigError, match=MAKE):
        consumer.start()
    app = App(dedup=SqlStore(url))

    @app.subscriber("orders", subscription="billing")
    async def bill(body: bytes) -> None: ...

    app.use(bus, store=True)
    with pytest.raises(ConfigError, match=MAKE):
        await app.start()
    bus.close()


async def test_a_store_that_loses_its_tables_is_logged_with_what_makes_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "app.db"
    store = SqlStore(f"sqlite:///{path}")
    await store.create()
    bus = MemoryBus()
    consumer = bus.async_consumer("orders", subscription="billing", dedup=Dedup(store))
    await consumer.start()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE messagebus_dedup")
    async with bus.async_publisher() as publisher:
        await publisher.send_safe("orders", b"17")
    await eventually_async(lambda: MAKE in caplog.text, within_s=WITHIN_S)
    await store.create()
    delivery = await consumer.receive(WITHIN_S)
    assert delivery is not None
    await consumer.stop(0)
    await store.close()


async def test_a_relay_without_its_tables_is_logged_with_what_makes_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "shop.db"
    sqlite3.connect(path).close()
    path.touch()
    outbox = Outbox(database=f"sqlite:///{path}")
    app = App(outbox=outbox, relay=RelayConfig(poll_s=0.005))
    app.use(MemoryBus(), relay=True)
    with caplog.at_level(logging.WARNING, "messagebus.outbox"):
        async with app:
            told = "no outbox messagebus_outbox there; `messagebus outbox ddl --database sqlite`"
            await eventually_async(lambda: told in caplog.text, within_s=WITHIN_S)
