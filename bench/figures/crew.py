"""The load processes of a measurement: publishers of generated records, and consumers."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.errors import BenchError
from bench.load.control import read_progress, set_rate
from bench.processes import Children
from ops.local.cluster import LocalCluster

__all__ = ["CHECKOUT", "Crew", "crew", "wait_until"]

CHECKOUT = Path(__file__).resolve().parents[2]
START_WITHIN_S = 120.0
STOP_WITHIN_S = 60.0
POLL_S = 0.05


def wait_until(condition: Callable[[], object], *, within_s: float, what: str) -> None:
    """Wait for a condition. Raises BenchError when it does not hold in time."""
    until_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > until_s:
            raise BenchError(f"not within {within_s:.0f} s: {what}")
        time.sleep(POLL_S)


class Crew:
    """A set of load processes.

    consumers: name -> subscription. publishers send records of `size` bytes at one common rate. env: settings
    of the clients that differ from the cluster's.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        folder: Path,
        *,
        run_id: str,
        topic: str,
        publishers: tuple[str, ...],
        consumers: Mapping[str, str],
        size: int,
        env: Mapping[str, str] | None = None,
    ) -> None:
        (folder / "progress").mkdir(parents=True)
        self.folder = folder
        self.publishers = publishers
        self.consumers = consumers
        self._children = Children(folder / "logs")
        self._env = {
            key: text for key, text in os.environ.items() if not key.startswith("MESSAGEBUS_")
        }
        self._env |= cluster.client_env() | dict(env or {})
        set_rate(folder, 0)
        common = ["--run", str(folder), "--run-id", run_id, "--topic", topic]
        for name, subscription in consumers.items():
            self._start(name, "consume", *common, "--subscription", subscription)
        for name in publishers:
            share = ["--share", str(len(publishers))]
            self._start(name, "publish", *common, *share, "--size", str(size))

    def _start(self, name: str, verb: str, *options: str) -> None:
        argv = [sys.executable, "-m", "bench", "load", verb, "--name", name, *options]
        self._children.start(name, argv, self._env, CHECKOUT)

    @property
    def names(self) -> list[str]:
        return [*self.consumers, *self.publishers]

    def wait_running(self) -> None:
        wait_until(self._all_run, within_s=START_WITHIN_S, what="all load processes running")

    def _all_run(self) -> bool:
        self.check()
        progress = read_progress(self.folder)
        return [each.state for each in progress.values()] == ["running"] * len(self.names)

    def check(self) -> None:
        """Check all processes. Raises BenchError when one has ended."""
        self._children.check(self.names)

    def pid(self, name: str) -> int:
        return self._children.pid(name)

    def set_rate(self, rate_per_s: float) -> None:
        """Set the rate of all publishers together."""
        set_rate(self.folder, rate_per_s)

    def finish(self) -> None:
        """End the publishers, then, when no more messages come, the consumers. Raises BenchError."""
        self._end(list(self.publishers))
        before = -1
        while (now := sum(each.done for each in read_progress(self.folder).values())) != before:
            before = now
            time.sleep(1)
        self._end(list(self.consumers))

    def _end(self, names: list[str]) -> None:
        self._children.terminate(names)
        wait_until(
            lambda: not self._children.running(names), within_s=STOP_WITHIN_S, what="load's end"
        )
        self._children.check(names, may_end=True)

    def stop(self) -> None:
        """End all processes that still run."""
        self._children.stop_all()


@contextmanager
def crew(crew: Crew) -> Iterator[Crew]:
    """Wait until the processes run; end them on exit."""
    try:
        crew.wait_running()
        yield crew
    finally:
        crew.stop()
