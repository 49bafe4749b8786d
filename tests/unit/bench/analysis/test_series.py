from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.analysis import series
from bench.analysis.series import (
    Step,
    Summary,
    carry_out,
    in_rounds,
    middle,
    page,
    samples,
    trusted,
)
from bench.errors import BenchError, InputInvalid
from bench.load.profile import Profile, System
from reports.page import Bar
from tests.support.results import profile_with
from tests.support.runs import write_run

SMALL = profile_with()
TWO = dataclasses.replace(SMALL, system=System(brokers=2))
STEPS = [Step("a", SMALL), Step("b", SMALL), Step("c", TWO)]


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The brokers of each system that was started."""
    found: list[int] = []

    @contextmanager
    def started(profile: Profile, *_: object) -> Iterator[None]:
        found.append(profile.system.brokers)
        yield

    monkeypatch.setattr(series, "started", started)
    return found


def run(profile: Profile, folder: Path, _running: object) -> dict[str, Any]:
    folder.mkdir(parents=True)
    found = {"complete": True, "confirmed_per_s": 1.0, "environment": {"commit": "abc"}}
    (folder / "profile.json").write_text(json.dumps(profile.as_json()))
    (folder / "result.json").write_text(json.dumps(found))
    return found


def quiet(_line: str) -> None:
    pass


def test_runs_on_one_system_share_its_start(tmp_path: Path, starts: list[int]) -> None:
    assert list(carry_out(STEPS, tmp_path, "127.0.1", run, quiet)) == ["a", "b", "c"]
    assert starts == [3, 2]


def test_what_is_there_is_not_done_again(tmp_path: Path, starts: list[int]) -> None:
    carry_out(STEPS, tmp_path, "127.0.1", run, quiet)
    starts.clear()
    assert len(carry_out(STEPS, tmp_path, "127.0.1", run, quiet)) == 3
    assert starts == []


def test_what_was_cut_short_is_done_again(tmp_path: Path, starts: list[int]) -> None:
    def fail(profile: Profile, folder: Path, running: object) -> dict[str, Any]:
        if folder.name == "b":
            folder.mkdir()
            (folder / "profile.json").write_text(json.dumps(profile.as_json()))
            raise BenchError("cut")
        return run(profile, folder, running)

    with pytest.raises(BenchError, match="cut"):
        carry_out(STEPS, tmp_path, "127.0.1", fail, quiet)
    starts.clear()
    assert list(carry_out(STEPS, tmp_path, "127.0.1", run, quiet)) == ["a", "b", "c"]
    assert starts == [3, 2]


def test_a_run_of_another_profile_is_refused_before_anything_is_done_and_stays(
    tmp_path: Path, starts: list[int]
) -> None:
    carry_out(STEPS[1:2], tmp_path, "127.0.1", run, quiet)
    starts.clear()
    time = dataclasses.replace(SMALL.time, measured_s=3.0)
    longer = [STEPS[0], Step("b", dataclasses.replace(SMALL, time=time))]
    with pytest.raises(InputInvalid, match=r"another profile.*time\.measured_s: 30\.0 and 3\.0"):
        carry_out(longer, tmp_path, "127.0.1", run, quiet)
    assert starts == []
    assert (tmp_path / "b" / "result.json").exists()


def test_a_folder_of_something_else_is_refused(tmp_path: Path, starts: list[int]) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "thesis.txt").write_text("mine")
    with pytest.raises(InputInvalid, match="no run; use another --dir"):
        carry_out(STEPS, tmp_path, "127.0.1", run, quiet)
    assert starts == []


def test_what_another_commit_has_measured_is_told(tmp_path: Path, starts: list[int]) -> None:
    carry_out(STEPS, tmp_path, "127.0.1", run, quiet)
    said: list[str] = []
    carry_out(STEPS, tmp_path, "127.0.1", run, said.append)
    (line,) = said
    assert line.startswith("of commit abc, and now it is ")
    assert line.endswith(": a, b, c")
    assert starts == [3, 2]


def test_a_series_says_how_many_runs_it_has_done_of_how_many(
    tmp_path: Path, starts: list[int]
) -> None:
    said: list[str] = []
    carry_out(STEPS, tmp_path, "127.0.1", run, said.append)
    assert [line.rpartition("; ")[2] for line in said if "run " in line] == [
        *("run 1 of 3", "run 2 of 3", "run 3 of 3")
    ]
    assert starts


def test_whole_rounds_follow_each_other() -> None:
    steps = in_rounds([Step("a", SMALL), Step("b", SMALL)], 3)
    assert [step.name for step in steps] == ["a", "b", "a-2", "b-2", "a-3", "b-3"]


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


SUMMARY = Summary(
    head=("system", "p99 < 5 ms"),
    rows=[("kafka", "no")],
    bars_title="Confirmed a second",
    bars=[Bar.of("kafka", 2.0, "2/s"), Bar.of("<ours>", 4.0, "4/s", 1)],
    notes=["on one machine"],
    faults=["kafka: late"],
)


def test_a_run_that_is_not_there_is_said_and_the_rest_is_shown(tmp_path: Path) -> None:
    made = page("matrix", SUMMARY, tmp_path, ["gone"])
    assert "p99 &lt; 5 ms" in made
    assert 'href="gone/report.html"' in made
    assert "not the folder of a run" in made


def test_a_load_of_its_own_is_said_and_its_text_is_linked(tmp_path: Path) -> None:
    write_run(tmp_path / "theirs")
    about = tmp_path / "theirs" / "run.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"outside": True}))
    (tmp_path / "theirs" / "report.txt").write_text("500 confirmed a second")
    made = page("peers", SUMMARY, tmp_path, ["theirs"])
    assert 'href="theirs/report.txt"' in made
    assert "a load of its own" in made


def test_faults_come_first_and_bars_have_one_scale(tmp_path: Path) -> None:
    made = page("peers", SUMMARY, tmp_path, [])
    assert made.index("kafka: late") < made.index("Confirmed a second")
    assert "width: 50.00%" in made
    assert "&lt;ours&gt;" in made
