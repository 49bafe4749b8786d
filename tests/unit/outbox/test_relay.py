"""A relay of an outbox in SQLite, on brokers in memory."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from messagebus import (
    App,
    ConfigError,
    Message,
    NotReady,
    Outcome,
    PublisherConfig,
    Spool,
    Status,
    Stopped,
    Topic,
)
from messagebus.__main__ import cli
from messagebus.core import relay as core_relay
from messagebus.core.relay import End
from messagebus.dialects import dialect_named
from messagebus.outbox import AsyncRelay, Outbox, Relay, RelayConfig
from messagebus.outbox.exchanges import DatabaseAway
from messagebus.outbox.table import Table
from messagebus.testing import MemoryBus
from tests.support.eventually import eventually_async
from tests.support.together import links_left

WITHIN_S = 60
FAST = RelayConfig(poll_s=0.005)
TEXTS = ("message_id", "destination", "msg_key", "content_type", "headers", "options")


class Shop:
    """An application's database and its bus."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bus = MemoryBus()
        self.bus.declare("orders/billing")
        self.outbox = Outbox()
        with self.connect() as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            for statement in Table("sqlite").ddl():
                connection.execute(statement)

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path)

    def relay(self, config: RelayConfig = FAST) -> AsyncRelay:
        return AsyncRelay(self.url, self.bus, config)

    def count(self, where: str = "1 = 1") -> int:
        with self.connect() as connection:
            found = connection.execute(f"SELECT count(*) FROM messagebus_outbox WHERE {where}")
            return int(found.fetchone()[0])


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    made = Shop(tmp_path / "shop.db")
    yield made
    made.bus.close()


async def test_what_commits_is_published_and_what_rolls_back_is_not(shop: Shop) -> None:
    connection = shop.connect()
    ids = [shop.outbox.add(connection, "orders", {"n": n}, key=f"k{n % 3}") for n in range(20)]
    connection.commit()
    shop.outbox.add(connection, "orders", b"never")
    connection.rollback()
    connection.close()
    async with shop.relay() as relay:
        assert await relay.drained(WITHIN_S)
        assert relay.stats().published == 20
    published = shop.bus.assert_published("orders", count=20)
    assert sorted(each.message_id for each in published) == sorted(ids)
    assert shop.count() == 0


def change(shop: Shop, sql: str, *values: object) -> None:
    with closing(shop.connect()) as connection, connection:
        connection.execute(sql, values)


def add(shop: Shop, *bodies: bytes, key: str = "") -> list[str]:
    with closing(shop.connect()) as connection, connection:
        return [shop.outbox.add(connection, "orders", body, key=key) for body in bodies]


async def test_a_key_waits_behind_a_row_that_failed_before_the_relay_began(shop: Shop) -> None:
    add(shop, b"a1", b"a2", key="a")
    add(shop, b"b1", key="b")
    change(shop, "UPDATE messagebus_outbox SET not_before_ms = 1 << 60 WHERE body = ?", b"a1")
    async with shop.relay() as relay:
        assert await relay.drained(WITHIN_S)
        shop.bus.assert_published("orders", count=1, body=b"b1")
        change(shop, "UPDATE messagebus_outbox SET not_before_ms = 0")
        assert await relay.drained(WITHIN_S)
    assert [m.body for m in shop.bus.published("orders")] == [b"b1", b"a1", b"a2"]


async def test_keys_that_need_not_wait_pass_a_row_that_failed(shop: Shop) -> None:
    add(shop, b"a1", b"a2", key="a")
    change(shop, "UPDATE messagebus_outbox SET not_before_ms = 1 << 60 WHERE body = ?", b"a1")
    async with shop.relay(RelayConfig(poll_s=0.005, key_waits=False)) as relay:
        assert await relay.drained(WITHIN_S)
    shop.bus.assert_published("orders", count=1, body=b"a2")


