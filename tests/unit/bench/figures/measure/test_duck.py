"""DuckDB's audit of made events finds the planted faults: it may judge another audit."""

from __future__ import annotations

from pathlib import Path

from bench.figures.measure.duck import audit
from bench.figures.measure.made import make


def test_it_finds_one_of_each(tmp_path: Path) -> None:
    planted = make(tmp_path / "run", 5000)
    for kind in ("published", "delivered"):
        folder = tmp_path / "lake" / kind / "date=d" / "run_id=made" / "source=s"
        folder.mkdir(parents=True)
        for path in (tmp_path / "run").glob(f"{kind}-*"):
            path.rename(folder / path.name)
    found = audit(str(tmp_path / "lake"))
    expected = {"ok": 4997, "lost": 1, "altered": 1, "unexplained": 1, "orphan": 1}
    assert found == {"verdicts": expected, "late": [planted.late]}
