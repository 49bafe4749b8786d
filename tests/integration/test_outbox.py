"""The outbox in SQLite, PostgreSQL and MariaDB: added on every kind of connection, relayed in memory."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from messagebus import Durability, Message, MessageInvalid, NameInvalid, Queue, Topic
from messagebus.core.shards import SHARDS
from messagebus.databases import MYSQL, POSTGRESQL, SQLITE
from messagebus.outbox import Outbox, RelayConfig
from messagebus.outbox.rows import shard_of
from messagebus.testing import MemoryBus
from tests.support.connections import KINDS, Database, result_of
from tests.support.eventually import eventually_async
from tests.support.outboxes import FAST, Shop

SERVERS = {POSTGRESQL: "postgresql_server", MYSQL: "mariadb_server"}
WITHIN_S = 60
# No relay that lives is so slow that another one takes over.
LASTING = RelayConfig(poll_s=0.01, lease_s=60)
# Renewed every 2 s.
RENEWED_SOON = RelayConfig(poll_s=0.01, lease_s=6)


class Undone(Exception):
    """The application's own fault, after which it rolls back."""


@pytest.fixture
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Shop]:
    dialect: str = request.param
    if dialect == SQLITE:
        database = Database(dialect, path=tmp_path / "shop.db")
    else:
        database = Database(dialect, server=request.getfixturevalue(SERVERS[dialect]))
    bus = MemoryBus()
    bus.declare("orders/billing", "queue:jobs")
    made = Shop(database, bus)
    await made.make_tables()
    yield made
    bus.close()


every_kind = pytest.mark.parametrize(("shop", "kind"), KINDS, indirect=["shop"])
every_database = pytest.mark.parametrize("shop", [SQLITE, POSTGRESQL, MYSQL], indirect=True)


def bus_of(shop: Shop) -> MemoryBus:
    assert isinstance(shop.bus, MemoryBus)
    return shop.bus


async def drained(shop: Shop, config: RelayConfig = FAST) -> None:
    async with shop.relay(config) as relay:
        assert await relay.drained(WITHIN_S)


@pytest.mark.guarantee("outbox-commits-with-its-transaction")
@every_kind
async def test_what_commits_is_published_under_its_id_and_what_rolls_back_is_not(
    shop: Shop, kind: str
) -> None:
    with pytest.raises(Undone):  # noqa: PT012
        async with shop.transaction(kind) as connection:
            await result_of(shop.outbox.add(connection, "orders", b"rolled back"))
            raise Undone
    async with shop.transaction(kind) as connection:
        added = await result_of(
            shop.outbox.add(
                connection,
                "orders",
                {"number": 17, "name": "Zoë % ? $1"},
                key="customer-4",
                headers={"region": "eu", "raw": b"\xff\0", "$odd": {"$bytes": [1, None, True]}},
                correlation_id="cart-7",
                type="order.placed",
            )
        )
    await drained(shop)
    (message,) = bus_of(shop).assert_published("orders", count=1)
    assert message.message_id == added
    assert message.as_json() == {"number": 17, "name": "Zoë % ? $1"}
    assert (message.key, message.type) == ("customer-4", "order.placed")
    assert message.correlation_id == "cart-7"
    assert dict(message.headers) == {
        "region": "eu",
        "raw": b"\xff\0",
        "$odd": {"$bytes": [1, None, True]},
    }
    assert await shop.count() == 0


@every_database
async def test_a_bad_message_fails_in_the_callers_transaction(shop: Shop) -> None:
    bad: list[tuple[Any, Any, dict[str, Any], type[Exception]]] = [
        ("orders", object(), {}, MessageInvalid),
        ("no such/name", b"", {}, NameInvalid),
        ("orders", b"", {"headers": {"half": 0.5}}, MessageInvalid),
        ("orders", b"", {"deliver_after_s": -1}, MessageInvalid),
        ("orders", b"", {"key": "k" * 256}, MessageInvalid),
        ("orders", b"", {"colour": "red"}, TypeError),
        (Topic("orders", durability=Durability.NONE), b"", {}, ValueError),
    ]
    async with shop.transaction() as connection:
        for destination, payload, options, error in bad:
            with pytest.raises(error):
                shop.outbox.add(connection, destination, payload, **options)
        shop.outbox.add(connection, "orders", b"good")
    assert await shop.count() == 1


