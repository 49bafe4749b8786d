"""_io.consume.idle: untouched deliveries go back in time, and the link brings more when it is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from messagebus import Delivery, Message, Queue, Receipt
from messagebus._io.consume.idle import IdleLinks

S = 1_000_000_000
MB1, MB2 = "mb1:5672", "mb2:5672"


def delivery(broker: str, received_ns: int) -> Delivery:
    receipt = Receipt(broker, 1, 1)
    return Delivery(Message(body=b""), receipt, Queue("q"), received_ns=received_ns)


@dataclass
class FakeInbox:
    buffers: dict[str, list[Delivery]] = field(default_factory=dict)
    is_full: bool = False
    in_order: bool = False
    untouched: list[Delivery] = field(default_factory=list)
    kept_back: list[str] = field(default_factory=list)
    put: list[Delivery] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)

    @property
    def brokers(self) -> list[str]:
        return list(self.buffers)

    def oldest(self, broker: str) -> Delivery | None:
        return self.buffers[broker][0] if self.buffers[broker] else None

    def give_back(self, broker: str, taken: list[Delivery], before_ns: int) -> int:
        count = len(self.buffers[broker]) + len(taken)
        self.buffers[broker].clear()
        self.untouched += taken
        return count

    def keep_back(self, broker: str, taken: list[Delivery]) -> None:
        self.kept_back.append(broker)
        self.give_back(broker, taken, 0)

    def put_back(self, deliveries: list[Delivery]) -> None:
        self.put += deliveries

    def finish_batches(self, before_ns: int) -> None:
        self.finished.append(before_ns)


class Bench:
    def __init__(self) -> None:
        self.inbox, self.cancelled, self.consumed = FakeInbox(), list[str](), list[str]()
        self.untouched: Callable[[int, bool], list[Delivery]] = lambda _before_ns, _all: []
        self.idle = IdleLinks(
            self.inbox,  # type: ignore[arg-type]
            100,
            cancel=self._cancel,
            consume=self.consumed.append,
            withdraw=lambda before_ns, all_if_any: self.untouched(before_ns, all_if_any),
        )

    def _cancel(self, broker: str) -> bool:
        if not self.inbox.in_order:
            self.cancelled.append(broker)
        return not self.inbox.in_order


def test_only_the_link_whose_deliveries_are_old_rests() -> None:
    bench = Bench()
    young = delivery(MB2, 50 * S)
    bench.inbox.buffers = {MB1: [delivery(MB1, 0)], MB2: [young]}
    bench.idle.tick(75 * S)
    assert bench.cancelled == []
    assert not bench.idle
    bench.idle.tick(76 * S)
    assert bench.cancelled == [MB1]
    assert bench.inbox.buffers == {
        MB1: [],
        MB2: [young],
    }
    assert bench.idle


def test_it_goes_on_when_the_application_asks_and_only_once() -> None:
    bench = Bench()
    bench.inbox.buffers = {MB1: [delivery(MB1, 0)]}
    bench.idle.tick(80 * S)
    bench.idle.tick(200 * S)
    assert bench.consumed == []
    bench.idle.asked()
    bench.idle.asked()
    assert bench.consumed == [MB1]
    assert not bench.idle


def test_what_rests_because_the_application_holds_enough_goes_on_when_it_does_not() -> None:
    bench = Bench()
    bench.inbox.buffers, bench.inbox.is_full = {MB1: [delivery(MB1, 0)]}, True
    bench.idle.tick(80 * S)
    bench.idle.tick(82 * S)
    assert bench.consumed == []
    bench.inbox.is_full = False
    bench.idle.tick(84 * S)
    assert bench.consumed == [MB1]


def test_what_was_taken_and_not_seen_is_given_back_too() -> None:
    bench = Bench()
    bench.inbox.buffers = {MB1: []}
    old = delivery(MB1, 0)
    bench.untouched = lambda before_ns, _all: [old] if before_ns > 0 else []
    bench.idle.tick(74 * S)
    assert bench.inbox.untouched == []
    bench.idle.tick(76 * S)
    assert bench.inbox.untouched == [old]
    assert bench.cancelled == [MB1]


def test_a_single_active_consumer_is_not_cancelled_and_gets_nothing_more() -> None:
    bench = Bench()
    bench.inbox.in_order = True
    old, next_one, other = delivery(MB1, 0), delivery(MB1, 50 * S), delivery(MB2, 50 * S)
    bench.inbox.buffers = {MB1: [delivery(MB1, 60 * S)], MB2: []}
    bench.untouched = lambda _before_ns, all_if_any: [old, next_one, other] if all_if_any else [old]
    bench.idle.tick(76 * S)
    assert bench.cancelled == []
    assert bench.inbox.kept_back == [MB1]
    assert bench.inbox.untouched == [old, next_one], "what came later may not overtake"
    assert bench.inbox.put == [other]
    assert bench.idle.is_idle(MB1)
    bench.idle.forget(MB1)
    bench.idle.keep_idle(MB1)
    bench.idle.asked()
    assert bench.consumed == [MB1]


def test_what_is_left_of_batches_is_finished_just_before_the_timeout() -> None:
    bench = Bench()
    bench.idle.tick(200 * S)
    assert bench.inbox.finished == [105 * S]


def test_a_link_that_ended_rests_no_more() -> None:
    bench = Bench()
    bench.inbox.buffers = {MB1: [delivery(MB1, 0)]}
    bench.idle.tick(80 * S)
    bench.idle.forget(MB1)
    bench.idle.asked()
    assert bench.consumed == []
