from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.run import lines
from bench.run.profile import Profile

PROFILES = Path(__file__).resolve().parents[4] / "bench" / "profiles"


def result(profile: Profile, p50: float) -> dict[str, Any]:
    found = {"p50": p50, "p99": 2 * p50, "samples": 1000}
    return {
        "profile": profile.as_json(),
        "faults": [],
        "measured_s": 10,
        "confirmed_per_s": 100.0,
        "percentiles_ms": {"confirm": found, "service": found},
        "clients": [{"cpu_share": 0.1}],
        "brokers": {"mb1": {"cpu_s": 1.0}},
    }


def test_every_line_of_the_matrix_has_its_profile() -> None:
    profiles = [Profile.load_file(PROFILES / f"{name}.toml") for name in lines.MATRIX]
    assert [step.name for step in lines.matrix_steps(profiles)] == list(lines.MATRIX)
    assert {profile.time.measured_s for profile in profiles} == {30}


def test_percentiles_that_the_count_does_not_support_are_dashes() -> None:
    profile = Profile.load_file(PROFILES / "latency-256.toml")
    told = lines.matrix_told({"latency-256": result(profile, 5.0)})
    head, corrected, uncorrected, *_ = told.lines()
    assert corrected.split()[1] == "corrected"
    assert uncorrected.split()[0] == "uncorrected"
    assert corrected.split()[-7:] == ["5", lines.NONE, "10", *[lines.NONE] * 4]
    assert head.split()[-1] == "p100"


def test_fan_in_is_the_same_load_on_more_brokers() -> None:
    steps = lines.fan_in_steps(Profile.load_file(PROFILES / "fan-in.toml"), part=10)
    assert [step.profile.system.brokers for step in steps] == list(lines.FAN_IN)
    assert len({str(step.profile.load) for step in steps}) == 1
    found = {step.name: result(step.profile, 1.0) for step in steps}
    figures = {each.id: each.value for each in lines.fan_in_figures(found, "again")}
    assert figures["measure.fan_in.8_brokers.client_cpu_us"] == 1000.0
    assert len(lines.fan_in_told(found).rows) == len(steps)


def test_a_shorter_run_still_has_some_seconds() -> None:
    time = lines.shorter(Profile.load_file(PROFILES / "fan-in.toml"), 10).time
    assert (time.measured_s, time.warm_up_s) == (5.0, 5.0)
