from __future__ import annotations

import pytest

from bench.run.machine import Busy, look, usage


def busy(at_s: float, busy_s: float, *, stolen_s: float = 0.0, load: float = 1.0) -> Busy:
    return Busy(at_s, busy_s, stolen_s, load)


def test_what_is_neither_brokers_nor_load_is_the_rest() -> None:
    seen = [busy(0, 50), busy(2, 100, load=9), busy(4, 103, load=2), busy(6, 107), busy(9, 200)]
    found = usage(seen, range(2, 6), cores=2, brokers=0.75, clients=0.5)
    assert found is not None
    assert found.busy == pytest.approx(1.75)
    assert found.rest == pytest.approx(0.5)
    assert found.load_max == 9
    assert str(found) == "1.75 of 2 cores busy: load 0.50, brokers 0.75, all else 0.50"


def test_cores_that_went_to_others_are_said() -> None:
    found = usage(
        [busy(0, 0), busy(10, 5, stolen_s=2)], range(11), cores=2, brokers=0.5, clients=0.5
    )
    assert found is not None
    assert found.rest == 0
    assert str(found).endswith("; 0.20 given to others")


def test_one_look_says_nothing() -> None:
    assert usage([busy(1, 5)], range(9), cores=2, brokers=0.0, clients=0.0) is None
    assert usage([], range(9), cores=2, brokers=0.0, clients=0.0) is None


def test_the_machine_is_busier_later() -> None:
    first = look(0.0)
    sum(range(3_000_000))
    assert look(1.0).busy_s > first.busy_s
    assert first.load >= 0
