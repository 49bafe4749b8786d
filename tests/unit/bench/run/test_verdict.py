from __future__ import annotations

import dataclasses

import pytest

from bench.run.verdict import Client, bottlenecks, steady_from

GOOD = Client("publisher-0", cpu_share=0.4, pacing_p99_ms=1.2, intended=1000)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, None),
        ({"cpu_share": 0.95}, "used 95% of a core: the client was the bottleneck"),
        ({"pacing_p99_ms": 30.0}, "30.0 ms late or more: its pacer was the bottleneck"),
        ({"unsent": 5}, None),
        ({"unsent": 500}, "sent 500 of 1,000 intended messages: too slow"),
        ({"unsent": 500, "waited": True}, "held back by its window"),
    ],
)
def test_a_load_that_was_too_slow_says_so(changed: dict[str, float], said: str | None) -> None:
    found = bottlenecks([dataclasses.replace(GOOD, **changed)])  # type: ignore[arg-type]
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


def test_a_steady_state_begins_after_the_start() -> None:
    assert steady_from([10, 50, 100, 101, 99, 100, 100, 98]) == 2
    assert steady_from([100] * 5) == 0
    assert steady_from([0] * 9) is None
    assert steady_from([1, 100, 1, 100, 1, 100, 1]) is None
    assert steady_from([100] * 4) is None
