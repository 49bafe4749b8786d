"""Databases of applications: one statement inside a transaction that the caller began.

    executed = execute(connection, "INSERT INTO t VALUES (?, ?)", (1, b"two"))
    executed = await execute(async_connection, "INSERT INTO t VALUES (?, ?)", (1, b"two"))

Recognised are connections of sqlite3, aiosqlite, psycopg, asyncpg and PyMySQL, SQLAlchemy's Connection,
Session, scoped_session, AsyncConnection and AsyncSession, and Django's connections, by the name of the module
that their class comes from: no driver is imported that is not in use. Nothing here begins, commits or rolls
back. Parameters are written ``?`` for every driver, and a statement holds no other ``?``, ``%`` or ``$``.
"""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import suppress
from typing import Any, Generic, NamedTuple, NoReturn, Protocol, TypeVar, overload

from messagebus.dialects import (
    MYSQL,
    POSTGRESQL,
    SQLITE,
    clock_ms,
    dialect_named,
    is_conflict,
    is_login_refused,
    is_missing_table,
)
from messagebus.errors import ConfigError

__all__ = [
    "MYSQL",
    "POSTGRESQL",
    "SQLITE",
    "AsyncConnection",
    "Connection",
    "Executed",
    "Pending",
    "Recognised",
    "clock_ms",
    "cut",
    "execute",
    "is_conflict",
    "is_login_refused",
    "is_missing_table",
    "recognise",
]

KNOWN = (
    "a connection of sqlite3, aiosqlite, psycopg, asyncpg or PyMySQL, SQLAlchemy's Connection, Session,"
    " AsyncConnection or AsyncSession, or Django's connection"
)
_AUTOCOMMIT = (
    "{} is in autocommit mode: begin a transaction first, and commit it after your own changes"
)
_NESTED = (
    "{} is in begin_nested() on SQLite, whose driver has begun no transaction: releasing the savepoint would"
    " commit. Have BEGIN emitted, as SQLAlchemy's page about SQLite says, or call this outside of it"
)
# Bits of a transaction's state: libpq's PQTRANS_IDLE, and SERVER_STATUS_IN_TRANS of MySQL's protocol.
PQTRANS_IDLE = 0
MYSQL_IN_TRANSACTION = 1

T = TypeVar("T", covariant=True)


class Connection(Protocol):
    """Any connection or session that is used without ``await``."""

    def close(self) -> None: ...


class AsyncConnection(Protocol):
    """Any connection or session that is used with ``await``."""

    def close(self) -> Awaitable[None]: ...


class Executed(NamedTuple):
    """The result of a statement. changed: number of rows that it inserted, updated or deleted."""

    rows: list[tuple[Any, ...]]
    changed: int


class Pending(Generic[T]):
    """The result of a statement on an asyncio connection; it is executed by ``await``.

    It has no truth, so that a forgotten ``await`` is an error and no answer. Python warns of one, as of each
    coroutine that nobody awaits.
    """

    def __init__(self, run: Callable[[], Awaitable[T]]) -> None:
        self._begun = run()

    def __await__(self) -> Generator[Any, None, T]:
        return self._begun.__await__()

    def __bool__(self) -> NoReturn:
        raise TypeError("nothing was executed: this connection needs `await`")


class Recognised(NamedTuple):
    """A connection, and how statements are executed on it.

    dialect: sqlite, postgresql or mysql, which stands for MariaDB too.
    in_transaction: False when a statement would commit itself.
    style: of parameters: qmark, format or numeric_dollar.
    """

    dialect: str
    in_transaction: bool
    style: str
    is_async: bool
    run: Callable[[str, Sequence[object]], Any]

    def execute(self, connection: object, sql: str, parameters: Sequence[object] = ()) -> Any:
        """Execute one statement on the connection that was recognised: see `execute`."""
        if not self.in_transaction:
            raise ConfigError(_AUTOCOMMIT.format(_name_of(connection)))
        return self.run(_styled(sql, self.style), parameters)


