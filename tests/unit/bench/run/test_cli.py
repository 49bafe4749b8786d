from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.cli import main
from bench.errors import InputInvalid
from bench.run import cli as commands
from bench.run import series
from bench.run.cli import profile_of, with_system
from tests.support.runs import write_run


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


def test_a_run_that_lost_something_exits_with_1(tmp_path: Path) -> None:
    write_run(tmp_path, lost=1)
    assert main(["report", str(tmp_path)]) == 1


def test_two_folders_are_compared_and_a_regression_exits_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arm, slow in (("a", 1.0), ("b", 1.5)):
        for number in range(3):
            folder = tmp_path / arm / str(number)
            write_run(folder, slow=slow * (1 + number / 50))
            assert main(["report", str(folder)]) == 0
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "a")]) == 0
    capsys.readouterr()
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    captured = capsys.readouterr()
    assert "REGRESSION" in captured.out
    assert "worse by more than 10%: confirm p50, confirm p99" in captured.err


def test_unlike_runs_are_refused_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arm, rate in (("a", 200), ("b", 100)):
        write_run(tmp_path / arm, rate=rate)
        main(["report", str(tmp_path / arm)])
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert "not alike: load.schedule.rate_per_s: 200 and 100" in capsys.readouterr().err


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
    with pytest.raises(InputInvalid, match=r"system\.durability: pika has fsync, not 'page-cache'"):
        with_system(cached, "pika")


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """No system is started."""

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
@pytest.mark.parametrize("option", [["--part", "10"], ["--name", "mine"]])
def test_what_workloads_alone_have_is_refused_for_a_profile(
    option: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "steady", "--dir", str(tmp_path), *option]) == 2
    assert "of a workload alone, without --system: seed-s1" in capsys.readouterr().err


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
