"""The audit beside the full outer join that one would write first: the same fates, for more CPU."""

from __future__ import annotations

from collections.abc import Iterator

from bench.figures.form import Figure, at_least
from bench.figures.measure.made import lay
from bench.figures.measure.turns import SPARK, Costs, Words, both
from bench.figures.scene import Group, Scene, repeat_command

__all__ = ["GROUP", "join_figures", "told"]

NAME = "measure.join"
MESSAGES = 10_000_000
LEAST = 10_000
WHAT = {
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
    yield from told(messages, costs, repeat_command(NAME, scene.repeat))


def told(messages: int, costs: Costs, repeat: str) -> Iterator[Figure]:
    words = Words(name=NAME, messages=messages, bounded=messages == MESSAGES, repeat=repeat)
    yield from words.costs(costs, WHAT)
    yield words.ratio(
        "joined",
        "fates by a full outer join: CPU over that of the audit",
        costs[SPARK, "joined"],
        costs[SPARK, "verdicts"],
        lambda value: at_least(JOIN_MIN, value, "times"),
    )


GROUP = Group(NAME, 0, "no broker", join_figures)
