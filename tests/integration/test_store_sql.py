"""The store in a database: what servers and other transactions do to it, and what it says of that."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from messagebus.core import claims
from messagebus.core.claims import KEY_BYTES, TOKEN_BYTES, Held, Rule, Turn
from messagebus.databases import MYSQL, POSTGRESQL, SQLITE, execute
from messagebus.errors import ConfigError, NotReady, StoreAway
from messagebus.inbox import Once
from messagebus.outbox import AsyncRelay
from messagebus.stores import open_store, sql
from messagebus.stores.sql import SqlStore, dedup_ddl
from messagebus.testing import MemoryBus
from tests.support.connections import Database, connect, open_connection, some_wait
from tests.support.eventually import eventually_async

T = TypeVar("T")

SERVERS = {POSTGRESQL: "postgresql_server", MYSQL: "mariadb_server"}
RULE = Rule(60_000, 120_000, 2)
TOKEN, OTHER = b"a" * TOKEN_BYTES, b"b" * TOKEN_BYTES
TABLES = ("messagebus_dedup", "messagebus_inbox")
DRIVERS = {POSTGRESQL: "psycopg", MYSQL: "pymysql", SQLITE: "pysqlite"}
every_database = pytest.mark.parametrize("database", [SQLITE, POSTGRESQL, MYSQL], indirect=True)
every_server = pytest.mark.parametrize("database", [POSTGRESQL, MYSQL], indirect=True)


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """A database of the dialect that the test is asked for, with the tables."""
    dialect: str = request.param
    if dialect == SQLITE:
        made = Database(dialect, path=tmp_path / "app.db")
    else:
        made = Database(dialect, server=request.getfixturevalue(SERVERS[dialect]))
    if made.server:
        made.server.start()  # where an earlier test has ended it
    run(_create(SqlStore(made.url)))
    return made


async def _create(store: SqlStore) -> None:
    await store.create()
    await store.close()


@pytest.fixture
def store(database: Database) -> Iterator[SqlStore]:
    made = SqlStore(database.url)
    yield made
    run(made.close())


def run(work: Awaitable[T]) -> T:
    async def wait() -> T:
        return await work

    return asyncio.run(wait())


def a_claim(key: bytes, token: bytes = TOKEN) -> Turn:
    return Turn(claim=[key], token=token)


def kind_of(store: SqlStore, key: bytes, token: bytes = TOKEN) -> str:
    return run(store.turn(a_claim(key, token), RULE)).verdicts[0].kind


def new_key() -> bytes:
    return os.urandom(KEY_BYTES)


# With the inbox.
@every_database
@pytest.mark.guarantee("inbox")
def test_what_a_handler_has_noted_is_done_though_its_process_ends_before_it_says_so(
    database: Database, store: SqlStore
) -> None:
    key = new_key()
    short = RULE._replace(lease_ms=1)
    run(store.turn(a_claim(key), short))
    with connect(database) as connection:
        assert Once(key).begin(connection)
        connection.commit()
    assert kind_of(store, key, OTHER) == claims.ENDED
    assert run(store.show([key]))[0] is not None
    assert run(store.forget([key])) == 1
    assert kind_of(store, key, OTHER) == claims.RUN, "who forgets it wants a run"
    with connect(database) as connection:
        assert Once(key).begin(connection)


@every_database
@pytest.mark.guarantee("inbox")
def test_what_was_noted_and_rolled_back_is_claimed_again(
    database: Database, store: SqlStore
) -> None:
    key = new_key()
    with connect(database) as connection:
        assert Once(key).begin(connection)
        connection.rollback()
    assert kind_of(store, key) == claims.RUN


@every_server
def test_a_handler_in_its_transaction_keeps_no_turn_waiting(
    database: Database, store: SqlStore
) -> None:
    key, other = new_key(), new_key()
    assert kind_of(store, key) == claims.RUN
    with connect(database) as connection:
        assert Once(key).begin(connection)
        turn = Turn(extend=[Held(key, TOKEN)], claim=[other], token=OTHER)
        answer = run(asyncio.wait_for(store.turn(turn, RULE), 30))
        assert answer.kept == [True]
        assert answer.verdicts[0].kind == claims.RUN


@every_database
def test_of_many_that_want_a_message_that_was_given_back_one_gets_it(
    database: Database, store: SqlStore
) -> None:
    keys = [new_key() for _ in range(30)]

    async def all_at_once() -> list[list[str]]:
        stores = [SqlStore(database.url) for _ in range(4)]
        found = []
        for key in keys:
            await store.turn(a_claim(key), RULE)
            await store.turn(Turn(release=[Held(key, TOKEN)]), RULE)
            turns = [one.turn(a_claim(key, os.urandom(TOKEN_BYTES)), RULE) for one in stores]
            answers = await asyncio.gather(*turns)
            found.append(sorted(answer.verdicts[0].kind for answer in answers))
        for one in stores:
            await one.close()
        return found

    assert run(all_at_once()) == [[claims.LATER] * 3 + [claims.RUN]] * len(keys)


# Where connections come from.
@every_database
def test_an_engine_or_a_function_that_connects_will_do(database: Database) -> None:
    engine = sqlalchemy.create_engine(database.alchemy(DRIVERS[database.dialect]))
    key = new_key()
    for source in (engine, lambda: open_connection(database)):
        store = SqlStore(source)
        assert kind_of(store, key, os.urandom(TOKEN_BYTES)) in (claims.RUN, claims.LATER)
        run(store.close())
    engine.dispose()


def test_an_asyncio_engine_is_refused_because_nobody_can_read_what_it_asks_for() -> None:
    engine = create_async_engine("postgresql+asyncpg://bus:sesame-1@host/db?ssl=verify-full")
    with pytest.raises(ConfigError, match="AsyncEngine: its connect_args, which may ask for TLS"):
        SqlStore(engine)


@pytest.mark.parametrize("database", [POSTGRESQL], indirect=True)
def test_a_store_leaves_no_setting_in_its_session(database: Database, store: SqlStore) -> None:
    """A pooler gives the session to the application's next transaction."""
    shown = [f"SHOW {name}" for name in ("lock_timeout", "default_transaction_isolation")]
    with connect(database) as connection:
        before = [execute(connection, each).rows for each in shown]
    other = psycopg.connect(database.url)
    key = new_key()
    assert kind_of(store, key) == claims.RUN
    with other:
        execute(other, "SELECT * FROM messagebus_dedup FOR UPDATE")
        with pytest.raises(StoreAway):  # it waits for a lock as long as it is set to, and no longer
            run(store.turn(a_claim(key), RULE))
    assert kind_of(store, key) == claims.RUN
    session = store._connection
    assert [session.execute(each).fetchall() for each in shown] == before
    assert session.info.transaction_status == 0


