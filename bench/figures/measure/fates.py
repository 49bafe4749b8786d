"""Figures from the fates of all messages: the backlog of every second, the audit beside an outer join.

Spark makes the fates once a run, for several jobs; that has a figure of its own. DuckDB answers from the
same fates for the ratio, and from the events alone to check the fates. The full outer join is the obvious
query: it gives the same fates for more CPU time.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.figures.form import Figure, at_least, at_most
from bench.figures.measure.made import lay
from bench.figures.measure.scans import RATIO_MAX
from bench.figures.measure.turns import DUCKDB, SPARK, Costs, Words, agreed, both
from bench.figures.scene import Group, Scene, repeat_command

__all__ = [
    "BACKLOG_GROUP",
    "JOIN_GROUP",
    "backlog_figures",
    "backlog_told",
    "join_figures",
    "join_told",
]

BACKLOG = "measure.backlog"
MESSAGES = 10_000_000
LEAST = 10_000
BACKLOG_WHAT = {
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
    yield from backlog_told(messages, {**once, **costs}, repeat_command(BACKLOG, scene.repeat))


def backlog_told(messages: int, costs: Costs, repeat: str) -> Iterator[Figure]:
    words = Words(name=BACKLOG, messages=messages, bounded=messages == MESSAGES, repeat=repeat)
    yield from words.costs(costs, BACKLOG_WHAT)
    yield words.ratio(
        "depths",
        f"{BACKLOG_WHAT['depths']}: CPU of Spark over DuckDB's",
        costs[SPARK, "depths"],
        costs[DUCKDB, "depths"],
        lambda value: at_most(RATIO_MAX, value, "times"),
    )


BACKLOG_GROUP = Group(BACKLOG, 0, "no broker", backlog_figures)


JOIN = "measure.join"


JOIN_WHAT = {
    "verdicts": "fate of every message",
    "joined": "the same by a full outer join of two groupings",
}
JOIN_MIN = 1.4


def join_figures(scene: Scene) -> Iterator[Figure]:
    messages = scene.part(MESSAGES, LEAST)
    lake = scene.folder / "lake"
    scene.say(f"laying {messages:,} publishes and as many deliveries")
    lay(lake, messages)
    with both(lake) as asked:
        costs = asked.by_turns(scene, ["verdicts"], ["joined"])
        asked.agree("joined", "verdicts")
    yield from join_told(messages, costs, repeat_command(JOIN, scene.repeat))


def join_told(messages: int, costs: Costs, repeat: str) -> Iterator[Figure]:
    words = Words(name=JOIN, messages=messages, bounded=messages == MESSAGES, repeat=repeat)
    yield from words.costs(costs, JOIN_WHAT)
    yield words.ratio(
        "joined",
        "fates by a full outer join: CPU over that of the audit",
        costs[SPARK, "joined"],
        costs[SPARK, "verdicts"],
        lambda value: at_least(JOIN_MIN, value, "times"),
    )


JOIN_GROUP = Group(JOIN, 0, "no broker", join_figures)
