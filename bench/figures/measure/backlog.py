"""The backlog of every second, from the fates of all messages: what it costs Spark and DuckDB.

Spark makes the fates once a run, for several jobs; that is told apart. DuckDB is asked about the same
fates for the ratio, and about the events alone to see that those fates are right.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.figures.form import Figure, at_most
from bench.figures.measure.made import lay
from bench.figures.measure.scans import RATIO_MAX
from bench.figures.measure.turns import DUCKDB, SPARK, Costs, Words, agreed, both
from bench.figures.scene import Group, Scene, repeat_command

__all__ = ["GROUP", "backlog_figures", "told"]

NAME = "measure.backlog"
MESSAGES = 10_000_000
LEAST = 10_000
WHAT = {
    "depths": "backlog per broker and second, of fates",
    "depths_of_events": "the same of events",
    "fates": "fates of all messages made and kept, and the backlog of them once",
}


def backlog_figures(scene: Scene) -> Iterator[Figure]:
    messages = scene.part(MESSAGES, LEAST)
    lake = scene.folder / "lake"
    scene.say(f"laying {messages:,} publishes and as many deliveries")
    lay(lake, messages)
    with both(lake) as asked:
        scene.say("making the fates of all messages")
        made, events = asked.spark.ask("depths"), asked.duckdb.ask("depths_of_events")
        agreed("depths", made.found, events.found)
        costs = asked.by_turns(scene, ["depths"])
    once = {(SPARK, "fates"): [made.cpu_s], (DUCKDB, "depths_of_events"): [events.cpu_s]}
    yield from told(messages, {**once, **costs}, repeat_command(NAME, scene.repeat))


def told(messages: int, costs: Costs, repeat: str) -> Iterator[Figure]:
    words = Words(name=NAME, messages=messages, bounded=messages == MESSAGES, repeat=repeat)
    yield from words.costs(costs, WHAT)
    yield words.ratio(
        "depths",
        f"{WHAT['depths']}: CPU of Spark over DuckDB's",
        costs[SPARK, "depths"],
        costs[DUCKDB, "depths"],
        lambda value: at_most(RATIO_MAX, value, "times"),
    )


GROUP = Group(NAME, 0, "no broker", backlog_figures)