def recognise(connection: object) -> Recognised:
    """Recognise a connection. Raises ConfigError for any other object.

    Of SQLAlchemy's AsyncSession the transaction is not known before its first statement.
    """
    for kind in type(connection).__mro__:
        found = _KINDS.get((kind.__module__.partition(".")[0], kind.__name__))
        if found:
            return found(connection)
    raise ConfigError(f"{_name_of(connection)}: {KNOWN} is wanted")


def _name_of(connection: object) -> str:
    return f"{type(connection).__module__}.{type(connection).__qualname__}"


@overload
def execute(
    connection: AsyncConnection, sql: str, parameters: Sequence[object] = ()
) -> Pending[Executed]: ...
@overload
def execute(connection: Connection, sql: str, parameters: Sequence[object] = ()) -> Executed: ...
def execute(
    connection: AsyncConnection | Connection, sql: str, parameters: Sequence[object] = ()
) -> Executed | Pending[Executed]:
    """Execute one statement in the caller's transaction; to be awaited for an asyncio connection.

    Raises ConfigError for an object that is no connection, and for one without a transaction; the driver's
    own errors pass.
    """
    return recognise(connection).execute(connection, sql, parameters)  # type: ignore[no-any-return]


def cut(connection: Any) -> None:
    """End a connection of a driver under a statement that waits in another thread.

    psycopg waits for a frozen server without end, and its thread would keep the process from ending.
    PyMySQL's connections end by their own time limits.
    """
    if fileno := getattr(connection, "fileno", None):
        with suppress(Exception), socket.socket(fileno=os.dup(fileno())) as stuck:
            stuck.shutdown(socket.SHUT_RDWR)


@functools.lru_cache(maxsize=16)  # texts of stores may be long
def _encoded(sql: str) -> bytes:
    """Return a statement as psycopg wants it; the same object each time, which it looks up faster."""
    return sql.encode()


@functools.lru_cache(maxsize=16)  # texts of stores may be long
def _styled(sql: str, style: str) -> str:
    if style == "qmark":
        return sql
    if style in ("format", "pyformat"):
        return sql.replace("?", "%s")
    first, *rest = sql.split("?")
    return first + "".join(f"${number}{text}" for number, text in enumerate(rest, start=1))


def _fetched(cursor: Any) -> Executed:
    rows = [tuple(row) for row in cursor.fetchall()] if cursor.description else []
    return Executed(rows, cursor.rowcount)


# -- SQLite


def _sqlite_begun(connection: Any) -> bool:
    """Return whether a transaction is open, or is begun by the next statement that writes.

    Since Python 3.12 `autocommit` says it; before, and by default, `isolation_level` does.
    """
    if connection.in_transaction:
        return True
    if (autocommit := getattr(connection, "autocommit", -1)) in (True, False):
        return not autocommit
    return connection.isolation_level is not None


def _sqlite_begins_late(connection: Any) -> bool:
    """Return whether Python begins transactions itself: before an INSERT, but not before a SAVEPOINT."""
    return (
        getattr(connection, "autocommit", -1) not in (True, False)
        and connection.isolation_level is not None
    )


def _sqlite(connection: Any) -> Recognised:
    def run(sql: str, parameters: Sequence[object]) -> Executed:
        cursor = connection.cursor()
        cursor.row_factory = None
        try:
            return _fetched(cursor.execute(sql, parameters))
        finally:
            cursor.close()

    return Recognised(SQLITE, _sqlite_begun(connection), "qmark", False, run)


def _aiosqlite(connection: Any) -> Recognised:
    def run(sql: str, parameters: Sequence[object]) -> Pending[Executed]:
        async def execute() -> Executed:
            async with connection.execute(sql, parameters) as cursor:
                rows = [tuple(row) for row in await cursor.fetchall()] if cursor.description else []
                return Executed(rows, cursor.rowcount)

        return Pending(execute)

    return Recognised(SQLITE, _sqlite_begun(connection), "qmark", True, run)


# -- PostgreSQL


def _psycopg_begun(connection: Any) -> bool:
    return not connection.autocommit or connection.info.transaction_status != PQTRANS_IDLE


