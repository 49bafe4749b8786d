from __future__ import annotations

from pathlib import Path

import pytest

from bench.cli import main
from bench.errors import InputInvalid
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


def test_a_system_that_cannot_do_it_is_refused_with_the_reason() -> None:
    with pytest.raises(InputInvalid, match=r"pika: load\.lifetime_s: it has none"):
        with_system(profile_of("rebalance"), "pika")
