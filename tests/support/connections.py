"""Every kind of connection that applications use, each opened on a database of a test, with a transaction.

    async with transaction("asyncpg", database) as connection:
        await result_of(execute(connection, "INSERT INTO t VALUES (?)", (1,)))

The transaction is committed at the end, and rolled back after an exception.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import aiosqlite
import asyncpg
import psycopg
import pymysql
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from messagebus.databases import MYSQL, POSTGRESQL, SQLITE, Pending, execute
from tests.support.servers import SingleServer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Database:
    """One database: a file of SQLite, or a server."""

    dialect: str
    path: Path | None = None
    server: SingleServer | None = None

    @property
    def url(self) -> str:
        return self.server.url if self.server else f"sqlite:///{self.path}"

    def alchemy(self, driver: str) -> str:
        """Return SQLAlchemy's URL."""
        return self.url.replace("://", f"+{driver}://", 1)

    @property
    def django(self) -> dict[str, Any]:
        """Return Django's settings of it."""
        engine = f"django.db.backends.{self.dialect}"
        if self.server is None:
            return {"ENGINE": f"{engine}3", "NAME": str(self.path)}
        return {
            "ENGINE": engine,
            "NAME": self.server.database,
            "USER": self.server.user,
            "PASSWORD": self.server.password,
            "HOST": self.server.host,
            "PORT": self.server.port,
        }


def connect(database: Database) -> closing[Any]:
    """Return a context with a new connection of the plainest driver, which commits nothing by itself."""
    return closing(open_connection(database))


def open_connection(database: Database) -> Any:
    """Return a new connection of the plainest driver."""
    if database.dialect == SQLITE:
        return sqlite3.connect(str(database.path), check_same_thread=False)
    if database.dialect == POSTGRESQL:
        return psycopg.connect(database.url)
    return _pymysql(database)


def some_wait(database: Database, connection: Any) -> bool:
    """Return whether the server has a transaction that waits for another one's lock."""
    connection.rollback()  # statistics stand still within a transaction
    if database.dialect == POSTGRESQL:
        sql = "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    else:
        # innodb_trx would show to who asks often what it showed at first.
        sql = (
            "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS"
            " WHERE VARIABLE_NAME = 'INNODB_ROW_LOCK_CURRENT_WAITS'"
        )
    return int(execute(connection, sql).rows[0][0]) > 0


async def result_of(result: Any) -> Any:
    """Return a result, awaited where it is pending."""
    return await result if isinstance(result, Pending) else result


@asynccontextmanager
async def _dbapi(connection: Any) -> AsyncIterator[Any]:
    """A connection used without await: sqlite3's, psycopg's, PyMySQL's."""
    try:
        yield connection
        connection.commit()
    except BaseException:
        connection.rollback()
        raise
    finally:
        connection.close()


@asynccontextmanager
async def _aiosqlite(database: Database) -> AsyncIterator[Any]:
    async with aiosqlite.connect(str(database.path)) as connection:
        yield connection
        await connection.commit()


@asynccontextmanager
async def _async_psycopg(database: Database) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(database.url) as connection:
        yield connection


@asynccontextmanager
async def _psycopg_block(database: Database) -> AsyncIterator[Any]:
    with (
        psycopg.connect(database.url, autocommit=True) as connection,
        connection.transaction(),
    ):
        yield connection


@asynccontextmanager
async def _asyncpg(database: Database) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(database.url)
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def _asyncpg_pool(database: Database) -> AsyncIterator[Any]:
    async with (
        asyncpg.create_pool(database.url, min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        yield connection


def _pymysql(database: Database, **options: Any) -> Any:
    assert database.server
    server = database.server
    return pymysql.connect(
        host=server.host,
        port=server.port,
        user=server.user,
        password=server.password,
        database=server.database,
        **options,
    )


@asynccontextmanager
async def _pymysql_block(database: Database) -> AsyncIterator[Any]:
    connection = _pymysql(database, autocommit=True, cursorclass=pymysql.cursors.DictCursor)
    connection.begin()
    async with _dbapi(connection):
        yield connection


@asynccontextmanager
async def _alchemy(driver: str, database: Database) -> AsyncIterator[Any]:
    engine = sqlalchemy.create_engine(database.alchemy(driver), poolclass=NullPool)
    with engine.begin() as connection:
        yield connection


@asynccontextmanager
async def _session(driver: str, database: Database) -> AsyncIterator[Any]:
    engine = sqlalchemy.create_engine(database.alchemy(driver), poolclass=NullPool)
    with Session(engine) as session, session.begin():
        yield session


@asynccontextmanager
async def _async_alchemy(driver: str, database: Database) -> AsyncIterator[Any]:
    engine = create_async_engine(database.alchemy(driver), poolclass=NullPool)
    async with engine.begin() as connection:
        yield connection


@asynccontextmanager
async def _async_session(driver: str, database: Database) -> AsyncIterator[Any]:
    engine = create_async_engine(database.alchemy(driver), poolclass=NullPool)
    async with AsyncSession(engine) as session, session.begin():
        yield session


@asynccontextmanager
async def _django(database: Database) -> AsyncIterator[Any]:
    import django
    from django.conf import settings
    from django.db import connection, connections
    from django.db.transaction import atomic

    # Its own word for code that runs within a loop and may block it.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    if not settings.configured:
        settings.configure()
        django.setup()
        pymysql.install_as_MySQLdb()
    connections.settings = connections.configure_settings({"default": database.django})
    try:
        with atomic():
            yield connection
    finally:
        connection.close()
        del connections["default"]


_Kind = Callable[[Database], AbstractAsyncContextManager[Any]]


def _of(kind: Callable[[str, Database], AbstractAsyncContextManager[Any]], driver: str) -> _Kind:
    return lambda database: kind(driver, database)


def _alchemists(driver: str, name: str) -> dict[str, _Kind]:
    return {
        f"sqlalchemy {name} connection": _of(_alchemy, driver),
        f"sqlalchemy {name} session": _of(_session, driver),
    }


def _async_alchemists(driver: str) -> dict[str, _Kind]:
    return {
        f"sqlalchemy {driver} async connection": _of(_async_alchemy, driver),
        f"sqlalchemy {driver} async session": _of(_async_session, driver),
    }


_OF_DIALECT: dict[str, dict[str, _Kind]] = {
    SQLITE: {
        "sqlite3": lambda database: _dbapi(sqlite3.connect(database.path or "")),
        "aiosqlite": _aiosqlite,
        **_alchemists("pysqlite", "sqlite"),
        **_async_alchemists("aiosqlite"),
        "django sqlite": _django,
    },
    POSTGRESQL: {
        "psycopg": lambda database: _dbapi(psycopg.connect(database.url)),
        "psycopg transaction()": _psycopg_block,
        "async psycopg": _async_psycopg,
        "asyncpg": _asyncpg,
        "asyncpg pool": _asyncpg_pool,
        **_alchemists("psycopg", "psycopg"),
        **_async_alchemists("psycopg"),
        **_async_alchemists("asyncpg"),
        "django postgresql": _django,
    },
    MYSQL: {
        "pymysql": lambda database: _dbapi(_pymysql(database)),
        "pymysql begin()": _pymysql_block,
        **_alchemists("pymysql", "pymysql"),
        "django mysql": _django,
    },
}
KINDS = [(dialect, name) for dialect, kinds in _OF_DIALECT.items() for name in kinds]
"""Dialect and name of each kind of connection."""


def transaction(kind: str, database: Database) -> AbstractAsyncContextManager[Any]:
    """Return a context with a connection of this kind, in a transaction."""
    return _OF_DIALECT[database.dialect][kind](database)
