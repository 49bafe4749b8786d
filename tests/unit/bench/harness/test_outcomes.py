"""One planted fault in many messages: found, and named. Counts that are right by chance fool nobody."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from bench.harness.outcomes import (
    CONFIRMED,
    OTHERWISE,
    UNKNOWN,
    Fates,
    Outcomes,
    Published,
    Received,
    judge,
    repeats_ns,
)

MANY = 100_000


def received(
    sequences: list[int], publisher: int = 0, broker: int = 0, altered: int = 0
) -> Received:
    rows = np.array(sequences, dtype=np.int64)
    return Received(
        "orders/a", np.full_like(rows, publisher), rows, np.full_like(rows, broker), altered
    )


def audit(outcomes: Outcomes, received: Sequence[Received]) -> Fates:
    """Audit a run in which all publishers send to one topic."""
    return judge(outcomes, received, lambda _: "orders")


def confirmed(count: int) -> dict[int, np.ndarray[tuple[int], np.dtype[np.uint8]]]:
    return {0: np.full(count, CONFIRMED, dtype=np.uint8)}


def test_nothing_is_wrong_with_all_of_them_in_order() -> None:
    found = audit(confirmed(MANY), [received(list(range(MANY)))])
    assert (found.expected, found.delivered) == (MANY, MANY)
    assert (found.faults, found.examples) == ([], {})


def test_one_lost_and_one_doubled_are_found_though_the_counts_agree() -> None:
    had = [number for number in range(MANY) if number != 777] + [5]
    found = audit(confirmed(MANY), [received(had)])
    assert len(had) == MANY
    assert (found.lost, found.doubled) == (1, 1)
    assert found.examples == {"lost": ["orders/a: p0/777"], "doubled": ["orders/a: p0/5"]}


def test_one_swap_is_found_with_the_one_that_came_too_late() -> None:
    had = list(range(MANY))
    had[500], had[501] = had[501], had[500]
    found = audit(confirmed(MANY), [received(had)])
    assert (found.late, found.examples) == (1, {"late": ["orders/a: p0/500"]})


def test_brokers_have_an_order_each_and_repeats_are_not_late() -> None:
    one, other = received([0, 2, 4, 0]), received([1, 3], broker=1)
    both = Received(
        "orders/a",
        np.concatenate([one.publishers, other.publishers]),
        np.concatenate([one.sequences, other.sequences]),
        np.concatenate([one.brokers, other.brokers]),
    )
    found = audit(confirmed(5), [both])
    assert (found.late, found.doubled) == (0, 1)


def test_every_subscription_should_have_every_message() -> None:
    other = dataclasses.replace(received([0]), subscription="orders/b")
    found = audit(confirmed(2), [received([0, 1]), other])
    assert (found.expected, found.delivered, found.lost) == (4, 3, 1)
    assert found.examples["lost"] == ["orders/b: p0/1"]


def test_a_subscription_is_owed_the_messages_of_its_own_topic() -> None:
    outcomes = {**confirmed(2), 1: np.full(3, CONFIRMED, dtype=np.uint8)}
    own = received([0, 1])
    other = dataclasses.replace(received([0, 1, 2], publisher=1), subscription="bills/b")
    topics = {0: "orders", 1: "bills"}
    found = judge(outcomes, [own, other], topics.__getitem__)
    assert (found.expected, found.delivered, found.faults) == (5, 5, [])
    astray = dataclasses.replace(received([0]), subscription="bills/b")
    assert judge(outcomes, [own, other, astray], topics.__getitem__).strange == 1


def test_unknown_outcomes_are_resolved_and_refused_ones_are_owed_to_nobody() -> None:
    outcomes = {0: np.array([CONFIRMED, UNKNOWN, UNKNOWN, OTHERWISE], dtype=np.uint8)}
    found = audit(outcomes, [received([0, 1])])
    assert (found.unknown, found.found, found.lost, found.expected) == (2, 1, 0, 1)
    assert found.refused == 1


def test_what_nobody_sent_and_what_is_altered_are_faults() -> None:
    strange = received([0, 9], publisher=0)
    foreign = received([0], publisher=7)
    found = audit(confirmed(1), [strange, foreign, received([], altered=2)])
    assert (found.strange, found.altered) == (2, 2)
    assert found.faults == ["2 altered", "2 delivered and never published"]


def test_no_messages_are_no_fault() -> None:
    assert audit({}, []) == Fates()


def test_a_repeat_is_what_came_later_whoever_had_it() -> None:
    first = dataclasses.replace(received([0, 1, 2]), received_ns=np.array([10, 20, 30]))
    other = dataclasses.replace(received([1, 3, 1]), received_ns=np.array([15, 16, 40]))
    elsewhere = dataclasses.replace(other, subscription="orders/b")
    assert sorted(repeats_ns([first, other])) == [20, 40]
    assert sorted(repeats_ns([first, elsewhere])) == [40]
    assert repeats_ns([]).tolist() == []


def test_a_silence_is_of_what_was_never_confirmed_too() -> None:
    outcomes = np.array([CONFIRMED, UNKNOWN, OTHERWISE, CONFIRMED], dtype=np.uint8)
    one = Published(outcomes, np.array([0, 10, 20, 90]), np.array([1, 60, 0, 95]))
    assert one.silence_ns(0, 100) == 85
    assert one.silence_ns(0, 50) == 40
    assert one.unconfirmed_ns.tolist() == [10, 20]
    assert Published(outcomes, np.array([0, 10, 20, 90])).silence_ns(0, 100) is None
