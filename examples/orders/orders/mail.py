"""A mail server, as far as this example needs one: what it took, it has sent, and no rollback brings it back.

Each mail is a row of a file of its own, which no transaction of the shop's database reaches.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator

__all__ = ["FILE", "MailServerAway", "send", "sent"]

FILE = "ORDERS_MAILS"
BUSY_TIMEOUT_S = 30.0
TABLE = """
    CREATE TABLE IF NOT EXISTS mails (
        customer TEXT NOT NULL,
        subject TEXT NOT NULL,
        sender INTEGER NOT NULL,  -- process
        sent_s REAL NOT NULL  -- since 1970
    ) STRICT
"""


class MailServerAway(ConnectionError):
    """Raised when the mail server does not answer just now: send it again later."""


def send(customer: str, subject: str) -> None:
    """Send a mail. Raises MailServerAway."""
    mail = (customer, subject, os.getpid(), time.time())
    try:
        with _open() as connection:
            connection.execute("INSERT INTO mails VALUES (?, ?, ?, ?)", mail)
    except sqlite3.OperationalError as fault:
        raise MailServerAway(str(fault)) from fault


def sent() -> list[tuple[str, str, int, float]]:
    """Return all mails in the order of their sending: customer, subject, process of the sender, time."""
    with _open() as connection:
        return connection.execute("SELECT * FROM mails ORDER BY rowid").fetchall()


@contextlib.contextmanager
def _open() -> Iterator[sqlite3.Connection]:
    path = os.environ.get(FILE, "mails.db")
    with (
        contextlib.closing(sqlite3.connect(path, timeout=BUSY_TIMEOUT_S)) as connection,
        connection,  # commits
    ):
        connection.execute(TABLE)
        yield connection
