"""Token buckets and places."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from messagebus.http.allowance import Allowances, Bucket, Places, SharedPlaces


def test_a_bucket_gives_its_rate_and_says_when_to_come_again() -> None:
    bucket = Bucket(10)
    assert [bucket.take(1, 0) for _ in range(10)] == [0.0] * 10
    assert bucket.take(1, 0) == 0.1
    assert bucket.take(1, 100) == 0.0
    assert bucket.left(1_100) == 10


def test_no_rate_is_no_limit() -> None:
    assert Bucket(0).take(1_000_000, 0) == 0.0


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(1, 30)), max_size=60))
def test_never_more_than_a_second_ahead_of_the_rate(calls: list[tuple[int, int]]) -> None:
    """Oracle: what was granted until any time is at most rate x time, a full bucket and one large take."""
    rate, bucket, now_ms, granted, largest = 10, Bucket(10), 0, 0, 0
    for wait_ms, count in calls:
        now_ms += wait_ms
        if not bucket.take(count, now_ms):
            granted, largest = granted + count, max(largest, count)
        assert granted <= rate * now_ms / 1000 + rate + largest


def test_places_are_given_out_once() -> None:
    places = Places(2)
    assert [places.enter() for _ in range(3)] == [True, True, False]
    places.leave()
    assert places.enter()


def test_an_allowance_comes_back_with_time_whatever_was_refused_meanwhile() -> None:
    allowances = Allowances(burst=2, rate_per_s=1)
    assert [allowances.take("a", 0) for _ in range(100)] == [True, True] + 98 * [False]
    assert [allowances.take("a", now_ms) for now_ms in range(0, 1_101, 100)][-1]
    assert allowances.take("b", 1_100)
    allowances.give_back("b")
    assert [allowances.take("b", 1_100) for _ in range(3)] == [True, True, False]


def test_a_bounded_number_of_names_is_kept() -> None:
    allowances = Allowances(burst=2, rate_per_s=1, names_max=10)
    for number in range(100):
        allowances.take(str(number), 0)
    assert len(allowances) == 10


def test_of_shared_places_one_source_has_half_and_the_others_the_rest() -> None:
    places = SharedPlaces(5)
    assert places.enter("a", 2)
    assert not places.has("a")
    assert not places.enter("a"), "half of five are two"
    assert places.enter("b", 2)
    assert places.enter("c")
    assert places.has("c")
    assert not places.enter("c"), "all are taken, though it has one left of its own"
    assert len(places) == 5
    places.leave("a")
    assert places.enter("c")
    assert not places.enter("a"), "what it gave back is taken"


def test_of_one_shared_place_a_source_has_it() -> None:
    places = SharedPlaces(1)
    assert places.enter("a")
    assert not places.enter("b")
    places.leave("a")
    assert places.enter("b")
