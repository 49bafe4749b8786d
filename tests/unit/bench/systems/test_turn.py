import asyncio
import time
from pathlib import Path

import pytest

from bench.errors import BenchError
from bench.systems import turn as module
from bench.systems.turn import Stopwatch, Task, Turn, message_id, run_on
from tests.support.bench_task import bench_task


def test_tasks_and_turns_are_read_back_as_they_were_written() -> None:
    wanted = bench_task(window=50, messages=10)
    assert Task.from_json(wanted.to_json()) == wanted
    took = Turn(messages=10, took_s=2, user_s=1, system_s=1, histograms={"confirm": "x"})
    assert Turn.from_json(took.to_json()) == took


def test_a_task_names_one_broker_and_what_is_inside_of_it(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hidden\n")
    wanted = bench_task(password_file=str(tmp_path / "secret"))
    assert wanted.password == "hidden"
    assert wanted.exchange == "mb.topic/figures"
    assert wanted.queue == "mb.sub/figures/sink"
    assert wanted.address.port == 5672
    assert wanted.bus.broker == "127.0.0.1:5672"
    assert wanted.bus.list_urls == ("http://127.0.0.1:8081/consumer-list",)


def test_rate_and_cpu_time_are_per_message() -> None:
    took = Turn(messages=1000, took_s=0.5, user_s=0.003, system_s=0.001)
    assert took.rate_per_s == 2000
    assert took.cpu_us == pytest.approx(4)


def test_a_stopwatch_counts_from_when_it_was_made() -> None:
    watch = Stopwatch()
    until_s = time.process_time() + 0.02
    while time.process_time() < until_s:
        pass
    took = watch.turn(10)
    assert took.messages == 10
    assert took.took_s >= 0.015
    assert took.user_s + took.system_s >= 0.01


async def _never() -> Turn:
    await asyncio.Event().wait()
    raise AssertionError


def test_a_turn_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TURN_WITHIN_S", 0.01)
    with pytest.raises(BenchError, match="did not end"):
        run_on("asyncio", _never)


def test_ids_are_distinct_and_of_one_length() -> None:
    assert len({message_id(n) for n in range(100)}) == 100
    assert {len(message_id(n)) for n in (1, 1 << 60)} == {24}
