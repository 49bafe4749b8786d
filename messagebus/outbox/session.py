"""A relay's own connection to the database of its outbox: opened by address, used by one thread.

Every statement is a transaction of its own, and no state is left in the database's session: a pooler that
gives each statement another one is as good as a direct connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, unquote

from messagebus.databases import cut
from messagebus.dialects import Dialect, dialect_named, is_login_refused, is_missing_table
from messagebus.errors import ConfigError, LoginRefused, NotReady
from messagebus.outbox.table import Statement, Table
from messagebus.secret import Secret, split_address

__all__ = ["Address", "Session", "check_tables", "told"]

log = logging.getLogger("messagebus.outbox")
T = TypeVar("T")

CONNECT_TIMEOUT_S = 5
# Of one exchange with the database; a connection that is silent longer is given up.
ANSWER_TIMEOUT_S = 30
# SQLite: for another process's transaction.
LOCKED_TIMEOUT_S = 5.0


def told(fault: BaseException) -> str:
    """Return one line about a database's error; drivers' texts show no password."""
    return f"{type(fault).__name__}: {' '.join(str(fault).split())[:300]}"


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a database. shown: its address without login."""

    database: Dialect
    shown: str
    connect: Callable[[], Any]
    """Makes a DB-API connection that commits by itself. Any thread may call it."""
    placeholder: str

    @classmethod
    def parse(cls, url: str | Secret) -> Address:
        """Take ``postgresql://user:password@host/name``, ``mysql://...`` or ``sqlite:///path``.

        Also as SQLAlchemy writes them (``postgresql+psycopg://``). Raises ConfigError, which shows no login.
        """
        text = url.reveal() if isinstance(url, Secret) else url
        scheme, separator, rest = text.partition("://")
        if not separator:
            raise ConfigError("database: an address such as postgresql://user@host/name")
        database = dialect_named(scheme.partition("+")[0].lower())
        parts = split_address(text)
        shown = f"{database.name}://{rest.rpartition('@')[2].partition('?')[0]}"
        try:
            if database.name == "sqlite":
                return cls(database, shown, _sqlite(rest), "?")
            parts.port  # noqa: B018 - raises ValueError
            if database.name == "mysql":
                return cls(database, shown, _mysql(text), "%s")
            return cls(database, shown, _postgresql(f"postgresql://{rest}", shown), "%s")
        except ValueError as fault:
            raise ConfigError(f"database {shown}: {fault}") from None


def _sqlite(rest: str) -> Callable[[], Any]:
    path = unquote(rest.removeprefix("/").partition("?")[0])
    if not path or path == ":memory:":
        raise ValueError(
            "a file wanted, as in sqlite:///shop.db; memory is seen by one connection only"
        )

    def connect() -> Any:
        import sqlite3

        # Not made when it is not there: a mistyped path would be an empty database.
        made = sqlite3.connect(
            f"file:{quote(path)}?mode=rw",
            uri=True,
            timeout=LOCKED_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )
        made.text_factory = _text
        return made

    return connect


def _text(raw: bytes) -> str | bytes:
    """Return a text of SQLite, which keeps any bytes as one: a wrong row may not fail the read of others."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _postgresql(url: str, shown: str) -> Callable[[], Any]:
    def connect() -> Any:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict

        try:
            conninfo_to_dict(url)
        except psycopg.Error:  # its text quotes what it did not understand, such as a password
            raise ConfigError(
                f"database {shown}: not an address that PostgreSQL understands"
            ) from None
        return psycopg.connect(
            url, autocommit=True, prepare_threshold=None, connect_timeout=CONNECT_TIMEOUT_S
        )

    return connect


def _mysql(url: str) -> Callable[[], Any]:
    parts = split_address(url)
    query = dict(parse_qsl(parts.query))

    def connect() -> Any:
        import pymysql

        return pymysql.connect(
            host=parts.hostname or "localhost",
            port=parts.port or 3306,
            user=unquote(parts.username or "") or None,
            password=unquote(parts.password or ""),
            database=unquote(parts.path.removeprefix("/")),
            unix_socket=query.get("unix_socket"),
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=ANSWER_TIMEOUT_S,
            write_timeout=ANSWER_TIMEOUT_S,
            # Without gap locks relays do not wait for each other.
            init_command="SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        )

    return connect


class Session:
    """One connection and its thread. After any error it is closed, and opened anew when next used."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._connection: Any = None
        self._thread: ThreadPoolExecutor | None = None

    async def run(
        self, statements: Sequence[Statement], query: Statement | None = None
    ) -> list[Any]:
        """Execute the statements in order, then the query; return its rows. Raises the driver's errors."""
        return await self.call(lambda connection: self._run(connection, statements, query))

    async def change(self, statement: Statement) -> int:
        """Execute a statement; return how many rows it changed."""

        def work(connection: Any) -> int:
            cursor = connection.cursor()
            try:
                self._execute(cursor, *statement)
                return int(cursor.rowcount)
            finally:
                cursor.close()

        return await self.call(work)

    async def call(self, work: Callable[[Any], T]) -> T:
        """Call work with the connection, on the thread. Raises what it raises, and TimeoutError."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "messagebus-outbox")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await loop.run_in_executor(self._thread, self._work, work)
        except TimeoutError:
            cut(self._connection)
            self._thread.shutdown(wait=False)
            self._thread = self._connection = None
            raise

    def _work(self, work: Callable[[Any], T]) -> T:
        if self._connection is None:
            self._connection = self.address.connect()
        connection = self._connection
        try:
            return work(connection)
        except BaseException:
            self._connection = None
            with contextlib.suppress(Exception):
                connection.close()
            raise

    def _run(
        self, connection: Any, statements: Sequence[Statement], query: Statement | None
    ) -> list[Any]:
        cursor = connection.cursor()
        try:
            for text, values in statements:
                self._execute(cursor, text, values)
            if query is None:
                return []
            self._execute(cursor, *query)
            return list(cursor.fetchall())
        finally:
            cursor.close()

    def _execute(self, cursor: Any, text: str, values: tuple[object, ...]) -> None:
        if values:
            cursor.execute(text.replace("?", self.address.placeholder), values)
        else:
            cursor.execute(text)

    async def close(self) -> None:
        """Close the connection. It may be used again."""
        thread, self._thread = self._thread, None
        if thread is not None:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await asyncio.get_running_loop().run_in_executor(thread, self._close)
            except TimeoutError:
                cut(self._connection)
            thread.shutdown(wait=False)

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()


async def check_tables(session: Session, table: Table) -> None:
    """Raise NotReady without an answer, LoginRefused, and ConfigError without an outbox or the driver."""
    shown = session.address.shown
    try:
        await session.run([], ("SELECT 1", ()))
    except ImportError as fault:
        raise ConfigError(
            f"database {shown}: package {fault.name} is not installed:"
            " pip install 'messagebus-rabbitmq[sql]'"
        ) from fault
    except ConfigError:
        raise
    except Exception as fault:
        if is_login_refused(fault):
            raise LoginRefused(shown, told(fault)) from fault
        raise NotReady(f"database {shown}: {told(fault)}") from fault
    try:
        await session.run([], (table.columns(), ()))
        await session.run([], (table.read_leases(), ()))
    except Exception as fault:
        if not is_missing_table(fault):
            raise ConfigError(f"database {shown}: outbox {table.name}: {told(fault)}") from fault
        raise ConfigError(
            f"database {shown}: no outbox {table.name} there;"
            f" `messagebus outbox ddl --database {table.database.name}` prints how to make it"
        ) from fault