@every_database
async def test_rows_of_a_key_wait_behind_one_that_fails_until_it_is_parked(shop: Shop) -> None:
    await shop.add(b"a1", b"a2", key="a")
    await shop.add(b"b1", destination="orders", key="b")
    bus_of(shop).refuse_next("orders", 1)
    async with shop.relay() as relay:
        await eventually_async(lambda: relay.stats().published == 3, within_s=WITHIN_S)
        assert relay.stats().failed == 1
    of_a = [m.body for m in bus_of(shop).published("orders") if m.key == "a"]
    of_b = [m.body for m in bus_of(shop).published("orders") if m.key == "b"]
    assert (of_a, of_b) == ([b"a1", b"a2"], [b"b1"])


@every_database
@pytest.mark.guarantee("outbox-key-order")
async def test_a_key_of_blanks_is_a_key_and_no_row_without_one_waits_for_it(shop: Shop) -> None:
    """Collations that pad texts hold that a blank is nothing."""
    await shop.add(b"1", key=" ", destination="later")
    async with shop.relay() as relay:
        await eventually_async(lambda: relay.stats().failed >= 1, within_s=WITHIN_S)
        await shop.rows("UPDATE messagebus_outbox SET not_before_ms = ?", 1 << 60)
        await shop.add(b"2", key=" ")
        await shop.add(b"of no key")
        await shop.rows("UPDATE messagebus_outbox SET shard = ?", shard_of(" ", ""))
        await eventually_async(lambda: relay.stats().published == 1, within_s=WITHIN_S)
        assert await relay.drained(WITHIN_S)
    bus_of(shop).assert_published("orders", count=1, body=b"of no key")


@every_database
@pytest.mark.guarantee("outbox-survives-kills")
async def test_a_relay_changes_the_row_that_it_read_and_no_other_one_with_its_id(
    shop: Shop,
) -> None:
    bus_of(shop).freeze()
    await shop.add(b"lost with the old database")
    async with shop.relay() as relay:
        await eventually_async(lambda: relay.stats().in_flight == 1, within_s=WITHIN_S)
        other = "UPDATE messagebus_outbox SET message_id = ?, body = ?"
        await shop.rows(other, "another", b"committed behind it")
        bus_of(shop).thaw()
        await eventually_async(lambda: relay.stats().published == 2, within_s=WITHIN_S)
        assert await relay.drained(WITHIN_S)
    bus_of(shop).assert_published("orders", message_id="another", body=b"committed behind it")
    assert await shop.count() == 0


@every_database
async def test_a_row_that_nobody_takes_is_parked_with_the_reason_and_its_key_goes_on(
    shop: Shop,
) -> None:
    await shop.add(b"lost", destination="nobody", key="a")
    await shop.add(b"a2", key="a")
    await drained(shop, RelayConfig(poll_s=0.01, attempts_max=1))
    bus_of(shop).assert_published("orders", count=1)
    ((attempts, reason),) = await shop.rows(
        "SELECT attempts, reason FROM messagebus_outbox WHERE parked_ms > 0"
    )
    assert attempts == 1
    assert reason.startswith("unroutable: no queue took it")
    assert await shop.count() == 1


@every_database
async def test_a_row_that_is_no_message_is_parked_and_the_others_go_on(shop: Shop) -> None:
    await shop.add(b"one", b"two")
    await shop.rows("UPDATE messagebus_outbox SET headers = 'no JSON' WHERE body = ?", b"one")
    await drained(shop)
    bus_of(shop).assert_published("orders", count=1, body=b"two")
    ((reason,),) = await shop.rows("SELECT reason FROM messagebus_outbox WHERE parked_ms > 0")
    assert reason.startswith("the row is no message")


