"""Order of a partition through random schedules of publishers, its home, and a group of consumers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.examples import examples
from tests.support.partition_model import Rules, World, walk

WALKS = examples(500)
SLOW = ("cut",) * 5 + ("time",) * 4 + ("freeze",) * 2 + ("call",) * 6 + ("send",) * 6
WORLDS = {
    "two publishers, three consumers": World(),
    "links that end with bytes on their way": World(
        publishers=1, consumers=1, keys=1, window=4, messages=30, steps=500, more=SLOW
    ),
    "a hot key that is let go": World(
        keys=1, messages=40, steps=400, more=("let_go",) * 6 + ("attach",) * 2
    ),
    "consumers that are lost": World(
        messages=40, prefetch=6, more=("lose",) * 5 + ("die",) * 3 + ("notice",) * 4
    ),
}
FOUND = {
    "home": ("two publishers, three consumers", 60),
    "again": ("links that end with bytes on their way", 1_500),
    "prefetch": ("a hot key that is let go", 300),
    "close": ("a hot key that is let go", 600),
    "place": ("two publishers, three consumers", 600),
    "lanes": ("two publishers, three consumers", 60),
    "drop": ("a hot key that is let go", 300),
}


@pytest.mark.guarantee("key-order-across-brokers")
@pytest.mark.parametrize("name", WORLDS)
def test_no_schedule_completes_a_key_out_of_order_or_loses_what_was_confirmed(name: str) -> None:
    for seed in range(WALKS):
        fault, steps = walk(WORLDS[name], Rules(), seed)
        assert not fault, "\n".join([fault, f"seed {seed}", *steps])


@pytest.mark.parametrize("rule", FOUND)
def test_without_a_rule_a_schedule_is_found_that_breaks_the_order(rule: str) -> None:
    world, walks = FOUND[rule]
    rules = replace(Rules(), **{rule: False})
    found = (walk(WORLDS[world], rules, seed)[0] for seed in range(walks))
    assert next((fault for fault in found if fault), "")
