"""Ratios and goals made of CPU times; tests/unit/spark/test_scans.py asks that the answers are equal."""

from __future__ import annotations

import pytest

from bench.figures.measure.fates import MESSAGES, backlog_told, join_told


def test_making_fates_is_told_apart_from_the_backlog_of_them() -> None:
    costs = {
        ("spark", "fates"): [250.0],
        ("duckdb", "depths_of_events"): [10.0],
        ("spark", "depths"): [4.0, 5.0],
        ("duckdb", "depths"): [1.0, 1.0],
    }
    figures = {figure.id: figure for figure in backlog_told(MESSAGES, costs, "again")}
    assert figures["measure.backlog.depths.ratio"].value == 4.5
    assert figures["measure.backlog.depths.ratio"].met
    assert figures["measure.backlog.fates.spark.cpu_s"].value == 250
    assert len(figures) == 5


@pytest.mark.parametrize(("joined_s", "ratio", "met"), [(9.0, 1.5, True), (6.0, 1.0, False)])
def test_a_join_that_is_as_cheap_as_the_audit_misses_its_goal(
    joined_s: float, ratio: float, met: bool
) -> None:
    costs = {
        ("spark", "verdicts"): [6.0] * 3,
        ("duckdb", "verdicts"): [2.0] * 3,
        ("spark", "joined"): [joined_s] * 3,
    }
    figures = {figure.id: figure for figure in join_told(MESSAGES, costs, "again")}
    assert figures["measure.join.joined.ratio"].value == ratio
    assert figures["measure.join.joined.ratio"].met is met
    assert len(figures) == 4