async def test_a_row_whose_id_is_lower_than_those_before_is_published(shop: Shop) -> None:
    """Its transaction was slower: a relay that remembered a last id would never look at it again."""
    (first,) = add(shop, b"first")
    change(shop, "UPDATE messagebus_outbox SET id = 1000")
    async with shop.relay() as relay:
        assert await relay.drained(WITHIN_S)
        change(shop, "UPDATE sqlite_sequence SET seq = 5")
        (second,) = add(shop, b"second")
        assert shop.count("id < 1000") == 1
        assert await relay.drained(WITHIN_S)
    assert [m.message_id for m in shop.bus.published("orders")] == [first, second]


async def test_a_row_is_there_until_its_confirm(shop: Shop) -> None:
    shop.bus.freeze()
    ids = add(shop, b"one")
    async with shop.relay() as relay:
        await eventually_async(lambda: relay.stats().in_flight == 1, within_s=WITHIN_S)
        assert shop.count() == 1
        assert await relay.stop(0) == 1
    assert shop.count() == 1
    shop.bus.thaw()
    async with shop.relay() as again:
        assert await again.drained(WITHIN_S)
    assert {m.message_id for m in shop.bus.published("orders")} == set(ids)
    assert shop.count() == 0


@pytest.mark.parametrize("destination", ["orders", "nobody"])
@pytest.mark.guarantee("outbox-survives-kills")
async def test_a_relay_changes_the_row_that_it_read_and_no_other_one_with_its_id(
    shop: Shop, destination: str
) -> None:
    """A database that came back older, by a failover or from a backup, gives ids again."""
    shop.bus.freeze()
    with closing(shop.connect()) as connection, connection:
        shop.outbox.add(connection, destination, b"lost with the old database")
    async with shop.relay(RelayConfig(poll_s=0.005, attempts_max=1)) as relay:
        await eventually_async(lambda: relay.stats().in_flight == 1, within_s=WITHIN_S)
        change(shop, "DELETE FROM messagebus_outbox")
        change(shop, "DELETE FROM sqlite_sequence")
        add(shop, b"committed behind it")
        assert shop.count("id = 1") == 1
        shop.bus.thaw()
        await eventually_async(
            lambda: b"committed behind it" in [m.body for m in shop.bus.published("orders")],
            within_s=WITHIN_S,
        )
        assert await relay.drained(WITHIN_S)
    assert shop.count() == 0


