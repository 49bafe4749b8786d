"""Fates and histograms: planted faults in many messages are found, and HdrHistogram agrees."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from hdrh.histogram import HdrHistogram
from hypothesis import given
from hypothesis import strategies as st

from bench.harness.histograms import DIGITS, TOP_NS, Counts, Latencies, histogram, indexes
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
        *("orders/a", np.full_like(rows, publisher), rows, np.full_like(rows, broker)),
        received_ns=np.arange(len(rows)),
        intended_ns=np.zeros_like(rows),
        altered=altered,
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
        received_ns=np.arange(6),
        intended_ns=np.zeros(6, dtype=np.int64),
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
    assert judge(outcomes, [own, other, astray], topics.__getitem__).orphan == 1


def test_unknown_outcomes_are_resolved_and_refused_ones_are_owed_to_nobody() -> None:
    outcomes = {0: np.array([CONFIRMED, UNKNOWN, UNKNOWN, OTHERWISE], dtype=np.uint8)}
    found = audit(outcomes, [received([0, 1])])
    assert (found.unknown, found.unknown_delivered, found.lost, found.expected) == (2, 1, 0, 1)
    assert found.refused == 1


def test_what_nobody_sent_and_what_is_altered_are_faults() -> None:
    strange = received([0, 9], publisher=0)
    foreign = received([0], publisher=7)
    found = audit(confirmed(1), [strange, foreign, received([], altered=2)])
    assert (found.orphan, found.altered) == (2, 2)
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


def silences_by_hand(
    messages: list[tuple[int, int, bool]], until_ns: int
) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each silence. messages: intended, settled, is confirmed."""
    confirms = sorted({settled for _, settled, is_confirmed in messages if is_confirmed})
    since = -1
    for end in [*confirms, until_ns]:
        waiting = [
            intended
            for intended, settled, is_confirmed in messages
            if (
                since <= intended < end and settled >= end
                if is_confirmed
                else since < intended < end
            )
        ]
        earlier = [
            intended
            for intended, settled, is_confirmed in messages
            if intended < since and is_confirmed and settled >= end
        ]
        if waiting or earlier:
            yield (since if earlier else min(waiting)), end
        since = end


def test_a_silence_that_was_under_way_at_an_incident_counts_from_its_own_begin() -> None:
    """The wait of 30 to 90 was under way at 50; that of 200 to 300 is of no incident."""
    outcomes = np.full(4, CONFIRMED, dtype=np.uint8)
    one = Published(outcomes, np.array([0, 30, 80, 200]), np.array([20, 90, 95, 300]))
    assert one.silence_ns(0, 400) == 100
    assert one.silence_ns(0, 400, (50, 150)) == 60
    assert one.silence_ns(0, 400, (96, 150)) == 0
    # Waiting for what one publisher sent one after another: the silence begins at the confirm before it.
    assert one.silence_ns(0, 400, (92, 93)) == 5


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40), st.booleans()), min_size=1),
    st.integers(0, 60),
    st.integers(0, 30),
)
def test_silences_of_an_incident_are_those_that_end_after_its_begin_and_begin_before_its_end(
    waits: list[tuple[int, int, bool]], began: int, lasted: int
) -> None:
    messages = [(intended, intended + took, kept) for intended, took, kept in waits]
    longest = max(
        (
            end - since
            for since, end in silences_by_hand(messages, 200)
            if end >= began and since <= began + lasted
        ),
        default=0,
    )
    one = Published(
        np.array([CONFIRMED if kept else UNKNOWN for *_, kept in messages], dtype=np.uint8),
        np.array([intended for intended, *_ in messages]),
        np.array([settled for _, settled, _ in messages]),
    )
    assert one.silence_ns(0, 200, (began, began + lasted)) == longest


SECOND = 1_000_000_000
VALUES = st.lists(st.integers(0, TOP_NS - 1), min_size=1, max_size=200)


def reference(values: list[int]) -> HdrHistogram:
    made = HdrHistogram(1, TOP_NS, DIGITS)
    for value in values:
        assert made.record_value(value)
    return made


