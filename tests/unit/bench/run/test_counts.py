from __future__ import annotations

import numpy as np

from bench.run.counts import Counts

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


def test_nothing_counted_is_no_rate() -> None:
    assert Counts(0).by_broker() == {}
    assert Counts(0).total() == 0
