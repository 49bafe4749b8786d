"""The command ``python -m bench handlers``: handlers that raise, cancel, hang, exit and publish at random.

Every message says what its handler is to do (`bench.trials.handlers_app`). At the end each message must
have been handled to its end, or be parked with the right reason. At every moment `/metrics` must answer, no
counter of a process may fall, and `/ready` must match the state of the processes.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import click
import httpx
from rich.console import Console

from bench import options
from bench.errors import BenchError, DoesNotHold
from bench.processes import free_port, wait_until
from bench.trials.handlers_app import DONE_BYTES, FOLDER_SETTING, KINDS, OUT, QUEUES
from messagebus import BusConfig, Message, Publisher, declare, read_parked
from ops.local.cluster import LocalCluster

PROCESSES = 2
# The most messages published and not handled; it keeps brokers' memory flat, too.
OPEN_MAX = 20_000
CHUNK = 500
# One process is ended by its handler for each EXITS_EVERY messages, at most EXITS_MAX times.
EXITS_EVERY, EXITS_MAX = 50_000, 12
LOOK_S = 1.0
READY_WITHIN_S = 120.0
# The longest time without any progress.
STALLED_S = 180.0
GRACE_S = 20.0
# For a process that lived for LIFE_S: the allowed ratio of its final memory to that at a third of its life.
LIFE_S, GROWTH_MAX = 90.0, 1.3


@click.command(
    "handlers",
    epilog="Example: python -m bench handlers --messages 1000000",
)
@options.number("--messages", default=100_000, help="So many in all.", least=100)
@options.number("--brokers", default=3, help="So many.")
@click.option("--seed", type=int, help="Of what handlers do. Default: one that is printed.")
@options.folder("Default: a temporary one.")
@options.network
def handlers(
    messages: int, brokers: int, seed: int | None, folder: Path | None, network: str
) -> None:
    """Have a worker of two processes handle messages that do everything to it, all hooks on.

    Exit code 0: none is missing, none is parked without its reason, memory is flat, and health and
    metrics were true at every look.
    """
    console = Console(highlight=False, soft_wrap=True)
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    place = (folder or Path(tempfile.mkdtemp(prefix="messagebus-handlers-"))).resolve()
    console.print(f"seed {seed}, {messages:,} messages, in {place}")
    cluster = LocalCluster(place / "cluster", brokers, network=network, say=console.print)
    with cluster.running():
        trial = Trial(cluster.client_env(), place / "run", messages, seed, say=console.print)
        verdict = trial.run()
    for line in verdict.lines:
        console.print(line)
    if verdict.faults:
        raise DoesNotHold(f"seed {seed}: {'; '.join(verdict.faults[:20])}; kept in {place}")


@dataclass(slots=True)
class Verdict:
    """The verdict of a trial. faults: empty when everything held. lines: for people."""

    faults: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


class Trial:
    """One run in a folder of its own. environ: the settings of clients of the cluster."""

    def __init__(
        self,
        environ: Mapping[str, str],
        folder: Path,
        messages: int,
        seed: int,
        *,
        say: Callable[[str], None],
    ) -> None:
        folder.mkdir(parents=True)
        self._environ, self._folder, self._messages = environ, folder, messages
        self._bus = BusConfig.from_env(environ)
        self._say = say
        chance = random.Random(seed)
        shares = [kind.share for kind in KINDS.values()]
        self._kinds = chance.choices(list(KINDS), shares, k=messages)
        exits = min(EXITS_MAX, max(1, messages // EXITS_EVERY))
        for each in range(exits):  # spread over the run, and none at its very end
            self._kinds[(2 * each + 1) * messages // (2 * exits + 1)] = "exits"
        self._verdict = Verdict()

    def run(self) -> Verdict:
        """Do the run and judge it. Raises BenchError when it does not come to an end."""
        declare(self._bus, [*QUEUES, OUT])
        began_s = time.monotonic()
        with (self._folder / "worker.log").open("wb") as log:
            worker = self._start(log.fileno())
            watching = _Watching(worker.pid, self._port)
            try:
                wait_until(watching.is_ready, within_s=READY_WITHIN_S, what="ready")
                watching.start()
                self._publish(worker)
                self._wait(worker, len(self._kinds))
                watching.stop()
                wait_until(watching.is_ready, within_s=READY_WITHIN_S, what="ready at the end")
                worker.send_signal(signal.SIGTERM)
                code = worker.wait(GRACE_S + 60)
            finally:
                watching.stop()
                worker.kill()
        took_s = time.monotonic() - began_s
        verdict = self._verdict
        verdict.lines.append(f"{self._messages:,} messages in {took_s:.0f} s")
        if code != 0:
            verdict.faults.append(f"the worker ended with {code}")
        self._judge_messages()
        watching.judge(verdict)
        return verdict

    def _start(self, log: int) -> subprocess.Popen[bytes]:
        self._port = free_port()
        command = [sys.executable, "-m", "messagebus", "worker", "bench.trials.handlers_app:app"]
        command += ["--processes", str(PROCESSES), "--grace-s", f"{GRACE_S:g}", "--log", "json"]
        return subprocess.Popen(
            [*command, "--health", f"127.0.0.1:{self._port}"],
            env={**os.environ, **self._environ, FOLDER_SETTING: str(self._folder)},
            stderr=log,
        )

    # Publishing.
    def _publish(self, worker: subprocess.Popen[bytes]) -> None:
        with Publisher(self._bus) as publisher:
            for begin in range(0, len(self._kinds), CHUNK):
                self._wait(worker, begin - OPEN_MAX)
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

    def _wait(self, worker: subprocess.Popen[bytes], handled: int) -> None:
        """Wait until about `handled` messages came to their end, doubles included. Raises BenchError."""
        share = sum(kind.share for kind in KINDS.values() if kind.ends == "parked")
        last, since_s = -1, time.monotonic()
        is_end = handled >= len(self._kinds)
        while True:
            if is_end:
                missing = len(self._missing())
                if not missing:
                    return
                found = -missing
            else:
                found = self._done_about()
                if found >= handled * (1 - share):
                    return
            if found != last:
                last, since_s = found, time.monotonic()
            if worker.poll() is not None:
                raise BenchError(f"the worker ended with {worker.returncode}: see {self._folder}")
            if time.monotonic() - since_s > STALLED_S:
                if is_end:
                    return  # judged afterwards
                raise BenchError(f"nothing handled for {STALLED_S:g} s: see {self._folder}")
            time.sleep(LOOK_S if is_end else LOOK_S / 10)

    def _done_about(self) -> int:
        return sum(file.stat().st_size for file in self._folder.glob("done.*")) // DONE_BYTES

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
    def _judge_messages(self) -> None:
        faults, lines = self._verdict.faults, self._verdict.lines
        missing = self._missing()
        lines.append(f"missing: {len(missing)}")
        faults += [f"missing {name}" for name in sorted(missing)[:5]]
        parked = self._parked()
        lines.append(f"parked: {len(parked)}")
        for number, kind in enumerate(self._kinds):
            reasons = parked.pop(f"in-{number}", [])
            if KINDS[kind].ends == "done":
                if reasons:
                    faults.append(f"in-{number} ({kind}) is parked: {reasons[0]}")
            elif not reasons:
                faults.append(f"in-{number} ({kind}) is not parked")
            elif not reasons[0].startswith(KINDS[kind].reason):
                faults.append(f"in-{number} ({kind}) is parked as: {reasons[0]}")
        faults += [f"{name} is parked: {reasons[0]}" for name, reasons in parked.items()]
        done = self._numbers("done")
        lines.append(f"handled to their end more than once: {done.total() - len(done):,}")
        lines.append(f"kinds: {dict(Counter(self._kinds).most_common())}")

    def _parked(self) -> dict[str, list[str]]:
        """Return the reasons of parked messages, by message id."""
        found: dict[str, list[str]] = {}
        for each in read_parked(self._bus, [*QUEUES, OUT], count_max=2 * self._messages).messages:
            found.setdefault(each.message_id, []).append(each.reason)
        return found


class _Watching:
    """A thread that observes a worker each LOOK_S: memory, health, metrics."""

    def __init__(self, pid: int, port: int) -> None:
        self._pid, self._address = pid, f"http://127.0.0.1:{port}"
        self._memory: dict[int, list[tuple[float, float]]] = {}
        self._counters: dict[str, float] = {}
        self._faults: list[str] = []
        self._ready = Counter[int]()
        self._looks = 0
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
            return httpx.get(f"{self._address}/ready", timeout=10).status_code == 200
        except httpx.HTTPError:
            return False

    def judge(self, verdict: Verdict) -> None:
        verdict.faults += self._faults
        verdict.lines.append(f"looks: {self._looks}, /ready {dict(self._ready)}")
        for pid, samples in self._memory.items():
            life_s = samples[-1][0] - samples[0][0]
            third = [mb for at, mb in samples if at - samples[0][0] > life_s / 3]
            if life_s < LIFE_S or not third:
                continue
            early, late = median(third[: len(third) // 4 or 1]), median(third[-len(third) // 4 :])
            verdict.lines.append(
                f"process {pid}: {life_s:.0f} s, {early:.0f} MB at a third, {late:.0f} MB at its end"
            )
            if late > GROWTH_MAX * early:
                verdict.faults.append(
                    f"memory of process {pid} grew from {early:.0f} to {late:.0f} MB"
                )

    def _watch(self) -> None:
        before: frozenset[int] = frozenset()
        with httpx.Client(timeout=15, trust_env=False) as http:
            while not self._ended.wait(LOOK_S):
                children = self._children()
                self._look_at_memory(children)
                try:
                    ready, metrics = (
                        http.get(f"{self._address}/{p}") for p in ("ready", "metrics")
                    )
                except httpx.HTTPError as fault:
                    self._faults.append(f"health does not answer: {type(fault).__name__}")
                    continue
                # A set of processes that changed meanwhile may show anything.
                is_same = children == before == self._children()
                before = children
                self._looks += 1
                self._ready[ready.status_code] += 1
                if metrics.status_code != 200:
                    self._faults.append(f"/metrics {metrics.status_code}")
                looks = json.loads(ready.text)["workers"].values()
                if (ready.status_code == 200) != all(each["ready"] for each in looks):
                    self._faults.append("/ready contradicts itself")
                if len(children) < PROCESSES and is_same and ready.status_code == 200:
                    self._faults.append("/ready although a process is not there")
                self._look_at_counters(metrics.text, is_same)

    def _children(self) -> frozenset[int]:
        try:
            listed = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text()
        except OSError:
            return frozenset()
        return frozenset(map(int, listed.split()))

    def _look_at_memory(self, children: frozenset[int]) -> None:
        for pid in children:
            try:
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            except (OSError, IndexError):
                continue
            mb = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
            self._memory.setdefault(pid, []).append((time.monotonic(), mb))

    def _look_at_counters(self, text: str, is_same: bool) -> None:
        shown = dict(_counters(text))
        if is_same:
            for series, value in shown.items():
                if value < self._counters.get(series, 0):
                    self._faults.append(f"{series} fell from {self._counters[series]} to {value}")
        self._counters = shown


_COUNTER = re.compile(r"^(\w+_(?:total|count|sum|bucket)\{[^}]*\}) (\S+)$", re.MULTILINE)


def _counters(text: str) -> Iterator[tuple[str, float]]:
    for series, value in _COUNTER.findall(text):
        yield series, float(value)
