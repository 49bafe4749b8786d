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
    assert compared.regressions(0.1) == [
        *("confirmed a second", "confirm p50", "confirm p99"),
        "nothing was confirmed: in 0 and 2 of 2 pairs",
    ]
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


SLOW = "publisher-0 used 95% of a core: the client was the bottleneck"
LATE = "publisher-0 looked at 1 % of its messages 9.0 ms late or more: its pacer was the bottleneck"


@pytest.mark.parametrize(
    ("x", "y", "why"),
    [
        (result(), result(), ""),
        (result(complete=False, faults=["cut"]), result(), "the first: cut"),
        (result(rate=0), result(), "the first confirmed nothing"),
        (result(), result(faults=[SLOW]), f"the second: {SLOW}"),
        (result(faults=[LATE]), result(), f"the first: {LATE}"),
        (result(profile=CLOSED), result(profile=CLOSED, faults=[SLOW]), ""),
        (result(profile=CLOSED, fates={"faults": ["1 altered"]}), result(), ""),
        (result(), result(fates={"faults": ["3 lost"]}), ""),
        (result(), result(faults=["no steady state: 5 a second"]), ""),
        (result(), result(rate=0, complete=False, faults=["died"]), ""),
    ],
)
def test_a_pair_is_left_out_for_what_the_load_did_alone(
    x: dict[str, Any], y: dict[str, Any], why: str
) -> None:
    assert why_left_out(x, y) == why


@pytest.mark.parametrize(
    "bad",
    [
        {"faults": ["did not keep up: 30,000 confirmed of 60,000 intended meanwhile"], "rate": 50},
        {
            "faults": [
                "no steady state: 500 a second from measured second 3 on, 1,000 at the median"
            ]
        },
        {"faults": ["publisher-0 sent 5 of 10 intended messages: held back by its window"]},
        {"faults": ["5,000 publishes did not end confirmed"]},
        {"fates": {"faults": ["5,000 confirmed and never delivered"]}},
        {"complete": False, "faults": ["died"], "rate": 0.0},
    ],
)
def test_what_the_second_alone_does_badly_is_a_regression(bad: dict[str, Any]) -> None:
    """In three pairs of five; the others are alike to the digit."""
    a, b = [result()] * 5, [result(**bad)] * 3 + [result()] * 2
    compared = compare(a, b)
    assert (compared.pairs, compared.left_out) == (5, [])
    (worse,) = (each for each in compared.regressions(0.1) if " and " in each)
    assert worse.endswith("in 0 and 3 of 5 pairs")
    assert [line for line in told(compared, ("a", "b"), 0.1) if worse in line and "REGR" in line]
    # The first alone: nothing that the second does worse.
    assert not [each for each in compare(b, a).regressions(0.1) if "pairs" in each]


def test_of_what_both_have_more_messages_are_a_regression() -> None:
    few, many = (
        [result(fates={"faults": [f"{count} confirmed and never delivered"]})] * 2
        for count in ("9", "1,099")
    )
    worse = compare(few, many).regressions(0.1)
    assert worse == ["confirmed and never delivered: in 2 and 2 of 2 pairs"]
    assert compare(many, few).regressions(0.1) == []


def test_what_the_load_did_costs_its_pair_and_is_counted() -> None:
    a, b = [result()] * 3, [result(), result(faults=[SLOW]), result()]
    compared = compare(a, b)
    assert (compared.pairs, compared.left_out) == (2, [f"pair 2 is left out: the second: {SLOW}"])
    assert told(compared, ("a", "b"), 0.1)[0].startswith("medians of 2 pairs, 1 left out")
    with pytest.raises(InputInvalid, match="1 of 2 pairs can be compared, 2 are wanted; pair 2 is"):
        compare(a[:2], b[:2])
    with pytest.raises(InputInvalid, match="3 and 2 repetitions"):
        compare(a, b[:2])
