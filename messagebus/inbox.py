"""The effect of a message and the note that it is done, in one transaction of the application's database.

    def bill(order: Order, once: Once) -> None:
        with engine.begin() as connection:
            if not once.begin(connection):
                return  # done before
            connection.execute(...)

The note is a row of the table `messagebus_inbox`, in the database that holds the effect. It needs no lock
of its own: a second copy of the message waits at the row that the first has inserted, and finds it when the
first commits. A copy that comes after a crash finds it, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Self, overload

from messagebus.core.claims import KEY_BYTES, key_of
from messagebus.databases import AsyncConnection, Connection, Executed, Pending, recognise
from messagebus.dialects import dialect_named, is_missing_table
from messagebus.errors import ConfigError

__all__ = ["Once", "inbox_ddl", "table_missing"]

REMEMBER_S = 86_400


def inbox_ddl(dialect: str) -> str:
    """Return the statement that makes the table where there is none. dialect: sqlite, postgresql or mysql."""
    about = dialect_named(dialect)
    return (
        "CREATE TABLE IF NOT EXISTS messagebus_inbox (\n"
        f"    id {about.key} PRIMARY KEY,\n"
        "    expires_ms BIGINT NOT NULL\n"
        f"){about.by_key}"
    )


def table_missing(table: str, dialect: str) -> ConfigError:
    """Return the error of a table that does not exist, with the command that makes it."""
    return ConfigError(
        f"table {table} does not exist: `messagebus dedup ddl --database {dialect}` prints what makes it"
    )


class Once:
    """Parameter of a handler that makes the effect of its message in a database happen at most once.

    It belongs to one run of the handler. Thread: any. Records are kept for at least `remember_s`; only a
    SqlStore on the same database deletes old ones. is_duplicate: the result of `begin`; None before.
    """

    def __init__(self, key: bytes, *, remember_s: int = REMEMBER_S) -> None:
        if len(key) != KEY_BYTES:
            raise ConfigError(f"key: {KEY_BYTES} bytes, not {len(key)}")
        if remember_s < 1:
            raise ConfigError(f"remember_s {remember_s}: 1 or more")
        self._key, self._remember_ms = key, remember_s * 1000
        self.is_duplicate: bool | None = None
        """True when `begin` found the message done; None before its answer."""

    @classmethod
    def of(cls, subscription: str, message_id: str, *, remember_s: int = REMEMBER_S) -> Self:
        """Create it from a subscription and a message id, for tests and programs without handlers."""
        return cls(key_of(subscription, message_id), remember_s=remember_s)

    @overload
    def begin(self, connection: AsyncConnection) -> Awaitable[bool]: ...
    @overload
    def begin(self, connection: Connection) -> bool: ...
    def begin(self, connection: AsyncConnection | Connection) -> Awaitable[bool] | bool:
        """Record in the caller's transaction that the message is done; awaited for an asyncio connection.

        Call it once, before the first change. Returns False if the message is done already: change nothing
        then. While the transaction of a duplicate is open, the call waits for its end, up to the limit of the
        database. The caller commits or rolls back; after a rollback the message is handled again.

        connection: of sqlite3, aiosqlite, psycopg, asyncpg or PyMySQL, SQLAlchemy's Connection, Session,
        AsyncConnection or AsyncSession, or Django's connection.
        Raises ConfigError for any other object, outside of a transaction, and if the table does not exist.
        Errors of the driver are passed on: a deadlock or serialization failure ends the transaction and the
        run.
        """
        found = recognise(connection)
        about = dialect_named(found.dialect)
        sql = f"{about.insert_new} messagebus_inbox VALUES (?, {about.clock_ms} + ?){about.insert_new_end}"
        return self._begin(
            lambda: found.execute(connection, sql, (self._key, self._remember_ms)), found.dialect
        )

    def _begin(
        self, insert: Callable[[], Executed | Pending[Executed]], dialect: str
    ) -> Awaitable[bool] | bool:
        try:
            executed = insert()
        except Exception as fault:
            _check_table(fault, dialect)
            raise
        if isinstance(executed, Executed):
            return self._judge(executed)
        pending = executed

        async def begin() -> bool:
            try:
                return self._judge(await pending)
            except Exception as fault:
                _check_table(fault, dialect)
                raise

        return Pending(begin)

    def _judge(self, executed: Executed) -> bool:
        if executed.changed not in (0, 1):  # to take it for a duplicate would lose the message
            raise ConfigError(
                "once.begin: the driver does not say what it inserted; in a pipeline?"
            )
        self.is_duplicate = executed.changed != 1
        return not self.is_duplicate


def _check_table(fault: Exception, dialect: str) -> None:
    if is_missing_table(fault):
        raise table_missing("messagebus_inbox", dialect) from fault
