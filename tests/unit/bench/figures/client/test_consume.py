from pathlib import Path

from bench.clients.ways import WAYS
from bench.figures.client.consume import consume, handlers, of_memory_bus
from bench.figures.scene import Scene
from bench.harness.turn import Turn
from tests.support.bench_task import bench_task

SCENE = Scene(Path(), print)
HANDLERS = handlers(bench_task(), SCENE)


def turn(rate: float, cpu_us: float) -> Turn:
    return Turn(messages=1000, took_s=1000 / rate, cpu_s=cpu_us / 1000)


def test_everybody_consumes_with_the_same_window() -> None:
    table = consume(bench_task(), SCENE)
    assert {(line.task.verb, line.task.window) for line in table.lines} == {("consume", 1000)}
    own = [line.task.way for line in table.lines if line.task.system == "messagebus"]
    assert len(set(own)) == 4
    assert set(own) <= set(WAYS)


def test_ratios_to_each_peer_have_their_goals() -> None:
    turns = {
        "ours": [turn(60_000, 4)],
        "blocking": [turn(50_000, 6)],
        "pika_async": [turn(40_000, 15)],
        "aio_pika": [turn(6_000, 100)],
    }
    table = consume(bench_task(), SCENE)
    found = {figure.id: figure for figure in table.figures("client.consume", turns, "again")}
    assert found["client.consume.cpu_us"].met is True
    assert found["client.consume.ratio_pika_async"].met is False
    assert found["client.consume.ratio_aio_pika"].met is True
    assert "client.consume.ratio_perf_test" not in found
    assert found["client.consume.blocking_cpu_us"].met is None


def test_all_handlers_take_the_same_messages() -> None:
    tasks = {line.name: line.task for line in HANDLERS.lines}
    assert len({task.messages for task in tasks.values()}) == 1
    assert list(tasks) == [
        "receive",
        "run",
        "run_threads",
        "app",
        "app_typed",
        "run_otel",
        "run_otel_few",
        "app_otel",
    ]
    assert {task.way for task in tasks.values()} <= set(WAYS)
    traced = {name: task.traced for name, task in tasks.items() if task.traced}
    assert traced == {"run_otel": 1, "run_otel_few": 0.01, "app_otel": 1}


def test_what_is_on_top_is_taken_within_each_repetition() -> None:
    costs = {
        "receive": (10, 20, 30),
        "run": (12, 22, 39),
        "run_threads": (40, 40, 40),
        "app": (21, 31, 41),
        "app_typed": (22, 22, 22),
        "run_otel": (45, 45, 45),
        "run_otel_few": (45, 45, 45),
        "app_otel": (99, 99, 99),
    }
    turns = {name: [turn(1000, us) for us in each] for name, each in costs.items()}
    found = {each.id: each for each in HANDLERS.figures("comfort.handlers", turns, "again")}
    assert round(found["comfort.handlers.run_more_us"].value, 3) == 2
    assert found["comfort.handlers.run_more_us"].is_unsure
    assert found["comfort.handlers.app_more_us"].met is False
    assert found["comfort.handlers.app_typed_more_us"].met is None
    assert found["comfort.handlers.run_otel_more_us"].is_unsure


def test_the_rate_and_the_start_in_memory_have_goals_and_the_import_is_told() -> None:
    turns = {
        "async": [Turn(messages=150_000, took_s=1, cpu_s=0.9)],
        "start": [Turn(messages=1, took_s=0.06, cpu_s=0.01)],
    }
    made = of_memory_bus(bench_task(), turns, [140.0], "again")
    found = {figure.id: figure for figure in made}
    assert found["comfort.memory.rate"].met is True
    assert found["comfort.memory.cpu_us"].value == 6
    assert found["comfort.memory.start_ms"].met is False
    assert found["comfort.memory.import_ms"].value == 140
