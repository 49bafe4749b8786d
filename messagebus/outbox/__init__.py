"""Transactional outbox: messages are added to a table in the application's own transaction, and relayed.

    outbox = Outbox()
    with sqlite3.connect("shop.db") as connection:
        connection.execute("INSERT INTO orders ...")
        outbox.add(connection, "orders", {"number": 17}, key="customer-4")

A row whose transaction commits is published at least once, under its id; one that is rolled back, never. A
relay publishes: `messagebus outbox relay`, `App(outbox=...)`, `AsyncRelay` or `Relay`. docs/guides/outbox.md
"""

from messagebus.outbox.adding import Outbox
from messagebus.outbox.relay import AsyncRelay, Relay, RelayConfig

__all__ = ["AsyncRelay", "Outbox", "Relay", "RelayConfig"]
