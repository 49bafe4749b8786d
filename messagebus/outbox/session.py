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
from typing import Any, TypeVar

from messagebus.databases import cut
from messagebus.dialects import MYSQL, POSTGRESQL, SQLITE, is_login_refused, is_missing_table
from messagebus.dsn import Address
from messagebus.errors import REASON_CHARS_MAX, ConfigError, LoginRefused, NotReady, reason_of
from messagebus.outbox.table import Statement, Table

__all__ = ["Session", "check_tables", "class_and_reason", "no_outbox"]

log = logging.getLogger("messagebus.outbox")
T = TypeVar("T")

CONNECT_TIMEOUT_S = 5
# Of one exchange with the database; a connection that is silent longer is given up.
ANSWER_TIMEOUT_S = 30
# SQLite: for another process's transaction.
LOCKED_TIMEOUT_S = 5.0


def class_and_reason(fault: BaseException) -> str:
    """Return one line about a database's error; drivers' texts show no password."""
    return f"{type(fault).__name__}: {reason_of(fault, REASON_CHARS_MAX)}"


def _connect(address: Address) -> Any:
    """Return a connection on which each statement commits itself."""
    name = address.database.name
    if name == POSTGRESQL:
        return address.connect({"autocommit": True, "connect_timeout": CONNECT_TIMEOUT_S})
    if name == MYSQL:
        return address.connect(
            {
                "charset": "utf8mb4",
                "autocommit": True,
                "connect_timeout": CONNECT_TIMEOUT_S,
                "read_timeout": ANSWER_TIMEOUT_S,
                "write_timeout": ANSWER_TIMEOUT_S,
                # Without gap locks relays do not wait for each other.
                "init_command": "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
            }
        )
    made = address.connect(
        {"timeout": LOCKED_TIMEOUT_S, "isolation_level": None, "check_same_thread": False}
    )
    made.text_factory = _text
    return made


def _text(raw: bytes) -> str | bytes:
    """Return a text of SQLite, which keeps any bytes as one: a wrong row may not fail the read of others."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


class Session:
    """One connection and its thread. After any error it is closed, and opened anew when next used."""

    def __init__(self, address: Address, connect: Callable[[Address], Any] = _connect) -> None:
        self.address, self._connect = address, connect
        self._placeholder = "?" if address.database.name == SQLITE else "%s"
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
            self._connection = self._connect(self.address)
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
            cursor.execute(text.replace("?", self._placeholder), values)
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


def no_outbox(table: Table) -> str:
    """Return words for a table that does not exist, with the command that makes it."""
    make = f"`messagebus outbox ddl --database {table.database.name}` prints how to make it"
    return f"no outbox {table.name} there; {make}"


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
            raise LoginRefused(shown, class_and_reason(fault)) from fault
        raise NotReady(f"database {shown}: {class_and_reason(fault)}") from fault
    try:
        await session.run([], (table.columns(), ()))
        await session.run([], (table.read_leases(), ()))
    except Exception as fault:
        if not is_missing_table(fault):
            raise ConfigError(
                f"database {shown}: outbox {table.name}: {class_and_reason(fault)}"
            ) from fault
        raise ConfigError(f"database {shown}: {no_outbox(table)}") from fault
