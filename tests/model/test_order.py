"""Order in a consumer through random schedules of brokers, links, failing runs and dying processes."""

from __future__ import annotations

import pytest

from tests.support.examples import examples
from tests.support.order_model import World, walk

WALKS = examples(800)
WORLDS = {
    "several keys, brokers and consumers": World(),
    "one hot key": World(keys=1, messages=16),
    "one consumer, many runs": World(consumers=1, concurrency=8, prefetch=12),
    "a prefetch of one": World(prefetch=1),
    "claims that are granted in any order": World(claims=True),
    "three of each": World(brokers=3, consumers=3, claims=True, messages=30),
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
