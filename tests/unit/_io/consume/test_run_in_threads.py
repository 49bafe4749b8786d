"""_io.consume.run_in_threads: jobs go to the threads in order, also when some are withdrawn meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from messagebus import Delivery, Message, Queue, Receipt
from messagebus._io.consume.run_in_threads import AHEAD, Bridge

S = 1_000_000_000
COUNT = 5_000


def delivery(number: int) -> Delivery:
    receipt = Receipt("mb1:5672", 1, number)
    return Delivery(Message(body=b""), receipt, Queue("q"), received_ns=number * S)


class FakeAnswering:
    def ack(self, _delivery: Delivery) -> bool:
        return True

    def retry(self, *_what: Any) -> bool:
        return True

    def park(self, *_what: Any) -> bool:
        return True


def bridge(take: Callable[[], Delivery | None], threads: int = 1) -> Bridge:
    async def none_left() -> Delivery | None:
        return None

    return Bridge(threads=threads, take=take, receive=none_left, answering=FakeAnswering())


async def fed(count: int) -> Bridge:
    jobs = [delivery(number) for number in range(1, count + 1)]
    made = bridge(lambda: jobs.pop(0) if jobs else None)
    await made.feed()
    return made


def tags(found: list[Delivery]) -> list[int]:
    return [each.receipt.tag for each in found]


async def test_what_is_old_is_withdrawn_in_order_and_the_rest_stays() -> None:
    made = await fed(5)
    assert tags(made.withdraw(3 * S)) == [1, 2]
    assert tags(made.withdraw(3 * S, all_if_any=True)) == []
    first = made.receive()
    assert isinstance(first, Delivery)
    assert first.receipt.tag == 3
    assert tags(made.withdraw(5 * S, all_if_any=True)) == [4, 5]
    assert made.receive() is None, "the end stands behind them all"


async def test_what_is_answered_without_a_thread_makes_no_room_for_more() -> None:
    """A delivery of a batch that does not fit its type is answered so."""
    jobs = [delivery(number) for number in range(1, 200)]

    def take() -> Delivery | None:
        for misfit in (jobs.pop(0), jobs.pop(0)):
            answer(misfit, ValueError("x"))
        return jobs.pop(0)

    made = bridge(take)
    answer = made.answers(lambda misfit, _fault: made.park(misfit, {}))
    feeding = asyncio.create_task(made.feed())
    for _ in range(100):  # of its answers each makes room for more, until all are counted
        await asyncio.sleep(0)
    assert len(made.withdraw(None)) == 1 + AHEAD
    feeding.cancel()


async def test_all_is_withdrawn_but_the_end() -> None:
    made = await fed(3)
    assert tags(made.withdraw(None)) == [1, 2, 3]
    assert made.receive() is None


async def test_one_thread_gets_the_jobs_in_order_while_somebody_looks_for_old_ones() -> None:
    jobs, seen = [delivery(number) for number in range(1, COUNT + 1)], list[int]()
    jobs.reverse()
    made = bridge(lambda: jobs.pop() if jobs else None)

    def work() -> None:
        while isinstance(job := made.receive(), Delivery):
            seen.append(job.receipt.tag)
            made.ack(job)

    worker = threading.Thread(target=work)
    worker.start()
    feeding = asyncio.create_task(made.feed())
    looked = 0
    while not feeding.done():
        assert made.withdraw(0) == []
        looked += 1
        await asyncio.sleep(0)
    await asyncio.to_thread(worker.join)
    assert looked > 0
    assert seen == list(range(1, COUNT + 1))


async def test_what_is_withdrawn_leaves_no_thread_without_its_job() -> None:
    jobs, seen, withdrawn = [delivery(n) for n in range(1, 2_001)], list[int](), list[int]()
    jobs.reverse()
    made = bridge(lambda: jobs.pop() if jobs else None, threads=3)
    lock = threading.Lock()

    def work() -> None:
        while isinstance(job := made.receive(), Delivery):
            with lock:
                seen.append(job.receipt.tag)
            made.ack(job)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for each in workers:
        each.start()
    feeding = asyncio.create_task(made.feed())
    while not feeding.done():
        withdrawn += tags(made.withdraw(None))
        await asyncio.sleep(0)
    for each in workers:
        await asyncio.to_thread(each.join)
    assert sorted(seen + withdrawn) == list(range(1, 2_001))
