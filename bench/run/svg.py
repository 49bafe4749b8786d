"""Line charts as inline SVG, drawn by hand: small, and the page's style gives them their colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Line", "by_percentile", "over_time"]

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 1000, 70, 225, 14, 34
HEIGHT = 260
# Distinguishable in print and with common colour blindness.
COLOURS = ("#3973ac", "#d9912b", "#4b9b7d", "#a4628f", "#7f8ea3", "#b9b04b", "#c4644f", "#5f6caf")
DECADES_MAX = 10**5
NINES = {1: "0", 2: "50", 10: "90", 100: "99", 1e3: "99.9", 1e4: "99.99", 1e5: "99.999"}


@dataclass(frozen=True, slots=True)
class Line:
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
) -> str:
    """x: seconds since the start of the load. shaded: the part that is measured. marks: seconds in
    which something was done, with its name."""
    right = max([x for line in lines for x in line.x] + [shaded[1], 1.0])
    high = max([y for line in lines for y in line.y] + [1e-9])
    frame = _Frame(0, right, 0, _nice(high))
    body = [
        f'<rect x="{frame.x(shaded[0]):.1f}" y="{TOP}" class="measured" height="{HEIGHT - TOP - BOTTOM}" '
        f'width="{frame.x(min(shaded[1], right)) - frame.x(shaded[0]):.1f}"/>'
    ]
    for part in range(5):
        value = frame.top * part / 4
        body.append(_tick_y(frame.y(value), unit(value)))
    step = max(1, round(right / 10))
    body += [_tick_x(frame.x(at), f"{at} s") for at in range(0, int(right) + 1, step)]
    body += [_mark(frame.x(at), text) for at, text in marks if at <= right]
    return _svg(label, [*body, *_drawn(lines, frame)])


def by_percentile(lines: Sequence[Line], *, label: str, unit: Callable[[float], str]) -> str:
    """x: percent below 100, y: above 0, on a scale of powers of ten; each further nine as wide."""
    kept = [
        Line(
            line.label,
            [1 / (1 - x / 100) for x in line.x if x < 100],
            [y for x, y in zip(line.x, line.y, strict=True) if x < 100],
            line.dashed,
            line.colour,
        )
        for line in lines
    ]
    values = [max(y, 1e-6) for line in kept for y in line.y] or [1.0]
    right = max([x for line in kept for x in line.x] + [10.0])
    low = 10 ** math.floor(math.log10(min(values)))
    high = 10 ** math.ceil(math.log10(max(values)) + 1e-9)
    # What is far below the rest is drawn along the bottom.
    low = max(low, high / DECADES_MAX)
    frame = _Frame(0, math.log10(right), math.log10(low), math.log10(max(high, low * 10)))
    body = []
    for power in range(round(frame.bottom), round(frame.top) + 1):
        body.append(_tick_y(frame.y(power), unit(10.0**power)))
    for at, text in NINES.items():
        if at <= right:
            body.append(_tick_x(frame.x(math.log10(at)), text))
    scaled = [
        Line(
            line.label,
            [math.log10(x) for x in line.x],
            [math.log10(max(y, low)) for y in line.y],
            line.dashed,
            line.colour,
        )
        for line in kept
    ]
    return _svg(label, [*body, *_drawn(scaled, frame)])


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
    for number, line in enumerate(lines):
        colour = COLOURS[line.colour % len(COLOURS)]
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        points = " ".join(
            f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in zip(line.x, line.y, strict=True)
        )
        at = TOP + 12 + number * 18
        body += [
            f'<polyline points="{points}" stroke="{colour}"{dash}/>',
            f'<line x1="{WIDTH - RIGHT + 14}" x2="{WIDTH - RIGHT + 36}" y1="{at - 4}" y2="{at - 4}" '
            f'stroke="{colour}" stroke-width="2"{dash}/>',
            f'<text x="{WIDTH - RIGHT + 42}" y="{at}">{escape(line.label)}</text>',
        ]
    return body


def _mark(x: float, text: str) -> str:
    return (
        f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        f'<text class="mark" x="{x + 4:.1f}" y="{TOP + 10}">{escape(text)}</text>'
    )


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


def _svg(label: str, body: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
        + "".join(body)
        + "</svg>"
    )


def _nice(value: float) -> float:
    """The next of 1, 2, 4, 5, 8 times a power of ten that is not below."""
    power: float = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 5, 8, 10) if step * power >= value * 0.999)
