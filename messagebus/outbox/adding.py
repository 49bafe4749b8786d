"""`Outbox.add`: one insert, in the transaction that the application's connection is in."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, overload

from messagebus._io.hooks import hook_chain, with_id
from messagebus._io.publish.calls import Outgoing
from messagebus.clock import wall_ms
from messagebus.databases import (
    AsyncConnection,
    Connection,
    Executed,
    Pending,
    is_missing_table,
    recognise,
)
from messagebus.destination import Destination
from messagebus.dsn import Address
from messagebus.hooks import Hooks
from messagebus.message import NONE_GIVEN, Given, Header, given_options
from messagebus.outbox.rows import as_row, read_publish
from messagebus.outbox.table import DEFAULT_TABLE, Table
from messagebus.secret import Secret
from messagebus.stats import Durability, Outcome, Published

__all__ = ["Outbox"]

ID_BYTES = 16


class Outbox:
    """Outbox: adds messages to a table of the application's database, in the application's transaction.

        outbox = Outbox()
        with psycopg.connect(...) as connection:
            connection.execute("INSERT INTO orders ...")
            outbox.add(connection, "orders", Order(17), key="customer-4")

    table: name of the table, with a schema if necessary. notify: True: the commit wakes the relays;
    PostgreSQL only. database: address of the database, for an `App` that relays; adding needs none.
    hooks: `Hooks.publishing` is called for each message, to add headers such as those of a trace.
    Thread: any thread may call it.
    """

    def __init__(
        self,
        table: str = DEFAULT_TABLE,
        *,
        database: str | Secret | None = None,
        notify: bool = False,
        hooks: Sequence[Hooks] = (),
    ) -> None:
        """Raises ConfigError for an invalid name of a table, or an invalid address."""
        self._table, self._notify, self._database = table, notify, database
        if database is not None:
            Address.parse(database)
        self._inserts: dict[str, str] = {}
        self._insert_for("sqlite")  # a wrong name is told here, not in a transaction
        self._outgoing = Outgoing()
        self._hooks = hook_chain(hooks)

    @property
    def table(self) -> str:
        """The name of its table."""
        return self._table

    @property
    def database(self) -> Secret | None:
        """The address of its database; None if none was given."""
        found = self._database
        return Secret(found) if isinstance(found, str) else found

    def ddl(self, database: str) -> list[str]:
        """Return the statements that create its two tables, for a migration.

        database: postgresql, mysql, mariadb or sqlite. Raises ConfigError.
        """
        return Table(database, self._table).ddl()

    def drop_ddl(self, database: str) -> list[str]:
        """Return the statements that drop its two tables. Raises ConfigError."""
        return Table(database, self._table).drop_ddl()

    @overload
    def add(
        self,
        connection: AsyncConnection,
        destination: Destination | str,
        payload: Any,
        *,
        headers: Mapping[str, Header] | None = None,
        key: str | None = None,
        priority: int | None = None,
        ttl_s: float | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        message_id: str | None = None,
        type: str | None = None,
        content_encoding: str | None = None,
        app_id: str | None = None,
        deliver_after_s: float | None = None,
        deliver_at: datetime | float | None = None,
        redundant: bool | str | None = None,
    ) -> Pending[str]: ...
    @overload
    def add(
        self,
        connection: Connection,
        destination: Destination | str,
        payload: Any,
        *,
        headers: Mapping[str, Header] | None = None,
        key: str | None = None,
        priority: int | None = None,
        ttl_s: float | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        message_id: str | None = None,
        type: str | None = None,
        content_encoding: str | None = None,
        app_id: str | None = None,
        deliver_after_s: float | None = None,
        deliver_at: datetime | float | None = None,
        redundant: bool | str | None = None,
    ) -> str: ...
    def add(
        self,
        connection: AsyncConnection | Connection,
        destination: Destination | str,
        payload: Any,
        *,
        headers: Mapping[str, Header] | None = None,
        key: str | None = None,
        priority: int | None = None,
        ttl_s: float | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        message_id: str | None = None,
        type: str | None = None,
        content_encoding: str | None = None,
        app_id: str | None = None,
        deliver_after_s: float | None = None,
        deliver_at: datetime | float | None = None,
        redundant: bool | str | None = None,
    ) -> str | Pending[str]:
        """Add a message to the current transaction of the connection; return the message's id.

        connection: one that `messagebus.databases` knows. For an asyncio connection, await the result:
        ``await outbox.add(...)``.
        payload: a `Message`, bytes or text; any other value is published as JSON (`messagebus.payloads`).
        The options are those of `Publisher.submit`. Raises NameInvalid, MessageInvalid or ConfigError before
        anything is written, and the errors of the database's driver.
        """
        given = (headers, key, priority, ttl_s, correlation_id, reply_to, message_id, type,
                 content_encoding, app_id, deliver_after_s, deliver_at, redundant)  # fmt: skip
        found = recognise(connection)
        row = self._row(destination, payload, given)
        try:
            executed = found.execute(connection, self._insert_for(found.dialect), row)
        except Exception as fault:
            self._note_missing(fault, found.dialect)
            raise
        if isinstance(executed, Pending):
            return Pending(lambda: self._after(executed, str(row[0]), found.dialect))
        return str(row[0])

    async def _after(self, executed: Pending[Executed], message_id: str, dialect: str) -> str:
        try:
            await executed
        except Exception as fault:
            self._note_missing(fault, dialect)
            raise
        return message_id

    def _note_missing(self, fault: Exception, dialect: str) -> None:
        """Add to a driver's error that the table is missing how it is made."""
        if is_missing_table(fault) and self._table in str(fault):
            fault.add_note(f"`messagebus outbox ddl --database {dialect}` prints what makes it")

    def _row(
        self, destination: Destination | str, payload: Any, given: Given
    ) -> tuple[object, ...]:
        """Return the values of the row of a checked message."""
        parsed, message = read_publish(self._outgoing, destination, payload, given)
        if not message.message_id:
            # Random, unlike a publisher's: an outbox made before a fork would count in each child, and
            # messages with one id are one message.
            message = with_id(message, secrets.token_hex(ID_BYTES))
        if self._hooks is not None:
            target, body, _ = self._outgoing.read(parsed, message, NONE_GIVEN)
            message, watched = self._hooks.publishing(target, body, message, None)
            watched.set_result(
                Published(message.message_id, Outcome.CONFIRMED, Durability.NONE, attempts=0)
            )
        return as_row(parsed, message, given_options(given), wall_ms())

    def _insert_for(self, database: str) -> str:
        text = self._inserts.get(database)
        if text is None:
            table = Table(database, self._table)
            notify = self._notify and database == "postgresql"
            text = self._inserts[database] = table.insert(notify=notify)
        return text
