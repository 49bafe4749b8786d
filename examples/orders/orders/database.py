"""The shop's database: its tables, and transactions. PostgreSQL; SQLite where none is named, as in tests.

`messagebus outbox relay` reads the same variable.
"""

from __future__ import annotations

import functools
import os
from contextlib import AbstractContextManager

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    inspect,
    make_url,
    text,
)
from sqlalchemy.exc import InterfaceError, OperationalError

from messagebus import Outbox
from messagebus.inbox import inbox_ddl
from orders.model import NAME_MAX

__all__ = ["AWAY", "URL", "bills", "create_tables", "engine", "orders", "transaction"]

URL = "MESSAGEBUS_OUTBOX_DATABASE"
# Errors after which the same transaction may succeed. It may also have been committed.
AWAY = (OperationalError, InterfaceError)

_metadata = MetaData()
orders = Table(
    "orders",
    _metadata,
    Column(
        "number", String(NAME_MAX), primary_key=True
    ),  # a second try of the same order is no second order
    Column("customer", String(NAME_MAX), nullable=False),
    Column("price_ct", Integer, nullable=False),
)
bills = Table(
    "bills",
    _metadata,
    Column("id", Integer, primary_key=True),
    # Deliberately not unique: what bills each order once is `Once`, and the tests count.
    Column("order_number", String(NAME_MAX), nullable=False),
    Column("total_ct", Integer, nullable=False),
)


@functools.cache
def engine() -> Engine:
    """Return the connections of this process, made at the first call."""
    url = make_url(os.environ.get(URL, "sqlite:///orders.db"))
    if url.get_backend_name() == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    # A connection is tried before it is used: the server may have been restarted.
    return create_engine(url, pool_pre_ping=True)


def transaction() -> AbstractContextManager[Connection]:
    """Give a connection in a transaction: committed at the end, rolled back after an exception."""
    return engine().begin()


def create_tables() -> None:
    """Make all tables that are not there: the shop's, the outbox's two, and the inbox.

    A migration does this in earnest.
    """
    dialect, outbox = engine().dialect.name, Outbox()
    with transaction() as connection:
        _metadata.create_all(connection)
        connection.execute(text(inbox_ddl(dialect)))
        if not inspect(connection).has_table(outbox.table):
            for statement in outbox.ddl(dialect):
                connection.execute(text(statement))
