"""Commands as a person types them: exit codes, one line on standard error."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import commands
from bench.analysis import series
from bench.analysis.result import gather
from bench.analysis.series import Step, Summary
from bench.cli import main
from bench.commands import WORKLOADS, Workload, measured, one_by_one, profile_of, with_system
from bench.environment import describe
from bench.errors import BenchError, InputInvalid
from bench.harness.interface import Running
from bench.load.profile import Profile
from tests.support.results import result
from tests.support.runs import Nothing, write_run


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(list(arguments))
    return code, capsys.readouterr().err


def test_wrong_use_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["nonsense"], ["audit"], ["worker"], ["demo", "--nonsense"]):
        code, error = run(capsys, *arguments)
        assert code == 2
        assert error.startswith("bench: ")
        assert error.count("\n") == 1


def test_a_folder_without_a_run_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, error = run(capsys, "audit", str(tmp_path))
    assert code == 2
    assert "not the folder of a run" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "cannot read"), ("", "no record"), ("a\n\nb\n", "2 records")]
)
def test_bad_input_of_the_demo_is_one_line_and_nothing_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, reason: str
) -> None:
    source = tmp_path / "input"
    if content is not None:
        source.write_text(content)
    folder = tmp_path / "run"
    code, error = run(capsys, "demo", "--input", str(source), "--dir", str(folder))
    assert code == 2
    assert reason in error
    assert error.count("\n") == 1
    assert not folder.exists()


def test_a_profile_is_a_name_or_a_file(tmp_path: Path) -> None:
    assert profile_of("steady").name == "steady"
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\n[load]\nschedule = { kind = "constant", rate_per_s = 1 }\n')
    assert profile_of(str(path)).name == "mine"
    with pytest.raises(InputInvalid, match="no profile 'nothing': a TOML file, or one of "):
        profile_of("nothing")


def test_a_report_is_made_again_from_the_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path)
    assert main(["report", str(tmp_path)]) == 0
    assert "200 confirmed a second" in capsys.readouterr().out


def test_two_folders_are_compared_and_a_regression_is_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arm, slow in (("a", 1.0), ("b", 1.5)):
        for number in range(3):
            folder = tmp_path / arm / str(number)
            write_run(folder, slow=slow * (1 + number / 50))
            gather(folder).save()
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "a")]) == 0
    capsys.readouterr()
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 7
    captured = capsys.readouterr()
    assert "REGRESSION" in captured.out
    assert "worse by more than 10%: confirm p50, confirm p99" in captured.err
    assert "commit abc; a confirm means: fsynced" in captured.out
    assert "not measured by turns" in captured.out
    # Of a measurement: nothing is measured here.
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--repeat", "9"]) == 2
    assert "--repeat: of profiles alone" in capsys.readouterr().err


def test_unlike_runs_are_refused_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arm, rate in (("a", 200), ("b", 100)):
        write_run(tmp_path / arm, rate=rate)
        gather(tmp_path / arm).save()
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert "not alike: load.schedule.rate_per_s: 200.0 and 100.0" in capsys.readouterr().err


def test_another_system_has_the_same_load_on_as_many_brokers_as_it_may_have() -> None:
    steady = profile_of("steady")
    other = with_system(steady, "pika")
    assert (other.system.name, other.system.brokers) == ("pika", 1)
    assert other.load == steady.load
    assert with_system(steady, "native").system.brokers == steady.system.brokers
    assert with_system(steady, None) is steady


def test_another_system_keeps_the_durability_or_is_refused_when_it_has_it_not() -> None:
    steady = profile_of("steady")
    cached = replace(steady, system=replace(steady.system, durability="page-cache"))
    assert with_system(cached, "native").system.durability == "page-cache"
    with pytest.raises(InputInvalid, match=r"pika: system\.durability: one of fsync"):
        with_system(cached, "pika")


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test when a system is started."""

    def refuse(*_: object) -> None:
        raise AssertionError("a system was started")

    monkeypatch.setattr(commands, "started", refuse)
    monkeypatch.setattr(series, "started", refuse)


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize("profile", ["steady", "fan-in"])
def test_a_place_that_is_no_folder_is_refused_before_anything_starts(
    profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    for place in (file, file / "below", Path("/proc/x")):
        assert main(["run", profile, "--dir", str(place)]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"bench: {place}: no folder can be made: ")
        assert said.count("\n") == 1


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize("arguments", [[], ["--repeat", "2"]])
def test_a_folder_with_something_in_it_is_refused_before_anything_starts(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in (tmp_path, tmp_path / "02"):
        place.mkdir(exist_ok=True)
        (place / "run.json").touch()
    assert main(["run", "steady", "--dir", str(tmp_path), *arguments]) == 2
    assert "is not empty" in capsys.readouterr().err


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize("option", [["--part", "10"], ["--keep"]])
def test_what_workloads_alone_have_is_refused_for_a_profile(
    option: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "steady", "--dir", str(tmp_path), *option]) == 2
    assert "of a workload alone, without --system: seed-s1" in capsys.readouterr().err


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ([], "no other host reaches 127.0.0"),
        (["--network", "10.1.2", "--system", "perf-test"], "perf-test makes its load itself, here"),
    ],
)
def test_load_on_other_hosts_that_cannot_be_is_refused_before_anything_starts(
    options: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = ["run", "steady", "--dir", str(tmp_path), "--load-host", "a.example"]
    assert main([*profile, *options]) == 2
    assert why in capsys.readouterr().err


def test_the_figures_of_a_series_have_the_load_before_it_and_the_commit_of_the_run_that_had_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker's start is no other work; one run with uncommitted changes is enough for no figure."""
    about = {"load_before": [4.0], "load_after": [5.0]}
    commits = ("0123456789ab", "0123456789ab+")
    results = {
        name: {"environment": {**about, "commit": each}}
        for name, each in zip("ab", commits, strict=True)
    }
    kept: list[dict[str, Any]] = []
    workload = Workload(lambda *_: [], lambda _: Summary(title="", head=(), rows=()), lambda *_: [])
    monkeypatch.setitem(WORKLOADS, "seed-s1", workload)
    monkeypatch.setattr(commands, "check_keeping", lambda _: None)
    monkeypatch.setattr(commands, "load_average", lambda: [0.5])
    monkeypatch.setattr(commands, "carry_out", lambda *_: results)
    monkeypatch.setattr(commands, "keep", lambda *args, publish: kept.append(args[2]))
    commands.work_through("seed-s1", tmp_path, "", repeat=1, part=1, publish=True)
    assert [(each["commit"], each["load_before"]) for each in kept] == [("0123456789ab+", [0.5])]


def test_a_workload_ends_with_how_many_runs_are_not_to_be_trusted_and_with_what_is_next(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = [{"faults": ["late"] * 40}, {"faults": []}, {"faults": ["late"]}]
    monkeypatch.setattr(commands, "work_through", lambda *_, **__: found)
    assert main(["run", "capacity", "--dir", str(tmp_path)]) == 7
    line = capsys.readouterr().err.strip()
    assert f"2 of 3 runs not to be trusted, see {tmp_path / 'summary.txt'}; next: python" in line
    assert f"spark capacity --runs {tmp_path} --rate" in line
    assert main(["run", "seed-s1", "--dir", str(tmp_path)]) == 7
    assert capsys.readouterr().err.strip().endswith("summary.txt")
    monkeypatch.setattr(commands, "work_through", lambda *_, **__: found[1:2])
    assert main(["run", "capacity", "--dir", str(tmp_path)]) == 0


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize("what", [["seed-s1"], ["steady", "--system", "pika"]])
def test_the_live_job_reads_runs_of_one_profile_on_messagebus_alone(
    what: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *what, "--live", "--dir", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("bench: --live: ")


def test_a_file_that_cannot_be_written_is_one_line_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path)
    (tmp_path / "confirm.hlog").mkdir()
    assert main(["report", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "Is a directory" in said
    assert said.count("\n") == 1


def test_a_system_that_cannot_do_it_is_refused_with_the_reason() -> None:
    with pytest.raises(InputInvalid, match=r"pika: load\.lifetime_s: it has none"):
        with_system(profile_of("rebalance"), "pika")


def test_the_report_of_a_load_of_its_own_leaves_its_result_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path)
    about = json.loads((tmp_path / "run.json").read_text()) | {"outside": True}
    (tmp_path / "run.json").write_text(json.dumps(about))
    assert main(["report", str(tmp_path)]) == 2
    assert "cut short, and its load said nothing" in capsys.readouterr().err
    wanted = {
        **about,
        "profile": json.loads((tmp_path / "profile.json").read_text()),
        **{"confirmed_per_s": 500.0, "delivered_per_s": None, "percentiles_ms": {}},
        **{"brokers": {}, "lacks": ["fates"]},
    }
    (tmp_path / "result.json").write_text(json.dumps(wanted))
    assert main(["report", str(tmp_path)]) == 0
    assert "500 confirmed a second" in capsys.readouterr().out
    assert json.loads((tmp_path / "result.json").read_text()) == wanted
    assert "not measured: fates" in (tmp_path / "report.txt").read_text()
    with pytest.raises(InputInvalid, match="a load of its own"):
        gather(tmp_path)


@pytest.mark.parametrize("fault", [BenchError("publisher-1 died"), KeyboardInterrupt()])
def test_a_run_that_fails_has_the_report_of_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    def cut(_profile: Profile, folder: Path, *_: object) -> None:
        write_run(folder, complete=False)
        raise fault

    monkeypatch.setattr(commands, "conduct", cut)
    with pytest.raises(type(fault)):
        measured(profile_of("steady"), tmp_path / "run", Nothing())
    found = json.loads((tmp_path / "run" / "result.json").read_text())
    assert not found["complete"]
    assert "not to be trusted" in (tmp_path / "run" / "report.txt").read_text()


def test_a_folder_of_another_run_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("here")
    with pytest.raises(InputInvalid, match="is not empty"):
        measured(profile_of("steady"), tmp_path, Nothing())
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]


def test_one_run_that_fails_does_not_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails_once(_profile: Profile, folder: Path, _running: Running) -> dict[str, Any]:
        if folder.parent.name == "a":
            raise BenchError("publisher-1 died")
        return {"complete": True, "confirmed_per_s": 1.0}

    monkeypatch.setattr(series, "started", lambda *_: contextlib.nullcontext(Nothing()))
    monkeypatch.setattr(commands, "of_any_load", fails_once)
    steps = [Step(name, profile_of("steady")) for name in ("a/01", "b/01")]
    found = one_by_one(steps, tmp_path, "127.0.1")
    assert (found["a/01"]["complete"], found["a/01"]["faults"]) == (False, ["publisher-1 died"])
    assert found["b/01"]["complete"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--top", "nan"), "'--top': nan: a number below"),
        (("--top", "inf"), "'--top': inf: a number below"),
        (("--top", "10"), "the profile's own rate"),
        (("--p99-max-s", "nan"), "'--p99-max-s': nan: a number below"),
    ],
)
def test_a_knee_without_a_bound_is_refused(
    tmp_path: Path, given: tuple[str, str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["knee", "steady", "--dir", str(tmp_path / "out"), *given]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_knee_is_searched_over_rates_that_break_the_load_and_its_answer_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def takes_3000(profile: Profile, folder: Path, _running: Running) -> dict[str, Any]:
        if profile.as_json()["load"]["schedule"]["rate_per_s"] > 3000:
            raise BenchError("publishers that did not end")
        folder.mkdir(parents=True)
        (folder / "profile.json").write_text(json.dumps(profile.as_json()))
        return result(delivery=5.0, profile=profile.as_json())

    monkeypatch.setattr(series, "started", lambda *_: contextlib.nullcontext(Nothing()))
    monkeypatch.setattr(commands, "of_any_load", takes_3000)
    assert main(["knee", "steady", "--dir", str(tmp_path)]) == 0
    answer, _, *tries = (tmp_path / "summary.txt").read_text().splitlines()
    assert answer == "knee: 2,828/s with p99 within 20 ms"
    assert sum("publishers that did not end" in line for line in tries) == 6


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_step_can_be_run_by_its_system(name: str) -> None:
    steps = WORKLOADS[name].steps(profile_of, 2, 10)
    assert steps
    assert [step.name for step in steps if step.profile.faults()] == []


def test_the_environment_names_versions_and_machine() -> None:
    found = describe()
    for key in ("at", "commit", "python", "pika", "kernel", "cpu", "cores", "load_before"):
        assert found[key]
