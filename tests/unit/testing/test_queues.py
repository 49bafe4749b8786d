"""testing.queues: as RabbitMQ's, for every order of publishes, deliveries and answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from messagebus._io.amqp.properties import encode
from messagebus.message import Message
from messagebus.testing.queues import Arrived, MemoryQueue, Stored, Taker
from tests.support.examples import examples

ROUTE: Any = SimpleNamespace(exchange="mb.topic/orders", key="")
LIMIT = 3


class Bench:
    """One queue, a clock, and the fate of its messages."""

    def __init__(self, **arguments: Any) -> None:
        self.now_ms = 0
        self.gone: list[tuple[bytes, str]] = []
        self.queue = MemoryQueue(
            "q",
            {"x-queue-type": "quorum", **arguments},
            delivery_limit=None,
            dead_letter=lambda _queue, stored, why: self.gone.append((stored.body, why)),
            clock=lambda: self.now_ms,
        )
        self._places = 0

    def put(self, body: str, *, ttl_ms: int | None = None) -> None:
        raw = encode(Message(body=b"", ttl_s=None if ttl_ms is None else ttl_ms / 1000), body, 0)
        self._places += 1
        self.queue.put(Stored(self._places, ROUTE, raw, body.encode()))
        self.queue.hand_out()

    def taker(self, prefetch: int = 10) -> tuple[Taker, list[Arrived]]:
        arrived: list[Arrived] = []
        taker = Taker(self.queue, prefetch, arrived.extend)
        self.queue.attach(taker)
        return taker, arrived


def bodies(arrived: list[Arrived]) -> list[str]:
    return [body.decode() for _, _, _, body in arrived]


def test_a_prefetch_of_zero_has_no_limit() -> None:
    bench = Bench()
    _, arrived = bench.taker(0)
    for body in "abcd":
        bench.put(body)
    assert bodies(arrived) == ["a", "b", "c", "d"]


def test_one_taker_that_consumes_again_gets_new_tags_and_all_of_its_prefetch() -> None:
    bench = Bench()
    taker, arrived = bench.taker(2)
    for body in "abcdefg":
        bench.put(body)
    bench.queue.cancel(taker)
    taker.again(taker.prefetch)
    bench.queue.attach(taker)
    assert [tag for tag, _, _, _ in arrived] == [1, 2, 3, 4]
    assert [each.body for each in bench.queue.ack(taker, 1, False)] == [b"a"]
    bench.queue.hand_out()
    assert bodies(arrived) == ["a", "b", "c", "d"]
    assert [each.body for each in bench.queue.ack(taker, 3, True)] == [b"b", b"c"]
    bench.queue.hand_out()
    assert bodies(arrived) == ["a", "b", "c", "d", "e"]


def test_one_taker_that_cancels_may_still_answer() -> None:
    bench = Bench()
    taker, arrived = bench.taker()
    bench.put("a")
    bench.queue.cancel(taker)
    bench.put("b")
    assert bodies(arrived) == ["a"]
    assert bench.queue.unacked == 1
    assert len(bench.queue.ack(taker, 1, False)) == 1
    bench.queue.detach(taker)
    assert [each.body for each in bench.queue.ready] == [b"b"]


def test_only_the_first_taker_is_served_where_one_may_be_active() -> None:
    bench = Bench(**{"x-single-active-consumer": True})
    (first, got), (_, waits) = bench.taker(), bench.taker()
    bench.put("a")
    assert (bodies(got), bodies(waits)) == (["a"], [])
    bench.queue.detach(first)
    assert bodies(waits) == ["a"]


def test_what_waits_too_long_goes_from_the_head_only() -> None:
    bench = Bench()
    bench.put("short", ttl_ms=10)
    bench.put("long")
    bench.put("shorter", ttl_ms=5)
    bench.now_ms = 20
    bench.queue.expire()
    assert bench.gone == [(b"short", "expired")]
    _, arrived = bench.taker(1)
    assert bodies(arrived) == ["long"]
    assert bench.queue.due_ms() == 5
    bench.queue.expire()
    assert bench.gone[1:] == [(b"shorter", "expired")]


def test_what_is_over_is_not_handed_out_behind_what_is_not() -> None:
    bench = Bench()
    bench.put("a")
    bench.put("b", ttl_ms=5)
    bench.put("c")
    bench.now_ms = 5
    _, arrived = bench.taker()
    assert bodies(arrived) == ["a", "c"]


def test_what_may_wait_for_nobody_is_for_who_has_room_now() -> None:
    bench = Bench()
    _, arrived = bench.taker(1)
    bench.put("a", ttl_ms=0)
    bench.put("b", ttl_ms=0)
    assert bodies(arrived) == ["a"]
    assert bench.gone == [(b"b", "expired")]


def test_what_may_wait_for_nobody_goes_when_it_comes_to_the_head() -> None:
    bench = Bench()
    bench.put("a")
    bench.put("b", ttl_ms=0)
    bench.put("c")
    assert bench.gone == []
    _, arrived = bench.taker(1)
    assert bodies(arrived) == ["a"]
    assert bench.gone == [(b"b", "expired")]


def test_what_may_wait_for_nobody_does_not_come_again() -> None:
    bench = Bench()
    taker, _ = bench.taker(1)
    bench.put("a", ttl_ms=0)
    bench.queue.nack(taker, 1, True)
    assert bench.gone == [(b"a", "expired")]


@pytest.mark.parametrize(("kind", "order"), [("quorum", "dbce"), ("classic", "bcde")])
def test_what_is_given_back_goes_out_first_and_in_the_order_of_its_kind(
    kind: str, order: str
) -> None:
    bench = Bench(**{"x-queue-type": kind})
    taker, _ = bench.taker(4)
    for body in "abcde":
        bench.put(body)
    bench.queue.cancel(taker)
    for tag in (4, 2):
        bench.queue.nack(taker, tag, True)
    bench.queue.ack(taker, 1, False)
    bench.queue.detach(taker)
    _, arrived = bench.taker()
    assert bodies(arrived) == list(order)


@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_what_is_given_back_comes_at_once_to_who_has_room(kind: str) -> None:
    bench = Bench(**{"x-queue-type": kind})
    taker, arrived = bench.taker(2)
    bench.put("a")
    bench.put("b")
    bench.queue.nack(taker, 2, True)
    bench.queue.nack(taker, 1, True)
    assert bodies(arrived) == ["a", "b", "b", "a"]


def test_a_taker_that_goes_gives_back_in_the_order_in_which_it_got() -> None:
    bench = Bench()
    taker, _ = bench.taker()
    for body in "abc":
        bench.put(body)
    bench.queue.nack(taker, 1, True)
    bench.queue.detach(taker)
    _, arrived = bench.taker()
    assert bodies(arrived) == ["b", "c", "a"]


def test_an_unused_queue_is_gone_in_time_and_a_used_one_never() -> None:
    bench = Bench(**{"x-expires": 100})
    assert bench.queue.gone_ms() == 100
    bench.now_ms = 50
    taker, _ = bench.taker()
    assert bench.queue.gone_ms() > 1 << 60
    bench.now_ms = 70
    bench.queue.detach(taker)
    assert bench.queue.gone_ms() == 170


class AgainstAnOracle(RuleBasedStateMachine):
    """Machine with any number of takers; its oracle keeps one sorted list and one table of who has what."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(**{"x-delivery-limit": LIMIT})
        self.takers: list[tuple[Taker, list[Arrived]]] = []
        self.count = 0
        self.back: dict[bytes, int] = {}
        self.acked: set[bytes] = set()
        self.lost: set[bytes] = set()

    @rule()
    def publish(self) -> None:
        self.count += 1
        self.bench.put(str(self.count))

    @precondition(lambda self: len(self.takers) < 3)
    @rule(prefetch=st.integers(1, 3))
    def attach(self, prefetch: int) -> None:
        self.takers.append(self.bench.taker(prefetch))

    def returned(self, stored: list[Stored]) -> None:
        for each in stored:
            self.back[each.body] = self.back.get(each.body, 0) + 1
            if self.back[each.body] > LIMIT:
                self.lost.add(each.body)

    @precondition(lambda self: self.takers)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        taker, _ = data.draw(st.sampled_from(self.takers))
        if not taker.unacked:
            return
        tag = data.draw(st.sampled_from(sorted(taker.unacked)))
        match data.draw(st.sampled_from(["ack", "ack all", "requeue", "reject"])):
            case "ack":
                self.acked |= {each.body for each in self.bench.queue.ack(taker, tag, False)}
            case "ack all":
                wanted = {each.body for t, each in taker.unacked.items() if t <= tag}
                assert {e.body for e in self.bench.queue.ack(taker, tag, True)} == wanted
                self.acked |= wanted
            case "requeue":
                self.returned([taker.unacked[tag]])
                self.bench.queue.nack(taker, tag, True)
            case "reject":
                self.lost.add(taker.unacked[tag].body)
                self.bench.queue.nack(taker, tag, False)
        self.bench.queue.hand_out()

    @precondition(lambda self: self.takers)
    @rule(data=st.data(), politely=st.booleans())
    def detach(self, data: st.DataObject, politely: bool) -> None:
        taker, _ = self.takers.pop(data.draw(st.integers(0, len(self.takers) - 1)))
        if politely:
            self.bench.queue.cancel(taker)
        self.returned(list(taker.unacked.values()))
        self.bench.queue.detach(taker)

    @invariant()
    def everything_is_somewhere_once(self) -> None:
        ready = [each.body for each in self.bench.queue.ready]
        held = [each.body for taker, _ in self.takers for each in taker.unacked.values()]
        gone = [body for body, _ in self.bench.gone]
        places = [*ready, *held, *gone, *self.acked]
        assert len(places) == len(set(places)) == self.count
        assert set(gone) == self.lost

    @invariant()
    def what_waits_is_in_order_and_nobody_has_room_for_it(self) -> None:
        ready = [each.body for each in self.bench.queue.ready]
        new = [int(body) for body in ready if not self.back.get(body)]
        assert [int(body) for body in ready[len(ready) - len(new) :]] == new == sorted(new)
        assert not ready or all(taker.room <= 0 for taker, _ in self.takers)

    @invariant()
    def no_taker_holds_more_than_its_prefetch(self) -> None:
        assert all(len(taker.unacked) <= taker.prefetch for taker, _ in self.takers)

    @invariant()
    def what_came_back_is_marked(self) -> None:
        for taker, arrived in self.takers:
            for tag, redelivered, raw, body in arrived:
                if tag in taker.unacked:
                    assert redelivered is (self.back.get(body, 0) > 0)
                    assert (b"x-delivery-count" in raw) is redelivered


AgainstAnOracle.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None
)
TestQueue = AgainstAnOracle.TestCase
