"""Payloads of the messages: orders and invoices, as the JSON of these classes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

__all__ = ["Invoice", "Line", "Order"]


@dataclass(frozen=True, slots=True)
class Line:
    """One article of an order. price: price of one piece."""

    article: str
    price: Decimal
    pieces: int = 1

    def __post_init__(self) -> None:
        if self.pieces < 1:
            raise ValueError("pieces: at least 1")


@dataclass(frozen=True, slots=True)
class Order:
    """An order of a shop. number: identifier of the order, never used twice."""

    number: str
    customer: str
    lines: tuple[Line, ...]
    currency: str = "EUR"
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Invoice:
    """An invoice to a customer, in euros. attempt: the run of the handler that made it."""

    order: str
    customer: str
    total: Decimal
    at: datetime
    attempt: int = 1
