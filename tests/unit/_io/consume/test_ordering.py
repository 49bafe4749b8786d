"""Handlers in threads and on the loop, and the order of their deliveries."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from messagebus import Receipt
from messagebus._io.amqp.properties import encode
from messagebus._io.consume import run_on_loop
from messagebus._io.consume.ordered import key_of
from messagebus._io.consume.run_in_threads import AHEAD, Bridge
from messagebus._io.consume.run_on_loop import LoopWatch, _watches, watched
from messagebus._io.consume.runs import PARK_KEY, STOP_MS
from messagebus._io.loop import starved_s
from messagebus.consumer import Order
from messagebus.core.parking import REDRIVEN
from messagebus.destination import Queue
from messagebus.handling import park_headers, retry_headers
from messagebus.message import Delivery, Message
from tests.support.eventually import eventually_async
from tests.unit._io.consume.test_inbox import MB1, Bench

WITHIN_S = 60.0


class OrderedBench(Bench):
    """An inbox whose deliveries are ordered. runs_handlers: each delivery has an end."""

    def __init__(self, order: Order = "key", *, runs_handlers: bool = True) -> None:
        super().__init__(Queue("jobs"), order)
        assert self.pipeline.ordered is not None
        self.order = self.pipeline.ordered
        self.order.runs_handlers = runs_handlers

    def arrive(self, *names: str, first: int = 1) -> None:
        """Deliver ``key:body`` each, with tags from `first`."""
        self.transport.on_contents(
            [
                (tag, False, encode(Message(body=b"", key=name[:-1]), name, 17), name.encode())
                for tag, name in enumerate(names, start=first)
            ]
        )

    def bodies(self) -> list[str]:
        return [delivery.body.decode() for delivery in self.taken()]


def again(delivery: Delivery) -> dict[str, object]:
    return dict(retry_headers(delivery, delivery.attempt + 1, "failed"))


async def test_what_handlers_run_of_a_lost_link_keeps_its_key_until_it_ends() -> None:
    bench = OrderedBench()
    bench.arrive("a1", "a2", "b1")
    first, other = bench.taken()
    bench.relink()
    bench.arrive("a1", "a2", "b1")
    assert bench.bodies() == []
    assert not bench.stage.ack(other)
    assert bench.bodies() == ["b1"]
    assert not await bench.stage.retry(first, delay_ms=0, headers={})
    assert bench.bodies() == ["a1"]
    assert bench.counters.acks_stale == 2


async def test_whoever_waits_hears_of_what_a_stale_answer_lets_out() -> None:
    bench = OrderedBench()
    bench.arrive("a1", "b1", "c1")
    first, second, third = bench.taken()
    bench.relink()
    bench.arrive("a1", "b1", "c1")
    for end in (
        lambda: bench.stage.never_answered([first]),
        lambda: bench.stage.ack(second),
        lambda: bench.stage.nack(third, requeue=True),
    ):
        turns = bench.turns
        end()
        await eventually_async(lambda turns=turns: bench.turns > turns, within_s=WITHIN_S)  # type: ignore[misc]
        assert len(bench.bodies()) == 1


async def test_without_handlers_nobody_may_answer_what_a_lost_link_left() -> None:
    bench = OrderedBench(runs_handlers=False)
    bench.arrive("a1", "a2")
    bench.taken()
    bench.relink()
    bench.arrive("a1", "a2")
    assert bench.bodies() == ["a1"]


async def test_what_nobody_saw_of_a_lost_link_keeps_no_key() -> None:
    bench = OrderedBench()
    bench.arrive("a1", "a2", "b1")
    (first,) = (bench.stage.take(),)
    assert first is not None
    bench.relink()
    bench.arrive("b1")
    assert bench.bodies() == ["b1"]
    bench.stage.never_answered([first])
    bench.arrive("a1", first=2)
    assert bench.bodies() == ["a1"]


async def test_a_retry_rests_in_place_with_its_attempt_and_leaves_no_copy() -> None:
    bench = OrderedBench()
    bench.arrive("a1", "a2")
    (first,) = bench.taken()
    assert await bench.stage.retry(first, delay_ms=1_000, headers=again(first))  # type: ignore[arg-type]
    assert bench.bodies() == []
    assert bench.order.stats()["keys_resting"] == 1
    bench.pipeline.put_forward(1_000)
    (found,) = bench.taken()
    assert (found.body, found.attempt) == (b"a1", 2)
    assert (bench.copies.later, bench.copies.given_back, bench.transport.nacks) == ([], [], [])


async def test_a_rest_ends_by_itself() -> None:
    bench = OrderedBench()
    bench.arrive("a1")
    (first,) = bench.taken()
    turns = bench.turns
    assert bench.stage.nack(first, requeue=True)
    await eventually_async(lambda: bench.turns > turns, within_s=WITHIN_S)
    (found,) = bench.taken()
    assert (found.body, found.attempt) == (b"a1", 1)
    bench.pipeline.stop()


async def test_a_rejected_one_is_a_gap_and_the_next_goes_on() -> None:
    bench = OrderedBench()
    bench.arrive("a1", "a2")
    (first,) = bench.taken()
    assert bench.stage.nack(first, requeue=False)
    bench.inbox.flush()
    assert (bench.bodies(), bench.order.gaps, bench.transport.nacks) == (["a2"], 1, [(1, False)])


async def test_a_parked_key_is_lifted_by_the_header_of_a_redriven_message_and_by_no_other_words() -> (
    None
):
    bench = OrderedBench()
    bench.arrive("a1")
    (first,) = bench.taken()
    headers = {**park_headers(first, "failed", ""), PARK_KEY: True}
    assert await bench.stage.park(first, headers=headers)
    words = Message(body=b"", key="a", correlation_id=REDRIVEN, headers={"n": REDRIVEN})
    bench.transport.on_contents([(2, False, encode(words, "a2", 17), b"a2")])
    assert (bench.bodies(), bench.order.keyed.parked) == ([], 1)


@pytest.mark.parametrize("answer", ["park", "reject"])
async def test_what_is_parked_over_a_lost_link_is_no_gap_and_runs_again_before_its_key_is_parked(
    answer: str,
) -> None:
    bench = OrderedBench()
    bench.arrive("a1", "a2")
    (first,) = bench.taken()
    bench.relink()
    bench.arrive("a1", "a2")
    if answer == "park":
        headers = {**park_headers(first, "failed", ""), PARK_KEY: True}
        assert not await bench.stage.park(first, headers=headers)
    else:
        assert not bench.stage.nack(first, requeue=False)
    assert bench.bodies() == ["a1"]
    assert (bench.order.gaps, bench.order.keyed.parked) == (0, 0)


@pytest.mark.parametrize("stored", [True, False])
async def test_the_next_of_a_key_waits_until_the_copy_of_a_parked_one_is_stored(
    stored: bool,
) -> None:
    bench = OrderedBench()
    bench.copies.gate, bench.copies.works = asyncio.Event(), stored
    bench.arrive("a1", "a2")
    (first,) = bench.taken()
    parking = asyncio.ensure_future(bench.stage.park(first, headers=park_headers(first, "why", "")))
    await eventually_async(lambda: bench.copies.parked, within_s=WITHIN_S)
    assert bench.bodies() == []
    bench.copies.gate.set()
    assert await parking is stored
    assert bench.bodies() == ["a2"]


async def test_a_stopped_key_goes_back_with_its_link_and_holds_it_not() -> None:
    bench = OrderedBench()
    bench.arrive("a1", "a2")
    (first,) = bench.taken()
    assert await bench.stage.retry(first, delay_ms=STOP_MS, headers=again(first))  # type: ignore[arg-type]
    assert bench.order.stats()["keys_stopped"] == 1
    assert not bench.inbox.holds(MB1)
    oldest = bench.inbox.oldest(MB1)
    assert oldest is first


async def test_what_fails_after_its_link_is_to_be_let_go_goes_back_in_its_place() -> None:
    bench = OrderedBench()
    bench.arrive("a1", "a2", "b1")
    first, other = bench.taken()
    bench.inbox.keep_back(MB1, [])
    assert bench.inbox.holds(MB1)
    assert bench.stage.nack(first, requeue=True)
    bench.stage.ack(other)
    assert not bench.inbox.holds(MB1)
    assert (bench.bodies(), bench.stage.buffered()) == ([], 0)


async def test_a_key_is_read_where_it_is_first_behind_other_headers_and_in_a_decoded_message() -> (
    None
):
    bench = OrderedBench()
    plain = encode(Message(body=b"", key="k"), "1", 17)
    behind = encode(Message(body=b"", key="k", headers={"tenant": "x"}), "2", 17)
    bench.transport.on_contents([(1, False, plain, b""), (2, False, behind, b"")])
    (first,) = bench.taken()
    bench.stage.ack(first)
    (second,) = bench.taken()
    assert (key_of(first), key_of(second), second.message.key) == ("k", "k", "k")
    assert key_of(second) == "k"
    bench.arrive("1", first=3)
    (alone,) = bench.taken()
    assert key_of(alone) is alone
    assert alone.message.key == ""
    assert key_of(alone) is alone


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


# A time to which seconds are added without rounding; of the clock's own, 100 s later may be a little less.
WHOLE_S = 1_000.0


def describe(_task: asyncio.Task[object]) -> str:
    return "handler=bill message=id"


async def test_a_blocked_loop_is_told_once_and_again_at_ten_times_as_long(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = LoopWatch(blocked_s=1)
    watch.describing += [lambda _task: "", describe]
    watch._beaten_s = start_s = WHOLE_S
    for blocked_s in (0.5, 1.0, 2.0, 9.9, 10.0, 50.0, 100.0):
        watch.look(start_s + blocked_s)
    assert [line.split(" at=")[0] for line in caplog.messages] == [
        f"loop blocked blocked_s={blocked_s} handler=bill message=id"
        for blocked_s in ("1.0", "10.0", "100.0")
    ]
    assert "test_ordering.py" in caplog.text


async def test_each_time_that_it_is_blocked_is_told(caplog: pytest.LogCaptureFixture) -> None:
    watch = LoopWatch(blocked_s=1)
    watch._beaten_s = WHOLE_S
    watch.look(watch._beaten_s + 1)
    watch._beaten_s += 5
    watch.look(watch._beaten_s)
    watch.look(watch._beaten_s + 1)
    assert len(caplog.messages) == 2
    assert "handler=unknown" in caplog.text


async def test_a_machine_without_a_free_processor_is_blamed_on_no_handler(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, waited_s = LoopWatch(blocked_s=1), [100.0]
    monkeypatch.setattr(run_on_loop, "starved_s", lambda _thread: waited_s[0])
    watch.describing += [describe]
    watch._beaten_s = WHOLE_S
    watch.look(WHOLE_S)
    for now_s, waited_s[0] in ((2.0, 101.5), (3.0, 102.0), (4.0, 102.0)):
        watch.look(WHOLE_S + now_s)
    assert [line.split(":")[0] for line in caplog.messages] == [
        "no processor for the loop blocked_s=2.0 starved_s=1.5"
    ]
    assert "handler=bill" not in caplog.text
    watch.look(WHOLE_S + 40)
    assert "loop blocked blocked_s=40.0 handler=bill" in caplog.text


def test_the_wait_for_a_processor_is_read_from_the_kernel() -> None:
    assert starved_s(threading.get_native_id()) > 0


async def test_one_watch_serves_all_handlers_of_a_loop() -> None:
    with watched(describe):
        (watch,) = _watches.values()
        with watched(lambda _task: ""):
            assert list(_watches.values()) == [watch]
            assert len(watch.describing) == 2
        assert watch.describing == [describe]
    assert not _watches
