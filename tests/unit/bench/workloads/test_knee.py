from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.workloads.knee import PRECISION, Knee, fault_of
from tests.support.results import PROFILE, result

TRIES_MAX = 60
FAULT = "p99 of confirm 99 ms"


def searched(search: Knee, knee: float, fault: str = FAULT) -> list[float]:
    """Return the rates that were tried, of a system that sustains up to knee."""
    while (rate := search.next_rate()) is not None:
        search.note(rate, "" if rate <= knee else fault)
        assert len(search.tries) < TRIES_MAX
    return [each.rate for each in search.tries]


@given(st.floats(1, 1e6), st.floats(1, 1e5))
def test_the_knee_is_found_within_its_precision_in_few_tries(knee: float, first: float) -> None:
    search = Knee(first=first, top=2e6)
    searched(search, knee)
    if search.held:
        assert search.held <= knee <= search.held * (1 + PRECISION) * 1.001
        assert search.count(search.held) == 2
    else:
        assert knee < first / 32


@given(st.data())
def test_whatever_the_tries_say_the_search_ends_and_its_answer_has_held_twice(
    data: st.DataObject,
) -> None:
    search = Knee(first=100, top=1600)
    while (rate := search.next_rate()) is not None:
        search.note(rate, data.draw(st.sampled_from(["", FAULT])))
        assert len(search.tries) < 300
    if search.held:
        held = [each for each in search.tries if each.rate == search.held]
        assert sum(not each.fault for each in held) >= 2
        assert sum(bool(each.fault) for each in held) < 2


def test_one_failure_is_tried_again_before_it_counts() -> None:
    search = Knee(first=100, top=100)
    assert search.next_rate() == 100
    search.note(100, FAULT)
    assert search.next_rate() == 100
    for _ in range(2):
        search.note(100)
    assert search.next_rate() is None
    assert search.held == 100


def test_an_answer_that_fails_when_it_is_tried_again_is_none() -> None:
    search = Knee(first=100, top=200)
    search.note(100)
    search.note(200)
    assert search.next_rate() == 200
    search.note(200, FAULT)
    search.note(200, FAULT)
    assert search.held == 100
    rate = search.next_rate()
    assert rate is not None
    assert 100 < rate < 200


def test_a_system_that_takes_everything_is_told_as_one_whose_knee_was_not_found() -> None:
    search = Knee(first=100, top=1000)
    assert searched(search, 1e9) == [100, 200, 400, 800, 1000, 1000]
    assert search.told(20) == "at least 1,000/s with p99 within 20 ms: no knee was found below it"


@pytest.mark.parametrize("first", [64, 6400])
def test_a_system_that_takes_nothing_ends_the_search(first: float) -> None:
    search = Knee(first=first, top=10_000)
    searched(search, 0)
    assert search.held == 0
    assert search.told(20) == "no rate holds with p99 within 20 ms"


def test_a_knee_that_is_the_clients_is_told_as_such() -> None:
    theirs, ours = Knee(first=100, top=1000), Knee(first=100, top=1000)
    searched(theirs, 150)
    searched(ours, 150, "publisher-0 used 99% of a core: the client was the bottleneck")
    assert theirs.told(20).startswith("knee: 1")
    assert ours.told(20).startswith("knee of the client, not of the system: 1")


@pytest.mark.parametrize(
    ("run", "fault"),
    [
        (result(p99=10, delivery=10), ""),
        (result(p99=30, delivery=10), "p99 of confirm 30 ms"),
        (result(p99=10, delivery=30), "p99 of delivery 30 ms"),
        (result(p99=10), "too few messages for a p99 of delivery"),
        (result(faults=["1 lost", "2 altered"]), "1 lost; 2 altered"),
        (result(profile=PROFILE | {"load": PROFILE["load"] | {"consumers": 0}}), ""),
    ],
)
def test_a_rate_holds_by_both_latencies_where_there_are_consumers(
    run: dict[str, Any], fault: str
) -> None:
    assert fault_of(run, 20) == fault
