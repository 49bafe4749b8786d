from __future__ import annotations

from bench.workloads.overhead import Overhead, figures, measure


def test_every_part_of_the_harness_has_a_cost() -> None:
    # Other work may make a single measurement nonsense, but hardly most of them.
    found = {each.id: each.value for each in figures(measure(20_000, repeat=3))}
    assert min(found.values()) > 0


def test_what_is_promised_is_the_whole_of_a_message() -> None:
    found = {
        each.id: each
        for each in figures(
            [Overhead(0.3, 2.0, 1.0), Overhead(0.3, 2.5, 1.5), Overhead(0.3, 1.5, 1.0)]
        )
    }
    whole = found["measure.overhead.message_us"]
    assert (whole.value, whole.samples, whole.goal, whole.met) == (
        *(3.0, (3.0, 4.0, 2.5)),
        *("<= 3 us", False),
    )
    assert found["measure.overhead.publish_us"].goal == ""
    assert found["measure.overhead.consume_us"].met is None
