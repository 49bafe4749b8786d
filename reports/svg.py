"""The look of every chart: inline SVG whose text and lines take their colours from the page's style.

matplotlib knows no style sheets, so it draws with marker colours that are then replaced by the page's
variables: the same picture serves light, dark and print.
"""

from __future__ import annotations

import io
import logging
import math
import re
from collections.abc import Mapping
from html import escape
from importlib.resources import as_file, files

import matplotlib

matplotlib.use("svg")
# On first use it builds a font cache, and would report that on standard error.
logging.getLogger("matplotlib").setLevel(logging.ERROR)

from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.ticker import FuncFormatter, NullLocator  # noqa: E402

from reports.text import milliseconds  # noqa: E402

# Marker colours, replaced by variables of the page.
INK, MUTED, GRID, ALARM, PAGE = "#010203", "#040506", "#070809", "#0a0b0c", "#0d0e0f"
VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid", ALARM: "--alarm", PAGE: "--page"}
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
# Colour is never the only difference: layers have a hatch, lines a mark now and then.
HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----", "oo", "++")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
with as_file(files("reports") / "charts.mplstyle") as _style:  # which may lie in an archive
    SETTINGS = dict(matplotlib.rc_params_from_file(_style, use_default_template=False))
WIDTH_IN = 10.2


def log_milliseconds(panel: Axes) -> None:
    """Show durations on the y axis, from one power of ten to another, so that both have their names."""
    panel.set_yscale("log")
    least, most = panel.dataLim.intervaly
    if 0 < least <= most < math.inf:
        bottom = math.floor(math.log10(least))
        panel.set_ylim(10.0**bottom, 10.0 ** max(bottom + 1, math.ceil(math.log10(most))))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _power_of_ten(value)))
    panel.yaxis.set_minor_locator(NullLocator())


def _power_of_ten(value_ms: float) -> str:
    """Return a whole power of ten, in seconds where it is one: 1 ms, 10 s, 10,000 s."""
    return f"{value_ms / 1000:,.0f} s" if value_ms > 999 else milliseconds(value_ms)


def svg(figure: Figure, label: str) -> str:
    """Return the figure as text. label: its content in words, for readers who cannot see it."""
    target = io.StringIO()
    metadata: Mapping[str, None] = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(target, format="svg", metadata=metadata)
    text = target.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    text = re.sub(r"font-family: [^;\"]*", "font-family: var(--font)", text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1)
