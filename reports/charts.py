"""The charts of most reports: panels over one time axis, and latency by percentile."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from reports.svg import (
    ALARM,
    COLOURS,
    GRID,
    HATCHES,
    INK,
    MARKERS,
    MUTED,
    PAGE,
    SETTINGS,
    WIDTH_IN,
    log_milliseconds,
    svg,
)
from reports.text import milliseconds

Dashes: TypeAlias = tuple[float, float] | None
DASHED: Dashes = (3, 2)
DOTTED: Dashes = (1, 1.5)

# Edges of the panels as parts of the figure's width; names stand to the right.
LEFT, RIGHT = 0.06, 0.8
# Room for a letter of the labels to the left, as a part of the figure's width.
LABEL_LETTER = 0.0066
LABEL_LINES = 3
# Width of a letter of a label above the axis, as a part of the axis.
LETTER = 0.0088
# Text beside a panel: letters in a line, and the height of a line in inches.
BESIDE_LETTERS, BESIDE_LINE_IN = 26, 0.16
MARKS_A_LINE = 12
ROW_IN, TITLE_IN, AXIS_IN = 0.2, 0.42, 0.42
# Room for the names to the left, in letters and as a part of the figure's width.
NAME_LETTERS, NAME_WIDTH = 30, 0.22
ROWS_MAX = 12
# The seconds of each unit in which times may be read, the largest first.
UNITS_OF_TIME = ((86_400, "days"), (3_600, "hours"), (1, "seconds"))
# Seconds that are shown before and after, at least.
BEFORE_S, AFTER_S = 0.5, 1.0


@dataclass(frozen=True, slots=True)
class Series:
    """One line or layer; colour "" takes the next of COLOURS."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str = ""
    dashes: Dashes = None


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment with a name, drawn through all panels."""

    at_s: float
    label: str
    alarm: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time that is shaded."""

    from_s: float
    to_s: float
    alarm: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One of several charts over one time axis. form: stack, step or line.

    unit: unit of y, count or ms (then by powers of ten); height: relative to the others. Of more series
    than there are colours the first are drawn.
    """

    title: str
    series: Sequence[Series]
    form: str = "line"
    unit: str = "count"
    height: float = 2.0

    @property
    def drawn(self) -> Sequence[Series]:
        return self.series[: len(COLOURS)]

    @property
    def heading(self) -> str:
        """The title, with the number of drawn series where these are not all."""
        if len(self.series) <= len(COLOURS):
            return self.title
        return f"{self.title}, {len(COLOURS)} of {len(self.series)}"

    @property
    def height_in(self) -> float:
        """The height in inches: at least that of the names beside it."""
        beside = len(self.drawn) + len(_wrapped(self.heading)) + 1
        return max(self.height * 0.9, beside * BESIDE_LINE_IN)


def over_time(
    panels: Sequence[Panel],
    *,
    until_s: float,
    marks: Sequence[Mark] = (),
    spans: Sequence[Span] = (),
    axis: str = "since the start of the run",
) -> str:
    """Draw panels one above the other, over time. axis: the meaning of x, behind its unit."""
    until_s = max(until_s, 1.0)
    with matplotlib.rc_context(SETTINGS):
        label_lines = _label_lines(marks, until_s)
        above_in = 0.1 + 0.16 * (1 + max((line or 0 for line in label_lines), default=0))
        heights = [panel.height_in for panel in panels]
        height_in = sum(heights) * 1.08 + above_in + 0.45
        figure = Figure(figsize=(WIDTH_IN, height_in))
        drawn = figure.subplots(
            len(panels),
            1,
            sharex=True,
            squeeze=False,
            gridspec_kw={"height_ratios": heights, "hspace": 0.2},
        )[:, 0]
        for axes, panel in zip(drawn, panels, strict=True):
            _panel(axes, panel)
            for span in spans:
                colour = ALARM if span.alarm else MUTED
                axes.axvspan(span.from_s, span.to_s, color=colour, alpha=0.1, linewidth=0)
            for mark in marks:
                colour = ALARM if mark.alarm else MUTED
                axes.axvline(mark.at_s, color=colour, linewidth=0.8, dashes=(3, 2))
        drawn[0].set_xlim(0, until_s)
        unnamed = sum(line is None for line in label_lines)
        more = f"; {unnamed} marks had no room for their names" if unnamed else ""
        drawn[-1].set_xlabel(f"{_unit_of_time(drawn[-1], until_s)} {axis}{more}")
        _label_marks(drawn[0], marks, label_lines, until_s)
        figure.subplots_adjust(
            left=_left(drawn), right=RIGHT, top=1 - above_in / height_in, bottom=0.45 / height_in
        )
        return svg(figure, "Over the run, with incidents")


def percentiles(curves: Sequence[Series]) -> str:
    """Draw latency against percentile: x is 1 / (1 - p), so that each further nine has the same room.

    curves: x in percent, y in milliseconds.
    """
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(WIDTH_IN, 3.5))
        panel = figure.subplots()
        rightmost = 10.0
        for number, curve in enumerate(curves):
            kept = [
                (1 / (1 - x / 100), y) for x, y in zip(curve.x, curve.y, strict=True) if x < 100
            ]
            rightmost = max([rightmost, *[x for x, _ in kept]])
            _line(panel, curve, number, [x for x, _ in kept], [y for _, y in kept])
        panel.set_xscale("log")
        ticks = {1: "0", 2: "50", 10: "90", 100: "99", 1e3: "99.9", 1e4: "99.99", 1e5: "99.999"}
        panel.set_xlim(1, rightmost * 1.1)
        shown = {at: text for at, text in ticks.items() if at <= rightmost * 1.1}
        panel.set_xticks(list(shown), list(shown.values()))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.grid(axis="x", color=GRID, linewidth=0.6)
        log_milliseconds(panel)
        _say_if_empty(panel, curves)
        panel.set_xlabel("percentile: messages in 100 that took no longer")
        _beside(panel, "latency", 3.5 * 0.84)
        figure.subplots_adjust(left=_left([panel]), right=0.745, top=0.97, bottom=0.13)
        return svg(figure, "Latency by percentile")


def _left(panels: Iterable[Axes]) -> float:
    """Return the left edge of the panels, so that the longest label of their y axes has room beside it."""
    labels = [
        axes.yaxis.get_major_formatter()(at, None) for axes in panels for at in axes.get_yticks()
    ]
    return max([LEFT, *((len(label) + 2) * LABEL_LETTER for label in labels)])


def _panel(axes: Axes, panel: Panel) -> None:
    if panel.form == "stack":
        _stack(axes, panel.drawn)
    else:
        for number, one in enumerate(panel.drawn):
            _line(axes, one, number, one.x, one.y, step=panel.form == "step")
    _beside(axes, panel.heading, panel.height_in)
    _say_if_empty(axes, panel.series)
    if panel.unit == "ms":
        log_milliseconds(axes)
    else:
        top = max((y for one in panel.series for y in one.y), default=0)
        axes.set_ylim(bottom=0, top=None if top else 1)
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _say_if_empty(panel: Axes, series: Sequence[Series]) -> None:
    if all(math.isnan(y) for one in series for y in one.y):
        panel.text(
            0.5, 0.5, "no samples", transform=panel.transAxes, ha="center", va="center", color=MUTED
        )


def _stack(panel: Axes, layers: Sequence[Series]) -> None:
    if not layers:
        return
    x = list(layers[0].x)
    drawn = panel.stackplot(
        x,
        *[layer.y for layer in layers],
        labels=[_short(layer.label) for layer in layers],
        colors=[layer.colour or COLOURS[n % len(COLOURS)] for n, layer in enumerate(layers)],
        step="post",
        alpha=0.88,
        linewidth=0.4,
        edgecolor=PAGE,
    )
    for number, area in enumerate(drawn):
        area.set_hatch(HATCHES[number % len(HATCHES)])


def _line(
    panel: Axes,
    series: Series,
    number: int,
    x: Sequence[float],
    y: Sequence[float],
    *,
    step: bool = False,
) -> None:
    """Draw a line; one without a value is not in the legend either."""
    if all(map(math.isnan, y)):
        return
    colour = series.colour or COLOURS[number % len(COLOURS)]
    place = COLOURS.index(colour)
    every = max(1, len(x) // MARKS_A_LINE)
    panel.plot(
        x,
        y,
        label=_short(series.label),
        color=colour,
        linestyle=(0, series.dashes) if series.dashes else "solid",
        linewidth=1.0 if series.dashes == DOTTED else 1.4,
        drawstyle="steps-post" if step else "default",
        marker=MARKERS[place % len(MARKERS)],
        markeredgewidth=0,
        # Markers of lines that lie on each other stand beside each other.
        markevery=(number * every // 4 % max(1, len(x)), every),
    )


def _beside(panel: Axes, title: str, height_in: float) -> None:
    """Write the title, and the names of its parts, to the right."""
    lines = _wrapped(title)
    panel.text(
        1.012,
        1.0,
        "\n".join(lines),
        transform=panel.transAxes,
        va="top",
        color=INK,
        weight="bold",
        linespacing=1.2,
    )
    handles, labels = panel.get_legend_handles_labels()
    if handles:
        turn = -1 if len(panel.collections) else 1
        panel.legend(
            handles[::turn],
            labels[::turn],
            loc="upper left",
            bbox_to_anchor=(1.002, 1 - len(lines) * BESIDE_LINE_IN / height_in),
            borderaxespad=0,
            borderpad=0.3,
            labelspacing=0.3,
            handlelength=1.8,
        )


def _wrapped(title: str) -> list[str]:
    return textwrap.wrap(title, BESIDE_LETTERS)


def _short(label: str) -> str:
    """Return beginning and end of a label that is too long for the room beside a panel."""
    room = BESIDE_LETTERS + 8
    if len(label) <= room:
        return label
    return f"{label[: room // 2]}\N{HORIZONTAL ELLIPSIS}{label[-room // 2 :]}"


def _unit_of_time(panel: Axes, until_s: float) -> str:
    """Have the seconds of x read in the largest unit of which there are two, and return its name."""
    unit_s, name = next(each for each in UNITS_OF_TIME if until_s >= 2 * each[0] or each[0] == 1)
    if unit_s > 1:
        ticks = MaxNLocator(8, steps=[1, 2, 5, 10]).tick_values(0, until_s / unit_s)
        panel.set_xticks([tick * unit_s for tick in ticks if 0 <= tick * unit_s <= until_s])
        panel.xaxis.set_major_formatter(FuncFormatter(lambda at_s, _: f"{at_s / unit_s:g}"))
    return name


def _label_lines(marks: Sequence[Mark], until_s: float) -> list[int | None]:
    """Return the line above the panel for each name: one that would cover another goes higher.

    None where there is no room for it on any line.
    """
    taken: list[list[tuple[float, float]]] = [[] for _ in range(LABEL_LINES)]
    lines: list[int | None] = []
    for mark in marks:
        begin, end = _extent(mark, until_s)
        free = [
            line
            for line, others in enumerate(taken)
            if all(end <= left or begin >= right for left, right in others)
        ]
        lines.append(free[0] if free else None)
        if free:
            taken[free[0]].append((begin, end))
    return lines


def _extent(mark: Mark, until_s: float) -> tuple[float, float]:
    """Return the extent of a mark's name, in parts of the axis: to the right, where there is room for it."""
    at, width = mark.at_s / until_s, (len(mark.label) + 1) * LETTER
    return (at, at + width) if at + width <= 1 else (at - width, at)


