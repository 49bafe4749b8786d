"""Archive of invoices: a SQLite file that several processes write."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from invoices.model import Invoice

__all__ = ["Archive"]

BUSY_TIMEOUT_S = 30.0
TABLE = """
    CREATE TABLE IF NOT EXISTS invoices (
        number TEXT PRIMARY KEY,  -- of the order
        customer TEXT NOT NULL,
        total TEXT NOT NULL,
        seen INTEGER NOT NULL DEFAULT 1  -- how often it came: delivery is at least once
    ) STRICT
"""
PUT = """
    INSERT INTO invoices (number, customer, total) VALUES (?, ?, ?)
    ON CONFLICT (number) DO UPDATE SET seen = seen + 1
"""


class Archive:
    """Archive of invoices in one file. An invoice that comes again is kept once.

    Any thread and any process may call any method.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with (
            contextlib.closing(sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_S)) as connection,
            connection,  # commits
        ):
            connection.execute(TABLE)
            yield connection

    def put(self, invoice: Invoice) -> None:
        with self._open() as connection:
            connection.execute(PUT, (invoice.order, invoice.customer, str(invoice.total)))

    def seen(self) -> dict[str, int]:
        """Return order number -> number of times its invoice came."""
        with self._open() as connection:
            return dict(connection.execute("SELECT number, seen FROM invoices"))
