from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from bench.errors import InputInvalid
from bench.load.profile import Profile, System
from bench.run import arms
from tests.support.results import PROFILE, result

ONE = Profile.from_values(PROFILE, "x")
TWO = dataclasses.replace(ONE, system=System(brokers=2))


def at(minute: int) -> dict[str, Any]:
    found = result()
    return found | {"environment": found["environment"] | {"at": f"2026-11-21T00:{minute:02}:00Z"}}


def test_each_arm_is_first_as_often_as_the_other() -> None:
    names = [step.name for step in arms.turns(ONE, TWO, 3)]
    assert names == ["a/01", "b/01", "b/02", "a/02", "a/03", "b/03"]


def test_an_arm_is_one_result_or_a_folder_of_them(tmp_path: Path) -> None:
    with pytest.raises(InputInvalid, match="no results"):
        arms.read_arm(tmp_path)
    for name in ("02", "01"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(json.dumps({"profile": {}, "n": name}))
    assert [each["n"] for each in arms.read_arm(tmp_path)] == ["01", "02"]
    assert arms.read_arm(tmp_path / "01")[0]["n"] == "01"
    for broken in ("{", "[]"):
        (tmp_path / "01" / "result.json").write_text(broken)
        with pytest.raises(InputInvalid, match="not results"):
            arms.read_arm(tmp_path)


def test_runs_on_more_and_more_brokers_are_no_repetitions() -> None:
    with pytest.raises(InputInvalid, match=r"out/x: not repetitions .*system.brokers: 1 and 2"):
        arms.profile_of_arm("out/x", [result(), result(profile=TWO.as_json())])
    assert arms.profile_of_arm("out/x", [result(), result()]) == ONE


def test_a_confirm_that_means_something_else_is_refused_unless_it_is_asked_for() -> None:
    other = dataclasses.replace(ONE, system=System(brokers=1, durability="page-cache"))
    with pytest.raises(InputInvalid, match=r"'fsync' and 'page-cache'; --unlike-durability"):
        arms.refuse_unlike(ONE, other, any_durability=False)
    arms.refuse_unlike(ONE, other, any_durability=True)
    arms.refuse_unlike(ONE, TWO, any_durability=False)
    longer = dataclasses.replace(ONE, time=dataclasses.replace(ONE.time, measured_s=99.0))
    with pytest.raises(InputInvalid, match=r"not alike: time\.measured_s: 30\.0 and 99\.0"):
        arms.refuse_unlike(ONE, longer, any_durability=True)


def test_machines_that_differ_are_refused() -> None:
    other = result() | {"environment": result()["environment"] | {"cores": 64}}
    with pytest.raises(InputInvalid, match="slow, 2 cores; slow, 64 cores"):
        arms.refuse_unlike_machines([result()], [other])


@pytest.mark.parametrize(
    ("a", "b", "by_turns"),
    [((0, 3), (1, 2), True), ((0, 1), (2, 3), False), ((0,), (1,), True), ((0, 1), (2,), False)],
)
def test_arms_of_folders_ran_by_turns_when_each_pair_followed_the_other(
    a: tuple[int, ...], b: tuple[int, ...], by_turns: bool
) -> None:
    assert arms.are_by_turns([at(each) for each in a], [at(each) for each in b]) is by_turns


def test_an_arm_is_told_with_its_code_and_its_promise() -> None:
    assert arms.about("x", [result()] * 2) == "x: commit abc; a confirm means: fsynced"