@given(VALUES)
def test_what_is_written_down_is_what_the_library_writes(values: list[int]) -> None:
    latencies = Latencies(0)
    rows = np.array(values, dtype=np.int64)
    latencies.add("mb1", np.zeros_like(rows), rows)
    assert histogram(latencies.whole()).encode() == reference(values).encode()


def test_indexes_are_the_librarys_at_every_edge() -> None:
    made = HdrHistogram(1, TOP_NS, DIGITS)
    edges = sorted({max(0, (1 << bit) + off) for bit in range(47) for off in (-2, -1, 0, 1, 2)})
    found = indexes(np.array(edges, dtype=np.int64)).tolist()
    assert found == [made._counts_index_for(each) for each in edges]


def test_seconds_and_brokers_stay_apart_and_add_up() -> None:
    latencies = Latencies(5 * SECOND)
    at = np.array([5 * SECOND, 6 * SECOND - 1, 6 * SECOND], dtype=np.int64)
    latencies.add("mb1", at, np.array([7, 7, 9], dtype=np.int64))
    latencies.add("mb2", at[:1], np.array([7], dtype=np.int64))
    assert dict(latencies.bins) == {(0, "mb1"): {7: 2}, (1, "mb1"): {9: 1}, (0, "mb2"): {7: 1}}
    assert latencies.whole() == {7: 3, 9: 1}
    assert latencies.whole(range(1)) == {7: 3}
    assert latencies.whole(broker="mb1") == {7: 2, 9: 1}


def test_parts_of_several_processes_are_one() -> None:
    one, other = Latencies(0), Latencies(0)
    for each in (one, other):
        each.add("mb1", np.array([0], dtype=np.int64), np.array([7], dtype=np.int64))
    one.merge(other.as_json())
    assert one.whole() == {7: 2}


def test_values_below_zero_are_counted_and_never_clipped() -> None:
    latencies = Latencies(0)
    latencies.add("", np.zeros(2, dtype=np.int64), np.array([-1, 3], dtype=np.int64))
    assert (latencies.below_zero, latencies.whole()) == (1, {3: 1})


S = 1_000_000_000


def counts() -> Counts:
    made = Counts(10 * S)
    made.add("a", np.array([10 * S, 10 * S + 1, 12 * S - 1, 13 * S], dtype=np.int64))
    made.add("b", np.array([9 * S, 11 * S], dtype=np.int64))
    return made


def test_messages_belong_to_the_second_in_which_they_came() -> None:
    assert counts().by_broker() == {"a": [2, 1, 0, 1], "b": [0, 1, 0, 0]}
    assert counts().total() == 6
    assert counts().total(range(1, 3)) == 2


def test_what_processes_counted_adds_up() -> None:
    merged = Counts(10 * S)
    for _ in range(2):
        merged.merge(counts().as_json())
    assert merged.by_broker() == {"a": [4, 2, 0, 2], "b": [0, 2, 0, 0]}


@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(0, 30), st.sampled_from([CONFIRMED, UNKNOWN])),
        min_size=1,
    ),
    st.integers(0, 30),
    st.integers(0, 10),
    st.booleans(),
)
def test_what_was_under_way_when_an_incident_began_is_after_it(
    publishes: list[tuple[int, int, int]], began: int, lasted: int, is_last_open: bool
) -> None:
    """By a definition of its own, publish by publish. The last one may not have ended at all."""
    rows = [(intended, intended + took, outcome) for intended, took, outcome in publishes]
    if is_last_open:
        rows[-1] = (rows[-1][0], -1, UNKNOWN)
    until = began + lasted
    before, after, never = [], [], 0
    for intended, ended, outcome in rows:
        is_over = 0 <= ended < began
        if is_over and outcome == CONFIRMED and intended >= 3:
            before.append(ended - intended)
        if not is_over and intended < until:
            never += outcome != CONFIRMED
            after += [ended - intended] if outcome == CONFIRMED else []
    intended_ns, ended_ns, outcomes = (np.array(each) for each in zip(*rows, strict=True))
    found = Published(outcomes.astype(np.uint8), intended_ns, ended_ns).around(began, until, 3)
    assert found is not None
    assert (found[0].tolist(), found[1].tolist(), found[2]) == (before, after, never)
