"""Tests of the whole service without a broker: three brokers in memory, whose clock the tests move."""

from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path

import pytest

from invoices.app import app, archive
from invoices.archive import Archive
from invoices.model import Line, Order
from messagebus.testing import MemoryBus

ORDER = Order("17", "ann", (Line("nut", Decimal("0.10"), 3),))


@pytest.fixture
async def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MemoryBus]:
    """Brokers in memory, the service on them, and an archive of its own."""
    memory = MemoryBus(brokers=3)
    monkeypatch.setattr(archive, "_path", tmp_path / "invoices.sqlite")
    app.use(memory)
    async with app:
        yield memory
    app.use(None)


async def test_an_order_becomes_an_invoice_that_is_kept(bus: MemoryBus) -> None:
    await app.publish("orders", ORDER)
    await bus.handled()
    (invoice,) = bus.published("invoices")
    assert invoice.message_id == "invoice-17"
    assert invoice.key == "ann"
    assert invoice.as_json()["total"] == "0.30"
    assert archive.seen() == {"17": 1}


async def test_an_order_that_comes_twice_is_kept_once(bus: MemoryBus) -> None:
    bus.duplicate_next("orders")
    await app.publish("orders", ORDER)
    await bus.handled()
    assert archive.seen() == {"17": 2}


async def test_a_bank_that_does_not_answer_is_asked_again(bus: MemoryBus) -> None:
    await app.publish("orders", Order("17", "ann", ORDER.lines, currency="CHF"))
    await bus.handled()
    bus.assert_answered("orders", "billing", answer="retry", count=1)
    assert archive.seen() == {}
    bus.advance(2)  # the first delay is a second, more or less; there are steps of 1, 2, 5 ... s
    await bus.handled()
    assert archive.seen() == {"17": 1}


async def test_a_bank_that_never_answers_ends_in_the_parking_queue(bus: MemoryBus) -> None:
    await app.publish("orders", Order("17", "ann", ORDER.lines, currency="XTS"))
    for _ in range(3):
        await bus.handled()
        bus.advance(10)
    await bus.handled()
    (parked,) = bus.parked("orders", "billing")
    assert parked.as_json()["number"] == "17"
    assert archive.seen() == {}


@pytest.mark.parametrize(
    "payload",
    [
        Order("17", "ann", ORDER.lines, currency="???"),
        {"number": 17, "customer": "ann", "lines": []},
        {"number": "17", "customer": "ann", "lines": [{"article": "nut", "price": "cheap"}]},
        b"no JSON at all",
    ],
)
async def test_what_nobody_can_bill_is_parked_at_once(bus: MemoryBus, payload: object) -> None:
    await app.publish("orders", payload)
    await bus.handled()
    bus.assert_parked("orders", "billing", count=1)
    bus.assert_answered("orders", "billing", answer="retry", count=0)


def test_an_archive_is_a_file_that_stays(tmp_path: Path) -> None:
    assert Archive(tmp_path / "a").seen() == {}
