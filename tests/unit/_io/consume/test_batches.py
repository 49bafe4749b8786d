"""Batches of deliveries, copies among them, and idle consumers."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from messagebus import (
    App,
    Dedup,
    MessageInvalid,
    Park,
    RetryLater,
    RetryPolicy,
    Subscription,
    Topic,
)
from messagebus._io.amqp.properties import ALONE, encode
from messagebus._io.consume.batches import Gathering
from messagebus._io.consume.dedup import dedup_id, dedup_id_of, id_and_age
from messagebus._io.consume.runs import Batch
from messagebus._io.hooks import add_headers
from messagebus.clock import wall_ms
from messagebus.core.claims import Answer, Rule, Turn, key_of
from messagebus.core.deliveries import Ledgers, Receipt
from messagebus.destination import Queue
from messagebus.message import Delivery, Message
from messagebus.stores.memory import MemoryStore
from messagebus.testing import MemoryBus


def delivery(body: bytes = b"x") -> Delivery:
    return Delivery(Message(body=body), Receipt("mb1:5672", 1, 1), Queue("jobs"))


class Bench:
    """Consumer with deliveries that the test puts in."""

    def __init__(self, size: int = 3, linger_s: float = 60, **options: Any) -> None:
        self.waiting: deque[Delivery] = deque()
        self.came = asyncio.Event()
        self.stopped = False
        self.misfits: list[tuple[bytes, Exception]] = []
        self.gathering = Gathering(
            size,
            linger_s,
            take=self.take,
            receive=self.receive,
            is_over=lambda: self.stopped,
            is_wanted=lambda each: each._ledger.is_live,
            **options,
        )
        self.gathering.on_misfit = lambda each, error: self.misfits.append((each.body, error))

    def put(self, *bodies: bytes) -> None:
        self.waiting += [delivery(body) for body in bodies]
        self.came.set()

    def take(self) -> Delivery | None:
        return self.waiting.popleft() if self.waiting else None

    async def receive(self, timeout_s: float | None) -> Delivery | None:
        try:
            async with asyncio.timeout(timeout_s):
                while not self.waiting and not self.stopped:
                    self.came.clear()
                    await self.came.wait()
        except TimeoutError:
            return None
        return self.take()

    def stop(self) -> None:
        self.stopped = True
        self.came.set()


def bodies(batch: Batch | None) -> bytes:
    assert batch is not None
    return b"".join(each.body for each in batch)


async def test_two_that_take_share_no_delivery_and_none_waits_for_ever() -> None:
    """A run that ends takes the deliveries that the waiting one had begun to gather."""
    bench = Bench(linger_s=0.05)
    bench.put(b"a")
    waiting = asyncio.create_task(bench.gathering.receive())
    await asyncio.sleep(0)
    bench.put(b"b", b"c")
    assert bodies(bench.gathering.take()) == b"abc"
    bench.put(b"d")
    assert bodies(await waiting) == b"d"


async def test_what_its_link_lost_meanwhile_is_left_out_because_it_comes_again() -> None:
    bench = Bench(linger_s=0.05, read=lambda each: each.body)
    bench.put(b"a", b"b")
    assert bench.gathering.take() is None
    bench.gathering._held[0]._ledger.end()
    batch = await bench.gathering.receive()
    assert bodies(batch) == b"b"
    assert batch is not None
    assert batch.payloads == [b"b"]


async def test_what_is_withdrawn_is_in_no_batch() -> None:
    bench = Bench(linger_s=0)
    bench.put(b"a")
    bench.gathering._add(bench.waiting.popleft())
    assert bodies(bench.gathering.withdraw()) == b"a"
    assert bench.gathering.take() is None


WITHIN_S = 60
HOUR_S = 3_600
SOURCE = Subscription(Topic("orders"), "billing")


def raw_delivery(message_id: bytes = b"id", **headers: Any) -> Delivery:
    """Return one that was published an hour ago. headers: with underscores for dashes."""
    made = {name.replace("_", "-"): value for name, value in headers.items()}
    place = "~" * len(message_id)
    raw = encode(add_headers(Message(body=b""), made), place, int(time.time()) - HOUR_S)
    raw = raw.replace(place.encode(), message_id)
    ledger = Ledgers().connected("mb1:5672")
    return Delivery._arrived(ledger, 1, 0, SOURCE, False, time.monotonic_ns(), raw, b"", ALONE)


def _age_ms(delivery: Delivery) -> int:
    return id_and_age(delivery, wall_ms())[1]


def test_a_message_is_as_old_as_its_first_publish() -> None:
    assert _age_ms(raw_delivery()) >= HOUR_S * 1000
    assert _age_ms(raw_delivery(mb_first_ms=time.time_ns() // 1_000_000)) < 60_000


def test_a_delayed_message_is_as_old_as_the_time_since_it_was_due() -> None:
    death = {"queue": "mb.delay/1800000", "reason": "expired", "time": datetime.now(UTC)}
    assert _age_ms(raw_delivery(x_death=[death])) < 60_000
    elsewhere = {**death, "queue": "orders"}
    assert _age_ms(raw_delivery(x_death=[elsewhere])) >= HOUR_S * 1000


def test_a_redriven_message_is_never_too_old() -> None:
    assert _age_ms(raw_delivery(mb_redriven=1)) == 0
    named = raw_delivery(n="mb-redriven")
    assert _age_ms(named) > 1_000, "its words alone are no redriving"


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
    seen = [dedup_id_of(raw_delivery(each)) for each in raw_ids]
    redriven = [dedup_id_of(raw_delivery(each, mb_redriven=1)) for each in raw_ids]
    assert seen == [id_and_age(raw_delivery(each), wall_ms())[0] for each in raw_ids]
    keys = {key_of("orders/billing", each) for each in (*seen, *redriven)}
    assert len(keys) == 2 * len(raw_ids)
    assert (seen[5], seen[-1]) == ("\ufffd", "plain")


async def test_an_answer_of_a_batch_that_says_nothing_is_a_failed_run_and_no_ack() -> None:
    bus, app = MemoryBus(), App()
    app.use(bus)

    @app.subscriber("queue:jobs", batch=4, linger_s=60, retry=RetryPolicy(attempts_max=1))
    async def handle(bodies: list[bytes], deliveries: list[Delivery]) -> dict[Delivery, object]:
        meant = [
            Park,
            RetryLater,
            (each for each in bodies),
            None,
        ]
        return dict(zip(deliveries, meant, strict=True))

    async with app:
        await app.publisher.send_many("queue:jobs", [b"%d" % n for n in range(4)])
        await bus.handled()
    bus.assert_answered("queue:jobs", answer="ack", count=1)
    parked = bus.assert_parked("queue:jobs", count=3)
    assert [each.body for each in parked] == [b"0", b"1", b"2"]