def _psycopg(connection: Any) -> Recognised:
    from psycopg import Cursor
    from psycopg.rows import tuple_row

    def run(sql: str, parameters: Sequence[object]) -> Executed:
        # Whatever cursors and rows the application has chosen for its own statements.
        with Cursor(connection, row_factory=tuple_row) as cursor:
            return _fetched(cursor.execute(_encoded(sql), parameters))

    return Recognised(POSTGRESQL, _psycopg_begun(connection), "format", False, run)


def _async_psycopg(connection: Any) -> Recognised:
    from psycopg import AsyncCursor
    from psycopg.rows import tuple_row

    def run(sql: str, parameters: Sequence[object]) -> Pending[Executed]:
        async def execute() -> Executed:
            async with AsyncCursor(connection, row_factory=tuple_row) as cursor:
                await cursor.execute(_encoded(sql), parameters)
                rows = await cursor.fetchall() if cursor.description else []
                return Executed(rows, cursor.rowcount)

        return Pending(execute)

    return Recognised(POSTGRESQL, _psycopg_begun(connection), "format", True, run)


def _asyncpg(connection: Any) -> Recognised:
    def run(sql: str, parameters: Sequence[object]) -> Pending[Executed]:
        async def execute() -> Executed:
            statement = await connection.prepare(sql)
            rows = [tuple(row.values()) for row in await statement.fetch(*parameters)]
            # ``INSERT 0 1``, ``UPDATE 1``
            count = statement.get_statusmsg().rpartition(" ")[2]
            return Executed(rows, int(count) if count.isdecimal() else -1)

        return Pending(execute)

    begun = connection.is_in_transaction()
    return Recognised(POSTGRESQL, begun, "numeric_dollar", True, run)


# -- MySQL and MariaDB


def _pymysql_begun(connection: Any) -> bool:
    return bool(not connection.get_autocommit() or connection.server_status & MYSQL_IN_TRANSACTION)


def _pymysql(connection: Any) -> Recognised:
    from pymysql.cursors import Cursor

    def run(sql: str, parameters: Sequence[object]) -> Executed:
        with connection.cursor(Cursor) as cursor:
            cursor.execute(sql, parameters)
            return _fetched(cursor)

    return Recognised(MYSQL, _pymysql_begun(connection), "format", False, run)


# -- SQLAlchemy


def _alchemy_allows(connection: Any) -> bool:
    """Return whether SQLAlchemy begins a transaction by itself with the first statement."""
    options = connection.get_execution_options()
    on_connect = getattr(connection.dialect, "_on_connect_isolation_level", None)
    return bool(options.get("isolation_level", on_connect) != "AUTOCOMMIT")


def _alchemy_begun(connection: Any) -> bool:
    """Return whether statements are part of a transaction, of SQLAlchemy's and of the driver's.

    A driver commits by itself with ``connect_args={"autocommit": True}``, whatever SQLAlchemy says. Raises
    ConfigError in a savepoint of SQLite that may be the whole transaction.
    """
    if not _alchemy_allows(connection):
        return False
    driver = connection.connection.driver_connection
    if (
        connection.dialect.name == SQLITE
        and connection.in_nested_transaction()
        and _sqlite_begins_late(driver)
    ):
        raise ConfigError(_NESTED.format(_name_of(connection)))
    names = [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(driver).__mro__]
    begun = next((_BEGUN[name] for name in names if name in _BEGUN), None)
    if begun is None or begun(driver):
        return True
    if connection.in_transaction():
        return False
    connection.begin()  # as the first statement does; an event of the application may begin the driver's
    return begun(driver)


def _alchemy_run(connection: Any, sql: str, parameters: Sequence[object]) -> Executed:
    with connection.exec_driver_sql(sql, tuple(parameters)) as result:
        rows = [tuple(row) for row in result.fetchall()] if result.returns_rows else []
        return Executed(rows, result.rowcount)


def _alchemy(connection: Any) -> Recognised:
    dialect = connection.dialect
    return Recognised(
        dialect_named(dialect.name).name,
        _alchemy_begun(connection),
        dialect.paramstyle,
        False,
        functools.partial(_alchemy_run, connection),
    )


