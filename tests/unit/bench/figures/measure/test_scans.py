"""Ratios and goals made of CPU times; the answers are compared in tests/unit/spark/test_scans.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.errors import BenchError
from bench.figures.measure.made import lay
from bench.figures.measure.scans import (
    BACKLOG,
    DUCKDB,
    JOIN,
    MESSAGES,
    SCANS,
    SPARK,
    Both,
    agreed,
    fed,
)
from bench.figures.measure.watched import Answered
from bench.figures.scene import Scene


def costs() -> dict[tuple[str, str], list[float]]:
    spark = {(SPARK, name): [6.0, 5.0, 7.0] for name in (*SCANS.asked, *SCANS.alone)}
    return spark | {(DUCKDB, name): [1.0, 1.0, 1.0] for name in SCANS.asked}


def test_ratios_are_of_one_round_and_the_middle_one_counts() -> None:
    made = {("cells", "percentiles"): [4000.0], **costs()}
    figures = {figure.id: figure for figure in SCANS.told(MESSAGES, made, "again")}
    assert figures["measure.scans.percentiles"].value == 4000
    assert figures["measure.scans.seconds.ratio"].value == 6
    assert figures["measure.scans.seconds.ratio"].samples == (6.0, 5.0, 7.0)
    assert figures["measure.scans.approximate.ratio"].value == 1
    assert all(figure.met for figure in figures.values() if figure.unit == "times")
    assert len(figures) == 1 + len(SCANS.asked) * 3 + len(SCANS.alone) + 1


def test_a_quick_run_has_no_goals() -> None:
    assert all(figure.met is None for figure in SCANS.told(10_000, costs(), "again"))


def test_every_publish_is_in_the_histogram_of_its_publisher_and_broker(tmp_path: Path) -> None:
    lay(tmp_path, 1000)
    found = fed(tmp_path)
    assert len({publisher for publisher, _ in found}) == 50
    assert sum(each.get_total_count() for each in found.values()) == 1000
    assert min(each.get_min_value() for each in found.values()) > 1000


def test_making_fates_is_told_apart_from_the_backlog_of_them() -> None:
    costs = {
        ("spark", "fates"): [250.0],
        ("duckdb", "depths_of_events"): [10.0],
        ("spark", "depths"): [4.0, 5.0],
        ("duckdb", "depths"): [1.0, 1.0],
    }
    figures = {figure.id: figure for figure in BACKLOG.told(MESSAGES, costs, "again")}
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
    figures = {figure.id: figure for figure in JOIN.told(MESSAGES, costs, "again")}
    assert figures["measure.join.joined.ratio"].value == ratio
    assert figures["measure.join.joined.ratio"].met is met
    assert len(figures) == 4


class FakeAsked:
    def __init__(self, name: str, log: list[str], found: Any) -> None:
        self._name, self._log, self._found = name, log, found
        self._costs: Iterator[float] = iter(range(1, 100))

    def ask(self, question: str) -> Answered:
        self._log.append(f"{self._name} {question}")
        return Answered(self._found, next(self._costs))


def both(log: list[str], ours: Any = "same", theirs: Any = "same") -> Both:
    return Both(FakeAsked(SPARK, log, ours), FakeAsked(DUCKDB, log, theirs))  # type: ignore[arg-type]


def test_both_are_asked_by_turns_and_the_first_round_does_not_count() -> None:
    log: list[str] = []
    scene = Scene(Path(), lambda _: None, repeat=2)
    costs = both(log).by_turns(scene, ["a"], ["b"])
    assert log == [
        *("duckdb a", "spark a", "spark b"),
        *("spark a", "duckdb a", "spark b"),
        *("duckdb a", "spark a", "spark b"),
    ]
    assert costs == {(SPARK, "a"): [3, 5], (DUCKDB, "a"): [2, 3], (SPARK, "b"): [4, 6]}


def test_a_difference_is_told_with_its_first_rows() -> None:
    with pytest.raises(BenchError, match=r"differ about depths: 2 and 2 rows: \(3, 4\)"):
        agreed("depths", [1, 3], [1, 4])
    with pytest.raises(BenchError, match="differ about a"):
        both([], ours=[1], theirs=[2]).by_turns(Scene(Path(), lambda _: None), ["a"])
    both([]).agree("a")
