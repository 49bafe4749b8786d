"""The screen of the demo: a picture that is redrawn in place on a terminal, plain lines anywhere else."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

# Seconds between two lines of counters, while there is nothing else to print.
PLAIN_EVERY_S = 5.0
# The time over which rates are taken: shorter than a step, longer than the age of progress files.
RATE_WINDOW_S = 3.0
# Lines besides steps, counters and brokers: blank ones, a heading, the note, the cursor's.
OTHER_LINES = 5
STEPS_MIN, BAR_WIDTH = 3, 50
CONFIRMED, DELIVERED = "confirmed", "delivered"
# State of a step -> its sign in the picture, its sign in lines, its style.
SIGNS = {
    "waiting": ("·", "", "dim"),
    "running": ("▶", ">", "bold yellow"),
    "done": ("✓", "ok", "green"),
    "failed": ("✗", "FAILED", "bold red"),
    "interrupted": ("■", "-", "bold"),
}
STYLES = {"serves": "green", "killed": "bold red", "leaves": "yellow", "joins": "yellow"}


@dataclass(slots=True)
class Step:
    """One step. needs_s: its expected duration if messages flow meanwhile, for their pace; otherwise 0.

    state: of SIGNS. took_s: so far, or in all.
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
    """A display of views on a console; `say` prints a line that stays."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._states: dict[str, str] = {}
        self._note = self._counters = ""
        self._next_s = 0.0

    def show(self, view: View) -> None:
        if self._live:
            self._live.update(picture(view, self._console.height), refresh=True)
        else:
            for line in self._changes(view):
                self.say(f"{view.elapsed_s:6.1f} s {line}")

    def say(self, line: str) -> None:
        self._console.print(line, soft_wrap=not self._live, markup=False)

    def _changes(self, view: View) -> list[str]:
        """Return a line for each step that began or ended, a new note, and now and then counters."""
        lines = []
        for step in view.steps:
            if step.state not in ("waiting", self._states.get(step.title)):
                self._states[step.title] = step.state
                took = f" ({step.took_s:.1f} s)" if step.state != "running" else ""
                lines.append(f"{SIGNS[step.state][1]} {step.title}{took}")
        if view.note != self._note:
            self._note = view.note
            lines += [f"    {view.note}"] if view.note else []
        if view.elapsed_s >= self._next_s and view.published:
            self._next_s = view.elapsed_s + PLAIN_EVERY_S
            if (line := counters(view)) != self._counters:
                self._counters = line
                lines.append(f"  {line}")
        return lines

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()


def counters(view: View) -> str:
    """Format all counters in one line; for each broker, confirmed and delivered messages per second."""
    sums = ", ".join(f"{name} {count:,}" for name, count in view.sums().items())
    names = sorted({name for _, name in view.counts})
    rates = " ".join(
        f"{name} {view.rates.get((CONFIRMED, name), 0):.0f}/{view.rates.get((DELIVERED, name), 0):.0f}"
        for name in names
    )
    return f"published {view.published:,} of {view.total:,}, {sums}; per s in/out: {rates}"


def picture(view: View, lines_max: int = 50) -> RenderableType:
    """Draw the steps on top, counters and brokers below, in at most lines_max lines."""
    progress, brokers = _progress(view), _brokers(view)
    room = lines_max - progress.row_count - brokers.row_count - OTHER_LINES
    note = Text(view.note, style="dim", no_wrap=True, overflow="ellipsis")
    steps = Table.grid(padding=(0, 1))
    for step in _fitting(view.steps, max(room, STEPS_MIN)):
        sign, _, style = SIGNS[step.state]
        took = f"{step.took_s:5.1f} s" if step.state != "waiting" else ""
        title = Text(step.title, style="" if step.state == "done" else style)
        steps.add_row(Text(sign, style=style), title, took)
    return Group(steps, Text(), progress, Text(), brokers, note)


def _fitting(steps: list[Step], rows: int) -> list[Step]:
    """Return the steps that fit: old ones are dropped first, then those far ahead."""
    running = next((n for n, step in enumerate(steps) if step.state != "done"), len(steps))
    first = max(0, min(running - 1, len(steps) - rows))
    return steps[first : first + rows]


def _progress(view: View) -> Table:
    table = Table.grid(padding=(0, 2))
    for width in (12, 9, BAR_WIDTH):
        table.add_column(justify="right" if width == 9 else "left", width=width)
    total = max(view.total, 1)
    for name, count in {"published": view.published, **view.sums()}.items():
        done = min(count, total)
        bar = ProgressBar(total, done, width=BAR_WIDTH, complete_style="green")
        table.add_row(name, f"{count:,}", bar)
    table.add_row("", "", Text(f"{view.total:,} records, {view.elapsed_s:.0f} s", style="dim"))
    return table


def _brokers(view: View) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for number, column in enumerate(
        ("broker", "address", "state", CONFIRMED, "per s", DELIVERED, "per s")
    ):
        table.add_column(column, justify="left" if number < 3 else "right", no_wrap=True)
    for name in sorted({*view.states, *(name for _, name in view.counts)}):
        state = view.states.get(name, "")
        numbers = [
            number
            for key in ((CONFIRMED, name), (DELIVERED, name))
            for number in (view.counts[key], view.rates.get(key, 0))
        ]
        table.add_row(
            *(name, view.addresses.get(name, ""), Text(state, style=STYLES.get(state, "dim"))),
            *(f"{number:,.0f}" for number in numbers),
        )
    return table
