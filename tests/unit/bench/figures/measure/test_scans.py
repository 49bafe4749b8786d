"""Figures made of CPU times; the answers themselves are compared in tests/unit/spark/test_scans.py."""

from __future__ import annotations

from pathlib import Path

from bench.figures.measure.made import lay
from bench.figures.measure.scans import ALONE, MESSAGES, SCANS, fed, told


def costs() -> dict[tuple[str, str], list[float]]:
    spark = {name: [6.0, 5.0, 7.0] for name in SCANS | ALONE}
    duck = {name: [1.0, 1.0, 1.0] for name in SCANS}
    return {("spark", name): used for name, used in spark.items()} | {
        ("duckdb", name): used for name, used in duck.items()
    }


def test_ratios_are_of_one_round_and_the_middle_one_counts() -> None:
    figures = {figure.id: figure for figure in told(MESSAGES, costs(), "again")}
    assert figures["measure.scans.seconds.ratio"].value == 6
    assert figures["measure.scans.seconds.ratio"].samples == (6.0, 5.0, 7.0)
    assert figures["measure.scans.approximate.ratio"].value == 1
    assert all(figure.met for figure in figures.values() if figure.unit == "times")
    assert len(figures) == len(SCANS) * 3 + len(ALONE) + 1


def test_a_quick_run_has_no_goals() -> None:
    assert all(figure.met is None for figure in told(10_000, costs(), "again"))


def test_every_publish_is_in_the_histogram_of_its_publisher_and_broker(tmp_path: Path) -> None:
    lay(tmp_path, 1000)
    found = fed(tmp_path)
    assert len({publisher for publisher, _ in found}) == 50
    assert sum(each.get_total_count() for each in found.values()) == 1000
    assert min(each.get_min_value() for each in found.values()) > 1000
