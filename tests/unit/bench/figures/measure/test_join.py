"""What is made of CPU times; that the fates are the same, tests/unit/spark/test_scans.py asks."""

from __future__ import annotations

import pytest

from bench.figures.measure.join import MESSAGES, told


@pytest.mark.parametrize(("joined_s", "ratio", "met"), [(9.0, 1.5, True), (6.0, 1.0, False)])
def test_a_join_that_is_as_cheap_as_the_audit_misses_its_goal(
    joined_s: float, ratio: float, met: bool
) -> None:
    costs = {
        ("spark", "verdicts"): [6.0] * 3,
        ("duckdb", "verdicts"): [2.0] * 3,
        ("spark", "joined"): [joined_s] * 3,
    }
    figures = {figure.id: figure for figure in told(MESSAGES, costs, "again")}
    assert figures["measure.join.joined.ratio"].value == ratio
    assert figures["measure.join.joined.ratio"].met is met
    assert len(figures) == 4
