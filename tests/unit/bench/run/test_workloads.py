from __future__ import annotations

from pathlib import Path

import pytest

from bench.load.profile import Profile
from bench.run.workloads import WORKLOADS

PROFILES = Path(__file__).resolve().parents[4] / "bench" / "profiles"


def load(name: str) -> Profile:
    return Profile.load_file(PROFILES / f"{name}.toml")


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_step_can_be_run_by_its_system(name: str) -> None:
    steps = WORKLOADS[name].steps(load, 2, 10)
    assert steps
    assert [step.name for step in steps if step.profile.faults()] == []
