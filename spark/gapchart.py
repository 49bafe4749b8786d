"""Silences around each thing that was done to a cluster: a chart for each, of the longest of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from spark.drawing import (
    ALARM,
    COLOURS,
    GRID,
    HATCHES,
    INK,
    MUTED,
    PAGE,
    SETTINGS,
    WIDTH_IN,
    milliseconds,
    svg,
)

__all__ = ["Around", "Gap", "silences"]

ROW_IN, TITLE_IN, AXIS_IN = 0.2, 0.42, 0.42
# Room for the names to the left, in letters and as a part of the figure's width.
NAME_LETTERS, LEFT = 30, 0.22
ROWS_MAX = 12
# Seconds that are seen before and after, at least.
BEFORE_S, AFTER_S = 0.5, 1.0


@dataclass(frozen=True, slots=True)
class Gap:
    """kind: what kind of thing was silent; each has a look of its own. Times: seconds of the run."""

    kind: str
    name: str
    began_s: float
    lasted_s: float


@dataclass(frozen=True, slots=True)
class Around:
    """What was done from when to when, and the silences around it, the longest first."""

    what: str
    at_s: float
    done_s: float
    gaps: Sequence[Gap]


def silences(events: Sequence[Around]) -> str:
    """One panel for each with any silence; x: seconds since it was done. "" where there is none."""
    drawn = [event for event in events if event.gaps]
    if not drawn:
        return ""
    kinds = sorted({gap.kind for event in drawn for gap in event.gaps}, reverse=True)
    inches = [TITLE_IN + AXIS_IN + ROW_IN * min(ROWS_MAX, len(event.gaps)) for event in drawn]
    with matplotlib.rc_context(SETTINGS | {"axes.grid.axis": "x"}):
        height_in, top_in = sum(inches), 0.0
        figure = Figure(figsize=(WIDTH_IN, height_in))
        for event, panel_in in zip(drawn, inches, strict=True):
            rows_in = panel_in - TITLE_IN - AXIS_IN
            bottom = 1 - (top_in + TITLE_IN + rows_in) / height_in
            axes = figure.add_axes((LEFT, bottom, 0.98 - LEFT, rows_in / height_in))
            _around(axes, event, kinds)
            top_in += panel_in
        return svg(figure, "Silences around what was done to the cluster")


def _around(axes: Axes, event: Around, kinds: Sequence[str]) -> None:
    shown = event.gaps[:ROWS_MAX]
    begins = [gap.began_s - event.at_s for gap in shown]
    ends = [gap.began_s + gap.lasted_s - event.at_s for gap in shown]
    left = min(-BEFORE_S, *begins)
    right = max(AFTER_S, event.done_s - event.at_s, *ends)
    # To the right of the last bar stands how long it was.
    axes.set_xlim(left - 0.02 * (right - left), right + 0.12 * (right - left))
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.axvspan(0, max(event.done_s - event.at_s, 0.002 * (right - left)), color=ALARM, alpha=0.12)
    axes.axvline(0, color=ALARM, linewidth=0.9, dashes=(3, 2))
    for row, (gap, begin, end) in enumerate(zip(shown, begins, ends, strict=True)):
        look = kinds.index(gap.kind)
        axes.barh(
            row,
            max(end - begin, 0.003 * (right - left)),
            left=begin,
            height=0.62,
            color=COLOURS[look],
            hatch=HATCHES[look],
            edgecolor=PAGE,
            linewidth=0,
        )
        told = milliseconds(gap.lasted_s * 1000)
        axes.annotate(told, (end, row), (4, 0), textcoords="offset points", va="center", color=INK)
    axes.set_yticks(range(len(shown)), [_cut(_named(gap)) for gap in shown])
    axes.grid(axis="x", color=GRID)
    axes.xaxis.set_major_locator(MaxNLocator(8))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:+g} s" if value else "0")
    )
    rest = len(event.gaps) - len(shown)
    more = f" (the {len(shown)} longest of {len(event.gaps)})" if rest else ""
    axes.set_title(
        f"{event.what}, at {event.at_s:,.1f} s{more}", loc="left", fontsize=9, weight="bold"
    )
    axes.tick_params(axis="y", labelcolor=INK)
    axes.spines["left"].set_color(MUTED)


def _named(gap: Gap) -> str:
    return gap.name if gap.name.startswith(gap.kind) else f"{gap.kind} {gap.name}"


def _cut(name: str) -> str:
    if len(name) <= NAME_LETTERS:
        return name
    return f"{name[: NAME_LETTERS // 2]}\N{HORIZONTAL ELLIPSIS}{name[-NAME_LETTERS // 2 :]}"
