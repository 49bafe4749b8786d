"""Tests of the whole service without a server: brokers in memory, SQLite, and a clock that the tests move."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import select

from messagebus import AsyncRelay, RelayConfig
from messagebus.testing import MemoryBus
from orders import mail
from orders.app import app
from orders.database import URL, bills, create_tables, engine, transaction
from orders.model import Order
from orders.shop import http, place

ORDER = Order("17", "ann", 1_000)


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A database and a mail server of the test's own; its address."""
    url = f"sqlite:///{tmp_path}/orders.db"
    monkeypatch.setenv(URL, url)
    monkeypatch.setenv(mail.FILE, f"{tmp_path}/mails.db")
    engine.cache_clear()
    create_tables()
    create_tables()  # as an operator may, who is not sure
    yield url
    engine().dispose()


@pytest.fixture
async def bus(database: str) -> AsyncIterator[MemoryBus]:
    """Three brokers in memory, and the service on them."""
    memory = MemoryBus(brokers=3)
    memory.declare("orders/billing", "invoices/mail")
    app.use(memory)
    async with app:
        yield memory
    app.use(None)


@pytest.fixture
async def relay(bus: MemoryBus, database: str) -> AsyncIterator[AsyncRelay]:
    async with AsyncRelay(database, bus, RelayConfig(poll_s=0.005)) as made:
        yield made


async def settled(bus: MemoryBus, relay: AsyncRelay) -> None:
    """Wait until orders and then invoices were relayed and handled."""
    for _ in ("orders", "invoices"):
        assert await relay.drained()
        await bus.handled()


def billed() -> list[str]:
    with transaction() as connection:
        return list(connection.scalars(select(bills.c.order_number)))


def mailed() -> list[str]:
    return [subject for _, subject, _, _ in mail.sent()]


MAIL = "Invoice for order 17: 1190 ct"


async def test_an_order_is_billed_and_mailed_once_though_two_brokers_have_it(
    bus: MemoryBus, relay: AsyncRelay
) -> None:
    assert place(ORDER)
    await settled(bus, relay)
    bus.assert_answered("orders", "billing", count=2)  # both copies
    assert (billed(), mailed()) == (["17"], [MAIL])


async def test_what_is_published_twice_is_billed_and_mailed_once(
    bus: MemoryBus, relay: AsyncRelay
) -> None:
    bus.duplicate_next("orders", 2)
    bus.duplicate_next("invoices")
    place(ORDER)
    await settled(bus, relay)
    bus.assert_answered("orders", "billing", count=4)
    bus.assert_answered("invoices", "mail", count=2)
    assert (billed(), mailed()) == (["17"], [MAIL])


async def test_an_order_that_is_placed_again_is_no_second_order(
    bus: MemoryBus, relay: AsyncRelay
) -> None:
    assert place(ORDER)
    assert not place(ORDER)
    await settled(bus, relay)
    assert billed() == ["17"]


async def test_orders_are_taken_while_no_broker_is_there(bus: MemoryBus, relay: AsyncRelay) -> None:
    bus.stop_brokers()
    assert place(ORDER)
    assert billed() == []
    bus.start_brokers()
    await settled(bus, relay)
    assert (billed(), mailed()) == (["17"], [MAIL])


async def test_one_broker_of_three_may_be_away(bus: MemoryBus, relay: AsyncRelay) -> None:
    bus.stop_brokers(bus.brokers[0])
    place(ORDER)
    await settled(bus, relay)
    bus.assert_answered("orders", "billing", count=2)  # from the two others
    assert mailed() == [MAIL]


async def test_nothing_is_mailed_while_the_store_that_remembers_mails_is_away(
    bus: MemoryBus, relay: AsyncRelay
) -> None:
    bus.store.lose()
    place(ORDER)
    for _ in range(1_000):
        if bus.published("invoices"):
            break
        await asyncio.sleep(0.01)
    assert (billed(), mailed()) == (["17"], [])
    bus.store.restore()
    await bus.handled()
    assert mailed() == [MAIL]


async def test_an_invoice_waits_for_a_mail_server_that_is_away(
    bus: MemoryBus, relay: AsyncRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(customer: str, subject: str) -> None:
        raise mail.MailServerAway("no answer")

    with monkeypatch.context() as away:
        away.setattr(mail, "send", refuse)
        place(ORDER)
        await settled(bus, relay)
        for _ in range(20):
            bus.advance(60)
            await bus.handled()
    assert mailed() == []
    bus.advance(60)
    await bus.handled()
    assert mailed() == [MAIL]


async def test_what_is_no_order_is_parked(bus: MemoryBus) -> None:
    await app.publish("orders", {"number": "17", "customer": "ann", "price_ct": "much"})
    await bus.handled()
    bus.assert_parked("orders", "billing", count=1)
    assert billed() == []


async def test_an_order_by_http_may_be_sent_until_it_is_answered(
    bus: MemoryBus, relay: AsyncRelay
) -> None:
    transport = httpx.ASGITransport(app=http)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        for code in (201, 200):
            answer = await client.put("/orders/17", json={"customer": "ann", "price_ct": 1_000})
            assert answer.status_code == code
        for wrong in ('{"customer": "ann"}', '{"customer": "ann", "price_ct": 0}', "[]", "no JSON"):
            assert (await client.put("/orders/18", content=wrong)).status_code == 400
    await settled(bus, relay)
    assert billed() == ["17"]
