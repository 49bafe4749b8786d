"""Payloads of the messages: orders and invoices, as the JSON of these classes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NAME_MAX", "Invoice", "Order"]

NAME_MAX = 64


@dataclass(frozen=True, slots=True)
class Order:
    """An order of a shop.

    number: given by who orders, never used twice. price_ct: in cents, 1 or more.
    """

    number: str
    customer: str
    price_ct: int

    def __post_init__(self) -> None:
        if not (1 <= len(self.number) <= NAME_MAX and 1 <= len(self.customer) <= NAME_MAX):
            raise ValueError(f"number, customer: 1 to {NAME_MAX} characters")
        if self.price_ct < 1:
            raise ValueError("price_ct: 1 or more")


@dataclass(frozen=True, slots=True)
class Invoice:
    """An invoice to a customer. total_ct: in cents, with tax."""

    order: str
    customer: str
    total_ct: int
