"""A statement in the transaction of the caller, on every kind of connection and every database."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import psycopg
import pymysql
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from messagebus.databases import (
    MYSQL,
    POSTGRESQL,
    SQLITE,
    clock_ms,
    execute,
    is_conflict,
    is_login_refused,
    is_missing_table,
    recognise,
)
from messagebus.errors import ConfigError
from tests.support.connections import KINDS, Database, connect, result_of, transaction

SERVERS = {POSTGRESQL: "postgresql_server", MYSQL: "mariadb_server"}
BYTES = bytes(range(256))


class Undone(Exception):
    """The application's own fault, after which it rolls back."""


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """A database of the dialect that the test is asked for."""
    dialect: str = request.param
    if dialect == SQLITE:
        return Database(dialect, path=tmp_path / "app.db")
    return Database(dialect, server=request.getfixturevalue(SERVERS[dialect]))


every_kind = pytest.mark.parametrize(("database", "kind"), KINDS, indirect=["database"])
every_database = pytest.mark.parametrize(
    ("database", "kind"),
    [(SQLITE, "sqlite3"), (POSTGRESQL, "psycopg"), (MYSQL, "pymysql")],
    indirect=["database"],
)


@every_kind
async def test_a_statement_is_part_of_the_callers_transaction(
    database: Database, kind: str
) -> None:
    wide = "BYTEA" if database.dialect == POSTGRESQL else "BLOB"
    with connect(database) as plain:
        execute(plain, "DROP TABLE IF EXISTS notes")
        execute(plain, f"CREATE TABLE notes (n BIGINT, body {wide})")
        plain.commit()
    insert = "INSERT INTO notes VALUES (?, ?)"
    with pytest.raises(Undone):  # noqa: PT012
        async with transaction(kind, database) as connection:
            assert recognise(connection).dialect == database.dialect
            executed = await result_of(execute(connection, insert, (1, b"rolled back")))
            assert executed.changed == 1
            raise Undone
    async with transaction(kind, database) as connection:
        await result_of(execute(connection, insert, (2**40, BYTES)))
    async with transaction(kind, database) as connection:
        found = await result_of(execute(connection, "SELECT n, body FROM notes"))
        assert [(n, bytes(body)) for n, body in found.rows] == [(2**40, BYTES)]
        changed = await result_of(execute(connection, "DELETE FROM notes WHERE n = ?", (5,)))
        assert changed.changed == 0


@every_database
async def test_the_databases_clock_is_in_ms_since_1970(database: Database, kind: str) -> None:
    async with transaction(kind, database) as connection:
        found = execute(connection, f"SELECT {clock_ms(database.dialect)}")
        own = execute(
            connection,
            {
                SQLITE: "SELECT CAST(strftime('%s', 'now') AS INTEGER)",
                POSTGRESQL: "SELECT EXTRACT(EPOCH FROM now())::bigint",
                MYSQL: "SELECT UNIX_TIMESTAMP()",
            }[database.dialect],
        )
    [(told,)], [(seconds,)] = found.rows, own.rows
    assert isinstance(told, int)
    assert abs(told - seconds * 1000) <= 2000


@every_database
async def test_a_missing_table_is_recognised_and_no_conflict(database: Database, kind: str) -> None:
    with pytest.raises(Exception, match="nowhere") as raised:
        async with transaction(kind, database) as connection:
            execute(connection, "SELECT 1 FROM nowhere")
    assert is_missing_table(raised.value)
    assert not is_conflict(raised.value)


@pytest.mark.parametrize("database", [POSTGRESQL, MYSQL], indirect=True)
def test_a_refused_login_is_recognised(database: Database) -> None:
    assert database.server
    driver = "psycopg" if database.dialect == POSTGRESQL else "pymysql"
    url = database.alchemy(driver).replace(database.server.password, "not-the-password")
    with pytest.raises(sqlalchemy.exc.OperationalError) as raised:
        sqlalchemy.create_engine(url).connect()
    assert is_login_refused(raised.value)


