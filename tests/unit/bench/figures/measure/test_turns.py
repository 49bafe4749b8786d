from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.errors import BenchError
from bench.figures.measure.turns import DUCKDB, SPARK, Both, agreed
from bench.figures.measure.watched import Told
from bench.figures.scene import Scene


class FakeAsked:
    def __init__(self, name: str, log: list[str], found: Any) -> None:
        self._name, self._log, self._found = name, log, found
        self._costs: Iterator[float] = iter(range(1, 100))

    def ask(self, question: str) -> Told:
        self._log.append(f"{self._name} {question}")
        return Told(self._found, next(self._costs), 0)


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
