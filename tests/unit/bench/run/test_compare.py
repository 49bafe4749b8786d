from __future__ import annotations

from typing import Any

import pytest

from bench.errors import InputInvalid
from bench.run.compare import Compared, compare, told, why_left_out
from bench.run.numbers import NUMBERS
from tests.support.results import CLOSED, result

RATE, P99 = NUMBERS[0], NUMBERS[3]


def test_a_regression_is_told_and_the_rest_is_not() -> None:
    a = [result(p99=each) for each in (10, 11, 12, 10, 11)]
    b = [result(p99=each * 1.5) for each in (10, 11, 12, 10, 11)]
    compared = compare(a, b)
    assert compared.regressions(0.1) == ["confirm p50", "confirm p99"]
    assert compared.regressions(0.6) == []
    lines = told(compared, ("a", "b"), 0.1)
    assert [line for line in lines if "REGRESSION" in line and "confirm p99" in line]
    assert lines[0].startswith("medians of 5 pairs")


def test_what_is_told_of_an_even_number_of_pairs_is_their_median() -> None:
    compared = compare([result(p99=10), result(p99=20)], [result(p99=10), result(p99=20)])
    (line,) = (each for each in told(compared, ("a", "b"), 0.1) if "confirm p99" in each)
    assert line.split()[2:4] == ["15", "15"]


def test_a_second_that_confirms_nothing_is_a_regression() -> None:
    nothing = result(rate=0, percentiles_ms={}, faults=["nothing was confirmed"])
    compared = compare([result()] * 2, [nothing] * 2)
    assert compared.regressions(0.1) == ["confirmed a second", "confirm p50", "confirm p99"]
    assert any(
        "only the first has it  REGRESSION" in line for line in told(compared, ("a", "b"), 0.1)
    )


def test_what_only_the_second_has_is_told_and_judged_by_nobody() -> None:
    compared = compare([result(delivery=None)] * 2, [result(delivery=5.0)] * 2)
    assert compared.regressions(0.1) == []
    assert any(
        "delivery p99" in line and "only the second has it" in line
        for line in told(compared, ("a", "b"), 0.1)
    )


def test_what_a_load_of_its_own_does_not_measure_is_no_regression() -> None:
    theirs = result(outside=True, percentiles_ms={}, clients=[])
    assert compare([result()] * 2, [theirs] * 2).regressions(0.1) == []


def test_a_number_of_some_pairs_says_of_how_many() -> None:
    some = Compared(P99, (1.0, 2.0, None), (2.0, 4.0, 4.0))
    assert some.in_words == "2.000 (2.000 to 2.000), 2 of 3 pairs"
    assert not some.vanished
    assert Compared(RATE, (1.0, 2.0), (2.0, 0.0)).is_regression(0.1)


@pytest.mark.parametrize(
    ("x", "y", "why"),
    [
        (result(), result(), ""),
        (result(complete=False, faults=["cut"]), result(), "the first: cut"),
        (result(), result(fates={"faults": ["3 lost"]}), "the second: 3 lost"),
        (result(), result(faults=["the client was the bottleneck"]), "the second: the client was"),
        (result(rate=0), result(), "the first confirmed nothing"),
        (
            result(profile=CLOSED),
            result(profile=CLOSED, faults=["the client was the bottleneck"]),
            "",
        ),
        (result(profile=CLOSED, fates={"faults": ["1 altered"]}), result(), "the first: 1 altered"),
        (result(), result(rate=0, complete=False, faults=["died"]), "the second: died"),
    ],
)
def test_a_pair_counts_when_both_of_it_say_something(
    x: dict[str, Any], y: dict[str, Any], why: str
) -> None:
    found = why_left_out(x, y)
    assert found.startswith(why)
    assert bool(found) == bool(why)


def test_one_faulty_run_costs_its_pair_and_no_more() -> None:
    a, b = [result()] * 3, [result(), result(complete=False, faults=["cut"]), result()]
    compared = compare(a, b)
    assert (compared.pairs, compared.left_out) == (2, ["pair 2 is left out: the second: cut"])
    with pytest.raises(InputInvalid, match="1 of 2 pairs can be compared, 2 are wanted; pair 2 is"):
        compare(a[:2], b[:2])
    with pytest.raises(InputInvalid, match="3 and 2 repetitions"):
        compare(a, b[:2])
