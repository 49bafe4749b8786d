"""Figures as text: ages, counts, sizes, and small curves as paths of SVG; ids of rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from messagebus.observing.totals import UNKNOWN

NOTHING = "\N{EN DASH}"
# Ages at which a cell of the matrix takes its next colour, and what is wrong with them.
WARN_S, BAD_S = 60.0, 300.0
BUCKETS_S = (5.0, 30.0, WARN_S, BAD_S)
EMPTY_S = 0.05
LINE_MARGIN = 1.5
# The share of its highest value below which a curve does not fall that counts as steady.
STEADY = 0.9


@dataclass(frozen=True, slots=True)
class Spark:
    """A curve as paths: its line, the area below it, and the time of which nothing is known."""

    line: str
    area: str
    gaps: str


def age(seconds: float | None) -> str:
    """Return an age: 0.4 s, 38 s, 4 min 12 s, 2 h 11 min, 3 d 4 h; "?" where it is not known."""
    if seconds is None:
        return UNKNOWN
    if seconds < EMPTY_S:
        return NOTHING
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3_600} h {whole % 3_600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3_600} h"


def roughly(seconds: float) -> str:
    """Return a time span by its largest unit: 14 s, 8 min, 3 h, 2 d."""
    for unit_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= unit_s:
            return f"{int(seconds // unit_s)} {unit}"
    return f"{max(0, int(seconds))} s"


def age_class(seconds: float | None) -> str:
    """Return "", ``warn`` or ``bad``."""
    if seconds is None or seconds < WARN_S:
        return ""
    return "warn" if seconds < BAD_S else "bad"


def bucket(seconds: float | None) -> str:
    """Return the class of a cell's colour; "" when nothing waits or it is not known how long."""
    if seconds is None or seconds < EMPTY_S:
        return ""
    return f"a{1 + sum(seconds >= bound for bound in BUCKETS_S)}"


def count(value: float | None) -> str:
    """Return a number with separators; below 10 with one decimal unless it is whole."""
    if value is None:
        return UNKNOWN
    if value >= 9.95 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}"


def rate(value: float | None) -> str:
    """Return a rate per second; below 0.05 it is 0."""
    return count(0.0 if value is not None and value < EMPTY_S else value)


def size(bytes_: float | None) -> str:
    """Return a size in units of 1,000: 346 GB, 1.2 TB."""
    if bytes_ is None:
        return UNKNOWN
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if bytes_ >= unit:
            return f"{count(bytes_ / unit)} {name}"
    return f"{bytes_ / 1e3:.0f} kB"


def clock(at_ms: int) -> str:
    """Return the time of day on this host."""
    return _at(at_ms, "%H:%M:%S")


def day(at_ms: int) -> str:
    """Return the date and time on this host; "?" for a number that is no time."""
    return _at(at_ms, "%Y-%m-%d %H:%M:%S")


def zone(at_ms: int) -> str:
    """Return the time zone of this host."""
    return _at(at_ms, "%Z")


def _at(at_ms: int, form: str) -> str:
    try:
        return time.strftime(form, time.localtime(at_ms / 1_000))
    except (OverflowError, ValueError, OSError):
        return UNKNOWN


def spark(values: Sequence[float | None], width: int = 84, height: int = 20) -> Spark:
    """Return a curve from 0 to the highest value; one that hardly changes lies in the middle."""
    known = [value for value in values if value is not None]
    top, step = max(known, default=0.0) or 1.0, width / max(1, len(values) - 1)
    top *= 2 if known and min(known) > STEADY * top else 1
    line, area, gaps, run, unknown = [], [], [], list[str](), 0.0
    for i, value in enumerate([*values, None]):
        if value is not None:
            if not run and i:
                gaps.append(f"M{unknown:.1f} {height - LINE_MARGIN}H{i * step:.1f}")
            y = height - LINE_MARGIN - value / top * (height - 2 * LINE_MARGIN)
            run.append(f"{i * step:.1f} {y:.1f}")
        elif run:
            begin, end = run[0].split()[0], run[-1].split()[0]
            line.append("M" + "L".join(run))
            area.append(f"M{begin} {height}L{'L'.join(run)}L{end} {height}Z")
            run, unknown = [], float(end)
    if unknown < width - step / 2:
        gaps.append(f"M{unknown:.1f} {height - LINE_MARGIN}H{width}")
    return Spark("".join(line), "".join(area), "".join(gaps))


def row_id(kind: str, name: str) -> str:
    """Return the id of the row about something of that kind and name."""
    return f"{kind}.{quote(name, safe='', errors='surrogatepass')}"