def _label_marks(
    panel: Axes, marks: Sequence[Mark], lines: Sequence[int | None], until_s: float
) -> None:
    for mark, line in zip(marks, lines, strict=True):
        if line is None:
            continue
        to_the_right = _extent(mark, until_s)[1] > mark.at_s / until_s
        panel.annotate(
            mark.label,
            (mark.at_s, 1),
            xycoords=("data", "axes fraction"),
            xytext=(2 if to_the_right else -2, 4 + 11 * line),
            textcoords="offset points",
            ha="left" if to_the_right else "right",
            color=ALARM if mark.alarm else MUTED,
            annotation_clip=False,
        )


@dataclass(frozen=True, slots=True)
class Gap:
    """One silence. kind: kind of its owner; each has a look of its own. Times: seconds of the run."""

    kind: str
    name: str
    began_s: float
    lasted_s: float


@dataclass(frozen=True, slots=True)
class Around:
    """An incident, its begin and end, and the silences around it, the longest first."""

    what: str
    at_s: float
    done_s: float
    gaps: Sequence[Gap]


def silences(events: Sequence[Around]) -> str:
    """Draw one panel for each incident with silences; x: seconds since it. Returns "" where there is none."""
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
            axes = figure.add_axes((NAME_WIDTH, bottom, 0.98 - NAME_WIDTH, rows_in / height_in))
            _around(axes, event, kinds)
            top_in += panel_in
        return svg(figure, "Silences around what was done to the cluster")


def _around(axes: Axes, event: Around, kinds: Sequence[str]) -> None:
    shown = event.gaps[:ROWS_MAX]
    begins = [gap.began_s - event.at_s for gap in shown]
    ends = [gap.began_s + gap.lasted_s - event.at_s for gap in shown]
    left = min(-BEFORE_S, *begins)
    right = max(AFTER_S, event.done_s - event.at_s, *ends)
    # The length of the last bar stands to its right.
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
