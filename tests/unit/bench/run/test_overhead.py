from __future__ import annotations

from bench.run.overhead import measure


def test_every_part_of_the_harness_has_a_cost() -> None:
    found = measure(2000)
    assert found.record_us > 0
    assert found.publish_us > 0
    assert found.consume_us > 0
