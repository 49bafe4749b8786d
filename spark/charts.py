"""The charts of a report: inline SVG whose text and lines take their colours from the page's style.

matplotlib knows no style sheets, so it draws with marker colours that are then replaced by the page's
variables: the same picture serves light, dark and print.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import matplotlib

matplotlib.use("svg")
# On first use it builds a font cache, and would say so on standard error.
logging.getLogger("matplotlib").setLevel(logging.ERROR)

from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.ticker import FuncFormatter, NullLocator  # noqa: E402

__all__ = [
    "COLOURS",
    "DASHED",
    "DOTTED",
    "Dashes",
    "Mark",
    "Panel",
    "Series",
    "Span",
    "milliseconds",
    "over_time",
    "percentiles",
]

Dashes: TypeAlias = tuple[float, float] | None
DASHED: Dashes = (3, 2)
DOTTED: Dashes = (1, 1.5)

# Marker colours, replaced by variables of the page.
INK, MUTED, GRID, ALARM = "#010203", "#040506", "#070809", "#0a0b0c"
VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid", ALARM: "--alarm"}
# Distinguishable in print and with common colour blindness; readable on white and on near-black.
COLOURS = (
    "#3973ac",
    "#d9912b",
    "#4b9b7d",
    "#a4628f",
    "#7f8ea3",
    "#b9b04b",
    "#c4644f",
    "#5f6caf",
)
SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "messagebus",
    "font.size": 8.0,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "lines.linewidth": 1.4,
    "lines.solid_capstyle": "round",
}
WIDTH_IN = 10.2
# Labels of incidents closer than this part of the axis are put on different lines.
LABEL_ROOM = 0.13
LABEL_LINES = 3


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
    """One of several charts over one time axis. form: how its series are drawn, stack, step or line;
    unit: of y, count or ms (then by powers of ten); height: against the others."""

    title: str
    series: Sequence[Series]
    form: str = "line"
    unit: str = "count"
    height: float = 2.0


def over_time(
    panels: Sequence[Panel],
    *,
    until_s: float,
    marks: Sequence[Mark] = (),
    spans: Sequence[Span] = (),
    label: str = "Over the run, with incidents",
) -> str:
    """Panels one above the other; x is seconds since the start of the run."""
    with matplotlib.rc_context(SETTINGS):
        label_lines = _label_lines(marks, until_s)
        above_in = 0.1 + 0.16 * (1 + max(label_lines, default=0))
        height_in = sum(panel.height for panel in panels) * 0.9 + above_in
        figure = Figure(figsize=(WIDTH_IN, height_in))
        heights = [panel.height for panel in panels]
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
                axes.axvspan(span.from_s, span.to_s, color=colour, alpha=0.08, linewidth=0)
            for mark in marks:
                colour = ALARM if mark.alarm else MUTED
                axes.axvline(mark.at_s, color=colour, linewidth=0.8, dashes=(3, 2))
        drawn[0].set_xlim(0, max(until_s, 1.0))
        drawn[-1].set_xlabel("seconds since the start of the run")
        _label_marks(drawn[0], marks, label_lines, until_s)
        bottom = 0.5 / height_in
        figure.subplots_adjust(left=0.06, right=0.84, top=1 - above_in / height_in, bottom=bottom)
        return _svg(figure, label)


def _panel(axes: Axes, panel: Panel) -> None:
    if panel.form == "stack":
        _stack(axes, panel.series)
    else:
        _lines(axes, panel.series, step=panel.form == "step")
    _title(axes, panel.title)
    _legend(axes)
    if panel.unit == "ms":
        _log_milliseconds(axes)
    else:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def percentiles(curves: Sequence[Series]) -> str:
    """Latency against percentile: x is 1 / (1 - p), so that each further nine has the same room.

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
        _log_milliseconds(panel)
        panel.set_xlabel("percentile")
        _legend(panel)
        figure.subplots_adjust(left=0.06, right=0.745, top=0.97, bottom=0.13)
        return _svg(figure, "Latency by percentile")


def milliseconds(value: float) -> str:
    """A duration for people: 85 µs, 1.24 ms, 120 ms, 1.03 s."""
    if value < 0.9995:
        return f"{value * 1000:.3g} µs"
    return f"{value:.3g} ms" if value < 999.5 else f"{value / 1000:,.2f} s"


def _stack(panel: Axes, layers: Sequence[Series]) -> None:
    if not layers:
        return
    x = list(layers[0].x)
    panel.stackplot(
        x,
        *[layer.y for layer in layers],
        labels=[layer.label for layer in layers],
        colors=[layer.colour or COLOURS[n % len(COLOURS)] for n, layer in enumerate(layers)],
        step="post",
        alpha=0.88,
        linewidth=0,
    )


def _lines(panel: Axes, series: Iterable[Series], *, step: bool = False) -> None:
    for number, one in enumerate(series):
        _line(panel, one, number, one.x, one.y, step=step)


def _line(
    panel: Axes,
    series: Series,
    number: int,
    x: Sequence[float],
    y: Sequence[float],
    *,
    step: bool = False,
) -> None:
    panel.plot(
        x,
        y,
        label=series.label,
        color=series.colour or COLOURS[number % len(COLOURS)],
        linestyle=(0, series.dashes) if series.dashes else "solid",
        linewidth=1.0 if series.dashes == DOTTED else 1.4,
        drawstyle="steps-post" if step else "default",
    )


def _log_milliseconds(panel: Axes) -> None:
    panel.set_yscale("log")
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: milliseconds(value)))
    panel.yaxis.set_minor_locator(NullLocator())


def _title(panel: Axes, text: str) -> None:
    panel.text(1.012, 1.0, text, transform=panel.transAxes, va="top", color=INK, weight="bold")


def _legend(panel: Axes) -> None:
    handles, labels = panel.get_legend_handles_labels()
    if handles:
        panel.legend(
            handles[::-1] if len(panel.collections) else handles,
            labels[::-1] if len(panel.collections) else labels,
            loc="upper left",
            bbox_to_anchor=(1.002, 0.92),
            borderaxespad=0,
            handlelength=1.2,
        )


def _label_lines(marks: Sequence[Mark], until_s: float) -> list[int]:
    """The line above the panel for each name: one that would cover an earlier one goes higher."""
    taken = [-1.0] * LABEL_LINES
    lines = []
    for mark in marks:
        at = mark.at_s / max(until_s, 1.0)
        free = [line for line, last in enumerate(taken) if at - last >= LABEL_ROOM]
        line = free[0] if free else taken.index(min(taken))
        taken[line] = at
        lines.append(line)
    return lines


def _label_marks(panel: Axes, marks: Sequence[Mark], lines: Sequence[int], until_s: float) -> None:
    for mark, line in zip(marks, lines, strict=True):
        at = mark.at_s / max(until_s, 1.0)
        panel.annotate(
            mark.label,
            (mark.at_s, 1),
            xycoords=("data", "axes fraction"),
            xytext=(2 if at < 1 - LABEL_ROOM / 2 else -2, 4 + 11 * line),
            textcoords="offset points",
            ha="left" if at < 1 - LABEL_ROOM / 2 else "right",
            color=ALARM if mark.alarm else MUTED,
            annotation_clip=False,
        )


def _svg(figure: Figure, label: str) -> str:
    target = io.StringIO()
    metadata: Mapping[str, None] = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(target, format="svg", metadata=metadata)
    text = target.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    text = re.sub(r"font-family: [^;\"]*", "font-family: var(--font)", text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
