"""`python -m orders setup`: make tables and subscriptions; `place`: place orders; `report`: count."""

from __future__ import annotations

import argparse
import os
import sys
import uuid
from collections import Counter

from sqlalchemy import select

from messagebus import BusConfig, MessageBusError, declare
from orders import mail
from orders.database import AWAY, bills, create_tables, orders, transaction
from orders.model import Order
from orders.shop import place

# Who is to get what is published, whether it runs by then or not.
SUBSCRIPTIONS = ("orders/billing", "invoices/mail")


def setup() -> None:
    create_tables()
    declare(BusConfig.from_env(os.environ), SUBSCRIPTIONS)
    print("tables and subscriptions are there")


def place_some(count: int) -> None:
    begin = uuid.uuid4().hex[:8]
    for number in range(count):
        place(Order(f"{begin}-{number}", f"customer-{number % 10}", 1_000 + number))
    print(f"placed {count} orders")


def report() -> None:
    with transaction() as connection:
        placed = connection.scalars(select(orders.c.number)).all()
        billed = Counter(connection.scalars(select(bills.c.order_number)))
    mailed = Counter(subject for _, subject, _, _ in mail.sent())
    print(f"{len(placed)} orders, {len(billed)} billed, {len(mailed)} mailed")
    print(f"billed twice: {_twice(billed)}; mailed twice: {_twice(mailed)}")


def _twice(counts: Counter[str]) -> int:
    return sum(count > 1 for count in counts.values())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m orders", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("setup", help="make the tables and subscriptions")
    placing = commands.add_parser("place", help="place orders, as the HTTP service does")
    placing.add_argument("--count", type=int, default=100, metavar="N")
    commands.add_parser("report", help="count orders, bills and mails")
    asked = parser.parse_args()
    try:
        match asked.command:
            case "setup":
                setup()
            case "place":
                place_some(asked.count)
            case _:
                report()
    except (MessageBusError, *AWAY) as fault:
        print(f"orders: {str(fault).splitlines()[0]}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
