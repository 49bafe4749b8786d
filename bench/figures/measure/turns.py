"""Spark and DuckDB answering the same questions by turns on the same files: equal answers, and their costs.

Two processes with two threads and 4 GB each. Their start does not count, nor does the first round, in which
code is compiled.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from bench.errors import BenchError
from bench.figures.form import Figure, Goal, median_of, no_goal
from bench.figures.measure.audit import millions
from bench.figures.measure.made import RUN_ID
from bench.figures.measure.watched import Asked, asking
from bench.figures.scene import Scene

__all__ = ["DUCKDB", "SPARK", "Both", "Costs", "Words", "agreed", "both"]

SPARK, DUCKDB = "spark", "duckdb"
NAMES = {SPARK: "Spark", DUCKDB: "DuckDB"}

Costs: TypeAlias = Mapping[tuple[str, str], Sequence[float]]
"""(who, question) -> CPU seconds of each round that counts."""


@dataclass(frozen=True, slots=True)
class Both:
    """The two running processes, made by `both`."""

    spark: Asked
    duckdb: Asked

    def agree(self, question: str, other: str = "") -> None:
        """Ask once and compare the answers. other: DuckDB's name of the question, if it differs."""
        agreed(question, self.spark.ask(question).found, self.duckdb.ask(other or question).found)

    def by_turns(self, scene: Scene, questions: Iterable[str], alone: Iterable[str] = ()) -> Costs:
        """Ask the questions by turns, as often as the scene repeats. alone: questions to Spark only.

        Raises BenchError where answers differ.
        """
        costs: dict[tuple[str, str], list[float]] = defaultdict(list)
        asked = [
            *((each, (SPARK, DUCKDB)) for each in questions),
            *((one, (SPARK,)) for one in alone),
        ]
        for number in range(scene.repeat + 1):
            scene.say(f"round {number} of {scene.repeat}" + ("" if number else ", not counted"))
            for question, names in asked:
                # The first one alternates.
                answers = {
                    who: getattr(self, who).ask(question)
                    for who in (names if number % 2 else reversed(names))
                }
                if DUCKDB in answers:
                    agreed(question, answers[SPARK].found, answers[DUCKDB].found)
                for who, answer in answers.items() if number else ():
                    costs[who, question].append(answer.cpu_s)
        return costs


@contextmanager
def both(lake: Path) -> Iterator[Both]:
    """Start both on a lake written by `lay`, and end them on exit."""
    with (
        asking([sys.executable, "-m", "spark.scans", str(lake), RUN_ID]) as spark,
        asking([sys.executable, "-m", "bench.figures.measure.duck_scans", str(lake)]) as duckdb,
    ):
        yield Both(spark, duckdb)


def agreed(question: str, ours: Any, theirs: Any) -> None:
    """Check that two answers are equal. Raises BenchError with the first rows that differ."""
    if ours != theirs:
        first = next((pair for pair in zip(ours, theirs, strict=False) if pair[0] != pair[1]), "")
        counts = f"{len(ours):,} and {len(theirs):,} rows"
        raise BenchError(f"Spark and DuckDB differ about {question}: {counts}: {first}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Texts and goals of cost figures.

    name: the beginning of the ids. bounded: whether goals apply at this size.
    """

    name: str
    messages: int
    bounded: bool
    repeat: str

    def costs(self, costs: Costs, what: Mapping[str, str]) -> Iterator[Figure]:
        """Make a figure of each cost. what: question -> its description."""
        for (who, question), used in costs.items():
            yield median_of(
                used,
                id=f"{self.name}.{question}.{who}.cpu_s",
                what=f"{NAMES[who]}, {millions(self.messages)} rows, {what[question]}: CPU time",
                unit="s",
                repeat=self.repeat,
            )

    def ratio(
        self, id: str, what: str, used: Sequence[float], over: Sequence[float], goal: Goal
    ) -> Figure:
        """Make a figure of the median of the ratios of all rounds."""
        return median_of(
            [one / other for one, other in zip(used, over, strict=True)],
            id=f"{self.name}.{id}.ratio",
            what=f"{millions(self.messages)} rows, {what}",
            unit="times",
            repeat=self.repeat,
            goal=goal if self.bounded else no_goal,
        )
