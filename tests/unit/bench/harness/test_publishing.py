"""Loads against a sender and a receiver that a test steers: the schedule is kept, whatever the answers do."""

from __future__ import annotations

import asyncio
import itertools

from bench.analysis.result import percentiles
from bench.harness.consuming import Consuming, Had
from bench.harness.interface import Delivered, End
from bench.harness.outcomes import CONFIRMED, OTHERWISE, UNKNOWN
from bench.harness.publishing import Publishing, Sent
from bench.load.bodies import Drawer, Filler, read, stamped
from bench.load.profile import Messages
from bench.load.schedule import Constant, intended

MS = 1_000_000
S = 1_000 * MS


class Clock:
    """Clock that moves a microsecond at each look, and by the time that the sender takes."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        self.now_ns += 1000
        return self.now_ns


class Steered:
    """Steered sender. stall: the message whose sending takes a second, -1 for none. outcome: of all."""

    def __init__(self, clock: Clock, stall: int = -1, outcome: int = CONFIRMED) -> None:
        self._clock, self._stall, self._outcome = clock, stall, outcome
        self._ends: list[End] = []
        self.bodies: list[bytes] = []
        self.asked = 0

    async def open(self) -> None: ...

    async def room(self) -> None:
        self.asked += 1

    async def send(self, sequence: int, body: bytes, key: str) -> None:
        if sequence == self._stall:
            self._clock.now_ns += S
        self.bodies.append(body)
        now = self._clock()
        self._ends.append(End(sequence, self._outcome, "mb1", now, now + 2 * MS))

    def ends(self) -> list[End]:
        ends, self._ends = self._ends, []
        return ends

    async def close(self, timeout_s: float) -> None: ...


def made(sender: Steered, clock: Clock) -> Publishing:
    async def sleepless(seconds: float) -> None:
        # Sleeping moves the clock of the test and no other.
        clock.now_ns += int(seconds * 1e9)

    drawer = Drawer(Messages(size=30), seed=1)
    return Publishing(
        sender,
        publisher=7,
        start_ns=0,
        offset_ns=0,
        fillers=drawer.fillers(),
        keys=drawer.keys(),
        clock_ns=clock,
        sleep=sleepless,
    )


def run(sender: Steered, clock: Clock, count: int, until_ns: int = 1 << 62) -> Sent:
    publishing = made(sender, clock)
    times = itertools.islice(intended(Constant(rate_per_s=100)), count)
    return asyncio.run(publishing.run(times, until_ns))


def steer(
    rates_per_s: list[float], *, count: int, stall: int = -1, until_ns: int = 1 << 62
) -> tuple[Sent, Steered]:
    """Send at these rates, one for each slice of 100 ms; the last one stays."""
    clock = Clock()
    sender = Steered(clock, stall=stall)
    rates = itertools.chain(rates_per_s, itertools.repeat(rates_per_s[-1]))
    publishing = made(sender, clock)
    return asyncio.run(publishing.run_steered(lambda: next(rates), count, until_ns)), sender


def test_a_steered_load_keeps_each_rate_and_sends_so_many() -> None:
    sent, sender = steer([100, 0, 0, 20], count=13)
    first, later = list(sent.intended_ns)[:10], list(sent.intended_ns)[10:]
    assert first == [n * 10 * MS for n in range(1, 11)]
    # The rest of an interval is neither lost nor doubled: every 50 ms from 300 ms on.
    assert later == [350 * MS, 400 * MS, 450 * MS]
    assert [read(body) for body in sender.bodies] == [
        (7, n, at) for n, at in enumerate(first + later)
    ]
    assert set(sent.outcomes) == {CONFIRMED}


def test_a_steered_rate_below_one_in_a_slice_is_kept() -> None:
    sent, _ = steer([2.5], count=5)
    assert list(sent.intended_ns) == [400 * MS * n for n in range(1, 6)]


def test_a_steered_load_that_is_late_keeps_its_times() -> None:
    sent, _ = steer([100], count=200, stall=10)
    assert list(sent.intended_ns) == [n * 10 * MS for n in range(1, 201)]
    assert percentiles(sent.confirm.whole())["p100"] > 990
    assert percentiles(sent.pacing.whole())["p100"] < 5


def test_a_steered_load_ends_also_when_nothing_is_to_be_sent() -> None:
    sent, _ = steer([0], count=5, until_ns=S)
    assert len(sent.outcomes) == 0


def test_messages_carry_when_they_were_intended() -> None:
    clock = Clock()
    sender = Steered(clock)
    sent = run(sender, clock, 5)
    assert [read(body) for body in sender.bodies] == [(7, n, n * 10 * MS) for n in range(5)]
    assert list(sent.intended_ns) == [n * 10 * MS for n in range(5)]
    assert set(sent.outcomes) == {CONFIRMED}


def test_a_stall_shows_in_every_message_that_it_held_up() -> None:
    clock = Clock()
    sent = run(Steered(clock, stall=10), clock, 200)
    confirm, service = (percentiles(each.whole()) for each in (sent.confirm, sent.service))
    # A second at 100/s: half of 200 messages were late, by half a second on average.
    assert confirm["p75"] > 400
    assert confirm["p100"] > 990
    # From the sending on, it is forgiven.
    assert service["p100"] < 3
    assert 0.9 * S < sent.waited_ns < 1.1 * S


def test_what_waited_for_room_is_not_the_pacers_lateness() -> None:
    clock = Clock()
    sent = run(Steered(clock, stall=10), clock, 200)
    assert percentiles(sent.pacing.whole())["p100"] < 5


def test_nothing_is_sent_after_the_end() -> None:
    clock = Clock()
    sent = run(Steered(clock), clock, 1000, until_ns=S)
    assert len(sent.outcomes) == 100


def test_what_is_overdue_at_the_end_is_still_sent_for_a_while() -> None:
    clock = Clock()
    sent = run(Steered(clock, stall=95), clock, 1000, until_ns=S)
    assert len(sent.outcomes) == 100


def test_outcomes_are_kept_and_only_confirms_are_timed() -> None:
    clock = Clock()
    sent = run(Steered(clock, outcome=OTHERWISE), clock, 5)
    assert list(sent.outcomes) == [OTHERWISE] * 5
    assert sent.confirm.whole() == {}
    assert UNKNOWN not in sent.outcomes


def test_a_closed_loop_asks_for_room_before_each_and_sends_so_many() -> None:
    clock = Clock()
    sender = Steered(clock)
    publishing = Publishing(
        sender,
        publisher=7,
        start_ns=0,
        offset_ns=0,
        fillers=Drawer(Messages(size=30), seed=1).fillers(),
        keys=itertools.repeat(""),
        clock_ns=clock,
    )
    sent = asyncio.run(publishing.run_closed(100, 1 << 62))
    assert sender.asked == len(sender.bodies) == len(sent.outcomes) == 100
    assert set(sent.outcomes) == {CONFIRMED}
    assert sent.ended_ns > max(sent.intended_ns)


def test_a_closed_loop_sends_nothing_after_the_most_that_it_may_take() -> None:
    clock = Clock()
    publishing = Publishing(
        Steered(clock),
        publisher=7,
        start_ns=0,
        offset_ns=0,
        fillers=Drawer(Messages(size=30), seed=1).fillers(),
        keys=itertools.repeat(""),
        clock_ns=clock,
    )
    sent = asyncio.run(publishing.run_closed(1 << 20, MS))
    assert 0 < len(sent.outcomes) < 1000
    assert max(sent.intended_ns) < MS


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
