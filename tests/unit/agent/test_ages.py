from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from messagebus.agent.ages import SAMPLES_MAX, Ages

STEP_MS = 1_000


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=60))
def test_the_age_is_that_of_the_oldest_message_to_within_a_sample(
    steps: list[tuple[int, int]],
) -> None:
    """Against a queue that knows when each message came; between two samples some come, then some go."""
    ages, queue, departed = Ages(), deque[int](), 0
    for number, (come, go) in enumerate(steps, start=1):
        now_ms = number * STEP_MS
        queue.extend([now_ms] * come)
        for _ in range(min(go, len(queue))):
            queue.popleft()
            departed += 1
        told = ages.sample("q", now_ms, waiting=len(queue), departed=departed)
        assert told == (now_ms - queue[0] if queue else 0)


def test_what_was_there_before_counts_from_the_first_look() -> None:
    ages = Ages()
    assert ages.sample("q", 0, waiting=10, departed=500) == 0
    assert ages.sample("q", 9_000, waiting=9, departed=501) == 9_000


def test_a_restart_of_the_broker_begins_anew() -> None:
    ages = Ages()
    ages.sample("q", 0, waiting=10, departed=500)
    assert ages.sample("q", 9_000, waiting=10, departed=0) == 0


def test_an_empty_queue_has_no_age_whatever_left_it_uncounted() -> None:
    ages = Ages()
    ages.sample("q", 0, waiting=1_000, departed=0)
    assert ages.sample("q", 1_000, waiting=0, departed=0) == 0
    assert ages.sample("q", 2_000, waiting=1, departed=0) == 0


def test_a_long_backlog_is_known_by_few_moments() -> None:
    ages = Ages()
    for number in range(10 * SAMPLES_MAX):
        told = ages.sample("q", number, waiting=number + 1, departed=0)
        assert told == number
        assert len(ages._arrivals["q"]) <= SAMPLES_MAX


def test_a_queue_that_is_gone_is_forgotten() -> None:
    ages = Ages()
    ages.sample("q", 0, waiting=1, departed=0)
    ages.keep_only([])
    assert ages.sample("q", 9_000, waiting=1, departed=0) == 0
