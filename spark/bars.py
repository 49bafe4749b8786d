"""Bars as plain HTML: they are as wide as the screen is, and their text is never shrunk or covered.

Each look has a pattern besides its colour, so that print and colour-blind eyes tell them apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["BARS_MAX", "LOOKS", "NO_BARS", "Bar", "Bars", "Part", "against_mean"]

# Classes of the page's style, look-0 and so on.
LOOKS = 8
BARS_MAX = 20


@dataclass(frozen=True, slots=True)
class Part:
    """what: in the legend. look: 0 to LOOKS - 1, or "alarm"."""

    what: str
    value: float
    look: int | str = 0


@dataclass(frozen=True, slots=True)
class Bar:
    """told: beside the bar."""

    name: str
    parts: tuple[Part, ...]
    told: str


@dataclass(frozen=True, slots=True)
class Bars:
    """Drawn to one scale. mean: a line through all of them, None for none. note: what is left out."""

    bars: tuple[Bar, ...] = ()
    mean: float | None = None
    note: str = ""

    @property
    def whole(self) -> float:
        """What the full width stands for."""
        sums = [sum(part.value for part in bar.parts) for bar in self.bars]
        return max([*sums, self.mean or 0.0]) or 1.0

    @property
    def legend(self) -> list[Part]:
        """Of bars with several parts: each part with its sum, those without any left out."""
        found: dict[str, Part] = {}
        for bar in self.bars:
            for part in bar.parts:
                earlier = found.get(part.what, Part(part.what, 0, part.look))
                found[part.what] = Part(part.what, earlier.value + part.value, part.look)
        return [part for part in found.values() if part.value] if _is_stacked(self.bars) else []


NO_BARS = Bars()


def _is_stacked(bars: Sequence[Bar]) -> bool:
    return any(len(bar.parts) > 1 for bar in bars)


def against_mean(
    loads: Sequence[tuple[str, float]], what: str, *, mean: float, total: float, count: int
) -> Bars:
    """One bar for each of the largest loads, with its share, beside the mean of all.

    loads: name and load, the largest first; count, total: of all of them, those not among loads too.
    """
    shown = loads[:BARS_MAX]
    rest = count - len(shown)
    more = f" The {len(shown)} largest of {count:,}." if rest > 0 else ""
    return Bars(
        tuple(
            Bar(name, (Part(what, load),), f"{load:,.0f} ({load / total:.1%})")
            for name, load in shown
        )
        if total
        else (),
        mean,
        f"Upright line: the mean, {mean:,.0f} {what}.{more}",
    )
