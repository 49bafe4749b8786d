"""The chart of the README: this library beside others, as an SVG file for light and for dark pages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from reports.text import significant

WIDTH, LEFT, RIGHT, ROW, BAR, TOP, BELOW = 680, 220, 70, 24, 12, 40, 26
# Colours of light and of dark pages: text, faint text, lines, better, worse.
STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.group { font-weight: 600; } .faint { fill: #59636e; font-size: 12px; }
.grid { stroke: #d1d9e0; } .one { stroke: #59636e; }
.better { fill: #2f7d5b; } .worse { fill: #b35900; } .range { stroke: #1f2328; stroke-width: 1.5; }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc; } .faint { fill: #9198a1; }
  .grid { stroke: #3d444d; } .one { stroke: #9198a1; }
  .better { fill: #4fae85; } .worse { fill: #e08a3c; } .range { stroke: #f0f6fc; }
}
"""


@dataclass(frozen=True, slots=True)
class Bar:
    """A ratio to another system. group: the title above it. between: its least and greatest, if known."""

    group: str
    label: str
    value: float
    between: tuple[float, ...] = ()
    less_is_better: bool = False

    @property
    def is_better(self) -> bool:
        return self.value <= 1 if self.less_is_better else self.value >= 1


@dataclass(frozen=True, slots=True)
class _Axis:
    """A logarithmic axis between two powers of two."""

    least: int
    most: int

    @classmethod
    def of(cls, values: Sequence[float]) -> _Axis:
        return cls(math.floor(math.log2(min(values))), math.ceil(math.log2(max(values))))

    def x(self, value: float) -> float:
        part = (math.log2(value) - self.least) / (self.most - self.least)
        return LEFT + part * (WIDTH - LEFT - RIGHT)

    def lines(self, bottom: float) -> Iterator[str]:
        for power in range(self.least, self.most + 1):
            at, kind, said = self.x(2.0**power), "grid" if power else "one", f"{2.0**power:g} x"
            yield f'<line class="{kind}" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP - 8}" y2="{bottom}"/>'
            yield _text(at, bottom + 18, said, 'class="faint" text-anchor="middle"')

    def bar(self, bar: Bar, middle: float) -> Iterator[str]:
        """Yield a bar from 1, which is the other system, with its range and its value."""
        begin, end = sorted((self.x(1), self.x(bar.value)))
        kind, width = "better" if bar.is_better else "worse", max(end - begin, 1)
        yield _text(LEFT - 12, middle + 4, bar.label, 'text-anchor="end"')
        yield (
            f'<rect class="{kind}" x="{begin:.1f}" y="{middle - BAR / 2}" width="{width:.1f}" '
            f'height="{BAR}"/>'
        )
        right = max(map(self.x, (1, bar.value, *bar.between)))
        yield _text(right + 8, middle + 4, f"{significant(bar.value)} x")
        if bar.between:
            low, high = map(self.x, bar.between)
            yield f'<line class="range" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>'


def ratios(bars: Sequence[Bar], title: str) -> str:
    """Draw horizontal bars below the titles of their groups."""
    axis = _Axis.of([1.0, 2.0, *(each for bar in bars for each in (bar.value, *bar.between))])
    drawn, middle = list[str](), TOP + ROW / 2
    for group, members in groupby(bars, lambda bar: bar.group):
        drawn.append(_text(0, middle + 4, group, 'class="group"'))
        for bar in members:
            middle += ROW
            drawn += axis.bar(bar, middle)
        middle += ROW
    bottom = middle - ROW / 2
    size = f'viewBox="0 0 {WIDTH} {bottom + BELOW:g}" role="img"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            _text(0, 16, title),
            *axis.lines(bottom),
            *drawn,
            "</svg>\n",
        ]
    )


def _text(x: float, y: float, said: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(said)}</text>'
