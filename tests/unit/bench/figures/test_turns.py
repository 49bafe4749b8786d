from pathlib import Path

import pytest

from bench.errors import BenchError
from bench.figures import turns as module
from bench.figures.scene import Scene
from bench.figures.turns import Case, interleaved, rate_and_cpu, ratios, sized, take_turn
from bench.systems.turn import Turn
from tests.support.bench_task import bench_task


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
