"""The last place of each parcel: a SQLite file that several processes read and write."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from datetime import UTC

from parcels.model import Scanned

__all__ = ["FILE", "put", "where"]

FILE = "PARCELS_FILE"
BUSY_TIMEOUT_S = 30.0
TABLE = """
    CREATE TABLE IF NOT EXISTS places (
        parcel TEXT PRIMARY KEY,
        depot TEXT NOT NULL,
        at TEXT NOT NULL  -- UTC, in ISO 8601 with microseconds: texts in the order of time
    ) STRICT
"""
# A scan that comes twice, or after a later one, changes nothing.
PUT = """
    INSERT INTO places VALUES (?, ?, ?)
    ON CONFLICT (parcel) DO UPDATE SET depot = excluded.depot, at = excluded.at
    WHERE excluded.at > at
"""


def put(scan: Scanned) -> None:
    """Keep the place of a parcel, unless a later one is known. Any thread."""
    at = scan.at.astimezone(UTC).isoformat(timespec="microseconds")
    with _open() as connection:
        connection.execute(PUT, (scan.parcel, scan.depot, at))


def where(parcel: str) -> tuple[str, str] | None:
    """Return depot and time of the last scan; None for an unknown parcel. Any thread."""
    with _open() as connection:
        query = "SELECT depot, at FROM places WHERE parcel = ?"
        found: tuple[str, str] | None = connection.execute(query, (parcel,)).fetchone()
    return found


@contextlib.contextmanager
def _open() -> Iterator[sqlite3.Connection]:
    path = os.environ.get(FILE, "parcels.sqlite")
    with (
        contextlib.closing(sqlite3.connect(path, timeout=BUSY_TIMEOUT_S)) as connection,
        connection,  # commits
    ):
        connection.execute(TABLE)
        yield connection