def _bound(session: Any) -> dict[str, Any]:
    """Return the arguments for `connection` of a session, which may have its database by class only.

    Raises ConfigError for several: the one that holds the changes of this transaction cannot be known.
    """
    own = session.registry() if hasattr(session, "registry") else session
    own = getattr(own, "sync_session", own)
    by_class = getattr(own, "binds", None) or getattr(own, "_Session__binds", {})  # since 2.1; 2.0
    named = list(by_class.values())
    if len({each.engine for each in (*named, own.bind) if each is not None}) > 1:
        raise ConfigError(
            f"{_name_of(session)} has several databases: give it the connection of the one with your"
            " changes, as session.connection(bind_arguments={'mapper': Order})"
        )
    return {"bind_arguments": {"bind": named[0]}} if named and own.bind is None else {}


def _alchemy_session(session: Any) -> Recognised:
    # Begins the session's transaction where it has none, as each statement of a session does.
    return _alchemy(session.connection(**_bound(session)))


def _async_alchemy(connection: Any) -> Recognised:
    def run(sql: str, parameters: Sequence[object]) -> Pending[Executed]:
        return Pending(lambda: _async_alchemy_run(connection, connection, sql, parameters))

    own = connection.sync_connection
    dialect = own.dialect
    return Recognised(
        dialect_named(dialect.name).name, _alchemy_allows(own), dialect.paramstyle, True, run
    )


async def _async_alchemy_run(
    given: Any, connection: Any, sql: str, parameters: Sequence[object]
) -> Executed:
    def execute(own: Any) -> Executed:
        if not _alchemy_begun(own):
            raise ConfigError(_AUTOCOMMIT.format(_name_of(given)))
        return _alchemy_run(own, sql, parameters)

    executed: Executed = await connection.run_sync(execute)
    return executed


def _async_alchemy_session(session: Any) -> Recognised:
    bound = _bound(session)
    dialect = session.get_bind(**bound.get("bind_arguments", {})).dialect

    def run(sql: str, parameters: Sequence[object]) -> Pending[Executed]:
        async def execute() -> Executed:
            connection = await session.connection(**bound)
            return await _async_alchemy_run(session, connection, sql, parameters)

        return Pending(execute)

    return Recognised(dialect_named(dialect.name).name, True, dialect.paramstyle, True, run)


# -- Django


def _django(connection: Any) -> Recognised:
    def run(sql: str, parameters: Sequence[object]) -> Executed:
        with connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            return _fetched(cursor)

    begun = connection.in_atomic_block or not connection.get_autocommit()
    return Recognised(dialect_named(connection.vendor).name, begun, "format", False, run)


# Of drivers that say so; SQLAlchemy begins asyncpg's transactions with their first statement.
_BEGUN: dict[tuple[str, str], Callable[[Any], bool]] = {
    ("sqlite3", "Connection"): _sqlite_begun,
    ("aiosqlite", "Connection"): _sqlite_begun,
    ("psycopg", "Connection"): _psycopg_begun,
    ("psycopg", "AsyncConnection"): _psycopg_begun,
    ("pymysql", "Connection"): _pymysql_begun,
}
_KINDS: dict[tuple[str, str], Callable[[Any], Recognised]] = {
    ("sqlite3", "Connection"): _sqlite,
    ("aiosqlite", "Connection"): _aiosqlite,
    ("psycopg", "Connection"): _psycopg,
    ("psycopg", "AsyncConnection"): _async_psycopg,
    ("asyncpg", "Connection"): _asyncpg,
    ("asyncpg", "PoolConnectionProxy"): _asyncpg,
    ("pymysql", "Connection"): _pymysql,
    ("sqlalchemy", "Connection"): _alchemy,
    ("sqlalchemy", "Session"): _alchemy_session,
    ("sqlalchemy", "scoped_session"): _alchemy_session,
    ("sqlalchemy", "AsyncConnection"): _async_alchemy,
    ("sqlalchemy", "AsyncSession"): _async_alchemy_session,
    ("sqlalchemy", "async_scoped_session"): _async_alchemy_session,
    ("django", "BaseDatabaseWrapper"): _django,
    ("django", "ConnectionProxy"): _django,
}
"""Top-level package and name of a class, of the connection's or of one that it inherits from."""
