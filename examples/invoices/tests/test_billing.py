"""Tests of the price of an order."""

from decimal import Decimal

import pytest

from invoices.billing import Rates, RatesUnavailable, UnknownCurrency, total_of
from invoices.model import Line, Order

ORDER = Order("1", "ann", (Line("nut", Decimal("0.10"), 3), Line("bolt", Decimal("0.35"))))


def test_a_total_is_rounded_to_the_cent() -> None:
    assert total_of(ORDER, Decimal(1)) == Decimal("0.65")
    assert total_of(ORDER, Decimal("0.92")) == Decimal("0.60")


def test_an_order_of_nothing_costs_nothing() -> None:
    assert total_of(Order("1", "ann", ()), Decimal(1)) == 0


def test_a_line_has_a_piece_at_least() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Line("nut", Decimal(1), 0)


async def test_a_bank_knows_its_currencies() -> None:
    assert await Rates().ask("USD", attempt=1) == Decimal("0.92")
    with pytest.raises(UnknownCurrency):
        await Rates().ask("???", attempt=1)


async def test_a_bank_may_not_answer() -> None:
    with pytest.raises(RatesUnavailable):
        await Rates().ask("CHF", attempt=1)
    assert await Rates().ask("CHF", attempt=2) == Decimal("1.05")
    with pytest.raises(RatesUnavailable):
        await Rates().ask("XTS", attempt=100)
