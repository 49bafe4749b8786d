from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.errors import BenchError, InputInvalid
from bench.figures import full_speed as module
from bench.figures.cli import GROUPS, chosen, figures
from bench.figures.full_speed import Against, Line, Table, interleaved, take_turn
from bench.figures.groups import Clusters, Group, Setup
from bench.harness.timed_turn import Task, Turn
from tests.support.bench_task import bench_task


def test_a_wrong_name_is_told_before_anything_is_started() -> None:
    result = CliRunner().invoke(figures, ["client.nothing"])
    assert isinstance(result.exception, InputInvalid)


def names(*wanted: str) -> list[str]:
    return [group.name for group in chosen(wanted)]


def test_a_name_means_itself_and_all_that_begin_with_it() -> None:
    assert names("client.publish") == ["client.publish"]
    assert names("feature.dedup") == ["feature.dedup"]
    assert {"client.publish", "client.gap"} <= set(names("client"))
    assert names() == [group.name for group in GROUPS]


def test_a_name_that_means_nothing_tells_what_there_is() -> None:
    with pytest.raises(InputInvalid, match=r"client\.batch"):
        chosen(["client.pub"])


def test_a_quick_run_does_a_tenth_but_not_less_than_the_least() -> None:
    quick = Setup(Path(), print, quick=True)
    assert quick.part(50) == 5
    assert quick.part(50, 20) == 20
    assert Setup(Path(), print).part(50) == 50


def test_long_repetitions_say_how_many_are_done_and_the_time_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, said = [0.0], list[str]()
    monkeypatch.setattr("bench.figures.groups.time.monotonic", lambda: now_s[0])
    for number in Setup(Path(), said.append, repeat=3).turns():
        now_s[0] += (2.0, 70.0, 70.0)[number]
    assert said == ["2 of 3 repetitions done, about 36 s left"]


def test_a_group_without_brokers_has_no_cluster(tmp_path: Path) -> None:
    group = Group("client.x", 0, "none", lambda setup: iter(()))
    with Clusters(tmp_path, "127.0.9", print).open() as clusters:
        setup = clusters.setup(group, Setup(tmp_path, print))
        assert setup.folder == tmp_path / "client.x"
        assert setup.folder.is_dir()
        with pytest.raises(BenchError, match="no cluster"):
            _ = setup.cluster


def turn(rate: float, cpu_us: float = 10) -> Turn:
    return Turn(messages=1000, took_s=1000 / rate, cpu_s=cpu_us * 1000 / 1e6)


def line(name: str) -> Line:
    id = f"{name}_" if name != "ours" else ""
    return Line(name, id, f"what {name}", bench_task())


def test_every_line_takes_its_turn_and_another_one_begins_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []
    prepared: list[str] = []

    def note(name: str, task: Task) -> Turn:
        order.append(name)
        return turn(100)

    monkeypatch.setattr(module, "take_turn", note)
    tasks = {name: bench_task() for name in "abc"}
    setup = Setup(Path(), lambda line: None, repeat=2)
    found = interleaved(setup, tasks, lambda name, task: prepared.append(name))
    assert order == prepared == ["a", "b", "c", "b", "c", "a"]
    assert {name: len(each) for name, each in found.items()} == {"a": 2, "b": 2, "c": 2}


def test_a_line_gives_a_rate_and_cpu_time_with_all_their_samples() -> None:
    turns = {"ours": [turn(100, 4), turn(300, 6), turn(200, 2)]}
    table = Table([line("ours"), line("other")])
    rate, cpu = table.figures("client.x", turns, "y")
    assert (rate.id, cpu.id) == ("client.x.rate", "client.x.cpu_us")
    assert (rate.what, rate.repeat) == ("what ours", "y")
    assert rate.value == pytest.approx(200)
    assert cpu.value == pytest.approx(4)
    assert rate.samples == pytest.approx((100, 300, 200))
    assert rate.goal == cpu.goal == ""


def test_lines_are_compared_within_a_repetition() -> None:
    turns = {"ours": [turn(100, 9), turn(10, 8)], "other": [turn(50, 4), turn(5, 5)]}
    against = [
        Against("ours", "other", "ratio", "x", 1.5),
        Against("ours", "other", "cpu_ratio", "x", 2, of_cpu=True),
        Against("ours", "missing", "ratio_missing", "x"),
    ]
    ratio, cpu = Table(against=against).figures("client.x", turns, "y")
    assert (ratio.id, ratio.unit, ratio.met) == ("client.x.ratio", "times", True)
    assert ratio.samples == pytest.approx((2, 2))
    assert (cpu.unit, cpu.goal, cpu.met) == ("times", "<= 2 times", False)
    assert cpu.samples == pytest.approx((2.25, 1.6))


def test_a_client_that_fails_is_told_by_its_last_line() -> None:
    with pytest.raises(BenchError, match="a: no client 'nothing'"):
        take_turn("a", bench_task(system="nothing"))
