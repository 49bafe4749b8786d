"""DuckDB's answers about made runs, by hand; tests/unit/spark/test_scans.py compares them with Spark's.

It finds the planted faults: it may judge another audit.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.figures.measure.made import lay
from bench.figures.measure.oracle import answer, audit, opened

MESSAGES = 20_000


def test_what_made_rows_come_to(tmp_path: Path) -> None:
    lay(tmp_path, MESSAGES)
    with opened(tmp_path) as database:
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


def test_it_finds_one_of_each(tmp_path: Path) -> None:
    planted = lay(tmp_path, 5000)
    with opened(tmp_path) as database:
        found = audit(database)
    expected = {"ok": 4997, "lost": 1, "altered": 1, "unexplained": 1, "orphan": 1}
    assert found == {"verdicts": expected, "late": [planted.late]}
