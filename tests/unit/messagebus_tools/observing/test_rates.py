"""Rates against an oracle that sees every message; none over a reset, a gap or a silence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus_tools.observing.rates import SPAN_MAX_MS, Rates, broker_rates, row_rates
from messagebus_tools.observing.snapshot import Bus, Kind, Totals
from tests.support.observed import NOW_MS, answer, bus, row, seen

KEY: tuple[str, str, Kind] = ("mb1:5672", "orders/billing", "sub")


def at(ms: int, arrived: int | None, departed: int | None, **more: Any) -> Bus:
    name, now_ms = "orders/billing", NOW_MS + ms
    one = row(name, arrived=arrived, departed=departed, swept_at_ms=now_ms, counted_at_ms=now_ms)
    return bus(seen("mb1:5672", one, at_ms=now_ms, **more), at_ms=now_ms)


step = st.tuples(
    st.integers(0, 50),  # come
    st.integers(0, 50),  # leave
    st.integers(1, 90_000),  # ms since the step before
    st.booleans(),  # the broker restarts before it
    st.booleans(),  # its agent is silent
)


@given(st.lists(step, min_size=2, max_size=20))
def test_a_rate_is_what_came_in_the_time_or_nothing(
    steps: list[tuple[int, int, int, bool, bool]],
) -> None:
    """The oracle has every message with its time; rates must agree with it wherever they exist."""
    now_ms, life, came, left = 0, 0, 0, 0
    last: tuple[Bus, int, bool] | None = None
    for come, leave, ms, restarts, silent in steps:
        now_ms += ms
        if restarts:
            life, came, left = life + 1, 0, 0
        came, left = came + come, left + leave
        told = at(now_ms, came, left, life=str(life), fault="timed out" if silent else "")
        if last is not None:
            old, old_life, old_silent = last
            found = row_rates(old, told).get(KEY)
            if silent or old_silent or old_life != life or ms > SPAN_MAX_MS:
                assert found is None
            else:
                assert found is not None
                assert found.came * ms / 1000 == pytest.approx(come)
                assert found.left * ms / 1000 == pytest.approx(leave)
        last = told, life, silent


def test_two_looks_at_one_sweep_have_no_rate() -> None:
    assert row_rates(at(0, 1, 1), at(0, 1, 1)) == {}


def test_counters_that_are_not_known_have_no_rate() -> None:
    assert row_rates(at(0, None, None), at(1_000, 5, 5)) == {}
    assert row_rates(at(0, 5, 5), at(1_000, 4, 5)) == {}


def test_an_unchanged_row_that_was_not_sent_again_has_a_rate_of_0() -> None:
    old = at(0, 5, 5)
    last = old.brokers[0].last
    assert last
    later = replace(last, swept_at_ms=NOW_MS + 5_000)
    new = replace(old, brokers=(replace(old.brokers[0], last=later),))
    assert row_rates(old, new) == {KEY: Rates(0.0, 0.0)}


def test_a_broker_has_rates_of_its_own() -> None:
    def told(ms: int, **totals: int) -> Bus:
        one = answer("mb1:5672", at_ms=NOW_MS + ms, totals=Totals(**totals))
        return bus(replace(seen("mb1:5672"), last=one))

    old, new = told(0, published=10, acked=5), told(2_000, published=30, acked=5)
    assert broker_rates(old, new) == {"mb1:5672": Rates(10.0, 0.0)}
    assert broker_rates(old, new)["mb1:5672"].growth == 10.0
    assert broker_rates(new, old) == {}
    assert broker_rates(bus(seen("mb1:5672")), new) == {}
