"""The entry point of ``python -m bench.systems NAME TASK``: it prints the result of one turn."""

from __future__ import annotations

import cProfile
import importlib
import sys

from bench.systems.turn import Stopwatch, Task, Turn

__all__ = ["SYSTEMS", "main"]

# Only the module of the client that takes its turn is imported.
SYSTEMS = (
    "ours_app",
    "ours_async",
    "ours_blocking",
    "ours_memory",
    "pika_async",
    "pika_blocking",
    "aio_pika_client",
    "kombu_client",
    "perf_test",
)


def main(name: str, task: str) -> None:
    if name not in SYSTEMS:
        raise SystemExit(f"no client {name!r}; there are {', '.join(SYSTEMS)}")
    wanted = Task.from_json(task)
    client = importlib.import_module(f"bench.systems.{name}")
    if wanted.profile:
        Stopwatch.profiler = cProfile.Profile()
    turn: Turn = client.run(wanted)
    if Stopwatch.profiler:
        Stopwatch.profiler.dump_stats(wanted.profile)
    print(turn.to_json())


if __name__ == "__main__":
    main(*sys.argv[1:])
