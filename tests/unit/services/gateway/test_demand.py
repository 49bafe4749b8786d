"""Demand, against an oracle: a list of what is held since when, and of callers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from messagebus.services.gateway.demand import (
    AHEAD_BYTES,
    HOLD_MS,
    LINGER_MS,
    SPENT_MS,
    TICK_MS,
    Demand,
    LetGo,
    Rest,
)

AHEAD_MAX = 200


def test_what_nobody_asks_for_is_given_back_within_a_second() -> None:
    demand = Demand(0, ahead_max=AHEAD_MAX)
    orders = [demand.look(at_ms, buffered=5, held=0) for at_ms in range(0, HOLD_MS + 1, TICK_MS)]
    assert any(isinstance(each, Rest) for each in orders)


def test_the_links_are_let_go_when_nobody_has_asked_for_long() -> None:
    demand = Demand(0, ahead_max=AHEAD_MAX)
    assert demand.look(LINGER_MS - 1, buffered=0, held=0) is None
    assert demand.look(LINGER_MS, buffered=0, held=1) is None
    assert demand.look(LINGER_MS, buffered=0, held=0) == LetGo()


def test_a_caller_who_takes_less_than_before_gets_less_ahead() -> None:
    demand = Demand(0, ahead_max=AHEAD_MAX)
    demand.asks(100)
    assert demand.look(0, buffered=0, held=0) is None  # nobody knows how large they are
    demand.goes(100, 1, 0)
    demand.asks(100)
    assert demand.look(0, buffered=0, held=0) == Rest(200)
    demand.goes(100, 100, 0)
    found = []
    for at_ms in range(TICK_MS, 4_000, TICK_MS):
        demand.asks(1)
        found.append(demand.look(at_ms, buffered=50, held=0))
        demand.goes(1, 1, at_ms)
    given_back = [each for each in found if isinstance(each, Rest)]
    assert given_back
    assert given_back[-1].credit < 50


def test_large_deliveries_are_fetched_by_few() -> None:
    demand = Demand(0, ahead_max=AHEAD_MAX)
    demand.asks(100)
    demand.asks(50)
    demand.goes(50, 2, 0, AHEAD_BYTES // 4)
    assert demand.look(0, buffered=0, held=2, fixed=True) is None
    assert demand.look(0, buffered=0, held=2) == Rest(8)


def test_a_used_up_prefetch_is_granted_anew_while_callers_wait() -> None:
    demand = Demand(0, ahead_max=AHEAD_MAX)
    demand.asks(1)
    demand.goes(1, 1, 0)
    for at_ms in range(0, 2 * SPENT_MS, TICK_MS):  # nobody waits
        assert demand.look(at_ms, buffered=0, held=1, spent=True) is None
    demand.asks(AHEAD_MAX)
    assert demand.look(2 * SPENT_MS, buffered=0, held=0) == Rest(AHEAD_MAX)
    for at_ms in range(2 * SPENT_MS, 4 * SPENT_MS, TICK_MS):  # answers come
        spent = at_ms % (2 * TICK_MS) > 0
        assert demand.look(at_ms, buffered=0, held=500, spent=spent) is None
    orders = [
        demand.look(at_ms, buffered=0, held=500, spent=True)
        for at_ms in range(4 * SPENT_MS, 5 * SPENT_MS + 1, TICK_MS)
    ]
    assert orders.count(Rest(AHEAD_MAX)) == 1


class Brokers:
    """Brokers with more messages than anybody wants, and the gateway's buffer."""

    def __init__(self) -> None:
        self.credit, self.resting = 1, False
        self.buffer: list[int] = []  # times of arrival

    def send(self, now_ms: int, held: int) -> None:
        if not self.resting:
            self.buffer += [now_ms] * max(0, self.credit - len(self.buffer) - held)

    def carry_out(self, order: object, callers: int) -> None:
        if isinstance(order, Rest):
            self.credit, self.buffer, self.resting = order.credit, [], not callers


calls = st.lists(
    st.tuples(st.integers(0, 3_000), st.integers(1, 100), st.integers(0, 3_000)), max_size=15
)


@given(calls)
def test_nothing_is_held_longer_than_a_second_for_nobody(
    plan: list[tuple[int, int, int]],
) -> None:
    """Each of the plan: a caller comes after so many ms, for so many, who holds what it took so long.

    Promises: never more credit than allowed; no caller leaves with nothing while a delivery is here; what
    is here has been asked for within a second.
    """
    demand, brokers, now_ms = Demand(0, ahead_max=AHEAD_MAX), Brokers(), 0
    ends: list[tuple[int, int]] = []
    asked_ms = 0

    def tick(until_ms: int) -> None:
        nonlocal now_ms
        while now_ms + TICK_MS <= until_ms:
            now_ms += TICK_MS
            held = sum(count for end_ms, count in ends if end_ms > now_ms)
            brokers.send(now_ms, held)
            order = demand.look(now_ms, buffered=len(brokers.buffer), held=held)
            brokers.carry_out(order, 0)
            assert demand.credit <= AHEAD_MAX
            assert demand.credit == brokers.credit
            for arrived_ms in brokers.buffer:
                assert now_ms - max(arrived_ms, asked_ms) <= HOLD_MS

    for wait_ms, count, hold_ms in plan:
        tick(now_ms + wait_ms)
        held = sum(each for end_ms, each in ends if end_ms > now_ms)
        demand.asks(count)
        brokers.carry_out(demand.look(now_ms, buffered=len(brokers.buffer), held=held), 1)
        brokers.resting = False
        brokers.send(now_ms, held)
        taken = min(count, len(brokers.buffer))
        assert taken or held >= AHEAD_MAX
        del brokers.buffer[:taken]
        demand.goes(count, taken, now_ms)
        asked_ms = now_ms
        ends.append((now_ms + hold_ms, taken))
    tick(max([now_ms, *(end_ms for end_ms, _ in ends)]) + 2 * HOLD_MS)  # an answer makes room
    assert not brokers.buffer
