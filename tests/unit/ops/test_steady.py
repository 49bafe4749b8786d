from __future__ import annotations

from ops.steady import Steady, some


def test_one_look_proves_nothing_and_two_an_interval_apart_do() -> None:
    now = 0.0
    steady = Steady(1.5, lambda: now)
    assert not steady.holds()
    now = 1.5
    assert not steady.holds()
    now = 1.6
    assert steady.holds()


def test_what_was_otherwise_meanwhile_begins_anew() -> None:
    now = 0.0
    steady = Steady(1.5, lambda: now)
    steady.holds()
    steady.broken()
    now = 5.0
    assert not steady.holds()


def test_many_names_are_told_as_a_few_and_a_number() -> None:
    assert some(["a", "b"]) == "a, b"
    assert some([str(n) for n in range(9)]) == "0, 1, 2, 3, 4 and 4 more"
