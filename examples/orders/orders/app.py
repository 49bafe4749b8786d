"""Handlers of an order: it is billed, and its invoice is mailed. Each once.

messagebus worker orders.app:app --processes 2
"""

from __future__ import annotations

import os

from messagebus import App, Dedup, Once, Outbox, RetryPolicy
from orders import mail
from orders.database import AWAY, bills, transaction
from orders.model import Invoice, Order

__all__ = ["app", "bill", "send_invoice", "total_of"]

STORE = "ORDERS_STORE"
# After 1, 2, 4 ... 30 seconds, for some hours: a database or a mail server that is away is no reason to park.
PATIENT = RetryPolicy(attempts_max=500, delay_max_s=30, retry_on=(*AWAY, mail.MailServerAway))
VAT_PERCENT = 19

app = App()
outbox = Outbox()


@app.subscriber("orders", subscription="billing", concurrency=8, retry=PATIENT)
def bill(order: Order, once: Once) -> None:
    """Bill an order. The effect is in the database, so the note that it is done is a part of it."""
    with transaction() as connection:
        if not once.begin(connection):
            return  # a copy, or a run before a crash, has done it
        invoice = Invoice(order.number, order.customer, total_of(order))
        connection.execute(
            bills.insert().values(order_number=order.number, total_ct=invoice.total_ct)
        )
        outbox.add(connection, "invoices", invoice)  # published if the bill is committed


@app.subscriber(
    "invoices",
    subscription="mail",
    concurrency=4,
    retry=PATIENT,
    # No transaction reaches a mail server, so a store remembers what was sent.
    dedup=Dedup(os.environ.get(STORE, "sqlite:///orders-sent.db")),
)
def send_invoice(invoice: Invoice) -> None:
    """Mail an invoice. It is sent twice if this process dies after `send` and before the store knows."""
    mail.send(invoice.customer, f"Invoice for order {invoice.order}: {invoice.total_ct} ct")


def total_of(order: Order) -> int:
    """Return the price with tax, in cents, rounded down."""
    return order.price_ct * (100 + VAT_PERCENT) // 100