async def test_rows_that_are_held_are_read_again_over_a_new_connection(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be of a database that has come back older."""
    relay = shop.relay(RelayConfig(poll_s=0.005, in_flight_max=1))
    shop.bus.freeze()
    add(shop, b"sent", b"held", b"held, too")
    async with relay:
        await eventually_async(lambda: relay.stats().held == 3, within_s=WITHIN_S)
        change(shop, "DELETE FROM messagebus_outbox WHERE body <> ?", b"sent")
        run, lost, loop = relay._exchanges.session._run, asyncio.Event(), asyncio.get_running_loop()

        def ends_once(*_: object) -> list[object]:
            monkeypatch.setattr(relay._exchanges.session, "_run", run)
            loop.call_soon_threadsafe(lost.set)
            raise ConnectionError("the server was replaced")

        monkeypatch.setattr(relay._exchanges.session, "_run", ends_once)
        await asyncio.wait_for(lost.wait(), WITHIN_S)
        await eventually_async(lambda: relay.stats().held == 1, within_s=WITHIN_S)
        shop.bus.thaw()
        assert await relay.drained(WITHIN_S)
    assert [m.body for m in shop.bus.published("orders")] == [b"sent"]


KEYS = 60


@pytest.mark.guarantee("outbox-home-away")
async def test_a_home_that_is_away_holds_up_its_own_keys_and_no_others(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop.db")
    shop.bus = bus = MemoryBus(brokers=3)
    bus.declare(Topic("payments", partitions=3), "payments/ledger", "mails/send")
    keys = [f"customer-{number}" for number in range(KEYS)]
    async with bus.async_publisher() as publisher:
        homes = {key: await publisher.send_safe("payments", message(key)) for key in keys}
    away = homes[keys[0]].broker
    of_away = {key for key, published in homes.items() if published.broker == away}
    with closing(shop.connect()) as connection, connection:
        # Those of one home first: they would fill all places.
        for key in sorted(keys, key=lambda key: key not in of_away):
            for number in range(2):
                shop.outbox.add(connection, "payments", b"%d" % number, key=key)
        shop.outbox.add(connection, "payments", b"of no key")
        shop.outbox.add(connection, "mails", b"plain")
    async with shop.relay(RelayConfig(poll_s=0.005, in_flight_max=10)) as relay:
        bus.stop_brokers(away)
        going = len(keys) + 2 * (KEYS - len(of_away)) + 1
        await eventually_async(
            lambda: len(bus.published("payments")) == going and len(bus.published("mails")) == 1,
            within_s=WITHIN_S,
        )
        assert shop.count() >= 2 * len(of_away)
        bus.start_brokers()
        while not await relay.drained(1) or shop.count():
            change(shop, "UPDATE messagebus_outbox SET not_before_ms = 0")
        stats = relay.stats()
    assert (stats.failed, stats.parked) == (0, 0)
    for key in keys:
        bodies = [m.body for m in bus.published("payments") if m.key == key]
        assert list(dict.fromkeys(bodies)) == [b"first", b"0", b"1"]
    bus.close()


def message(key: str) -> Message:
    return Message(body=b"first", key=key)


async def test_rows_are_not_charged_for_brokers_that_are_away(shop: Shop) -> None:
    shop.bus.freeze()
    add(shop, b"one")
    async with shop.relay(RelayConfig(poll_s=0.005, publish_timeout_s=1)) as relay:
        await eventually_async(lambda: relay.stats().in_flight == 1, within_s=WITHIN_S)
        await eventually_async(lambda: relay.stats().in_flight == 0, within_s=WITHIN_S)
        shop.bus.thaw()
        assert await relay.drained(WITHIN_S)
        assert relay.stats().failed == 0
        assert shop.count() == 0


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("options", '{"due_ms": 1%s}' % ("0" * 400)),
        ("options", '{"redundant": "never"}'),
        ("options", '{"redundant": true, "durability": "none"}'),
        ("options", '{"durability": "none"}'),
        ("headers", '{"a":' * 900 + "1" + "}" * 900),
        ("body", 5),
        ("body", "text"),
        ("created_ms", "soon"),
        ("message_id", ""),
        *((column, b"\xff") for column in TEXTS),
    ],
)
async def test_a_row_that_is_no_message_is_parked_and_the_others_go_out(
    shop: Shop, column: str, value: object
) -> None:
    (bad,) = add(shop, b"bad")
    change(shop, f"UPDATE messagebus_outbox SET {column} = ?", value)
    (good,) = add(shop, b"good")
    async with shop.relay() as relay:
        assert await relay.drained(WITHIN_S)
    assert shop.count("parked_ms > 0") == shop.count() == 1
    published = shop.bus.assert_published("orders", count=1)
    assert [each.message_id for each in published] == [good] != [bad]


@pytest.mark.parametrize("column", [*TEXTS, "reason"])
async def test_a_text_that_is_none_holds_up_no_other_row_and_is_shown(
    shop: Shop, column: str
) -> None:
    """SQLite keeps any bytes as a text."""
    add(shop, b"bad")
    change(shop, f"UPDATE messagebus_outbox SET {column} = CAST(? AS TEXT), shard = -1", b"\xff")
    add(shop, b"good")
    async with shop.relay() as relay:
        assert await relay.drained(WITHIN_S)
    shop.bus.assert_published("orders", count=1 + (column == "reason"))
    change(shop, "UPDATE messagebus_outbox SET parked_ms = ?", 1)
    for words in ("parked", "parked --json"):
        command = ["outbox", *words.split(), "--database", shop.url]
        told = await asyncio.to_thread(CliRunner().invoke, cli, command)
        assert told.exit_code == 0, told.output


async def test_a_table_of_another_version_is_told_at_the_start(shop: Shop) -> None:
    change(shop, "ALTER TABLE messagebus_outbox RENAME COLUMN options TO settings")
    with pytest.raises(ConfigError, match="no such column: options"):
        await shop.relay().start(require="one")


async def test_two_brokers_confirm_a_row_that_was_added_as_redundant(shop: Shop) -> None:
    shop.bus.close()
    shop.bus = MemoryBus(brokers=2)
    shop.bus.declare("orders/billing")
    with closing(shop.connect()) as connection, connection:
        shop.outbox.add(connection, "orders", b"one", redundant=True)
    async with shop.relay() as relay:
        assert await relay.drained(WITHIN_S)
        assert relay.stats().published == 1
    shop.bus.assert_published("orders", count=2)


async def test_rows_that_want_two_brokers_hold_up_no_others_while_there_is_one(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All places on the way were theirs, and each of their tries left another copy on that broker."""
    shop.bus.close()
    shop.bus = MemoryBus(brokers=2)
    shop.bus.declare("orders/billing")
    shop.bus.stop_brokers(shop.bus.brokers[1])
    with closing(shop.connect()) as connection, connection:
        for number in range(20):
            shop.outbox.add(connection, "orders", b"two", key=f"k{number}", redundant=True)
        for number in range(5):
            shop.outbox.add(connection, "orders", b"one", key=f"k{number + 100}")
    config = RelayConfig(poll_s=0.005, publish_timeout_s=1, in_flight_max=4)
    waiting = "attempts = 0 AND not_before_ms > 0"
    async with shop.relay(config) as relay:
        await eventually_async(lambda: shop.count(waiting) == shop.count() == 20, within_s=60)
        assert relay.stats().published == 5
    assert 1 <= shop.count("reason LIKE 'stored on 1 of 2 brokers%'") <= 4
    monkeypatch.setattr("messagebus.outbox.sending.SECOND_MS", 50)
    monkeypatch.setitem(core_relay._WAITS_MS, End.NO_SECOND, 50)
    with closing(shop.connect()) as connection, connection:
        connection.execute("UPDATE messagebus_outbox SET not_before_ms = 0, reason = ''")
    async with shop.relay(config) as relay:
        await eventually_async(lambda: shop.count("reason LIKE 'there was no%'") > 0, within_s=60)
        shop.bus.start_brokers()
        await eventually_async(lambda: shop.count() == 0, within_s=60)
        assert (relay.stats().published, relay.stats().failed) == (20, 0)


async def test_a_relay_takes_no_publisher_with_a_spool(shop: Shop, tmp_path: Path) -> None:
    with_spool = PublisherConfig(spool=Spool(tmp_path / "spool"))
    with pytest.raises(ConfigError, match="without a spool"):
        AsyncRelay(shop.url, shop.bus, publisher=with_spool)
    with pytest.raises(ConfigError, match="without a spool"):
        AsyncRelay(shop.url, shop.bus.async_publisher(with_spool))


async def test_the_relay_of_an_app_with_a_spool_waits_in_the_database(
    shop: Shop, tmp_path: Path
) -> None:
    outbox = Outbox(database=shop.url)
    app = App(outbox=outbox, relay=FAST, spool=Spool(tmp_path / "spool", after_s=0))
    app.use(shop.bus, relay=True, spool=True)
    shop.bus.stop_brokers()
    add(shop, b"row")
    async with app:
        spooled = await app.publish("orders", b"spooled")
        assert spooled.outcome is Outcome.SPOOLED
        assert shop.count("attempts = 0 AND not_before_ms = 0") == 1
        shop.bus.start_brokers()
        await eventually_async(
            lambda: len(shop.bus.published("orders")) == 2 and not shop.count(), within_s=WITHIN_S
        )


async def test_a_relay_that_failed_stops_without_an_error(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = shop.relay()
    monkeypatch.setattr(relay._exchanges.shares, "ask", lambda *_: 1 / 0)
    await relay.start()
    assert isinstance(await relay.ended(), ZeroDivisionError)
    assert await relay.stop() == 0


async def test_a_relay_that_cannot_start_leaves_no_thread(tmp_path: Path) -> None:
    bus = MemoryBus()
    relay = AsyncRelay(f"sqlite:///{tmp_path}/none.db", bus)
    before = set(threading.enumerate())
    with pytest.raises(NotReady):
        await relay.start(require="one")
    await eventually_async(lambda: set(threading.enumerate()) <= before, within_s=WITHIN_S)
    bus.close()


def test_the_clock_of_mysql_is_none_of_local_time() -> None:
    assert "UTC_TIMESTAMP" in dialect_named("mysql").now_ms


@pytest.mark.parametrize("shard", [-1, 16, 32_767])
async def test_a_row_with_a_shard_that_does_not_exist_is_published_in_its_turn(
    shop: Shop, shard: int
) -> None:
    add(shop, b"1", b"2", b"3", key="k")
    change(shop, "UPDATE messagebus_outbox SET shard = ?", shard)
    async with shop.relay() as relay:
        assert await relay.drained(WITHIN_S)
    assert [message.body for message in shop.bus.published("orders")] == [b"1", b"2", b"3"]


def test_the_counts_of_a_large_table_come_from_its_indexes(shop: Shop) -> None:
    add(shop, *(b"%d" % n for n in range(50)))
    change(shop, "UPDATE messagebus_outbox SET created_ms = 1000 * id")
    change(shop, "UPDATE messagebus_outbox SET parked_ms = 1 WHERE id <= 20")
    change(shop, "UPDATE messagebus_outbox SET not_before_ms = 1 WHERE id > 40")
    status = Table("sqlite").status()
    with closing(shop.connect()) as connection:
        assert connection.execute(status).fetchall() == [(30, 21_000, 10, 20)]
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {status}")]
    counted = [each for each in plan if each.startswith("SCAN") and "INDEX" not in each]
    # The oldest: by its id, and no further.
    assert counted == ["SCAN CONSTANT ROW", "SCAN messagebus_outbox"]


async def test_a_count_that_takes_long_is_rare(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1_000_000]
    monkeypatch.setattr("messagebus.outbox.exchanges.monotonic_ms", lambda: clock[0])
    relay = shop.relay()
    relay._status = Status.RUNNING

    async def slow(*_: object) -> list[tuple[int, ...]]:
        clock[0] += 3_000
        return [(0, 0, 0, 0)]

    monkeypatch.setattr(relay._exchanges, "_run", slow)
    await relay._exchanges._count()
    assert relay._exchanges._count_at_ms - clock[0] == 60_000
    assert relay.stats().rows_waiting == 0


async def test_counts_of_a_table_that_does_not_answer_are_unknown_and_not_zero(shop: Shop) -> None:
    add(shop, b"1", b"2")
    relay = shop.relay()
    with pytest.raises(Stopped):
        relay.stats()
    relay._status = Status.RUNNING
    assert relay.stats().rows_waiting is None
    await relay._exchanges._count()
    assert relay.stats().rows_waiting == 2
    await relay._exchanges._failed(DatabaseAway())
    stats = relay.stats()
    assert (stats.rows_waiting, stats.rows_retrying, stats.rows_parked) == (None, None, None)
    assert relay._exchanges._count_at_ms == 0
    await relay._exchanges.session.close()


def test_a_relay_that_is_dropped_without_stop_warns_and_ends(shop: Shop) -> None:
    def start_and_drop() -> threading.Thread:
        relay = Relay(shop.url, shop.bus)
        relay.start(require="one")
        assert relay._thread is not None
        return relay._thread._thread

    def dropped() -> threading.Thread:
        thread = start_and_drop()
        gc.collect()
        return thread

    with pytest.warns(ResourceWarning, match="a Relay was dropped without stop"):
        thread = dropped()
    thread.join(WITHIN_S)
    assert not thread.is_alive()
    assert not links_left(shop.bus)
