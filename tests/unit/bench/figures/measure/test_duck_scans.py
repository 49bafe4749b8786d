"""Scans of a made run, by hand; tests/unit/spark/test_scans.py compares them with Spark's."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.figures.measure.duck_scans import answer, ready
from bench.figures.measure.made import lay

MESSAGES = 20_000


def test_what_made_rows_come_to(tmp_path: Path) -> None:
    lay(tmp_path, MESSAGES)
    with ready(tmp_path) as database:
        seconds = answer(database, "seconds")
        confirmed = [row for row in seconds if row[0] == "confirmed"]
        assert sum(row[5] for row in confirmed) == MESSAGES
        assert sum(row[6] for row in confirmed) == MESSAGES * 1024
        assert sum(row[3] for row in answer(database, "bins")) == MESSAGES
        for _, _, total, *values in answer(database, "latency"):
            assert total == pytest.approx(MESSAGES / 4, rel=0.2)
            assert values == sorted(values)
        depths = answer(database, "depths_of_events")
        assert sum(entered for *_, entered, _, _, _ in depths) == MESSAGES
        # The lost one.
        assert sum(left for *_, left, _, _ in depths) == MESSAGES - 1