@every_server
async def test_tls_that_an_address_asks_for_is_never_left_out(database: Database) -> None:
    """These servers have none."""
    tls = {POSTGRESQL: "sslmode=require", MYSQL: "ssl_verify_cert=false&ssl_ca="}
    url = f"{database.url}?{tls[database.dialect]}"
    with pytest.raises((StoreAway, ConfigError), match=r"SSL|TLS"):
        await SqlStore(url).turn(Turn(), RULE)
    with pytest.raises((NotReady, ConfigError), match=r"SSL|TLS"):
        await AsyncRelay(url, MemoryBus()).check()


@every_server
def test_no_password_is_shown(database: Database) -> None:
    assert database.server
    wrong = "not-the-password-of-it"
    url = database.url.replace(database.server.password, wrong)
    store = open_store(url)
    with pytest.raises(ConfigError, match="user, password or database refused") as raised:
        run(store.turn(Turn(), RULE))
    told = f"{raised.value!r} {raised.value.__cause__!r} {store!r}"
    assert wrong not in told
    assert f"{database.server.user}@{database.server.host}" in told
    engine = sqlalchemy.create_engine(database.alchemy(DRIVERS[database.dialect]))
    assert database.server.password not in repr(SqlStore(engine))


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("postgresql://bus:se%zzsame-1@host/db", "not a URL that PostgreSQL understands"),
        ("postgresql://bus:se/same-1@host/db", r"postgresql://…: in user and password / is %2F"),
        ("mysql://bus:sesame?same-1@host/db", r"mysql://…: in user and password / is %2F"),
        ("mysql://bus:sesame-12@host:port/db", "mysql://bus@host:port/db: the port is a number"),
        ("mysql://bus:sesame-12@host/db?charset=latin1", "charset 'latin1': utf8mb4"),
        ("oracle://bus:sesame-12@host/db", "postgresql://HOST/DB, mysql://HOST/DB or sqlite"),
        (17, "int: a URL, an Engine or a function that connects is wanted"),
    ],
)
def test_a_source_that_cannot_be_meant_is_told_without_its_password(source: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as raised:
        SqlStore(source)
    assert "same-1" not in str(raised.value)


# Tables.
@every_database
@pytest.mark.parametrize("table", TABLES)
def test_a_missing_table_is_told_with_the_command_that_makes_it(
    database: Database, store: SqlStore, table: str
) -> None:
    with connect(database) as connection:
        execute(connection, f"DROP TABLE {table}")
        connection.commit()
    told = f"{table} does not exist: `messagebus dedup ddl --database {database.dialect}`"
    with pytest.raises(ConfigError, match=told):
        run(store.turn(Turn(), RULE))
    run(store.create())
    run(store.turn(Turn(), RULE))


@every_database
def test_the_statements_that_are_printed_make_what_the_store_needs(database: Database) -> None:
    with connect(database) as connection:
        for table in TABLES:
            execute(connection, f"DROP TABLE {table}")
        for statement in dedup_ddl(database.dialect) * 2:
            execute(connection, statement)
        connection.commit()
    store = SqlStore(database.url)
    assert kind_of(store, new_key()) == claims.RUN
    run(store.close())


@every_database
def test_many_may_make_the_tables_at_once(database: Database) -> None:
    with connect(database) as connection:
        for table in TABLES:
            execute(connection, f"DROP TABLE {table}")
        connection.commit()

    async def all_at_once() -> None:
        await asyncio.gather(*(_create(SqlStore(database.url)) for _ in range(4)))

    run(all_at_once())


@every_database
def test_what_is_over_is_deleted(
    database: Database, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "SLICES", 1)
    monkeypatch.setattr(sql, "SLICE_INTERVAL_S", 0)
    old, noted = new_key(), new_key()
    run(store.turn(Turn(done=[old]), RULE._replace(remember_ms=1)))
    with connect(database) as connection:
        once = Once(noted, remember_s=1)
        once._remember_ms = 1
        assert once.begin(connection)
        connection.commit()

    async def until_deleted() -> None:
        async with asyncio.timeout(60):
            while rows_of(database, (old, noted)):
                await store.turn(Turn(), RULE)

    run(until_deleted())


def rows_of(database: Database, keys: tuple[bytes, ...]) -> int:
    with connect(database) as connection:
        return sum(
            len(execute(connection, f"SELECT 1 FROM {table} WHERE id = ?", (key,)).rows)
            for table in TABLES
            for key in keys
        )


# Faults.
@every_server
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_server_that_was_restarted_between_two_turns_is_not_noticed(
    database: Database, store: SqlStore, how: str
) -> None:
    assert database.server
    key = new_key()
    run(store.turn(Turn(done=[key]), RULE))
    getattr(database.server, how)()
    database.server.start()
    assert kind_of(store, key) == claims.ENDED


@every_server
def test_a_server_that_is_gone_is_away_until_it_is_back(
    database: Database, store: SqlStore
) -> None:
    assert database.server
    key = new_key()
    run(store.turn(Turn(done=[key]), RULE))
    database.server.kill()
    for _ in range(2):
        with pytest.raises(StoreAway, match=database.server.host) as raised:
            run(store.turn(a_claim(key), RULE))
        assert database.server.password not in str(raised.value)
    database.server.start()
    assert kind_of(store, key) == claims.ENDED


@every_server
def test_a_frozen_server_ends_no_turn_and_is_used_again_when_it_is_thawed(
    database: Database, store: SqlStore
) -> None:
    assert database.server
    server, key = database.server, new_key()

    async def frozen_then_thawed() -> str:
        await store.turn(Turn(done=[key]), RULE)
        server.freeze()
        try:
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(store.turn(a_claim(key), RULE), 0.2)
        finally:
            server.thaw()
        kinds: list[str] = []
        while not kinds:
            try:
                kinds = [each.kind for each in (await store.turn(a_claim(key), RULE)).verdicts]
            except StoreAway:
                await asyncio.sleep(0.02)  # its connection was given up meanwhile
        return kinds[0]

    assert run(asyncio.wait_for(frozen_then_thawed(), 60)) == claims.ENDED


@every_server
def test_a_frozen_server_does_not_keep_the_store_from_closing(
    database: Database, store: SqlStore
) -> None:
    assert database.server
    server = database.server

    async def frozen_then_closed() -> None:
        await store.turn(Turn(), RULE)
        server.freeze()
        try:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(store.turn(Turn(), RULE), 0.2)
            await asyncio.wait_for(store.close(), 60)
        finally:
            server.thaw()

    run(frozen_then_closed())


@pytest.mark.parametrize("database", [POSTGRESQL], indirect=True)
def test_a_statement_that_is_never_answered_is_cut_off(
    database: Database, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert database.server
    server = database.server
    monkeypatch.setattr(sql, "STUCK_S", 0.1)

    async def frozen() -> None:
        await store.turn(Turn(), RULE)
        server.freeze()
        try:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(store.turn(Turn(), RULE), 0.2)
            with pytest.raises(StoreAway):
                await asyncio.wait_for(store.turn(Turn(), RULE), 60)
        finally:
            server.thaw()

    run(frozen())


@every_database
def test_a_record_that_another_transaction_holds_makes_the_store_away_and_no_longer(
    database: Database, store: SqlStore
) -> None:
    key = new_key()
    run(store.turn(Turn(done=[key]), RULE))
    with connect(database) as connection:
        execute(connection, "UPDATE messagebus_dedup SET unended = 0 WHERE id = ?", (key,))
        with pytest.raises(StoreAway):
            run(store.turn(a_claim(key), RULE))
        connection.rollback()
    assert kind_of(store, key) == claims.ENDED


@every_server
def test_a_deadlock_with_others_is_tried_again(database: Database, store: SqlStore) -> None:
    """Another transaction takes two records in the order opposite to the store's."""
    low, high = sorted([new_key(), new_key()])
    run(store.turn(Turn(done=[low, high]), RULE))
    update = "UPDATE messagebus_dedup SET unended = 0 WHERE id = ?"

    async def both() -> list[str]:
        with connect(database) as connection, connect(database) as looks:
            execute(connection, update, (high,))
            turn = asyncio.ensure_future(store.turn(Turn(claim=[high, low], token=TOKEN), RULE))
            await eventually_async(lambda: some_wait(database, looks), within_s=60)
            try:
                await asyncio.to_thread(execute, connection, update, (low,))
            except Exception:  # the server chooses whom it ends
                connection.rollback()
            connection.rollback()
            return [each.kind for each in (await turn).verdicts]

    assert run(both()) == [claims.ENDED, claims.ENDED]


@pytest.mark.parametrize("database", [POSTGRESQL], indirect=True)
def test_a_server_whose_default_is_serializable_is_asked_for_less(database: Database) -> None:
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute("ALTER ROLE bus SET default_transaction_isolation = 'serializable'")
    try:
        key = new_key()

        async def many() -> list[str]:
            stores = [SqlStore(database.url) for _ in range(4)]
            turns = [store.turn(a_claim(key, os.urandom(8)), RULE) for store in stores]
            kinds = [answer.verdicts[0].kind for answer in await asyncio.gather(*turns)]
            for store in stores:
                await store.close()
            return sorted(kinds)

        assert run(many()) == [claims.LATER] * 3 + [claims.RUN]
    finally:
        with psycopg.connect(database.url, autocommit=True) as connection:
            connection.execute("ALTER ROLE bus RESET default_transaction_isolation")


def test_a_connection_in_autocommit_mode_is_refused(tmp_path: Path) -> None:
    import sqlite3

    async def refused() -> None:
        store = SqlStore(lambda: sqlite3.connect(tmp_path / "app.db", isolation_level=None))
        with pytest.raises(ConfigError, match="is in autocommit mode"):
            await store.turn(Turn(), RULE)
        await store.close()

    run(refused())
