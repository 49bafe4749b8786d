from __future__ import annotations

from bench.load.profile import Profile
from bench.run.rounds import in_rounds, middle, samples, trusted, turns_of
from bench.run.series import Step
from tests.support.results import PROFILE

ONE = Profile.from_values(PROFILE, "x")


def test_whole_rounds_follow_each_other() -> None:
    steps = in_rounds([Step("a", ONE), Step("b", ONE)], 3)
    assert [step.name for step in steps] == ["a", "b", "a-2", "b-2", "a-3", "b-3"]


def test_the_turns_of_a_line_are_found_again() -> None:
    results = {name: {"n": name} for name in ("a", "b", "a-2", "b-2", "a-3")}
    assert [each["n"] for each in turns_of(results, "a")] == ["a", "a-2", "a-3"]
    assert turns_of(results, "c") == []


def test_the_middle_is_of_what_is_known() -> None:
    assert samples([1, None, 2]) == (1.0, 2.0)
    assert middle([4.0, None, 1.0]) == 2.5
    assert middle([None]) is None


def test_no_figure_is_made_of_the_turns_that_went_well_alone() -> None:
    good: dict[str, list[str]] = {"faults": []}
    behind = {"faults": ["did not keep up: 5 confirmed of 9"]}
    slow = {"faults": ["publisher-0 used 95% of a core: the client was the bottleneck"]}
    assert trusted([good, slow, good]) == [good, good]
    assert trusted([good, behind, good]) == []
