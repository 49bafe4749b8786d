"""Pages without matplotlib, which takes half a second for each: one test draws, the others read."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import pytest

from reports import charts
from reports.charts import Mark, Panel, Series


def listed(*words: str) -> str:
    """Return a picture that holds the words alone."""
    return f"<svg>{''.join(f'<text>{escape(each)}</text>' for each in words)}</svg>"


@pytest.fixture(autouse=True)
def _undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """List the words of each chart instead of drawing it, except where a test uses `drawn`."""

    def percentiles(curves: Sequence[Series]) -> str:
        return listed(*(each.label for each in curves))

    def over_time(panels: Sequence[Panel], *, marks: Sequence[Mark] = (), **_: Any) -> str:
        lines = [each.label for panel in panels for each in panel.series]
        return listed(*(panel.title for panel in panels), *lines, *(each.label for each in marks))

    if "drawn" not in request.fixturenames:
        monkeypatch.setattr(charts, "percentiles", percentiles)
        monkeypatch.setattr(charts, "over_time", over_time)


@pytest.fixture
def drawn() -> None:
    """Draw the charts of this test."""
