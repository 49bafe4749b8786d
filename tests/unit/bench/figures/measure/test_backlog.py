"""What is made of CPU times; that the answers are equal, tests/unit/spark/test_scans.py asks."""

from __future__ import annotations

from bench.figures.measure.backlog import MESSAGES, told


def test_making_fates_is_told_apart_from_the_backlog_of_them() -> None:
    costs = {
        ("spark", "fates"): [250.0],
        ("duckdb", "depths_of_events"): [10.0],
        ("spark", "depths"): [4.0, 5.0],
        ("duckdb", "depths"): [1.0, 1.0],
    }
    figures = {figure.id: figure for figure in told(MESSAGES, costs, "again")}
    assert figures["measure.backlog.depths.ratio"].value == 4.5
    assert figures["measure.backlog.depths.ratio"].met
    assert figures["measure.backlog.fates.spark.cpu_s"].value == 250
    assert len(figures) == 5
