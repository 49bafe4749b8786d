from __future__ import annotations

import asyncio

from bench.harness.consuming import Consuming, Had
from bench.harness.interface import Delivered
from bench.load.bodies import Filler, stamped

MS = 1_000_000
FILLER = Filler.of(bytes(40))


class Receiver:
    """Receiver that gives its deliveries two at a time."""

    def __init__(self, deliveries: list[Delivered]) -> None:
        self.left = deliveries

    async def open(self) -> None: ...

    async def take(self, max_wait_s: float) -> list[Delivered]:
        some, self.left = self.left[:2], self.left[2:]
        return some

    async def close(self) -> None: ...


def consume(deliveries: list[Delivered], start_ns: int = 0) -> Had:
    receiver = Receiver(deliveries)
    consuming = Consuming(receiver, start_ns=start_ns, offset_ns=100 * MS)
    return asyncio.run(consuming.run(lambda: not receiver.left, lambda _count: None))


def test_who_sent_what_is_kept_in_order_with_its_latency() -> None:
    had = consume(
        [
            Delivered(stamped(FILLER, 1, 0, 100 * MS), "mb1", 2 * MS),
            Delivered(stamped(FILLER, 2, 5, 100 * MS), "mb2", 3 * MS),
            Delivered(stamped(FILLER, 1, 1, 100 * MS), "mb1", 4 * MS),
        ]
    )
    assert list(had.publishers) == [1, 2, 1]
    assert list(had.sequences) == [0, 5, 1]
    assert [had.brokers[number] for number in had.broker_of] == ["mb1", "mb2", "mb1"]
    assert sum(had.delivery.whole().values()) == 3
    assert list(had.received_ns) == [102 * MS, 103 * MS, 104 * MS]


def test_an_altered_body_is_counted_and_is_nobodys() -> None:
    whole = stamped(FILLER, 1, 0, 0)
    had = consume([Delivered(whole[:-1] + b"x", "mb1", 0), Delivered(whole, "mb1", 0)])
    assert (had.altered, list(had.sequences)) == (1, [0])


def test_what_an_earlier_run_left_is_counted_apart() -> None:
    old, own = stamped(FILLER, 1, 0, 99 * MS), stamped(FILLER, 1, 0, 100 * MS)
    had = consume([Delivered(old, "mb1", 2 * MS), Delivered(own, "mb1", 3 * MS)], 100 * MS)
    assert had.earlier == 1
    assert list(had.sequences) == [0]
