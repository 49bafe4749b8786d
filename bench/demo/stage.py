"""The scenario of the demo, and the state of a running one: cluster, load processes, clock, pace, screen.

The scenario is pure: its steps in order, their time limits, and the rate of messages. The records are spread
over the time that the remaining steps need, so that messages flow during every one of them and the input
ends soon after the last.

The stage has one thread. Anything that takes long is another process that is polled. Meanwhile `tick` keeps
the pace of the publishers, checks the load processes and redraws the screen.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.demo.screen import Rates, Screen, StepView, View
from bench.environment import CHECKOUT
from bench.errors import BenchError
from bench.harness.workers import Progress, Recording, Workers, read_progress, set_rate
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
ADDED, REMOVED, KILLED = "mb4", "mb1", "mb2"
PREFETCH = 200
# Seconds that the killed broker stays down.
DOWN_S = 10.0

# With fewer records, no message would flow during some of the steps.
RECORDS_MIN = 500
SMALL_RECORDS = 2_000

# The input must not end before the last step: this time is always assumed to be left.
RESERVE_S = 4.0
# The records left after the last step are sent in about this time, and never slower than this rate.
TAIL_S = 2.0
TAIL_MIN_PER_S = 400.0
RATE_MAX_PER_S = 4_000.0
# A machine may be busy with other things. Beyond that, later steps see fewer messages.
SLOW_MAX = 4.0


@dataclass(frozen=True, slots=True)
class Step:
    """One step that is done while messages flow.

    needs_s: the expected duration, for the pace. within_s: its bound; a longer step is a failure.
    looks_s: the part of it that only shows the resulting state to a person.
    """

    name: str
    title: str
    needs_s: float
    within_s: float
    looks_s: float = 1.0


def steps(*, small: bool) -> tuple[Step, ...]:
    """Return the plan. small: without time for looking, but with every event."""
    looks_s = 1.0 if small else 4.0
    flows_s = looks_s + 1.5
    return (
        Step("flow", f"messages flow over {BROKERS} brokers", flows_s, 120, looks_s),
        Step("add", f"{ADDED} is added by the playbook", 26, 240),
        Step("used", f"{ADDED} takes publishes and is consumed", 1.5, 60),
        Step("reload", "HAProxy reloads", 3, 60),
        Step("remove", f"{REMOVED} is removed: drained to zero, stopped", 22, 240),
        Step("kill", f"{KILLED} is killed (SIGKILL) and stays down for 10 s", DOWN_S, 60),
        Step("back", f"{KILLED} comes back", 8, 180),
        Step("again", "messages flow over all brokers again", flows_s, 120, looks_s),
    )


def slowness(done: Sequence[tuple[Step, float]], running: Step, in_step_s: float) -> float:
    """Return the ratio of actual to expected durations of steps on this machine; 1 to SLOW_MAX.

    done: finished steps with the seconds they took.
    """
    needed_s = sum(step.needs_s for step, _ in done)
    by_now = sum(took_s for _, took_s in done) / needed_s if needed_s else 1.0
    return min(max(1.0, by_now, in_step_s / running.needs_s), SLOW_MAX)


def planned_rate(*, left: int, ahead: Sequence[Step], in_step_s: float, slow: float = 1.0) -> float:
    """Return the messages per second of all publishers together, from now on.

    left: records not yet sent. ahead: the running step, then those after it; empty when all are done.
    in_step_s: seconds since the running step began. slow: the factor by which steps take longer.
    """
    if not ahead:
        return min(max(left / TAIL_S, TAIL_MIN_PER_S), RATE_MAX_PER_S)
    running, *later = ahead
    running_s = running.needs_s * slow - in_step_s
    if running_s <= 0:
        # It may last as long again: each later step must see messages, however late it comes.
        running_s = in_step_s if later else 0.0
    planned_s = running_s + sum(step.needs_s for step in later) * slow
    return min(left / max(planned_s, RESERVE_S), RATE_MAX_PER_S)


RATE_EVERY_S = 1.0
REDRAW_EVERY_S = 0.4
# A playbook prints its plan before its first step: commands, and the condition after each step.
PLAN_LINES = ("$ ", "until ")


class Stage:
    """One run in one folder. total: records that will be published. profile: of its load.

    env: the environment of all processes that are started; clients also get settings of the bus.
    """

    def __init__(
        self,
        *,
        folder: Path,
        network: str,
        screen: Screen,
        total: int,
        profile: Profile,
        run_id: str,
        plan: Sequence[Step],
        env: Mapping[str, str],
    ) -> None:
        self.folder = folder
        self.screen = screen
        self.children = Children(folder / "logs")
        self.workers = Workers(profile, folder, self.children, Recording(folder, run_id))
        self.cluster = LocalCluster(
            folder / "cluster", BROKERS, network=network, say=screen.say, show=self.note
        )
        self.view = View(total=total)
        self.progress: Mapping[str, Progress] = {}
        self.incidents: list[Incident] = []
        self._env = {key: text for key, text in env.items() if not key.startswith("MESSAGEBUS_")}
        self.plan = tuple(plan)
        self._ahead = list(plan)
        self._done: list[tuple[Step, float]] = []
        self._began_s = time.monotonic()
        self._step_began_s = 0.0
        self._next_rate_s = 0.0
        self._next_redraw_s = 0.0
        self._rates = Rates()
        self._names: dict[str, str] = {}
        self._publishers_watched = False
        self._consumers_watched = False
        self._is_begun = False

    # -- time

    def tick(self) -> None:
        """Do the regular work during a wait: checks, pace and screen. Raises BenchError."""
        if self._publishers_watched:
            self.children.check(self.workers.publishers, may_end=True)
        if self._consumers_watched:
            self.children.check(self.workers.consumers)
        now_s = time.monotonic()
        if now_s >= self._next_redraw_s:
            self._next_redraw_s = now_s + REDRAW_EVERY_S
            self.progress = read_progress(self.folder)
            self._redraw(now_s)
        if self._is_begun and self._publishers_watched and now_s >= self._next_rate_s:
            self._next_rate_s = now_s + RATE_EVERY_S
            self._pace(now_s)

    def wait(self, condition: Callable[[], object], *, within_s: float, what: str) -> None:
        """Tick until the condition holds. Raises BenchError if it does not hold within within_s."""
        self.tick()
        wait_until(condition, within_s=within_s, what=what, check=self.tick)

    def look(self, seconds: float) -> None:
        """Let messages flow for this many seconds."""
        until_s = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() >= until_s, within_s=seconds + 10, what="time passing")

    # -- steps, as a person sees them

    def announce(self, titles: Sequence[str]) -> None:
        """Set the titles of all steps, in order."""
        self.view.steps = [StepView(title) for title in titles]

    @contextmanager
    def step(self, title: str) -> Iterator[StepView]:
        """Show an announced step as running, then as done or failed, with its time."""
        view = next(one for one in self.view.steps if one.title == title)
        began_s = time.monotonic()
        view.state, view.began_s = "running", began_s
        self._redraw(began_s)
        try:
            yield view
        except KeyboardInterrupt:
            view.state = "interrupted"
            raise
        except BaseException:
            view.state = "failed"
            raise
        else:
            view.state = "done"
        finally:
            view.took_s = time.monotonic() - began_s
            self.view.note = self.view.count = ""
            self._redraw(time.monotonic())

    @contextmanager
    def planned(self, step: Step) -> Iterator[None]:
        """Do a step of the plan; the pace takes its duration into account."""
        self._step_began_s = time.monotonic()
        with self.step(step.title) as view:
            yield
        self._ahead.remove(step)
        self._done.append((step, view.took_s))

    def note(self, line: str) -> None:
        """Show the current action of the running step."""
        self.view.note = line
        self._redraw(time.monotonic())

    # -- processes

    def run(self, name: str, argv: Sequence[str], *, within_s: float, client: bool = False) -> None:
        """Run ``python -m argv`` to its end. Raises BenchError with its last line when it fails."""
        child = self.start(name, argv, client=client)
        self.wait(lambda: self._ended(child), within_s=within_s, what=" ".join(argv))
        if child.exit_code:
            raise BenchError(f"{' '.join(argv)} failed: {child.last_line()} ({child.log})")

    def start(self, name: str, argv: Sequence[str], *, client: bool = False) -> Child:
        """Start ``python -m argv``. client: it gets the address of the bus in its environment."""
        env = {**self._env, "PYTHONUNBUFFERED": "1"}
        env |= self.cluster.client_env() if client else self._operators_env()
        return self.children.start(name, [sys.executable, "-m", *argv], env, CHECKOUT)

    def _operators_env(self) -> dict[str, str]:
        return {
            "MESSAGEBUS_INVENTORY": str(self.cluster.inventory),
            "MESSAGEBUS_LOCAL_DIR": str(self.cluster.dir),
        }

    def _ended(self, child: Child) -> bool:
        if not child.exit_code and (line := child.last_line()) and not line.startswith(PLAN_LINES):
            self.view.note = line
        return child.exit_code is not None

    def watch(self, *, publishers: bool | None = None, consumers: bool | None = None) -> None:
        """Set which processes may not end by themselves from now on.

        Publishers may end when everything is confirmed.
        """
        if publishers is not None:
            self._publishers_watched = publishers
        if consumers is not None:
            self._consumers_watched = consumers

    # -- what happened

    def begin(self) -> None:
        """Start the load: publishers get their pace from now on."""
        self.workers.start()
        self._is_begun = True
        self.save()

    def save(self, *, complete: bool = False) -> Manifest:
        """Write the run's manifest as known so far; complete: the run has ended in order, now."""
        self._learn_names()
        manifest = self.workers.manifest(sorted(self._names), self.incidents, complete=complete)
        manifest.save(self.folder)
        return manifest

    @contextmanager
    def incident(self, kind: str, name: str = "") -> Iterator[None]:
        """Record a disturbance of a broker (mb2), or of the balancer (no name), with its times."""
        self._learn_names()
        began = Incident(
            kind=kind, broker=self.address(name) if name else "", at_ns=time.monotonic_ns()
        )
        self.incidents.append(began)
        self.save()
        place = len(self.incidents) - 1
        try:
            yield
        finally:
            self._learn_names()
            self.incidents[place] = dataclasses.replace(
                began,
                broker=self.address(name) if name else "",
                done_ns=time.monotonic_ns(),
            )
            self.save()

    def address(self, name: str) -> str:
        """Return ``host:port`` of a broker; its name if it does not exist yet."""
        return next((at for at, known in self._names.items() if known == name), name)

    def state(self, name: str, state: str) -> None:
        """Show the state of a broker."""
        self.view.states = {**self.view.states, name: state}

    # -- counts

    def confirmed_by(self, name: str) -> int:
        """Return the number of messages that this broker has confirmed."""
        return self._counts(self.workers.publishers)[self.address(name)]

    def delivered_by(self, name: str, subscription: str) -> int:
        """Return the number of deliveries of this broker to a subscription."""
        return self._counts(self._readers(subscription))[self.address(name)]

    def _readers(self, subscription: str) -> list[str]:
        named = zip(self.workers.consumers, CONSUMERS, strict=True)
        return [name for name, theirs in named if theirs == subscription]

    @property
    def submitted(self) -> int:
        names = self.workers.publishers
        return sum(self.progress[name].done for name in names if name in self.progress)

    def _counts(self, names: Sequence[str]) -> Counter[str]:
        counts: Counter[str] = Counter()
        for name in names:
            if name in self.progress:
                counts.update(self.progress[name].brokers)
        return counts

    # -- inside

    def _pace(self, now_s: float) -> None:
        left = max(0, self.view.total - self.submitted)
        in_step_s = now_s - self._step_began_s
        slow = slowness(self._done, self._ahead[0], in_step_s) if self._ahead else 1.0
        rate = planned_rate(left=left, ahead=self._ahead, in_step_s=in_step_s, slow=slow)
        set_rate(self.folder, rate)

    def _redraw(self, now_s: float) -> None:
        view = self.view
        view.elapsed_s = now_s - self._began_s
        view.published = self.submitted
        view.confirmed = self._by_name(self._counts(self.workers.publishers))
        view.delivered = self._by_name(self._counts(self.workers.consumers))
        view.subscriptions = {
            each: self._counts(self._readers(each)).total() for each in SUBSCRIPTIONS
        }
        view.addresses = {name: address for address, name in self._names.items()}
        view.rates = self._rates.add(now_s, view.confirmed, view.delivered)
        for step in view.steps:
            if step.state == "running":
                step.took_s = now_s - step.began_s
        self.screen.show(view)

    def _by_name(self, counts: Mapping[str, int]) -> dict[str, int]:
        if any(at not in self._names for at in counts):
            self._learn_names()
        return {self._names.get(at, at or "unknown"): count for at, count in counts.items()}

    def _learn_names(self) -> None:
        """Read the brokers' names. A removed broker leaves the inventory, but keeps its name here."""
        with suppress(LocalFault):
            for node in self.cluster.layout.nodes:
                self._names[node.broker] = node.name
