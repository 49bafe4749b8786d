"""Patience: a wait lasts as long as something moves, and not for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ops.run.waiting import Patience


class Machine:
    """A clock, and a count that moves when it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.count = 0

    def patience(self, *, stalled_s: float = 60, at_most_s: float = 600) -> Patience:
        return Patience(
            lambda: self.count, stalled_s=stalled_s, at_most_s=at_most_s, clock=lambda: self.now_s
        )


def test_what_moves_slowly_is_waited_for() -> None:
    machine = Machine()
    patience = machine.patience()
    for _ in range(10):
        machine.now_s += 59
        machine.count += 1
        assert patience.spent() == ""


def test_what_moves_no_more_is_given_up_with_the_reason() -> None:
    machine = Machine()
    patience = machine.patience()
    machine.now_s, machine.count = 50, 1
    assert patience.spent() == ""
    machine.now_s = 111
    assert patience.spent() == "after 111 s, 61 of them without progress"


def test_what_moves_for_ever_is_given_up_too() -> None:
    machine = Machine()
    patience = machine.patience()
    machine.now_s, machine.count = 601, 1
    assert patience.spent() == "after 601 s"


@given(
    looks=st.lists(st.tuples(st.integers(0, 100), st.booleans()), max_size=30),
    stalled_s=st.integers(0, 100),
    at_most_s=st.integers(0, 500),
)
def test_it_ends_as_an_oracle_says(
    looks: list[tuple[int, bool]], stalled_s: int, at_most_s: int
) -> None:
    """Oracle: the longest stretch of looks without a change that has led to each look."""
    machine = Machine()
    patience = machine.patience(stalled_s=stalled_s, at_most_s=at_most_s)
    for number, (took_s, moves) in enumerate(looks):
        machine.now_s += took_s
        machine.count += moves
        before = looks[: number + 1]
        still = next((n for n, (_, moved) in enumerate(reversed(before)) if moved), len(before))
        rested_s = sum(each for each, _ in before[len(before) - still :])
        assert bool(patience.spent()) == (rested_s > stalled_s or machine.now_s > at_most_s)
