"""Price of an order. Knows nothing of messages."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_HALF_EVEN, Decimal

from invoices.model import Order

__all__ = ["Rates", "RatesUnavailable", "UnknownCurrency", "total_of"]

CENT = Decimal("0.01")


class UnknownCurrency(ValueError):
    """Raised when there is no such currency: asking again does not help."""


class RatesUnavailable(ConnectionError):
    """Raised when the bank does not answer just now: ask again later."""


class Rates:
    """Exchange rates of a bank: the value in euros of one unit of a currency.

    Two answers are made up to show failures: CHF is answered only at the second request, and XTS, the code
    that ISO 4217 reserves for tests, never.
    """

    def __init__(self, known: Mapping[str, Decimal] | None = None) -> None:
        self._known = known or {
            "EUR": Decimal(1),
            "USD": Decimal("0.92"),
            "CHF": Decimal("1.05"),
            "XTS": Decimal(0),
        }

    async def ask(self, currency: str, *, attempt: int) -> Decimal:
        """Return the rate of a currency. Raises UnknownCurrency or RatesUnavailable."""
        if currency not in self._known:
            raise UnknownCurrency(currency)
        if currency == "XTS" or (currency == "CHF" and attempt == 1):
            raise RatesUnavailable(f"no rate for {currency} just now")
        return self._known[currency]


def total_of(order: Order, rate: Decimal) -> Decimal:
    """Return the total of an order in euros, rounded to the cent as banks do."""
    total = sum((line.price * line.pieces for line in order.lines), Decimal(0))
    return (total * rate).quantize(CENT, ROUND_HALF_EVEN)
