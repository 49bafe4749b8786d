"""Charts of a run's page: latencies by percentile and over time, rates, messages waiting in the queues.

They are line charts as inline SVG, drawn by hand. They are small, and the page's style sets their colours.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from bench.analysis.result import CURVE, MEASURES, Result, percentiles

__all__ = [
    "ANY",
    "Line",
    "by_percentile",
    "latency_chart",
    "milliseconds",
    "over_time",
    "percentile_chart",
    "rates_chart",
    "waiting_chart",
]


WIDTH, LEFT, RIGHT, TOP, BOTTOM = 1000, 70, 225, 14, 48
HEIGHT = 274
# Above the chart: the title, and names of disturbances on at most MARK_LINES lines.
TITLE, MARK_LINE, MARK_LINES = 22, 14, 3
# Widths of a letter at 12 and 11 pixels, and what fits into the legend.
LETTER, LEGEND_LETTERS, LEGEND_MAX = 6.2, 27, 8
# Distinguishable in print and with common colour blindness.
COLOURS = ("#3973ac", "#d9912b", "#4b9b7d", "#a4628f", "#7f8ea3", "#b9b04b", "#c4644f", "#5f6caf")
# Markers tell the lines apart without colour.
MARKERS = "\N{BLACK CIRCLE}\N{BLACK SQUARE}\N{BLACK UP-POINTING TRIANGLE}\N{BLACK DIAMOND}" + (
    "\N{BLACK DOWN-POINTING TRIANGLE}\N{WHITE CIRCLE}\N{WHITE SQUARE}\N{WHITE UP-POINTING TRIANGLE}"
)
MARKERS_A_LINE = 10
DECADES_MAX = 5
NINES = {1: "0", 2: "50", 10: "90", 100: "99", 1e3: "99.9", 1e4: "99.99", 1e5: "99.999"}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart. y: NaN where nothing is known; the line has a gap there."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    dashed: bool = False
    colour: int = 0


def over_time(
    lines: Sequence[Line],
    *,
    label: str,
    unit: Callable[[float], str],
    shaded: tuple[float, float],
    marks: Sequence[tuple[float, str]] = (),
    by_powers: bool = False,
) -> str:
    """Draw a chart over time as SVG.

    x: seconds since the start of the load. shaded: the measured part. marks: second and name of each
    disturbance. by_powers: whether y is on a logarithmic scale.
    """
    right = max([x for line in lines for x in line.x] + [shaded[1], 1.0])
    if by_powers:
        lines, frame, ticks = _by_powers(lines, 0, right)
    else:
        high = _nice(max([*_known(lines), 1.0]))
        frame = _Frame(0, right, 0, high)
        # Ticks at whole numbers, so that no two of them read the same.
        parts = next((parts for parts in (4, 5, 2) if high % parts == 0), 1)
        ticks = [(high * part / parts, high * part / parts) for part in range(parts + 1)]
    begin, end = frame.x(shaded[0]), frame.x(min(shaded[1], right))
    body = [
        f'<rect x="{begin:.1f}" y="{TOP}" class="measured" height="{HEIGHT - TOP - BOTTOM}" '
        f'width="{end - begin:.1f}"/>'
    ]
    body += [_tick_y(frame.y(at), unit(value)) for at, value in ticks]
    step = _nice(right / 8)
    body += [_tick_x(frame.x(n * step), f"{n * step:g}") for n in range(int(right / step) + 1)]
    named, above = _marks([(frame.x(at), text) for at, text in marks if at <= right])
    axis = "seconds since the load began; shaded: measured"
    return _svg(label, axis, [*body, *named, *_drawn(lines, frame), *_empty(lines)], above)


def by_percentile(lines: Sequence[Line], *, label: str, unit: Callable[[float], str]) -> str:
    """Draw a chart of percentiles as SVG.

    x: percent below 100. y: above 0, on a logarithmic scale. Each further nine of x has the same width.
    """
    kept = [
        dataclasses.replace(
            line,
            x=[math.log10(1 / (1 - x / 100)) for x in line.x if x < 100],
            y=[y for x, y in zip(line.x, line.y, strict=True) if x < 100],
        )
        for line in lines
    ]
    right = max([x for line in kept for x in line.x] + [1.0])
    scaled, frame, ticks = _by_powers(kept, 0, right)
    body = [_tick_y(frame.y(at), unit(value)) for at, value in ticks]
    for at, text in NINES.items():
        if math.log10(at) <= right:
            body.append(_tick_x(frame.x(math.log10(at)), text))
    axis = "percentile: so many of 100 messages took no longer"
    return _svg(label, axis, [*body, *_drawn(scaled, frame), *_empty(scaled)])


def _known(lines: Sequence[Line]) -> list[float]:
    return [y for line in lines for y in line.y if not math.isnan(y)]


def _by_powers(
    lines: Sequence[Line], left: float, right: float
) -> tuple[list[Line], _Frame, list[tuple[float, float]]]:
    """Return the lines with logarithmic values, their frame, and its ticks with their values."""
    values = [max(y, 1e-6) for y in _known(lines)] or [1.0]
    bottom = math.floor(math.log10(min(values)))
    top = max(bottom + 1, math.ceil(math.log10(max(values)) + 1e-9))
    # A value far below the rest is drawn along the bottom.
    bottom = max(bottom, top - DECADES_MAX)
    scaled = [
        dataclasses.replace(line, y=[max(math.log10(max(y, 1e-6)), bottom) for y in line.y])
        for line in lines
    ]
    ticks = [(float(power), 10.0**power) for power in range(bottom, top + 1)]
    return scaled, _Frame(left, right, bottom, top), ticks


@dataclass(frozen=True, slots=True)
class _Frame:
    left: float
    right: float
    bottom: float
    top: float

    def x(self, value: float) -> float:
        part = (value - self.left) / ((self.right - self.left) or 1)
        return LEFT + part * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        part = (value - self.bottom) / ((self.top - self.bottom) or 1)
        return HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)


def _drawn(lines: Sequence[Line], frame: _Frame) -> list[str]:
    body = []
    for number, line in enumerate(lines[:LEGEND_MAX]):
        colour = COLOURS[line.colour % len(COLOURS)]
        marker = MARKERS[line.colour % len(MARKERS)]
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        runs = _unbroken([(frame.x(x), frame.y(y)) for x, y in zip(line.x, line.y, strict=True)])
        points = [point for run in runs for point in run]
        every = max(1, len(points) // MARKERS_A_LINE)
        # Markers of lines that lie on each other stand beside each other.
        marked = points[number * every // 4 % max(1, len(points)) :: every]
        at = TOP + 12 + number * 18
        body += [
            *(
                f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in run)}" stroke="{colour}"{dash}/>'
                for run in runs
            ),
            *(_marker(x, y, marker, colour) for x, y in marked),
            f'<line x1="{WIDTH - RIGHT + 14}" x2="{WIDTH - RIGHT + 36}" y1="{at - 4}" y2="{at - 4}" '
            f'stroke="{colour}" stroke-width="2"{dash}/>',
            _marker(WIDTH - RIGHT + 25, at - 4, marker, colour),
            f'<text x="{WIDTH - RIGHT + 42}" y="{at}">{escape(_short(line.label))}</text>',
        ]
    if (rest := len(lines) - LEGEND_MAX) > 0:
        x, y = WIDTH - RIGHT + 42, TOP + 12 + LEGEND_MAX * 18
        body.append(f'<text class="tick" x="{x}" y="{y}">{rest} more: not drawn</text>')
    return body


def _empty(lines: Sequence[Line]) -> list[str]:
    """Return a text "no samples" when no value is known."""
    if _known(lines):
        return []
    x, y = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    return [f'<text class="tick" x="{x}" y="{y}" text-anchor="middle">no samples</text>']


def _unbroken(points: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """Split the points into runs without NaN."""
    by_known = itertools.groupby(points, key=lambda point: not math.isnan(point[1]))
    return [list(run) for is_known, run in by_known if is_known]


def _marker(x: float, y: float, marker: str, colour: str) -> str:
    return f'<text class="marker" x="{x:.1f}" y="{y:.1f}" fill="{colour}">{marker}</text>'


def _short(label: str) -> str:
    if len(label) <= LEGEND_LETTERS:
        return label
    half = LEGEND_LETTERS // 2
    return f"{label[:half]}\N{HORIZONTAL ELLIPSIS}{label[-half:]}"


def _marks(marks: Sequence[tuple[float, str]]) -> tuple[list[str], float]:
    """Draw vertical lines; return them with the height of their names above the chart.

    A name that would cover another one goes one line higher, or is left out.
    """
    ends = [0.0] * MARK_LINES
    body = []
    for x, text in marks:
        body.append(
            f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        )
        line = next((line for line, end in enumerate(ends) if end <= x), None)
        if line is not None:
            ends[line] = x + (len(text) + 1) * LETTER
            y = TOP - 4 - line * MARK_LINE
            body.append(f'<text class="mark" x="{x:.1f}" y="{y}">{escape(text)}</text>')
    return body, MARK_LINE * sum(end > 0 for end in ends)


def _tick_y(y: float, text: str) -> str:
    return (
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>'
    )


def _tick_x(x: float, text: str) -> str:
    return (
        f'<text class="tick" x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}" '
        f'text-anchor="middle">{escape(text)}</text>'
    )


def _svg(label: str, axis: str, body: Sequence[str], above: float = 0) -> str:
    middle, above = (LEFT + WIDTH - RIGHT) / 2, above + TITLE
    return (
        f'<div class="scroll"><svg viewBox="0 {-above} {WIDTH} {HEIGHT + above}" role="img" '
        f'aria-label="{escape(label)}"><text class="title" x="0" y="{14 - above}">{escape(label)}</text>'
        + "".join(body)
        + f'<text class="tick" x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(axis)}</text>'
        "</svg></div>"
    )


def _nice(value: float) -> float:
    """Round up to the next of 1, 2, 4, 5, 8 times a power of ten."""
    power: float = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 5, 8, 10) if step * power >= value * 0.999)


# A client of a native cluster cannot tell which node took a message.
ANY = "any node"


def percentile_chart(result: Result) -> str:
    """Draw latency by percentile, from the intended time and, dashed, from the sending."""
    return by_percentile(_curves(result), label="Latency", unit=milliseconds)


def _curves(result: Result) -> list[Line]:
    lines = []
    for number, (measure, dashed) in enumerate(
        (("confirm", False), ("service", True), ("delivery", False), ("pacing", True))
    ):
        found = percentiles(result.bins(measure))
        kept = [each for each in CURVE if f"p{each:g}" in found]
        if kept:
            values = [found[f"p{each:g}"] for each in kept]
            lines.append(
                Line(MEASURES[measure].split(":")[0] + TAILS[measure], kept, values, dashed, number)
            )
    return lines


TAILS = {"confirm": ", from intended", "service": ", from sent", "delivery": "", "pacing": ""}


def rates_chart(result: Result) -> str:
    lines = [
        Line(broker or ANY, list(range(len(rates))), rates, False, number)
        for number, (broker, rates) in enumerate(result.rates("confirm").items())
    ]
    measured = result.measured
    return over_time(
        lines,
        label="Confirmed messages a second, by broker",
        unit=lambda value: f"{value:,.0f}/s",
        shaded=(measured.start, measured.stop),
        marks=_marks_of(result),
    )


def _marks_of(result: Result) -> list[tuple[float, str]]:
    """Return the second and name of each disturbance's beginning and end."""
    found = []
    for each in result.about.get("disturbances", []):
        found.append((each["began_s"], each["what"]))
        if each["ended_s"] is not None:
            found.append((each["ended_s"], f"{each['what'].split()[0]} over"))
    return found


