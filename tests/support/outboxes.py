"""An application's outbox for tests: its tables in a database, transactions that add, a relay, counts.

shop = Shop(database, MemoryBus())
await shop.make_tables()
async with shop.transaction() as connection: ...
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any

from messagebus import BusConfig
from messagebus.databases import MYSQL, POSTGRESQL, SQLITE, execute
from messagebus.outbox import AsyncRelay, Outbox, RelayConfig
from messagebus.outbox.table import Table
from messagebus.testing import MemoryBus
from tests.support.connections import Database, result_of, transaction

# Relays of tests look often, and take over soon.
FAST = RelayConfig(poll_s=0.01, lease_s=1)
PLAIN = {SQLITE: "sqlite3", POSTGRESQL: "psycopg", MYSQL: "pymysql"}
"""Dialect -> its plainest kind of connection."""


class Shop:
    """An outbox in a database, and a bus."""

    def __init__(self, database: Database, bus: MemoryBus | BusConfig) -> None:
        self.database, self.bus = database, bus
        self.outbox = Outbox()
        self.table = Table(database.dialect)

    async def make_tables(self) -> None:
        """Make both tables, empty."""
        if self.database.path is not None:
            with closing(sqlite3.connect(self.database.path)) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
        async with self.transaction() as connection:
            for name in (self.table.name, self.table.leases):
                await result_of(execute(connection, f"DROP TABLE IF EXISTS {name}"))
            for statement in self.table.ddl():
                await result_of(execute(connection, statement))

    @asynccontextmanager
    async def transaction(self, kind: str = "") -> AsyncIterator[Any]:
        """Give a connection in a transaction that is committed at the end."""
        async with transaction(kind or PLAIN[self.database.dialect], self.database) as connection:
            yield connection

    async def add(self, *payloads: Any, destination: str = "orders", **options: Any) -> list[str]:
        """Add messages in one transaction; return their ids."""
        async with self.transaction() as connection:
            return [
                self.outbox.add(connection, destination, payload, **options) for payload in payloads
            ]

    def relay(self, config: RelayConfig = FAST, **settings: Any) -> AsyncRelay:
        return AsyncRelay(self.database.url, self.bus, config, **settings)

    async def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Execute a statement in a transaction of its own."""
        async with self.transaction() as connection:
            executed = await result_of(execute(connection, sql, values))
            found: list[tuple[Any, ...]] = executed.rows
            return found

    async def count(self, where: str = "1 = 1") -> int:
        """Count rows of the outbox."""
        ((found,),) = await self.rows(f"SELECT count(*) FROM {self.table.name} WHERE {where}")
        return int(found)
