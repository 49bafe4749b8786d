from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from messagebus._io.consume.batches import Gathering
from messagebus._io.consume.runs import Batch
from messagebus.core.deliveries import Receipt
from messagebus.destination import Queue
from messagebus.handling import Park
from messagebus.message import Delivery, Message


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


async def test_a_full_batch_goes_out_at_once_and_in_order() -> None:
    bench = Bench()
    bench.put(b"a", b"b", b"c", b"d")
    assert bodies(bench.gathering.take()) == b"abc"
    assert bench.gathering.take() is None
    bench.put(b"e", b"f")
    assert bodies(await bench.gathering.receive()) == b"def"


async def test_what_came_goes_out_when_its_time_is_over() -> None:
    bench = Bench(linger_s=0.05)
    waiting = asyncio.create_task(bench.gathering.receive())
    await asyncio.sleep(0)
    bench.put(b"a", b"b")
    assert bodies(await waiting) == b"ab"


async def test_a_stop_sends_out_what_was_gathered_and_nothing_is_empty() -> None:
    bench = Bench()
    bench.put(b"a")
    waiting = asyncio.create_task(bench.gathering.receive())
    await asyncio.sleep(0)
    bench.stop()
    assert bodies(await waiting) == b"a"
    assert await bench.gathering.receive() is None


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


async def test_a_misfit_is_told_and_takes_no_place() -> None:
    def read(each: Delivery) -> str:
        if each.body == b"bad":
            raise Park("no")
        return each.body.decode().upper()

    bench = Bench(read=read)
    bench.put(b"a", b"bad", b"b", b"c")
    batch = bench.gathering.take()
    assert bodies(batch) == b"abc"
    assert batch is not None
    assert batch.payloads == ["A", "B", "C"]
    assert [(body, str(error)) for body, error in bench.misfits] == [(b"bad", "no")]


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