def waiting_chart(result: Result) -> str:
    """Draw the messages in the queues of each broker; "" when none ever waited."""
    lines = []
    for number, broker in enumerate(sorted({each.broker for each in result.samples})):
        points = [
            (each.at_s, each.ready)
            for each in result.samples
            if each.broker == broker and each.ready is not None and each.at_s >= 0
        ]
        if points:
            x, y = zip(*points, strict=True)
            lines.append(Line(broker, x, y, False, number))
    if not any(value for line in lines for value in line.y):
        return ""
    measured = result.measured
    return over_time(
        lines,
        label="Messages waiting in queues, by broker",
        unit=lambda value: f"{value:,.0f}",
        shaded=(measured.start, measured.stop),
        marks=_marks_of(result),
    )


def latency_chart(result: Result) -> str:
    """Draw p50 and p99 of confirms and deliveries over time. A second without enough samples is a gap."""
    lines = []
    for number, measure in enumerate(("confirm", "delivery")):
        latencies = result.latencies[measure]
        known = [second for second, _ in latencies.bins if second >= 0]
        seconds = range(min(known, default=0), max(known, default=-1) + 1)
        each = [percentiles(latencies.whole(range(second, second + 1))) for second in seconds]
        for name, dashed in (("p50", False), ("p99", True)):
            values = [found.get(name, math.nan) for found in each]
            if not all(map(math.isnan, values)):
                lines.append(Line(f"{measure}, {name}", list(seconds), values, dashed, number))
    measured = result.measured
    return over_time(
        lines,
        label="Latency",
        unit=milliseconds,
        by_powers=True,
        shaded=(measured.start, measured.stop),
        marks=_marks_of(result),
    )


def milliseconds(value: float) -> str:
    if value < 0.9995:
        return f"{value * 1000:.3g} µs"
    return f"{value:.3g} ms" if value < 999.5 else f"{value / 1000:,.2f} s"
