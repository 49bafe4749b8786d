import dataclasses

from bench.systems.ours_memory import run
from tests.support.bench_task import bench_task


def test_all_that_is_published_in_memory_is_received_and_acked() -> None:
    task = dataclasses.replace(bench_task(), window=50, messages=300, warm_up=100)
    turn = run(task)
    assert turn.messages == 300
    assert turn.took_s > 0
