"""Order in a consumer through random schedules of brokers, links, failing and hanging runs, and deaths."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.examples import examples
from tests.support.order_model import Rules, World, walk

WALKS = examples(800)
WALKS_TO_A_FAULT = 200
WORLDS = {
    "several keys, brokers and consumers": World(),
    "one hot key": World(keys=1, messages=16),
    "one consumer, many runs": World(consumers=1, concurrency=8, prefetch=12),
    "a prefetch of one": World(prefetch=1),
    "claims": World(claims=True),
    "three of each": World(brokers=3, consumers=3, claims=True, messages=30),
    "runs that never end": World(claims=True, hangs=2, prefetch=24),
    "messages that kill": World(claims=True, killers=2, dies=False, consumers=1),
    "a prefetch of suspects": World(
        claims=True, suspects=True, hangs=1, keys=8, prefetch=24, consumers=1, dies=False
    ),
    "suspects, in order": World(claims=True, suspects=True, keys=1, messages=16),
    "messages too old, in order": World(claims=True, old=8, keys=1, messages=16),
}
# Rule -> a world that shows why it is there, and the fault that is found without it.
NEEDED = {
    "alone": (WORLDS["messages that kill"], "NEEDLESS"),
    "next_of_its_lane": (WORLDS["suspects, in order"], "BEHIND"),
    "turns_end": (WORLDS["a prefetch of suspects"], "STUCK"),
}


@pytest.mark.guarantee("key-order-inside-a-consumer")
@pytest.mark.parametrize("name", WORLDS)
def test_no_schedule_completes_a_key_out_of_order_or_loses_one(name: str) -> None:
    for seed in range(WALKS):
        fault, steps = walk(WORLDS[name], seed)
        assert not fault, "\n".join([fault, f"seed {seed}", *steps])


def test_what_is_handed_out_as_it_arrives_breaks_the_order_at_once() -> None:
    found = {walk(World(naive=True), seed)[0].partition(":")[0] for seed in range(20)}
    assert found & {"ORDER", "SERIAL"}, found


@pytest.mark.parametrize("rule", NEEDED)
def test_each_rule_about_suspects_is_needed(rule: str) -> None:
    world, wanted = NEEDED[rule]
    world = replace(world, rules=replace(Rules(), **{rule: False}))
    found = (walk(world, seed)[0] for seed in range(WALKS_TO_A_FAULT))
    assert any(fault.startswith(wanted) for fault in found)
