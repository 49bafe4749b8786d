"""The lines that the demo prints: its steps, and the numbers of messages that have passed."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.console import Console

# Seconds between two lines of counters, while there is nothing else to print.
PLAIN_EVERY_S = 5.0
# The time over which rates are taken: shorter than a step, longer than the age of progress files.
RATE_WINDOW_S = 3.0
CONFIRMED, DELIVERED = "confirmed", "delivered"
# State of a step that has begun -> its sign.
SIGNS = {"running": ">", "done": "ok", "failed": "FAILED", "interrupted": "-"}


@dataclass(slots=True)
class Step:
    """One step. needs_s: its expected duration if messages flow meanwhile, for their pace; otherwise 0.

    state: waiting, or of SIGNS. took_s: so far, or in all.
    """

    title: str
    needs_s: float = 0.0
    state: str = "waiting"
    took_s: float = 0.0


Counts = Counter[tuple[str, str]]
"""(CONFIRMED, DELIVERED or a subscription, broker) -> messages."""


@dataclass(slots=True)
class View:
    """One moment of the demo. rates: a second, by the keys of counts. note: the step's current action.

    addresses, states: of brokers by name.
    """

    total: int = 0
    steps: list[Step] = field(default_factory=list)
    elapsed_s: float = 0.0
    published: int = 0
    counts: Counts = field(default_factory=Counter)
    rates: Mapping[tuple[str, str], float] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    note: str = ""

    def sums(self) -> dict[str, int]:
        """Return confirmed messages, and the deliveries of each subscription."""
        found = {CONFIRMED: 0}
        for (what, _), count in self.counts.items():
            if what != DELIVERED:
                found[what] = found.get(what, 0) + count
        return found


class Rates:
    """Messages per second over the last RATE_WINDOW_S, from counts that only grow."""

    def __init__(self) -> None:
        self._past: deque[tuple[float, Counts]] = deque()

    def add(self, now_s: float, counts: Counts) -> dict[tuple[str, str], float]:
        """Add the current counts; return messages per second by the same keys."""
        self._past.append((now_s, counts))
        while len(self._past) > 2 and now_s - self._past[1][0] >= RATE_WINDOW_S:
            self._past.popleft()
        then_s, before = self._past[0]
        span_s = now_s - then_s or 1.0
        return {key: (count - before[key]) / span_s for key, count in counts.items()}


class Screen:
    """The lines on a console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._states: dict[str, str] = {}
        self._note = self._counters = ""
        self._next_s = 0.0

    def show(self, view: View) -> None:
        """Print the changes since the last view."""
        for line in self._changes(view):
            self.say(f"{view.elapsed_s:6.1f} s {line}")

    def say(self, line: str) -> None:
        self._console.print(line, soft_wrap=True, markup=False)

    def _changes(self, view: View) -> list[str]:
        """Return a line for each step that began or ended, a new note, and now and then counters."""
        lines = []
        for step in view.steps:
            if step.state not in ("waiting", self._states.get(step.title)):
                self._states[step.title] = step.state
                took = f" ({step.took_s:.1f} s)" if step.state != "running" else ""
                lines.append(f"{SIGNS[step.state]} {step.title}{took}")
        if view.note != self._note:
            self._note = view.note
            lines += [f"    {view.note}"] if view.note else []
        if view.elapsed_s >= self._next_s and view.published:
            self._next_s = view.elapsed_s + PLAIN_EVERY_S
            if (line := counters(view)) != self._counters:
                self._counters = line
                lines.append(f"  {line}")
        return lines


def counters(view: View) -> str:
    """Format all counters in one line; for each broker, confirmed and delivered messages per second."""
    sums = ", ".join(f"{name} {count:,}" for name, count in view.sums().items())
    names = sorted({name for _, name in view.counts})
    rates = " ".join(
        f"{name} {view.rates.get((CONFIRMED, name), 0):.0f}/{view.rates.get((DELIVERED, name), 0):.0f}"
        for name in names
    )
    return f"published {view.published:,} of {view.total:,}, {sums}; per s in/out: {rates}"
