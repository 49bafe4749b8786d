import cProfile
import pstats

import pytest

from bench.harness.turn import Turn
from bench.profiling import parts_of, profile_table


def work() -> int:
    return sum(n * n for n in range(20_000))


def test_parts_add_up_to_the_cpu_time_that_was_measured_without_the_profiler() -> None:
    profiler = cProfile.Profile()
    profiler.runcall(work)
    turn = Turn(messages=100, took_s=1, cpu_s=0.001)
    parts = parts_of(pstats.Stats(profiler), turn)
    assert sum(part.own_us for part in parts) == pytest.approx(turn.cpu_us)
    assert parts == sorted(parts, key=lambda part: -part.own_us)
    ours = next(part for part in parts if part.name.endswith(" work"))
    assert ours.name.startswith("tests/unit/bench/test_profiling.py:")
    assert ours.calls == 0.01
    assert ours.with_callees_us >= ours.own_us


def test_waiting_is_not_work() -> None:
    stats = pstats.Stats()
    values: tuple[object, ...] = (1, 1, 0.5, 0.5, {})
    stats.stats = {  # type: ignore[attr-defined]
        ("~", 0, "<method 'poll' of 'select.epoll' objects>"): values,
        ("~", 0, "<method 'recv' of '_socket.socket' objects>"): values,
    }
    turn = Turn(messages=1, took_s=1, cpu_s=3e-6)
    parts = parts_of(stats, turn)
    assert [part.name for part in parts] == ["method 'recv' of '_socket.socket' objects"]
    assert parts[0].own_us == pytest.approx(3)
    assert profile_table(parts).row_count == 1