@every_database
async def test_a_row_keeps_its_destination_delay_and_time_to_live(shop: Shop) -> None:
    await shop.add(b"job", destination="queue:jobs", priority=3, reply_to="queue:answers")
    async with shop.transaction() as connection:
        shop.outbox.add(connection, Queue("made", create=True), b"queue made")
        shop.outbox.add(connection, "orders", b"later", deliver_after_s=60)
        shop.outbox.add(
            connection, "orders", b"past", deliver_at=datetime(2020, 1, 1, tzinfo=UTC), ttl_s=5
        )
        shop.outbox.add(connection, "orders", b"short", ttl_s=3_600)
    await shop.rows(
        "UPDATE messagebus_outbox SET created_ms = created_ms - 3000000 WHERE body = ?", b"short"
    )
    await drained(shop)
    bus = bus_of(shop)
    (job,) = bus.assert_published("queue:jobs", count=1)
    assert (job.priority, job.reply_to) == (3, "queue:answers")
    bus.assert_published("queue:made", count=1)
    assert bus.delayed() == 1
    (short,) = bus.assert_published("orders", body=b"short")
    assert short.ttl_s is not None
    assert 0 < short.ttl_s <= 600
    (past,) = bus.assert_published("orders", body=b"past")
    assert past.ttl_s == 5


@every_database
async def test_the_age_of_a_message_counts_from_when_it_was_added(shop: Shop) -> None:
    await shop.add(b"old")
    await shop.rows("UPDATE messagebus_outbox SET created_ms = created_ms - 100000")
    await drained(shop)
    async with bus_of(shop).async_consumer("orders", subscription="billing") as consumer:
        delivery = await consumer.receive(WITHIN_S)
        assert delivery is not None
        assert delivery.age_s >= 100
        consumer.ack(delivery)


@pytest.mark.guarantee("outbox-key-order")
@every_database
async def test_each_key_keeps_its_order_beside_other_relays_and_nothing_is_sent_twice(
    shop: Shop,
) -> None:
    relays = [shop.relay(LASTING) for _ in range(3)]
    for relay in relays:
        await relay.start()
    for number in range(40):
        async with shop.transaction() as connection:
            for key in "abcdefgh":
                shop.outbox.add(connection, "orders", f"{key}{number}", key=key)
        if number == 20:
            bus_of(shop).refuse_next("orders", 3)
    await eventually_async(
        lambda: sum(r.stats().published for r in relays) >= 320, within_s=2 * WITHIN_S
    )
    for relay in relays:
        await relay.stop()
    published = bus_of(shop).published("orders")
    assert len(published) == 320, "relays that live send nothing twice"
    for key in "abcdefgh":
        found = [m.body.decode() for m in published if m.key == key]
        assert found == [f"{key}{number}" for number in range(40)]
    assert await shop.count() == 0


@every_database
async def test_relays_share_the_shards_evenly(shop: Shop) -> None:
    """A consumer with too many lets them go at its renewal; one with too few takes them at its own, later."""
    relays = [shop.relay(RENEWED_SOON) for _ in range(3)]
    for relay in relays:
        await relay.start()

    def are_shared() -> bool:
        shards = [r.stats().shards for r in relays]
        return sum(shards) == SHARDS and max(shards) <= math.ceil(SHARDS / len(relays))

    await eventually_async(are_shared, within_s=WITHIN_S)
    for relay in relays:
        await relay.stop()


@every_database
async def test_a_lower_id_that_commits_later_is_published(shop: Shop) -> None:
    """A relay that remembered a last id would never look at it again."""
    async with shop.relay() as relay:
        if shop.database.dialect == SQLITE:  # it has one writer at a time
            await shop.rows(
                "INSERT INTO messagebus_outbox (id, message_id, destination, msg_key, shard,"
                " content_type, headers, options, body, created_ms)"
                " VALUES (1000, 'm', 'orders', '', 1, '', '{}', '{}', ?, 0)",
                b"first",
            )
            await eventually_async(lambda: relay.stats().published == 1, within_s=WITHIN_S)
            await shop.rows("UPDATE sqlite_sequence SET seq = 1")
            await shop.add(b"second")
        else:
            async with shop.transaction() as slow:
                shop.outbox.add(slow, "orders", b"second")
                await shop.add(b"first")
                await eventually_async(lambda: relay.stats().published == 1, within_s=WITHIN_S)
        await eventually_async(lambda: relay.stats().published == 2, within_s=WITHIN_S)
    assert [m.body for m in bus_of(shop).published("orders")] == [b"first", b"second"]


