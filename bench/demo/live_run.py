"""The live run of the demo: its processes, its screen, and the pace at which messages flow.

Records are spread over the time that the remaining steps need, so that messages flow during every one of
them and the input ends soon after the last.

The run has one thread. Anything that takes long is another process that is polled. Meanwhile `LiveRun.tick`
keeps the pace of the publishers, checks the load processes and redraws the screen. A wait ends without its
condition only if nothing moves any more: no log grows, no message passes, and the awaited job has ended.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.demo.screen import CONFIRMED, DELIVERED, Rates, Screen, Step, View
from bench.environment import CHECKOUT
from bench.errors import BenchError
from bench.harness.workers import Recording, Workers, read_progress, set_rate
from bench.load.profile import Profile
from bench.processes import Child, Children, wait_until
from messagebus.recording.manifest import Incident, Manifest
from ops.errors import LocalFault
from ops.local.cluster import LocalCluster

TOPIC = "packages"
BROKERS = 3
PUBLISHERS = 4
# The subscription of each consumer.
CONSUMERS = ("billing", "billing", "billing", "audit")
SUBSCRIPTIONS = tuple(dict.fromkeys(CONSUMERS))

# The input must not end before the last step: this time is always assumed to be left.
RESERVE_S = 4.0
# The records left after the last step are sent in about this time, and never slower than this rate.
TAIL_S, TAIL_MIN_PER_S = 2.0, 400.0
RATE_MAX_PER_S = 4_000.0
# A machine may be busy with other things. Beyond that, later steps see fewer messages.
SLOW_MAX = 4.0
RATE_EVERY_S, REDRAW_EVERY_S = 1.0, 0.4
# Without any progress; a broker that boots beside eight busy processes is silent for a minute.
STALLED_S = 300.0
# A playbook prints its plan before its first step: commands, and the condition after each step.
PLAN_LINES = ("$ ", "until ")


def planned_rate(left: int, steps: Sequence[Step]) -> float:
    """Return the messages per second of all publishers together, from now on.

    left: records not yet sent. steps: those during which messages flow, in order.
    """
    done = [step for step in steps if step.state == "done"]
    if len(done) == len(steps):
        return min(max(left / TAIL_S, TAIL_MIN_PER_S), RATE_MAX_PER_S)
    running, *later = steps[len(done) :]
    needed_s = sum(step.needs_s for step in done)
    by_now = sum(step.took_s for step in done) / needed_s if needed_s else 1.0
    slow = min(max(1.0, by_now, running.took_s / running.needs_s), SLOW_MAX)
    running_s = running.needs_s * slow - running.took_s
    if running_s <= 0:
        # It may last as long again: each later step must see messages, however late it comes.
        running_s = running.took_s if later else 0.0
    planned_s = running_s + sum(step.needs_s for step in later) * slow
    return min(left / max(planned_s, RESERVE_S), RATE_MAX_PER_S)


class LiveRun:
    """One run in one folder. total: records that will be published. profile: of its load.

    looks_s: seconds for a person to see a state. env: the environment of all processes that are started;
    clients also get settings of the bus.
    """

    def __init__(
        self,
        *,
        folder: Path,
        run_id: str,
        network: str,
        screen: Screen,
        total: int,
        profile: Profile,
        looks_s: float,
        env: Mapping[str, str],
    ) -> None:
        self.folder, self.screen, self.looks_s = folder, screen, looks_s
        self.children = Children(folder / "logs")
        recording = Recording(folder, run_id)
        self.workers = Workers(profile, folder, self.children, recording, meanwhile=self.tick)
        self.cluster = LocalCluster(
            folder / "cluster", BROKERS, network=network, say=screen.say, show=self.note
        )
        self.view = View(total)
        self.address_of_page = ""
        self._incidents: list[Incident] = []
        self._env = {key: text for key, text in env.items() if not key.startswith("MESSAGEBUS_")}
        self._began_s = self._step_began_s = time.monotonic()
        self._next_rate_s = self._next_redraw_s = 0.0
        self._rates = Rates()
        self._names: dict[str, str] = {}

    # -- time

    def tick(self) -> None:
        """Do the regular work during a wait: pace and screen."""
        now_s = time.monotonic()
        if now_s >= self._next_redraw_s:
            self._next_redraw_s = now_s + REDRAW_EVERY_S
            self._count(now_s)
            self._redraw()
        if self.workers.start_ns and now_s >= self._next_rate_s:
            self._next_rate_s = now_s + RATE_EVERY_S
            planned = [step for step in self.view.steps if step.needs_s]
            left = max(0, self.view.total - self.view.published)
            set_rate(self.folder, planned_rate(left, planned))

    def wait(
        self, condition: Callable[[], object], what: str, *, silent: Child | None = None
    ) -> None:
        """Tick until the condition holds. Raises BenchError when nothing moves, or a load process fails.

        silent: a process that logs nothing while it works, such as a Spark job: that it runs is progress.
        """
        self.tick()

        def check() -> None:
            self.workers.check(may_end=True)
            self.tick()

        def moves() -> tuple[int, int, float]:
            is_working = silent is not None and silent.exit_code is None
            now_s = time.monotonic() if is_working else 0.0
            return self.view.counts.total(), self.children.log_bytes(), now_s

        wait_until(condition, within_s=STALLED_S, what=what, check=check, moves=moves)

    def look(self, seconds: float | None = None) -> None:
        """Let messages flow, by default for as long as a person needs to see the state."""
        until_s = time.monotonic() + (self.looks_s if seconds is None else seconds)
        self.wait(lambda: time.monotonic() >= until_s, "time passes")

    # -- steps, as a person sees them

    @contextmanager
    def step(self, step: Step) -> Iterator[None]:
        """Show a step as running, then as done or failed, with its time."""
        step.state, self._step_began_s = "running", time.monotonic()
        self._redraw()
        try:
            yield
        except BaseException as fault:
            step.state = "interrupted" if isinstance(fault, KeyboardInterrupt) else "failed"
            raise
        else:
            step.state = "done"
        finally:
            step.took_s = time.monotonic() - self._step_began_s
            self.note("")

    def note(self, line: str) -> None:
        """Show the current action of the running step."""
        self.view.note = line
        self._redraw()

    # -- processes

    def run(self, argv: Sequence[str], *, client: bool = False) -> None:
        """Run ``python -m argv`` to its end. Raises BenchError with its last line when it fails."""
        child = self.start("-".join(argv[:2]), argv, client=client)

        def has_ended() -> bool:
            if (line := child.last_line()) and not line.startswith(PLAN_LINES):
                self.view.note = line
            return child.exit_code is not None

        self.wait(has_ended, " ".join(argv))
        if child.exit_code:
            raise BenchError(f"{' '.join(argv)} failed: {child.last_line()} ({child.log})")

    def start(self, name: str, argv: Sequence[str], *, client: bool = False) -> Child:
        """Start ``python -m argv``. client: it gets the address of the bus in its environment."""
        operators = {
            "MESSAGEBUS_INVENTORY": str(self.cluster.inventory),
            "MESSAGEBUS_LOCAL_DIR": str(self.cluster.dir),
        }
        env = self._env | (self.cluster.client_env() if client else operators)
        argv = [sys.executable, "-m", *argv]
        return self.children.start(name, argv, {**env, "PYTHONUNBUFFERED": "1"}, CHECKOUT)

    # -- what happened

    def save(self, *, complete: bool = False) -> Manifest:
        """Write the run's manifest as known so far; complete: the run has ended in order, now."""
        self._learn_names()
        manifest = self.workers.manifest(sorted(self._names), self._incidents, complete=complete)
        manifest.save(self.folder)
        return manifest

    @contextmanager
    def incident(self, kind: str, name: str = "") -> Iterator[None]:
        """Record a disturbance of a broker (mb2), or of the balancer (no name), with its times."""
        self._learn_names()
        at_ns = time.monotonic_ns()
        try:
            yield
        finally:
            self._learn_names()
            broker = self.view.addresses.get(name, name)
            self._incidents.append(Incident(kind, broker, at_ns, time.monotonic_ns()))
            self.save()

    # -- counts

    def used(self, name: str) -> list[int]:
        """Return what this broker has confirmed, and what it has delivered to each subscription."""
        return [self.view.counts[what, name] for what in (CONFIRMED, *SUBSCRIPTIONS)]

    def _count(self, now_s: float) -> None:
        workers, counts = self.workers, Counter[tuple[str, str]]()
        subscriptions = dict(zip(workers.consumers, CONSUMERS, strict=True))
        progress = read_progress(self.folder)
        if any(at not in self._names for each in progress.values() for at in each.brokers):
            self._learn_names()
        for client, each in progress.items():
            subscription = subscriptions.get(client)
            for at, count in each.brokers.items():
                name = self._names.get(at, at or "unknown")
                for what in (subscription, DELIVERED) if subscription else (CONFIRMED,):
                    counts[what, name] += count
        self.view.published = sum(
            progress[each].done for each in workers.publishers if each in progress
        )
        self.view.counts, self.view.rates = counts, self._rates.add(now_s, counts)

    def _redraw(self) -> None:
        now_s = time.monotonic()
        self.view.elapsed_s = now_s - self._began_s
        for step in self.view.steps:
            if step.state == "running":
                step.took_s = now_s - self._step_began_s
        self.screen.show(self.view)

    def _learn_names(self) -> None:
        """Read the brokers' names. A removed broker leaves the inventory, but keeps its name here."""
        with suppress(LocalFault):
            self._names |= {node.broker: node.name for node in self.cluster.layout.nodes}
            self.view.addresses = {name: at for at, name in self._names.items()}
