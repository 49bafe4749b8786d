import asyncio
import itertools
import time
from pathlib import Path

import pytest

from bench.errors import BenchError
from bench.systems import turn as module
from bench.systems.turn import (
    Latencies,
    Stopwatch,
    Task,
    Turn,
    intended_in,
    message_id,
    paced,
    run_on,
    stamped,
)
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


def test_the_intended_time_travels_in_the_body() -> None:
    body = stamped(b"x" * 100, 123_456_789)
    assert len(body) == 100
    assert intended_in(body) == 123_456_789


async def test_latencies_count_from_the_intended_time_and_not_before_the_warm_up_is_over() -> None:
    found = Latencies(expected=2, from_ns=1000)
    found.confirmed(999)
    found.confirmed(1000)
    found.received(stamped(b"x" * 8, 10))
    assert not found.all_delivered.is_set()
    found.received(stamped(b"x" * 8, 2000))
    assert found.all_delivered.is_set()
    assert found.confirm.get_total_count() == 1
    assert found.delivery.get_total_count() == 1
    assert set(found.encoded(1)) == {"confirm", "delivery"}
    with pytest.raises(BenchError, match="1 of 2 messages were not confirmed"):
        found.encoded(2)


async def test_intended_times_are_even_however_late_the_sending_is() -> None:
    intended: list[int] = []

    async def send(body: bytes, at_ns: int) -> None:
        assert intended_in(body) == at_ns
        intended.append(at_ns)
        await asyncio.sleep(0)

    await paced(1e6, 50, b"x" * 8, send)
    steps = {b - a for a, b in itertools.pairwise(intended)}
    assert len(intended) == 50
    assert steps <= {999, 1000, 1001}
