"""How much an order costs. Knows nothing of messages."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_HALF_EVEN, Decimal

from invoices.model import Order

__all__ = ["Rates", "RatesUnavailable", "UnknownCurrency", "total_of"]

CENT = Decimal("0.01")


class UnknownCurrency(ValueError):
    """There is no such currency: asking again does not help."""


class RatesUnavailable(ConnectionError):
    """The bank does not answer just now."""


class Rates:
    """What a unit of a currency is worth in euros, as a bank would say.

    Two of its answers are made for a look at what happens then: it answers for CHF only when it is asked
    a second time, and for XTS, the code that ISO 4217 keeps for tests, never.
    """

    def __init__(self, known: Mapping[str, Decimal] | None = None) -> None:
        self._known = known or {
            "EUR": Decimal(1),
            "USD": Decimal("0.92"),
            "CHF": Decimal("1.05"),
            "XTS": Decimal(0),
        }

    async def ask(self, currency: str, *, attempt: int) -> Decimal:
        """Raises UnknownCurrency or RatesUnavailable."""
        if currency not in self._known:
            raise UnknownCurrency(currency)
        if currency == "XTS" or (currency == "CHF" and attempt == 1):
            raise RatesUnavailable(f"no rate for {currency} just now")
        return self._known[currency]


def total_of(order: Order, rate: Decimal) -> Decimal:
    """In euros, rounded to the cent as banks do."""
    total = sum((line.price * line.pieces for line in order.lines), Decimal(0))
    return (total * rate).quantize(CENT, ROUND_HALF_EVEN)
