"""The screen of the demo: a live picture on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
from collections import deque
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
REFRESH_PER_S = 4
# Lines besides steps, counters and brokers: blank ones, a heading, the note, the cursor's.
OTHER_LINES = 5
STEPS_MIN = 3


@dataclass(slots=True)
class StepView:
    """One step on the screen.

    state: waiting, running, done, failed, interrupted. took_s: so far or in all. began_s: monotonic.
    """

    title: str
    state: str = "waiting"
    took_s: float = 0.0
    began_s: float = 0.0


@dataclass(slots=True)
class View:
    """One moment of the demo.

    confirmed, delivered: broker name -> messages; subscriptions: subscription -> deliveries.
    rates: broker name -> (confirmed per second, delivered per second). addresses: broker name ->
    ``host:port``. note: the running step's current action; count: its changing counter as text.
    """

    elapsed_s: float = 0.0
    total: int = 0
    published: int = 0
    steps: list[StepView] = field(default_factory=list)
    confirmed: Mapping[str, int] = field(default_factory=dict)
    delivered: Mapping[str, int] = field(default_factory=dict)
    subscriptions: Mapping[str, int] = field(default_factory=dict)
    rates: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    count: str = ""

    @property
    def confirmed_in_all(self) -> int:
        return sum(self.confirmed.values())


class Rates:
    """Messages per second over the last RATE_WINDOW_S, from counts that only grow."""

    def __init__(self) -> None:
        self._past: deque[tuple[float, dict[str, tuple[int, int]]]] = deque()

    def add(
        self, now_s: float, confirmed: Mapping[str, int], delivered: Mapping[str, int]
    ) -> dict[str, tuple[float, float]]:
        """Add the current counts; return broker -> (confirmed, delivered) per second."""
        names = {*confirmed, *delivered}
        counts = {name: (confirmed.get(name, 0), delivered.get(name, 0)) for name in names}
        self._past.append((now_s, counts))
        while len(self._past) > 2 and now_s - self._past[1][0] >= RATE_WINDOW_S:
            self._past.popleft()
        then_s, before = self._past[0]
        span_s = now_s - then_s
        if span_s <= 0:
            return dict.fromkeys(names, (0.0, 0.0))
        return {
            name: tuple(
                (now - then) / span_s
                for now, then in zip(counts[name], before.get(name, (0, 0)), strict=True)
            )  # type: ignore[misc]
            for name in names
        }


def open_screen() -> Screen:
    """Return the screen for standard output: live on a terminal, plain elsewhere."""
    console = Console(highlight=False)
    return LiveScreen(console) if sys.stdout.isatty() else PlainScreen(console)


class PlainScreen:
    """A screen of plain lines: each step when it begins and ends, counters every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told: dict[str, str] = {}
        self._note = ""
        self._counters = ""
        self._next_s = 0.0

    def show(self, view: View) -> None:
        for step in view.steps:
            if step.state != "waiting" and self._told.get(step.title) != step.state:
                self._told[step.title] = step.state
                self._tell(view, step)
        if view.note != self._note:
            self._note = view.note
            if view.note:
                self.say(f"{_clock(view)}     {view.note}")
        if view.elapsed_s >= self._next_s and view.published:
            self._next_s = view.elapsed_s + PLAIN_EVERY_S
            self._tell_counters(view)

    def _tell(self, view: View, step: StepView) -> None:
        took = f" ({step.took_s:.1f} s)" if step.state != "running" else ""
        sign = {"running": ">", "done": "ok", "failed": "FAILED", "interrupted": "-"}[step.state]
        self.say(f"{_clock(view)} {sign} {step.title}{took}")

    def _tell_counters(self, view: View) -> None:
        line = counters(view)
        if line != self._counters:
            self._counters = line
            self.say(f"{_clock(view)}   {line}")

    def say(self, line: str) -> None:
        self._console.print(line, soft_wrap=True, markup=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class LiveScreen:
    """A screen that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(
            console=console, refresh_per_second=REFRESH_PER_S, transient=False, auto_refresh=False
        )

    def show(self, view: View) -> None:
        self._live.update(picture(view, self._console.height), refresh=True)

    def say(self, line: str) -> None:
        self._console.print(line, markup=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()


Screen = LiveScreen | PlainScreen
"""A display of views; `say` prints a line that stays."""


def counters(view: View) -> str:
    """Format all counters in one line; for each broker, confirmed and delivered messages per second."""
    came = " ".join(f"{name} {count:,}" for name, count in view.subscriptions.items())
    rates = " ".join(
        f"{name} {confirmed:.0f}/{delivered:.0f}"
        for name, (confirmed, delivered) in sorted(view.rates.items())
    )
    return (
        f"published {view.published:,} of {view.total:,}, confirmed {view.confirmed_in_all:,}, "
        f"{came}; per s in/out: {rates}"
    )


def picture(view: View, lines_max: int = 50) -> RenderableType:
    """Draw the steps on top, counters and brokers below, in at most lines_max lines."""
    progress, brokers = _progress(view), _brokers(view)
    room = lines_max - progress.row_count - brokers.row_count - OTHER_LINES
    note = Text(view.count or view.note, style="dim", no_wrap=True, overflow="ellipsis")
    steps = _steps(_fitting(view.steps, max(room, STEPS_MIN)))
    return Group(steps, Text(), progress, Text(), brokers, note)


def _fitting(steps: list[StepView], rows: int) -> list[StepView]:
    """Return the steps that fit: old ones are dropped first, then those far ahead."""
    if len(steps) <= rows:
        return steps
    running = next((n for n, step in enumerate(steps) if step.state != "done"), len(steps))
    first = max(0, min(running - 1, len(steps) - rows))
    return steps[first : first + rows]


def _steps(steps: list[StepView]) -> Table:
    table = Table.grid(padding=(0, 1))
    signs = {
        "waiting": Text("·", style="dim"),
        "running": Text("▶", style="bold yellow"),
        "done": Text("✓", style="bold green"),
        "failed": Text("✗", style="bold red"),
        "interrupted": Text("■", style="bold"),
    }
    styles = {"waiting": "dim", "running": "bold", "failed": "bold red"}
    for step in steps:
        took = f"{step.took_s:5.1f} s" if step.state != "waiting" else ""
        table.add_row(signs[step.state], Text(step.title, style=styles.get(step.state, "")), took)
    return table


def _progress(view: View) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(width=12)
    table.add_column(justify="right", width=9)
    table.add_column(width=50)
    total = max(view.total, 1)
    rows = {"published": view.published, "confirmed": view.confirmed_in_all, **view.subscriptions}
    for name, count in rows.items():
        bar = ProgressBar(
            total=total, completed=min(count, total), width=50, complete_style="green"
        )
        table.add_row(name, f"{count:,}", bar)
    table.add_row("", "", Text(f"{view.total:,} records, {view.elapsed_s:.0f} s", style="dim"))
    return table


def _brokers(view: View) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    columns = ("broker", "address", "state", "confirmed", "per s", "delivered", "per s")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < 3 else "right", no_wrap=True)
    for name in sorted({*view.confirmed, *view.delivered, *view.states}):
        confirmed_per_s, delivered_per_s = view.rates.get(name, (0.0, 0.0))
        table.add_row(
            name,
            view.addresses.get(name, ""),
            _state(view.states.get(name, "")),
            f"{view.confirmed.get(name, 0):,}",
            f"{confirmed_per_s:,.0f}",
            f"{view.delivered.get(name, 0):,}",
            f"{delivered_per_s:,.0f}",
        )
    return table


def _state(state: str) -> Text:
    styles = {"serves": "green", "killed": "bold red", "leaves": "yellow", "joins": "yellow"}
    return Text(state, style=styles.get(state, "dim"))


def _clock(view: View) -> str:
    return f"{view.elapsed_s:6.1f} s"