@pytest.mark.parametrize("database", [POSTGRESQL], indirect=True)
async def test_postgresql_in_autocommit_mode_is_refused(database: Database) -> None:
    with (
        psycopg.connect(database.url, autocommit=True) as connection,
        pytest.raises(ConfigError, match=r"psycopg\.Connection is in autocommit mode: begin"),
    ):
        execute(connection, "SELECT 1")
    engine = create_async_engine(database.alchemy("asyncpg"), isolation_level="AUTOCOMMIT")
    async with AsyncSession(engine) as session:
        with pytest.raises(ConfigError, match="AsyncSession is in autocommit mode"):
            await execute(session, "SELECT 1")
    await engine.dispose()


@pytest.mark.parametrize("database", [MYSQL], indirect=True)
def test_mysql_in_autocommit_mode_is_refused(database: Database) -> None:
    assert database.server
    connection = pymysql.connect(
        host=database.server.host,
        port=database.server.port,
        user=database.server.user,
        password=database.server.password,
        autocommit=True,
    )
    with connection, pytest.raises(ConfigError, match=r"pymysql.* is in autocommit mode"):
        execute(connection, "SELECT 1")


def test_sqlite_in_autocommit_mode_is_refused_until_a_transaction_begins(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "app.db", isolation_level=None)
    with pytest.raises(ConfigError, match=r"sqlite3\.Connection is in autocommit mode"):
        execute(connection, "SELECT 1")
    connection.execute("BEGIN")
    assert execute(connection, "SELECT ?", (7,)).rows == [(7,)]
    connection.close()


@pytest.mark.parametrize(
    ("database", "driver"),
    [(SQLITE, "pysqlite"), (POSTGRESQL, "psycopg"), (MYSQL, "pymysql")],
    indirect=["database"],
)
def test_sqlalchemy_over_a_driver_in_autocommit_mode_is_refused(
    database: Database, driver: str
) -> None:
    option = {"isolation_level": None} if driver == "pysqlite" else {"autocommit": True}
    engine = sqlalchemy.create_engine(database.alchemy(driver), connect_args=option)
    with (
        engine.connect() as connection,
        pytest.raises(ConfigError, match=r"sqlalchemy.*Connection is in autocommit mode"),
    ):
        execute(connection, "SELECT 1")
    # As the documentation of SQLAlchemy has it for savepoints of SQLite.
    sqlalchemy.event.listen(engine, "begin", lambda own: own.exec_driver_sql("BEGIN"))
    with engine.connect() as connection:
        assert execute(connection, "SELECT 1").rows == [(1,)]
        connection.commit()
    engine.dispose()


@pytest.mark.parametrize("database", [SQLITE], indirect=True)
async def test_an_asyncio_driver_in_autocommit_mode_is_refused(database: Database) -> None:
    engine = create_async_engine(
        database.alchemy("aiosqlite"), connect_args={"isolation_level": None}
    )
    async with AsyncSession(engine) as session:
        with pytest.raises(ConfigError, match="AsyncSession is in autocommit mode"):
            await execute(session, "SELECT 1")
    async with engine.connect() as connection:
        with pytest.raises(ConfigError, match="AsyncConnection is in autocommit mode"):
            await execute(connection, "SELECT 1")
    await engine.dispose()


@pytest.mark.parametrize("database", [SQLITE], indirect=True)
async def test_django_in_autocommit_mode_is_refused(database: Database) -> None:
    from django.db import connections

    async with transaction("django sqlite", database):
        pass
    with pytest.raises(ConfigError, match=r"django.* is in autocommit mode"):
        execute(connections["default"], "SELECT 1")
    connections["default"].close()


def test_what_is_no_connection_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match=r"builtins\.str: a connection of sqlite3, aiosqlite, "):
        recognise("postgresql://")


@pytest.mark.parametrize("database", [SQLITE], indirect=True)
async def test_a_forgotten_await_is_an_error_and_no_answer(database: Database) -> None:
    async with transaction("aiosqlite", database) as connection:
        pending = execute(connection, "SELECT 1")
        with pytest.raises(TypeError, match="needs `await`"):
            assert pending
        assert (await pending).rows == [(1,)]
