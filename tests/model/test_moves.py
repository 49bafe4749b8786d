"""Moves of a partition: every schedule of small worlds, and random ones of a large world."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from tests.support.examples import examples, without_large
from tests.support.move_model import Rules, World, explore, walk

WALKS = examples(120)
MOVE = World()
LOST = World(brokers=3, losses=1, returns=1)
COMPLETE = {
    "one move": MOVE,
    "back to the first home": World(epochs=3),
    "a home is lost": LOST._replace(returns=0),
    "a lost home is back with its disk": LOST._replace(window=1),
}
LARGE = World(
    owners=(0, 0, 0, 1, 1, 2),
    brokers=3,
    epochs=4,
    consumers=3,
    window=3,
    prefetch=3,
    kills=3,
    crashes=3,
    cuts=2,
    gives=4,
)
CUT = World(cuts=1, epochs=1)
WORLDS = {"resend": CUT, "gate": LOST, "all": LOST}


@pytest.mark.parametrize(
    "name",
    without_large(COMPLETE, "a lost home is back with its disk", "back to the first home"),
)
def test_no_schedule_of_a_small_world_breaks_the_order_loses_or_stops(name: str) -> None:
    fault, states, path = explore(COMPLETE[name], Rules())
    assert not fault, "\n".join([fault, *path])
    assert states > 5_000


def test_no_random_schedule_of_moves_kills_cuts_and_dying_agents_breaks_the_order() -> None:
    for seed in range(WALKS):
        world = LARGE._replace(losses=seed % 2, returns=seed % 4 // 2)
        fault, path = walk(world, Rules(), seed)
        assert not fault, "\n".join([fault, f"seed {seed}", *path])


@pytest.mark.parametrize("rule", [each.name for each in fields(Rules)])
def test_without_a_rule_of_a_move_a_schedule_is_found_that_breaks_the_order(rule: str) -> None:
    rules = replace(Rules(), **{rule: False})
    fault, _, _ = explore(WORLDS.get(rule, MOVE), rules)
    assert fault.startswith(("ORDER", "LOST"))
