"""_io.consume.ordering: lanes behind an inbox; links that end, answers in place, what goes back in order."""

from __future__ import annotations

import asyncio

import pytest

from messagebus._io.amqp.properties import encode
from messagebus._io.consume.ordering import Ordering, key_of
from messagebus._io.consume.runs import PARK_KEY, STOP_MS
from messagebus.destination import Queue
from messagebus.handling import park_headers, retry_headers
from messagebus.message import Delivery, Message
from tests.support.eventually import eventually_async
from tests.unit._io.consume.test_inbox import MB1, Bench

WITHIN_S = 60.0


class OrderedBench(Bench):
    """An inbox whose deliveries are ordered. runs_handlers: each delivery has an end."""

    def __init__(self, order: str = "key", *, runs_handlers: bool = True) -> None:
        super().__init__(Queue("jobs"))
        self.order = Ordering(order, self.inbox, None, self._turn)
        self.order.runs_handlers = runs_handlers
        self.inbox.keep_order(self.order)

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


async def test_an_ack_hands_the_next_of_its_key_out() -> None:
    bench = OrderedBench()
    bench.arrive("a1", "a2", "b1")
    first, _other = bench.taken()
    assert (bench.inbox.buffered, bench.inbox.handed_out) == (1, 2)
    assert bench.inbox.ack(first)
    assert bench.bodies() == ["a2"]


async def test_a_partition_is_all_of_a_broker() -> None:
    bench = OrderedBench("partition")
    bench.arrive("a1", "b1")
    (first,) = bench.taken()
    bench.inbox.ack(first)
    assert bench.bodies() == ["b1"]


async def test_what_handlers_run_of_a_lost_link_keeps_its_key_until_it_ends() -> None:
    bench = OrderedBench()
    bench.arrive("a1", "a2", "b1")
    first, other = bench.taken()
    bench.relink()
    bench.arrive("a1", "a2", "b1")
    assert bench.bodies() == []
    assert not bench.inbox.ack(other)
    assert bench.bodies() == ["b1"]
    assert not await bench.inbox.retry(first, delay_ms=0, headers={})
    assert bench.bodies() == ["a1"]
    assert bench.inbox.counters.acks_stale == 2


async def test_whoever_waits_hears_of_what_a_stale_answer_lets_out() -> None:
    bench = OrderedBench()
    bench.arrive("a1", "b1", "c1")
    first, second, third = bench.taken()
    bench.relink()
    bench.arrive("a1", "b1", "c1")
    for end in (
        lambda: bench.inbox.never_seen([first]),
        lambda: bench.inbox.ack(second),
        lambda: bench.inbox.nack(third, requeue=True),
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
    (first,) = (bench.inbox.take(),)
    assert first is not None
    bench.relink()
    bench.arrive("b1")
    assert bench.bodies() == ["b1"]
    bench.inbox.never_seen([first])
    bench.arrive("a1", first=2)
    assert bench.bodies() == ["a1"]


async def test_a_retry_rests_in_place_with_its_attempt_and_leaves_no_copy() -> None:
    bench = OrderedBench()
    bench.arrive("a1", "a2")
    (first,) = bench.taken()
    assert await bench.inbox.retry(first, delay_ms=1_000, headers=again(first))  # type: ignore[arg-type]
    assert bench.bodies() == []
    assert bench.order.stats()["keys_resting"] == 1
    bench.order.put_forward(1_000)
    (found,) = bench.taken()
    assert (found.body, found.attempt) == (b"a1", 2)
    assert (bench.copies.later, bench.copies.given_back, bench.transport.nacks) == ([], [], [])


async def test_a_rest_ends_by_itself() -> None:
    bench = OrderedBench()
    bench.arrive("a1")
    (first,) = bench.taken()
    turns = bench.turns
    assert bench.inbox.nack(first, requeue=True)
    await eventually_async(lambda: bench.turns > turns, within_s=WITHIN_S)
    (found,) = bench.taken()
    assert (found.body, found.attempt) == (b"a1", 1)
    bench.order.stop()


async def test_a_rejected_one_is_a_gap_and_the_next_goes_on() -> None:
    bench = OrderedBench()
    bench.arrive("a1", "a2")
    (first,) = bench.taken()
    assert bench.inbox.nack(first, requeue=False)
    assert (bench.bodies(), bench.order.gaps, bench.transport.nacks) == (["a2"], 1, [(1, False)])


@pytest.mark.parametrize("stored", [True, False])
async def test_the_next_of_a_key_waits_until_the_copy_of_a_parked_one_is_stored(
    stored: bool,
) -> None:
    bench = OrderedBench()
    bench.copies.gate, bench.copies.works = asyncio.Event(), stored
    bench.arrive("a1", "a2")
    (first,) = bench.taken()
    parking = asyncio.create_task(bench.inbox.park(first, headers=park_headers(first, "why", "")))
    await eventually_async(lambda: bench.copies.parked, within_s=WITHIN_S)
    assert bench.bodies() == []
    bench.copies.gate.set()
    assert await parking is stored
    assert bench.bodies() == ["a2"]


async def test_a_parked_key_takes_what_follows_along() -> None:
    bench = OrderedBench()
    bench.arrive("a1", "a2", "b1", "a3")
    first, _other = bench.taken()
    headers = park_headers(first, "why", "") | {PARK_KEY: True}
    assert await bench.inbox.park(first, headers=headers)
    await eventually_async(lambda: len(bench.copies.parked) == 3, within_s=WITHIN_S)
    assert [body for body, _why in bench.copies.parked] == [b"a1", b"a2", b"a3"]
    assert (bench.order.gaps, bench.order.stats()["keys_parked"]) == (3, 1)
    assert bench.bodies() == []


async def test_a_stopped_key_goes_back_with_its_link_and_holds_it_not() -> None:
    bench = OrderedBench()
    bench.arrive("a1", "a2")
    (first,) = bench.taken()
    assert await bench.inbox.retry(first, delay_ms=STOP_MS, headers=again(first))  # type: ignore[arg-type]
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
    assert bench.inbox.nack(first, requeue=True)
    bench.inbox.ack(other)
    assert not bench.inbox.holds(MB1)
    assert (bench.bodies(), bench.inbox.buffered) == ([], 0)


async def test_a_key_is_read_where_it_is_first_behind_other_headers_and_in_a_decoded_message() -> (
    None
):
    bench = OrderedBench()
    plain = encode(Message(body=b"", key="k"), "1", 17)
    behind = encode(Message(body=b"", key="k", headers={"tenant": "x"}), "2", 17)
    bench.transport.on_contents([(1, False, plain, b""), (2, False, behind, b"")])
    (first,) = bench.taken()
    bench.inbox.ack(first)
    (second,) = bench.taken()
    assert (key_of(first), key_of(second), second.message.key) == ("k", "k", "k")
    assert key_of(second) == "k"
    bench.arrive("1", first=3)
    (alone,) = bench.taken()
    assert key_of(alone) is alone
    assert alone.message.key == ""
    assert key_of(alone) is alone
