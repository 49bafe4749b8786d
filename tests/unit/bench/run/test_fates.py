"""One planted fault in many messages: found, and named. Counts that are right by chance fool nobody."""

from __future__ import annotations

import dataclasses

import numpy as np

from bench.run.fates import CONFIRMED, OTHERWISE, UNKNOWN, Fates, Received, judge

MANY = 100_000


def received(sequences: list[int], publisher: int = 0, broker: int = 0, **more: int) -> Received:
    rows = np.array(sequences, dtype=np.int64)
    return Received(
        "orders/a", np.full_like(rows, publisher), rows, np.full_like(rows, broker), **more
    )


def confirmed(count: int) -> dict[int, np.ndarray[tuple[int], np.dtype[np.uint8]]]:
    return {0: np.full(count, CONFIRMED, dtype=np.uint8)}


def test_nothing_is_wrong_with_all_of_them_in_order() -> None:
    found = judge(confirmed(MANY), [received(list(range(MANY)))])
    assert (found.expected, found.delivered) == (MANY, MANY)
    assert (found.faults, found.examples) == ([], {})


def test_one_lost_and_one_doubled_are_found_though_the_counts_agree() -> None:
    had = [number for number in range(MANY) if number != 777] + [5]
    found = judge(confirmed(MANY), [received(had)])
    assert len(had) == MANY
    assert (found.lost, found.doubled) == (1, 1)
    assert found.examples == {"lost": ["orders/a: p0/777"], "doubled": ["orders/a: p0/5"]}


def test_one_swap_is_found_with_the_one_that_came_too_late() -> None:
    had = list(range(MANY))
    had[500], had[501] = had[501], had[500]
    found = judge(confirmed(MANY), [received(had)])
    assert (found.late, found.examples) == (1, {"late": ["orders/a: p0/500"]})


def test_brokers_have_an_order_each_and_repeats_are_not_late() -> None:
    one, other = received([0, 2, 4, 0]), received([1, 3], broker=1)
    both = Received(
        "orders/a",
        np.concatenate([one.publishers, other.publishers]),
        np.concatenate([one.sequences, other.sequences]),
        np.concatenate([one.brokers, other.brokers]),
    )
    found = judge(confirmed(5), [both])
    assert (found.late, found.doubled) == (0, 1)


def test_every_subscription_should_have_every_message() -> None:
    other = dataclasses.replace(received([0]), subscription="orders/b")
    found = judge(confirmed(2), [received([0, 1]), other])
    assert (found.expected, found.delivered, found.lost) == (4, 3, 1)
    assert found.examples["lost"] == ["orders/b: p0/1"]


def test_unknown_outcomes_are_resolved_and_refused_ones_are_owed_to_nobody() -> None:
    outcomes = {0: np.array([CONFIRMED, UNKNOWN, UNKNOWN, OTHERWISE], dtype=np.uint8)}
    found = judge(outcomes, [received([0, 1])])
    assert (found.unknown, found.found, found.lost, found.expected) == (2, 1, 0, 1)


def test_what_nobody_sent_and_what_is_altered_are_faults() -> None:
    strange = received([0, 9], publisher=0)
    foreign = received([0], publisher=7)
    found = judge(confirmed(1), [strange, foreign, received([], altered=2)])
    assert (found.strange, found.altered) == (2, 2)
    assert found.faults == ["2 altered", "2 delivered and never published"]


def test_no_messages_are_no_fault() -> None:
    assert judge({}, []) == Fates()


def test_a_subscription_should_have_the_messages_of_its_topic_alone() -> None:
    outcomes = {0: confirmed(10)[0], 1: confirmed(20)[0]}
    had = [
        dataclasses.replace(received(list(range(10))), subscription="load0/a"),
        dataclasses.replace(received(list(range(19)), 1), subscription="load1/a"),
    ]
    found = judge(outcomes, had, {0: "load0", 1: "load1"})
    assert (found.expected, found.delivered, found.lost, found.strange) == (30, 29, 1, 0)
    assert found.examples == {"lost": ["load1/a: p1/19"]}
