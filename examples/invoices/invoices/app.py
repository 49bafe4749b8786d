"""The service: a handler that makes invoices of orders, and one that keeps them.

messagebus worker invoices.app:app --processes 2
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from invoices.archive import Archive
from invoices.billing import Rates, UnknownCurrency, total_of
from invoices.model import Invoice, Order
from messagebus import App, Delivery, RetryPolicy

__all__ = ["app", "archive", "bill", "keep", "rates"]

app = App()
rates = Rates()
archive = Archive(Path(os.environ.get("INVOICES_FILE", "invoices.sqlite")))


@app.subscriber(
    "orders",
    subscription="billing",
    concurrency=20,
    # After 1, 2 and 5 seconds; then it is parked. An unknown currency is parked at once.
    retry=RetryPolicy(attempts_max=4, first_delay_s=1, give_up_on=(UnknownCurrency,)),
    time_limit_s=30,
)
async def bill(order: Order, delivery: Delivery) -> None:
    """Publish the invoice of an order."""
    rate = await rates.ask(order.currency, attempt=delivery.attempt)
    invoice = Invoice(
        order=order.number,
        customer=order.customer,
        total=total_of(order, rate),
        at=datetime.now(UTC),
        attempt=delivery.attempt,
    )
    # Confirmed before this order is acked. Should it come again, so does its invoice, by the same id.
    await app.publish("invoices", invoice, key=order.customer, message_id=f"invoice-{order.number}")


@app.subscriber("invoices", subscription="archive", concurrency=4)
def keep(invoice: Invoice) -> None:
    """Keep an invoice. A plain function runs in a thread, because a disk makes it wait."""
    archive.put(invoice)
