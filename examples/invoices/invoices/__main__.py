"""`python -m invoices orders`: send some orders; `python -m invoices report`: what became of them."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import uuid
from decimal import Decimal

from invoices.app import archive
from invoices.model import Line, Order
from messagebus import App, BusConfig, MessageBusError, declare

# These subscriptions are declared before the first order, whether a worker runs or not.
WANTED = ("orders/billing", "invoices/archive")


def orders(count: int, seed: str) -> list[Order]:
    """Return some orders; of a hundred, one is in CHF, one in XTS, and one in no currency at all."""
    special = {7: "CHF", 17: "XTS", 27: "???"}
    return [
        Order(
            number=f"{seed}-{number}",
            customer=f"customer-{number % 10}",
            lines=(Line("nut", Decimal("0.10"), 1 + number % 100), Line("bolt", Decimal("0.35"))),
            currency=special.get(number % 100, random.choice(("EUR", "USD"))),
        )
        for number in range(count)
    ]


def send(count: int) -> int:
    declare(BusConfig.from_env(os.environ), WANTED)
    asyncio.run(_send(orders(count, uuid.uuid4().hex[:8])))
    print(f"sent {count} orders, and one that is none")
    return 0


async def _send(some: list[Order]) -> None:
    """Publish the orders, and one message that is no order. Returns when all are confirmed."""
    async with App() as shop:
        await asyncio.gather(*(shop.publish("orders", order, key=order.customer) for order in some))
        await shop.publish("orders", {"number": 5, "lines": "none"})


def report() -> int:
    seen = archive.seen()
    again = sum(times - 1 for times in seen.values())
    print(f"{len(seen)} invoices kept; {again} came again and were recognised")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m invoices", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    sending = commands.add_parser("orders", help="send orders, and wait for their confirms")
    sending.add_argument("--count", type=int, default=100)
    commands.add_parser("report", help="count the invoices")
    asked = parser.parse_args()
    try:
        return send(asked.count) if asked.command == "orders" else report()
    except MessageBusError as fault:
        print(f"invoices: {fault}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
