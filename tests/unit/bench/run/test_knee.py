from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.run.knee import PRECISION, Knee

TRIES_MAX = 40


@given(st.floats(1, 1e6), st.floats(1, 1e5))
def test_the_knee_is_found_within_its_precision_in_few_tries(knee: float, first: float) -> None:
    search, tries = Knee(first=first, top=2e6), 0
    while (rate := search.next_rate()) is not None:
        search.note(rate, holds=rate <= knee)
        tries += 1
        assert tries < TRIES_MAX
    if search.held:
        assert search.held <= knee <= search.held * (1 + PRECISION) * 1.001
    else:
        assert knee < first / 32


def test_a_system_that_takes_everything_is_told_at_the_top() -> None:
    search = Knee(first=100, top=1000)
    rates = []
    while (rate := search.next_rate()) is not None:
        rates.append(rate)
        search.note(rate, holds=True)
    assert rates == [100, 200, 400, 800, 1000]
    assert search.held == 1000


@pytest.mark.parametrize("first", [64, 6400])
def test_a_system_that_takes_nothing_ends_the_search(first: float) -> None:
    search = Knee(first=first, top=10_000)
    while (rate := search.next_rate()) is not None:
        search.note(rate, holds=False)
    assert search.held == 0
