"""core.subset: every broker has its consumers, without anybody asking anybody."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messagebus.core.subset import Subset

BROKERS = [f"mb{number}.example:5672" for number in range(100)]


def shares(slots: int, cover: int, brokers: list[str] = BROKERS) -> list[frozenset[str]]:
    return [Subset(slot=slot, slots=slots, cover=cover).of(brokers) for slot in range(slots)]


@given(st.integers(1, 12), st.integers(1, 4), st.sets(st.text(min_size=1), max_size=20))
@settings(max_examples=100, deadline=None)
def test_every_broker_is_taken_by_as_many_consumers_as_wanted(
    slots: int, cover: int, brokers: set[str]
) -> None:
    taken = Counter(b for share in shares(slots, cover, sorted(brokers)) for b in share)
    assert taken == dict.fromkeys(brokers, min(cover, slots))


def test_consumers_have_about_as_many_brokers_each() -> None:
    sizes = [len(share) for share in shares(slots=20, cover=4)]
    assert sum(sizes) == 400
    assert 8 <= min(sizes) <= max(sizes) <= 36


def test_one_more_broker_moves_no_other() -> None:
    before, after = shares(8, 2), shares(8, 2, [*BROKERS, "new.example:5672"])
    assert [share - {"new.example:5672"} for share in after] == before


def test_one_more_consumer_takes_only_its_own_share() -> None:
    before, after = shares(8, 2), shares(9, 2)
    lost = sum(len(old - new) for old, new in zip(before, after[:8], strict=True))
    assert all(new <= old for old, new in zip(before, after[:8], strict=True))
    assert lost == len(after[8])


@pytest.mark.parametrize("slot", [-1, 3])
def test_a_slot_that_is_not_there_is_a_bug(slot: int) -> None:
    with pytest.raises(AssertionError):
        Subset(slot=slot, slots=3, cover=1)
