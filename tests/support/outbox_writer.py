"""An application that is killed: each transaction writes orders, and the outbox's rows about them.

``python -m tests.support.outbox_writer URL NAME KEYS ORDERS TOPIC...`` adds until there are so many orders of
its name; one transaction of five is rolled back. The table `orders` says what was committed: message id,
key, number within the key, topic.
"""

from __future__ import annotations

import random
import sys
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pymysql

from messagebus.databases import execute
from messagebus.outbox import Outbox

TABLE = (
    "CREATE TABLE orders (message_id VARCHAR(64) PRIMARY KEY, writer VARCHAR(64), of_key VARCHAR(64),"
    " number INT, topic VARCHAR(64))"
)
ROWS_MAX = 40
KEPT_SHARE = 0.8


def main(url: str, name: str, keys: int, orders: int, topics: list[str]) -> None:
    outbox = Outbox(notify=True)
    with closing(_connect(url)) as connection:
        while _count(connection, name) < orders:
            key = f"{name}-{random.randrange(keys)}"
            add(connection, outbox, name, key, topics)
            if random.random() < KEPT_SHARE:
                connection.commit()
            else:
                connection.rollback()


def _connect(url: str) -> Any:
    """Connect to PostgreSQL, or to MariaDB."""
    parts = urlsplit(url)
    if parts.scheme == "postgresql":
        return psycopg.connect(url)
    return pymysql.connect(
        host=parts.hostname,
        port=parts.port or 0,
        user=parts.username,
        password=parts.password or "",
        database=parts.path[1:],
    )


def add(connection: Any, outbox: Outbox, name: str, key: str, topics: list[str]) -> None:
    # The writer is the only one of its keys: an application locks the row of the aggregate here.
    ((found,),) = execute(
        connection, "SELECT max(number) FROM orders WHERE of_key = ?", (key,)
    ).rows
    first = found or 0
    for number in range(first + 1, first + 1 + random.randint(1, ROWS_MAX)):
        topic = topics[0] if random.random() < 0.99 else topics[-1]
        message_id = outbox.add(connection, topic, f"{key} {number}", key=key)
        execute(
            connection,
            "INSERT INTO orders VALUES (?, ?, ?, ?, ?)",
            (message_id, name, key, number, topic),
        )


def _count(connection: Any, name: str) -> int:
    ((found,),) = execute(connection, "SELECT count(*) FROM orders WHERE writer = ?", (name,)).rows
    connection.commit()
    return int(found)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
