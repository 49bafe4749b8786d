from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.load.profile import Profile
from bench.workloads import predecessor

PROFILES = Path(__file__).resolve().parents[4] / "bench" / "profiles"
BASE = Profile.load_file(PROFILES / "seed-s1.toml")


def results(repeat: int, base: Profile = BASE) -> dict[str, dict[str, Any]]:
    """Return results where standalone is twice as fast with 2 nodes and three times with 3."""
    return {
        step.name: {
            "profile": step.profile.as_json(),
            "faults": [],
            "confirmed_per_s": 100.0
            * (step.profile.system.brokers if "standalone" in step.name else 1),
            "delivered_per_s": 50.0,
            "measured_s": 10.0,
            "percentiles_ms": {},
            "clients": [],
            "brokers": {
                f"mb{number}": {
                    "cpu_s": (1.0 if "standalone" in step.name else 2.0) / nodes,
                    "seconds": 10.0,
                }
                for nodes in [step.profile.system.brokers]
                for number in range(nodes)
            },
        }
        for step in predecessor.steps(base, repeat)
    }


@pytest.mark.parametrize("name", ["seed-s1", "seed-s2"])
def test_the_predecessors_load_is_that_of_the_profile(name: str) -> None:
    profile = Profile.load_file(PROFILES / f"{name}.toml")
    assert profile.load.publishers == 50
    assert profile.load.consumers == (50 if name == "seed-s2" else 0)
    assert profile.messages.size == 1024
    full = [step for step in predecessor.steps(profile, 1) if step.profile.load.window == 50]
    assert {step.profile.as_json()["load"]["schedule"]["count"] for step in full} == {10_000}


def test_both_sides_take_turns_and_each_goes_first() -> None:
    steps = predecessor.steps(BASE, 2)
    sides = [step.profile.system.name for step in steps if step.name.startswith("2")]
    assert sides == [
        *["messagebus"] * 2,
        *["native"] * 4,
        *["messagebus"] * 2,
    ]
    assert len({step.name for step in steps}) == len(steps)


def test_ratios_are_of_standalone_over_native_within_each_repetition() -> None:
    figures = {each.id: each for each in predecessor.figures("seed-s1", results(3), 3, "again")}
    assert figures["measure.seed_s1.n2_w50.confirmed_ratio"].samples == (2.0, 2.0, 2.0)
    assert figures["measure.seed_s1.n3_w1.confirmed_ratio"].value == 3.0
    assert "2.38" in figures["measure.seed_s1.n2_w50.confirmed_ratio"].what


def test_costs_are_compared_the_other_way_round() -> None:
    """One takes a tenth of a second for a thousand messages, the other two tenths for half of them."""
    figures = {each.id: each for each in predecessor.figures("seed-s1", results(3), 3, "again")}
    assert figures["measure.seed_s1.n2_w50.broker_cpu_standalone"].value == 500.0
    assert figures["measure.seed_s1.n2_w50.broker_cpu_native"].value == 2000.0
    assert figures["measure.seed_s1.n2_w50.broker_cpu_ratio"].samples == (4.0, 4.0, 4.0)


def test_what_is_told_has_the_predecessors_number_beside() -> None:
    found = results(2, Profile.load_file(PROFILES / "seed-s2.toml"))
    text = "\n".join(predecessor.told("seed-s2", found, 2).lines())
    assert "1.97" in text
    assert "delivered" in text


def test_what_not_all_repetitions_have_is_left_out() -> None:
    some = results(2)
    del some[predecessor.step_name(2, 50, "native", 1)]
    ids = [each.id for each in predecessor.figures("seed-s1", some, 2, "again")]
    assert "measure.seed_s1.n2_w50.confirmed_ratio" not in ids
    assert "measure.seed_s1.n2_w1.confirmed_ratio" in ids
