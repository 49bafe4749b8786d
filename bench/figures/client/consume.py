"""Receiving and acknowledging: tables of our ways, the peers that can do the same, and the goals.

Ours note each id and ack each delivery by itself, and send the acks together. The peers answer many at once
where their interface allows it; aio-pika has no other way than to answer each by itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from bench.figures.form import Figure, Maker, below
from bench.figures.scene import Scene, repeat_command
from bench.figures.turns import Against, Line, Table, Turns, interleaved, sized
from bench.harness.loop import best_loop
from bench.harness.turn import Task
from bench.processes import run

WINDOW = 1000
WHAT = "Received and acked, 1 KB"
# Line -> way, the rest of its description, CPU goal in us.
OURS = {
    "ours": ("receive", "AsyncConsumer", 5.0),
    "many": ("receive_many", "AsyncConsumer.receive_many", None),
    "blocking": ("receive_blocking", "blocking Consumer", None),
    "blocking_many": ("receive_many_blocking", "blocking Consumer.receive_many", None),
}
# Line -> system, its description, messages of a turn, the wanted ratio of our rate to its rate. PerfTest runs
# for a given time; its number makes the queue last for some seconds after its warm-up.
PEERS = {
    "pika_async": ("pika", "pika's asynchronous adapter by hand", 60_000, 2.0),
    "aio_pika": ("aio-pika", "aio-pika", 20_000, 5.0),
    "perf_test": ("perf-test", "Java PerfTest", 400_000, 1.0),
}
MESSAGES, PERF_TEST_S = 100_000, 6.0


def consume(task: Task, scene: Scene) -> Table:
    """Every client with the same window, from a quorum queue at one broker."""
    task, table = replace(task, verb="consume", window=WINDOW), Table()
    for name, (way, what, cpu) in OURS.items():
        loop = "asyncio" if name.startswith("blocking") else best_loop()
        made = replace(sized(task, scene, MESSAGES), way=way, loop=loop)
        id, what = "" if name == "ours" else f"{name}_", f"{WHAT}, {what}"
        table.lines.append(Line(name, id, what, made, cpu=cpu))
    for name, (system, what, messages, goal) in PEERS.items():
        made = replace(sized(task, scene, messages), system=system)
        if name == "aio_pika":
            made = replace(made, loop=best_loop())
        if name == "perf_test":
            # Java is not warm before its third second, so a quick run has as many messages for it.
            made = replace(made, messages=messages, warm_up=0, seconds=PERF_TEST_S)
        table.lines.append(Line(name, f"{name}_", what, made))
        ratio = f"{table.lines[0].what}: how many times as fast as {what}"
        table.against.append(Against("ours", name, f"ratio_{name}", ratio, goal))
    return table


RUN, APP = "AsyncConsumer.run", "@app.subscriber"
FEW = 0.01
# Line -> way, its description, the part of the messages that is traced, goal of what it adds in us.
HANDLERS = {
    "run": ("run", f"{RUN} with a coroutine function", 0, 3.0),
    "run_threads": ("run_threads", f"{RUN} with a plain function in a thread", 0, None),
    "app": ("app", f"{APP}, the payload as bytes", 0, 10.0),
    "app_typed": ("app_typed", f"{APP}, 1 KB of JSON as a dataclass", 0, None),
    "run_otel": ("run", f"{RUN} with OpenTelemetry on, every message traced", 1, 30.0),
    "run_otel_few": (
        "run",
        f"{RUN} with OpenTelemetry on, one message in a hundred traced",
        FEW,
        30.0,
    ),
    "app_otel": ("app", f"{APP} with OpenTelemetry on, every message traced", 1, None),
}
HANDLED = 60_000


def handlers(task: Task, scene: Scene) -> Table:
    """`run` and the decorator, against a loop over the same consumer that does the same work."""
    consuming = replace(task, verb="consume", window=WINDOW, loop=best_loop(), typed=True)
    plain = replace(sized(consuming, scene, HANDLED), way="receive")
    what = f"{WHAT}, a loop over AsyncConsumer"
    table = Table([Line("receive", "receive_", what, plain)])
    for name, (way, what, traced, goal) in HANDLERS.items():
        made = replace(plain, way=way, traced=traced)
        table.lines.append(Line(name, f"{name}_", what, made))
        more = f"{what}: CPU time on top of the loop, per message"
        table.against.append(
            Against(name, "receive", f"{name}_more_us", more, goal, of_cpu="difference")
        )
    return table


MEMORY = "comfort.memory"
IN_MEMORY = 300_000
IMPORT_WITHIN_S = 60.0
# Run in a fresh interpreter with nothing loaded: asyncio, ssl and pika take most of the time.
IMPORT = """
import time
began = time.perf_counter()
import messagebus.testing.bus
print((time.perf_counter() - began) * 1000)
"""


def memory_bus_figures(scene: Scene) -> Iterator[Figure]:
    """Measure the bus in memory for tests of applications: its speed, and the time until a test begins."""
    nowhere = Task(verb="publish", env={}, topic="orders", subscription="billing", window=WINDOW)
    tasks = {
        "async": replace(sized(nowhere, scene, IN_MEMORY), way="memory"),
        "start": replace(nowhere, way="memory_start", messages=1, warm_up=0),
    }
    turns = interleaved(scene, tasks, lambda _name, _task: None)
    imports = [import_ms() for _ in range(scene.repeat)]
    yield from of_memory_bus(tasks["async"], turns, imports, repeat_command(MEMORY, scene.repeat))


def import_ms() -> float:
    """Measure the import of the bus in memory. Raises BenchError."""
    argv = [sys.executable, "-c", IMPORT]
    return float(run(argv, within_s=IMPORT_WITHIN_S, what="importing messagebus.testing"))


def of_memory_bus(
    task: Task, turns: Turns, imports: Sequence[float], repeat: str
) -> Iterator[Figure]:
    what = "In memory: published, received and acked, 1 KB, both asyncio clients in one process"
    table = Table([Line("async", "", what, task, rate=100_000.0)])
    yield from table.figures(MEMORY, turns, repeat)
    make, took_ms = Maker(MEMORY, repeat), [turn.took_s * 1000 for turn in turns["start"]]
    what = "In memory: a whole test with both blocking clients and one message, without imports"
    yield make("start_ms", what, took_ms, "ms", (below, 50.0))
    what = "Importing messagebus.testing with all behind it, once in a process"
    yield make("import_ms", what, imports, "ms")
