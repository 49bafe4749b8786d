"""Tests of the whole service without a server: brokers in memory, and Django's test database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import patch

from django.core.management import CommandError, call_command
from django.db import connection
from django.test import TransactionTestCase

from bookings.handlers import POINTS, app
from bookings.models import Booking, Guest
from messagebus import AsyncRelay, NotReady, RelayConfig
from messagebus.testing import MemoryBus

WAITS_MAX = 1_000
ROOM_12 = {"room": "12", "night": "2026-12-24", "guest": "ann"}


@asynccontextmanager
async def running_worker() -> AsyncIterator[tuple[MemoryBus, AsyncRelay]]:
    """Run the app and a relay of the test database, on brokers in memory."""
    bus, database = MemoryBus(), f"sqlite:///{connection.settings_dict['NAME']}"
    bus.declare("bookings/points")
    app.use(bus)
    async with app, AsyncRelay(database, bus, RelayConfig(poll_s=0.005)) as relay:
        yield bus, relay
    app.use(None)


async def handled(bus: MemoryBus, count: int = 1) -> None:
    """Wait until so many deliveries were answered, however often relay and worker had to connect."""
    for _ in range(WAITS_MAX):
        if len(bus.answers("bookings", "points")) >= count:
            break
        await asyncio.sleep(0.01)
    bus.assert_answered("bookings", "points", count=count)


class BookingTests(TransactionTestCase):
    """A booking, from the request to the points."""

    async def test_a_booking_gives_points_once_though_its_message_comes_twice(self) -> None:
        async with running_worker() as (bus, _):
            bus.duplicate_next("bookings")
            answer = await self.async_client.post("/bookings", ROOM_12)
            assert answer.status_code == 201
            await handled(bus, 2)
            answer = await self.async_client.get("/guests/ann")
            assert answer.json() == {"points": POINTS}

    async def test_two_bookings_give_points_twice(self) -> None:
        async with running_worker() as (bus, _):
            for night in ("2026-12-24", "2026-12-25"):
                await self.async_client.post("/bookings", ROOM_12 | {"night": night})
            await handled(bus, 2)
        assert (await Guest.objects.aget(name="ann")).points == 2 * POINTS

    async def test_a_room_is_booked_while_no_broker_is_there(self) -> None:
        async with running_worker() as (bus, _):
            bus.stop_brokers()
            answer = await self.async_client.post("/bookings", ROOM_12)
            assert answer.status_code == 201
            bus.start_brokers()
            await handled(bus)
        assert (await Guest.objects.aget(name="ann")).points == POINTS

    async def test_what_is_not_booked_has_no_message(self) -> None:
        async with running_worker() as (bus, relay):
            await Booking.objects.acreate(**ROOM_12 | {"guest": "bob"})
            answer = await self.async_client.post("/bookings", ROOM_12)
            assert answer.status_code == 400
            with patch.object(Booking, "validate_constraints"):  # it was free a moment before
                answer = await self.async_client.post("/bookings", ROOM_12)
            assert answer.status_code == 409
            answer = await self.async_client.post("/bookings", {"room": "12", "night": "today"})
            assert answer.status_code == 400
            assert await relay.drained()
            assert bus.published("bookings") == []

    def test_a_guest_without_a_booking_is_not_found(self) -> None:
        assert self.client.get("/guests/ann").status_code == 404

    def test_a_worker_that_cannot_start_says_why(self) -> None:
        reason = NotReady("no broker")
        with (
            patch.object(app, "run_blocking", side_effect=reason),
            self.assertRaisesMessage(CommandError, "no broker"),
        ):
            call_command("worker")
