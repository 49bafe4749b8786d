from __future__ import annotations

import dataclasses

import pytest

from bench.analysis.verdict import Client, behind, bottlenecks, unsteady

GOOD = Client("publisher-0", cpu_share=0.4, pacing_p99_ms=1.2, intended=1000)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, None),
        ({"cpu_share": 0.95}, "used 95% of a core: the client was the bottleneck"),
        ({"pacing_p99_ms": 30.0}, "30.0 ms late or more: its pacer was the bottleneck"),
        ({"unsent": 5}, None),
        ({"unsent": 500}, "sent 500 of 1,000 intended messages: too slow"),
        ({"unsent": 500, "waited": 0.3}, "held back by its window"),
    ],
)
def test_a_load_that_was_too_slow_says_so(changed: dict[str, float], said: str | None) -> None:
    found = bottlenecks([dataclasses.replace(GOOD, **changed)])  # type: ignore[arg-type]
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


def test_many_with_one_fault_are_one_line_with_the_worst() -> None:
    slow = [
        dataclasses.replace(GOOD, name=f"publisher-{number}", pacing_p99_ms=10.0 + number)
        for number in range(25)
    ]
    (found,) = bottlenecks([*slow, GOOD])
    assert found.startswith("publisher-24 looked at 1 % of its messages 34.0 ms late or more")
    assert found.endswith("(and 24 others less so)")
    assert len(bottlenecks(slow[:3])) == 3


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        ([1000] * 30, None),
        ([1000, 1040, 960, 1000, 1000, 980, 1020], None),
        ([100] * 10 + [0] * 8 + [100] * 12, "from measured second 7 on"),
        ([100] * 20 + [0] * 9, "no steady state"),
        ([200, 400, 600, 800, 1000, 1000, 1000, 1000, 1000], "from measured second 0 on"),
        ([0] * 9, None),
        ([5, 100, 0, 7], None),
    ],
)
def test_a_load_is_steady_when_it_stays_so_to_the_end(rates: list[float], said: str | None) -> None:
    found = unsteady(rates)
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


@pytest.mark.parametrize(
    ("confirmed", "delivered", "said"),
    [
        (3000, 3000, []),
        (2980, 2960, []),
        (1500, 1500, ["did not keep up: 1,500 confirmed of 3,000 intended meanwhile"]),
        (3000, 900, ["consumers did not keep up: 900 delivered of 3,000 meanwhile"]),
    ],
)
def test_what_did_not_keep_up_is_told(confirmed: int, delivered: int, said: list[str]) -> None:
    assert behind(3000, confirmed, confirmed, delivered, 30.0) == said


def test_what_is_under_way_at_the_end_of_a_short_run_is_not_behind() -> None:
    assert behind(200, 160, 160, 130, 2.0) == []
