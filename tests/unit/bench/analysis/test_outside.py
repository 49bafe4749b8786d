from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.analysis import outside
from bench.analysis.outside import conduct_outside, render_outside
from bench.analysis.result import numbers_of
from bench.errors import BenchError
from bench.harness.interface import Outside
from bench.load.profile import Profile
from tests.support.runs import Nothing

PROFILE = Profile.from_values(
    {
        "name": "theirs",
        "load": {"schedule": {"kind": "constant", "rate_per_s": 100}},
        "time": {"measured_s": 10},
    },
    "test",
)


def test_what_it_said_and_what_it_does_not_measure_are_in_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Outside(confirmed_per_s=99.0, client_cpu_s=0.5, lacks=["fates"])
    monkeypatch.setattr(outside, "measure_outside", lambda *_: said)
    found = conduct_outside(PROFILE, tmp_path / "run", Nothing(), print)
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == json.loads(
        json.dumps(found)
    )
    assert found["complete"]
    assert found["outside"]
    assert found["system"] == {"version": "1"}
    assert numbers_of(found)["client CPU us"] == pytest.approx(0.5 / 990 * 1e6)
    assert "not measured: fates" in render_outside(found)


def test_one_that_fails_leaves_a_folder_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Outside:
        raise BenchError("no java")

    monkeypatch.setattr(outside, "measure_outside", fail)
    with pytest.raises(BenchError, match="no java"):
        conduct_outside(PROFILE, tmp_path / "run", Nothing(), print)
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert not about["complete"]
    assert about["faults"]
