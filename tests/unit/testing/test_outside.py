"""Apps on a bus in memory: what the application keeps outside of the process stays as it was."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from messagebus import App, Dedup, Message, Outbox, Outcome, RelayConfig, Spool
from messagebus.admin.spool import spool_status
from messagebus.core.claims import Rule, Turn, key_of
from messagebus.stores import Store
from messagebus.stores.sqlite import SqliteStore
from messagebus.testing import MemoryBus
from tests.support.eventually import eventually_async

WITHIN_S = 60
RULE = Rule(30_000, 3_600_000, 5)
KEY = key_of("orders/billing", "17")


class Site:
    """A real row, a real spooled message and a real record, as a running service has them."""

    def __init__(self, folder: Path) -> None:
        self.database, self.spool, self.claims = folder / "shop.db", folder / "sp", folder / "c.db"
        self.outbox = Outbox(database=f"sqlite:///{self.database}")
        with closing(sqlite3.connect(self.database)) as connection, connection:
            for statement in self.outbox.ddl("sqlite"):
                connection.execute(statement)
            self.outbox.add(connection, "orders", b"of a customer")
        away = MemoryBus()
        away.stop_brokers()
        with away.publisher(spool=Spool(self.spool, after_s=0)) as own:
            assert own.send_safe("orders", b"of a customer").outcome is Outcome.SPOOLED

    def app(self, dedup: Store | str) -> App:
        made = App(
            outbox=self.outbox,
            relay=RelayConfig(poll_s=0.005),
            spool=self.spool,
            dedup=Dedup(dedup),
        )

        @made.subscriber("orders", subscription="billing")
        async def bill(body: bytes) -> None: ...

        return made

    @property
    def rows(self) -> int:
        with closing(sqlite3.connect(self.database)) as connection:
            found: int = connection.execute("SELECT count(*) FROM messagebus_outbox").fetchone()[0]
            return found

    @property
    def spooled(self) -> int:
        return sum(each.messages for each in spool_status(self.spool))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.guarantee("tests-touch-nothing-real")
@pytest.mark.parametrize("as_object", [False, True])
async def test_a_row_a_spooled_message_and_a_store_outlive_the_tests_of_an_application(
    site: Site, as_object: bool, caplog: pytest.LogCaptureFixture
) -> None:
    app = site.app(SqliteStore(site.claims) if as_object else f"sqlite:///{site.claims}")
    bus = MemoryBus()
    app.use(bus)
    with caplog.at_level(logging.INFO, "messagebus.app"):
        async with app:
            assert (app.stats().relay, app.publisher.config.spool) == (None, None)
            await app.publish("orders", Message(body=b"of the test", message_id="17"))
            await bus.handled()
    assert [each.body for each in bus.published("orders")] == [b"of the test"]
    assert (site.rows, site.spooled, site.claims.exists()) == (1, 1, False)
    assert bus.store.turns > 0
    (line,) = [each.getMessage() for each in caplog.records if "leaves_out" in each.getMessage()]
    assert "leaves_out=relay,spool,store" in line


async def test_what_a_test_asks_for_by_name_is_used(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    store = SqliteStore(site.claims)
    app, bus = site.app(store), MemoryBus()
    app.use(bus, relay=True, spool=True, store=True)
    with caplog.at_level(logging.INFO, "messagebus.app"):
        async with app:
            await eventually_async(lambda: len(bus.published("orders")) == 2, within_s=WITHIN_S)
            await app.publish("orders", Message(body=b"17", message_id="17"))
            await bus.handled()
    await eventually_async(lambda: not (site.rows or site.spooled), within_s=WITHIN_S)
    ((verdict,), _) = await store.turn(Turn(claim=[KEY], token=b"8 bytes!"), RULE)
    await store.close()
    assert verdict.kind == "ended"
    assert "leaves_out" not in caplog.text
