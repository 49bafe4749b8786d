"""Handlers that raise, cancel, hang, exit and publish at random.

Every message says what its handler is to do (`handlers_app`). At the end each message must
have been handled to its end, or be parked with the right reason. At every moment `/metrics` must answer, no
counter of a process may fall, and `/ready` must match the state of the processes.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import httpx

from bench.environment import CHECKOUT
from bench.errors import BenchError
from bench.processes import Children, free_port, wait_until
from messagebus import BusConfig, Message, Publisher, declare
from messagebus.admin import read_parked
from tests.support.killed import children_of
from tests.support.trials.handlers_app import DONE_BYTES, FOLDER_SETTING, KINDS, OUT, QUEUES

PROCESSES = 2
# The most messages published and not handled; it keeps brokers' memory flat, too.
OPEN_MAX = 20_000
CHUNK = 500
# One process is ended by its handler for each EXITS_EVERY messages, at most EXITS_MAX times.
EXITS_EVERY, EXITS_MAX = 50_000, 12
LOOK_S = 1.0
# The longest time without any progress.
STALLED_S = 300.0
GRACE_S = 20.0
# For a process that lived for LIFE_S: the allowed ratio of its final memory to that at a third of its life.
LIFE_S, GROWTH_MAX = 90.0, 1.3
WORKER = "worker"


@dataclass(slots=True)
class Verdict:
    """The verdict of a trial. faults: empty when everything held. lines: for people."""

    faults: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


class Trial:
    """One run in a folder of its own. environ: the settings of clients of the cluster."""

    def __init__(self, environ: Mapping[str, str], folder: Path, messages: int, seed: int) -> None:
        folder.mkdir(parents=True)
        self._environ, self._folder = environ, folder
        self._bus, self._port = BusConfig.from_env(environ), free_port()
        shares = [kind.share for kind in KINDS.values()]
        self._kinds = random.Random(seed).choices(list(KINDS), shares, k=messages)
        exits = min(EXITS_MAX, max(1, messages // EXITS_EVERY))
        for each in range(exits):  # spread over the run, and none at its very end
            self._kinds[(2 * each + 1) * messages // (2 * exits + 1)] = "exits"

    def run(self) -> Verdict:
        """Do the run and judge it. Raises BenchError when it does not come to an end."""
        declare(self._bus, [*QUEUES, OUT])
        began_s, count, verdict = time.monotonic(), len(self._kinds), Verdict()
        children = Children(self._folder)
        worker = children.start(WORKER, self._argv(), self._env(), CHECKOUT)
        health = _Health(worker.process.pid, self._port, verdict)

        def wait(condition: Callable[[], object], what: str) -> None:
            wait_until(
                condition,
                within_s=STALLED_S,
                what=f"{what}: see {self._folder}",
                check=lambda: children.check([WORKER]),
                moves=self._bytes,
            )

        try:
            wait(health.is_ready, "ready")
            health.start()
            self._publish(wait)
            try:
                least = DONE_BYTES * sum(KINDS[kind].ends == "done" for kind in self._kinds)
                wait(lambda: self._bytes() >= least and not self._missing(), f"all {count} handled")
            except BenchError:
                children.check([WORKER])  # what is missing is judged
            health.stop()
            wait(health.is_ready, "ready at the end")
            worker.process.send_signal(signal.SIGTERM)
            code = worker.process.wait(GRACE_S + STALLED_S)
        finally:
            health.stop()
            children.stop_all()
        verdict.lines.append(f"{count:,} messages in {time.monotonic() - began_s:.0f} s")
        if code != 0:
            verdict.faults.append(f"the worker ended with {code}")
        self._judge_messages(verdict)
        health.judge_memory()
        return verdict

    def _argv(self) -> list[str]:
        argv = [
            sys.executable,
            "-m",
            "messagebus",
            "worker",
            "tests.support.trials.handlers_app:app",
        ]
        argv += ["--processes", str(PROCESSES), "--grace-s", f"{GRACE_S:g}", "--log", "json"]
        return [*argv, "--health", f"127.0.0.1:{self._port}"]

    def _env(self) -> dict[str, str]:
        return {**os.environ, **self._environ, FOLDER_SETTING: str(self._folder)}

    # Publishing.
    def _publish(self, wait: Callable[[Callable[[], object], str], None]) -> None:
        """Publish all, never more than about OPEN_MAX before they are handled."""
        ending = sum(kind.share for kind in KINDS.values() if kind.ends == "done")
        with Publisher(self._bus) as publisher:
            for begin in range(0, len(self._kinds), CHUNK):
                least = (begin - OPEN_MAX) * ending * DONE_BYTES
                wait(lambda least=least: self._bytes() >= least, f"{begin - OPEN_MAX} handled")  # type: ignore[misc]
                numbers = range(begin, min(begin + CHUNK, len(self._kinds)))
                for place, queue in enumerate(QUEUES):
                    mine = [self._message(n) for n in numbers if n % len(QUEUES) == place]
                    for end in publisher.send_many(queue, mine):
                        if end.outcome.value != "confirmed":
                            raise BenchError(f"not confirmed: {end}")

    def _message(self, number: int) -> Message:
        kind = self._kinds[number]
        body = {"number": number, "kind": ["no text"] if kind == "does not fit" else kind}
        return Message.json(body, message_id=f"in-{number}")

    def _bytes(self) -> int:
        """Return the size of what handlers have noted: DONE_BYTES for each completed handling."""
        return sum(file.stat().st_size for file in self._folder.glob("done.*"))

    def _numbers(self, what: str) -> Counter[int]:
        found: Counter[int] = Counter()
        for file in self._folder.glob(f"{what}.*"):
            found.update(map(int, file.read_bytes().split()))
        return found

    def _missing(self) -> set[str]:
        done, out = self._numbers("done"), self._numbers("out")
        wanted = {n for n, kind in enumerate(self._kinds) if KINDS[kind].ends == "done"}
        passed = {n for n, kind in enumerate(self._kinds) if kind == "publishes"}
        return {f"in-{n}" for n in wanted - done.keys()} | {f"out-{n}" for n in passed - out.keys()}

    # Judging.
    def _judge_messages(self, verdict: Verdict) -> None:
        faults, missing, done = verdict.faults, self._missing(), self._numbers("done")
        parked: dict[str, str] = {}
        for each in read_parked(self._bus, [*QUEUES, OUT], count_max=2 * len(self._kinds)).messages:
            parked.setdefault(each.message_id, each.reason)
        verdict.lines += [
            f"missing: {len(missing)}",
            f"parked: {len(parked)}",
            f"handled to their end more than once: {done.total() - len(done):,}",
            f"kinds: {dict(Counter(self._kinds).most_common())}",
        ]
        faults += [f"missing {name}" for name in sorted(missing)[:5]]
        for number, kind in enumerate(self._kinds):
            reason, ends = parked.pop(f"in-{number}", None), KINDS[kind].ends
            if reason is None and ends == "parked":
                faults.append(f"in-{number} ({kind}) is not parked")
            elif reason is not None and (
                ends == "done" or not reason.startswith(KINDS[kind].reason)
            ):
                faults.append(f"in-{number} ({kind}) is parked as: {reason}")
        faults += [f"{name} is parked: {reason}" for name, reason in parked.items()]


class _Health:
    """A thread that observes a worker each LOOK_S: memory, health, metrics."""

    def __init__(self, pid: int, port: int, verdict: Verdict) -> None:
        self._pid, self._verdict = pid, verdict
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False)
        self._memory: dict[int, list[tuple[float, float]]] = {}
        self._counters: dict[str, float] = {}
        self._ready = Counter[int]()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def is_ready(self) -> bool:
        try:
            return self._http.get("/ready").status_code == 200
        except httpx.HTTPError:
            return False

    def judge_memory(self) -> None:
        lines, faults = self._verdict.lines, self._verdict.faults
        lines.append(f"looks: {self._ready.total()}, /ready {dict(self._ready)}")
        for pid, samples in self._memory.items():
            life_s = samples[-1][0] - samples[0][0]
            third = [mb for at, mb in samples if at - samples[0][0] > life_s / 3]
            if life_s < LIFE_S or not third:
                continue
            early, late = median(third[: len(third) // 4 or 1]), median(third[-len(third) // 4 :])
            grew = f"from {early:.0f} MB at a third of its life to {late:.0f} MB"
            lines.append(f"process {pid}: {life_s:.0f} s, {grew}")
            if late > GROWTH_MAX * early:
                faults.append(f"memory of process {pid} grew {grew}")

    def _watch(self) -> None:
        before: list[int] = []
        while not self._ended.wait(LOOK_S):
            children = children_of(self._pid)
            self._look_at_memory(children)
            try:
                ready, metrics = self._http.get("/ready"), self._http.get("/metrics")
            except httpx.HTTPError as fault:
                self._verdict.faults.append(f"health does not answer: {type(fault).__name__}")
                continue
            # A set of processes that changed meanwhile may show anything.
            is_same = children == before == children_of(self._pid)
            before = children
            self._ready[ready.status_code] += 1
            is_ready = ready.status_code == 200
            workers = json.loads(ready.text)["workers"].values()
            wrong = {
                f"/metrics {metrics.status_code}": metrics.status_code != 200,
                "/ready contradicts itself": is_ready != all(each["ready"] for each in workers),
                "/ready although a process is not there": len(children) < PROCESSES
                and is_same
                and is_ready,
            }
            self._verdict.faults += [what for what, is_so in wrong.items() if is_so]
            self._look_at_counters(metrics.text, is_same)

    def _look_at_memory(self, children: list[int]) -> None:
        for pid in children:
            try:
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            except (OSError, IndexError):
                continue
            mb = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
            self._memory.setdefault(pid, []).append((time.monotonic(), mb))

    def _look_at_counters(self, text: str, is_same: bool) -> None:
        shown = {series: float(value) for series, value in _COUNTER.findall(text)}
        self._verdict.faults += [
            f"{series} fell from {self._counters[series]} to {value}"
            for series, value in shown.items()
            if is_same and value < self._counters.get(series, 0)
        ]
        self._counters = shown


_COUNTER = re.compile(r"^(\w+_(?:total|count|sum|bucket)\{[^}]*\}) (\S+)$", re.MULTILINE)
