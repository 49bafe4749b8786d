from pathlib import Path

import pytest

from bench.errors import BenchError
from bench.figures import scene as module
from bench.figures.scene import (
    Case,
    Group,
    Scene,
    Stage,
    interleaved,
    rate_and_cpu,
    ratios,
    repeat_command,
    sized,
    take_turn,
)
from bench.systems.turn import Turn
from tests.support.bench_task import bench_task


def test_a_quick_run_does_a_tenth_but_not_less_than_the_least() -> None:
    quick = Scene(Path(), print, quick=True)
    assert quick.part(50) == 5
    assert quick.part(50, 20) == 20
    assert Scene(Path(), print).part(50) == 50


def test_a_group_without_brokers_has_no_cluster(tmp_path: Path) -> None:
    group = Group("client.x", 0, "none", lambda scene: iter(()))
    with Stage(tmp_path, "127.0.9", print).open() as stage:
        scene = stage.scene(group, Scene(tmp_path, print))
        assert scene.folder == tmp_path / "client.x"
        assert scene.folder.is_dir()
        with pytest.raises(BenchError, match="no cluster"):
            _ = scene.cluster


def test_the_command_that_repeats_names_the_group() -> None:
    assert (
        repeat_command("client.publish", 5) == "python -m bench figures client.publish --repeat 5"
    )
    assert repeat_command("way.kill") == "python -m bench figures way.kill"


def turn(rate: float, cpu_us: float = 10) -> Turn:
    return Turn(messages=1000, took_s=1000 / rate, user_s=cpu_us * 1000 / 1e6, system_s=0)


def test_every_case_takes_its_turn_and_another_one_begins_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []
    prepared: list[str] = []

    def note(case: Case) -> Turn:
        order.append(case.name)
        return turn(100)

    monkeypatch.setattr(module, "take_turn", note)
    cases = [Case(name, "pika_async", bench_task()) for name in "abc"]
    scene = Scene(Path(), lambda line: None, repeat=2)
    found = interleaved(scene, cases, lambda case: prepared.append(case.name))
    assert order == prepared == ["a", "b", "c", "b", "c", "a"]
    assert {name: len(each) for name, each in found.items()} == {"a": 2, "b": 2, "c": 2}


def test_ratios_are_taken_within_a_repetition() -> None:
    found = {"ours": [turn(100), turn(10)], "other": [turn(50), turn(5)]}
    assert ratios(found, "ours", "other") == pytest.approx([2, 2])


def test_a_case_gives_a_rate_and_cpu_time_with_all_their_samples() -> None:
    found = {"ours": [turn(100, 4), turn(300, 6), turn(200, 2)]}
    rate, cpu = rate_and_cpu(found, "ours", id="client.x.", what="x", repeat="y")
    assert (rate.id, cpu.id) == ("client.x.rate", "client.x.cpu_us")
    assert rate.value == pytest.approx(200)
    assert cpu.value == pytest.approx(4)
    assert rate.samples == pytest.approx((100, 300, 200))
    assert rate.met is None


def test_a_quick_run_is_a_tenth() -> None:
    whole = sized(bench_task(), Scene(Path(), print), 60_000)
    quick = sized(bench_task(), Scene(Path(), print, quick=True), 60_000)
    assert (whole.messages, whole.warm_up) == (60_000, 6_000)
    assert (quick.messages, quick.warm_up) == (6_000, 600)


def test_a_client_that_fails_is_told_by_its_last_line() -> None:
    with pytest.raises(BenchError, match="a: no client 'nothing'"):
        take_turn(Case("a", "nothing", bench_task()))
