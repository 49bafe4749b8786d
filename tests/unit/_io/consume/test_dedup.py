"""Deduplication of a consumer: the age of a message, and stores that answer what nobody asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from messagebus import App, Dedup, Message, MessageInvalid, Subscription, Topic
from messagebus._io.amqp.properties import ALONE, encode
from messagebus._io.consume.dedup import _age_ms, dedup_id, dedup_id_of
from messagebus._io.hooks import add_headers
from messagebus.core.claims import Answer, Rule, Turn, key_of
from messagebus.core.deliveries import Ledgers
from messagebus.message import Delivery
from messagebus.stores.memory import MemoryStore
from messagebus.testing import MemoryBus

WITHIN_S = 10
HOUR_S = 3_600
SOURCE = Subscription(Topic("orders"), "billing")


def delivery(message_id: bytes = b"id", **headers: Any) -> Delivery:
    """Return one that was published an hour ago. headers: with underscores for dashes."""
    made = {name.replace("_", "-"): value for name, value in headers.items()}
    place = "~" * len(message_id)
    raw = encode(add_headers(Message(body=b""), made), place, int(time.time()) - HOUR_S)
    raw = raw.replace(place.encode(), message_id)
    ledger = Ledgers().connected("mb1:5672")
    return Delivery._arrived(ledger, 1, 0, SOURCE, False, time.monotonic_ns(), raw, b"", ALONE)


def test_a_message_is_as_old_as_its_first_publish() -> None:
    assert _age_ms(delivery()) >= HOUR_S * 1000
    assert _age_ms(delivery(mb_first_ms=time.time_ns() // 1_000_000)) < 60_000


def test_a_delayed_message_is_as_old_as_the_time_since_it_was_due() -> None:
    death = {"queue": "mb.delay/1800000", "reason": "expired", "time": datetime.now(UTC)}
    assert _age_ms(delivery(x_death=[death])) < 60_000
    elsewhere = {**death, "queue": "orders"}
    assert _age_ms(delivery(x_death=[elsewhere])) >= HOUR_S * 1000


def test_a_redriven_message_is_never_too_old() -> None:
    assert _age_ms(delivery(mb_redriven=1)) == 0


class Strange(MemoryStore):
    """Store that gives one strange answer, to the second turn."""

    def __init__(self, strange: Callable[[], Answer]) -> None:
        super().__init__()
        self._strange, self._turns = strange, 0

    async def turn(self, turn: Turn, rule: Rule) -> Answer:
        self._turns += 1
        return self._strange() if self._turns == 2 else await super().turn(turn, rule)


def cancelled() -> Answer:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    "strange",
    [lambda: None, lambda: Answer([], []), lambda: Answer([None] * 9, []), cancelled],  # type: ignore[list-item]
    ids=["nothing", "too few", "too many", "cancelled"],
)
async def test_a_store_that_answers_what_nobody_asked_is_away(
    strange: Callable[[], Answer],
) -> None:
    bus, seen = MemoryBus(), []
    bus.declare("orders/billing")
    app = App(dedup=Dedup(Strange(strange)))

    @app.subscriber("orders", subscription="billing")
    async def bill(body: bytes) -> None:
        seen.append(body)

    app.use(bus)
    async with app:
        for number in range(3):
            await app.publish("orders", b"%d" % number)
            await bus.handled(WITHIN_S)
    assert sorted(seen) == [b"0", b"1", b"2"]
    bus.assert_answered("orders", "billing", answer="ack", count=3)
    bus.close()


def test_no_id_of_a_publisher_is_that_of_anothers_redrive() -> None:
    """An id such as ``x#r1`` was taken for the first redrive of ``x``: one of both never ran."""
    redriven = key_of("orders/billing", dedup_id("x", 1))
    for forged in ("x#r1", "x1", "x\0001", "x\udc801", dedup_id("x", 0)):
        assert key_of("orders/billing", dedup_id(forged, 0)) != redriven
    with pytest.raises(MessageInvalid):
        Message(body=b"", message_id=dedup_id("x", 1))


def test_ids_of_other_clients_are_told_apart_by_their_bytes() -> None:
    """A counter of eight bytes is no UTF-8 from 128 on: every message behind it passed for its copy."""
    counted = [number.to_bytes(8) for number in (128, 129, 255, 0xC3A9, 0xEDA080)]
    read_alike = "\ufffd".encode()
    raw_ids = [*counted, read_alike, b"\xff", b"\xff\xfe", b"plain"]
    seen = [dedup_id_of(delivery(each)) for each in raw_ids]
    redriven = [dedup_id_of(delivery(each, mb_redriven=1)) for each in raw_ids]
    keys = {key_of("orders/billing", each) for each in (*seen, *redriven)}
    assert len(keys) == 2 * len(raw_ids)
    assert (seen[5], seen[-1]) == ("\ufffd", "plain")