@every_database
async def test_a_relay_that_died_is_replaced_when_its_leases_end(shop: Shop) -> None:
    dead = shop.relay()
    await dead.start()
    await eventually_async(lambda: dead.stats().shards == 16, within_s=WITHIN_S)
    dead._work.cancel()
    await dead._tasks.cancel()
    await shop.add(b"one")
    async with shop.relay() as relay:
        await eventually_async(lambda: relay.stats().published == 1, within_s=WITHIN_S)
    await dead._exchanges.session.close()
    await dead._publisher.stop(0)


@pytest.mark.guarantee("outbox-delete-after-confirm")
@every_database
async def test_a_relay_killed_between_confirm_and_delete_sends_the_same_id_again(
    shop: Shop,
) -> None:
    ids = await shop.add(b"one", b"two", key="k")
    first = shop.relay()

    await first.start()
    await eventually_async(lambda: first.stats().published == 2, within_s=WITHIN_S)
    await first.stop()
    # As if it had been killed before the delete: the rows are there again.
    again = await shop.add(b"one", b"two", key="k", message_id="")
    await shop.rows(
        "UPDATE messagebus_outbox SET message_id = ? WHERE message_id = ?", ids[0], again[0]
    )
    await shop.rows(
        "UPDATE messagebus_outbox SET message_id = ? WHERE message_id = ?", ids[1], again[1]
    )
    await drained(shop)
    assert [m.message_id for m in bus_of(shop).published("orders")] == ids * 2


@pytest.mark.parametrize("shop", [POSTGRESQL], indirect=True)
async def test_a_notification_wakes_the_relay(shop: Shop) -> None:
    shop.outbox = Outbox(notify=True)
    async with shop.relay(RelayConfig(poll_s=60, notify=True)) as relay:
        await eventually_async(lambda: relay.stats().shards == 16, within_s=WITHIN_S)
        for count in (1, 2, 3):
            await shop.add(Message.text("one"))
            await eventually_async(
                lambda: relay.stats().published == count,  # noqa: B023
                within_s=WITHIN_S,
            )


@pytest.mark.guarantee("outbox-key-order")
@pytest.mark.parametrize("shop", [POSTGRESQL], indirect=True)
async def test_sessions_that_are_cut_as_by_a_pooler_change_no_order_and_send_nothing_twice(
    shop: Shop,
) -> None:
    relays = [shop.relay(LASTING) for _ in range(2)]
    for relay in relays:
        await relay.start()
    await eventually_async(lambda: all(r.stats().shards for r in relays), within_s=WITHIN_S)

    def published_rows() -> int:
        return sum(relay.stats().published for relay in relays)

    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
    for number in range(30):
        async with shop.transaction() as connection:
            for key in "abcdefgh":
                shop.outbox.add(connection, "orders", f"{key}{number}", key=key)
        if number % 5 == 0:
            gone = await shop.rows(f"{cut} AND datname = current_database()")
            assert (True,) in gone
            await eventually_async(lambda: published_rows() > 8 * number, within_s=WITHIN_S)  # noqa: B023
    await eventually_async(lambda: published_rows() >= 240, within_s=2 * WITHIN_S)
    for relay in relays:
        await relay.stop()
    published = bus_of(shop).published("orders")
    assert len(published) == 240
    for key in "abcdefgh":
        found = [m.body.decode() for m in published if m.key == key]
        assert found == [f"{key}{number}" for number in range(30)]
    assert sum(relay.stats().database_faults for relay in relays) > 0


@every_database
async def test_rows_with_a_shard_that_does_not_exist_are_counted_and_published(shop: Shop) -> None:
    await shop.add(b"1", b"2", key="k")
    await shop.add(b"parked")
    table = shop.table.name
    await shop.rows(f"UPDATE {table} SET shard = 99 WHERE msg_key = ?", "k")
    await shop.rows(f"UPDATE {table} SET parked_ms = 1 WHERE msg_key = ?", "")
    ((waiting, oldest_ms, retrying, parked),) = await shop.rows(shop.table.status())
    assert (int(waiting), int(retrying), int(parked)) == (2, 0, 1)
    assert int(oldest_ms) > 0
    await drained(shop)
    assert [message.body for message in bus_of(shop).published("orders")] == [b"1", b"2"]
    assert await shop.count() == 1
