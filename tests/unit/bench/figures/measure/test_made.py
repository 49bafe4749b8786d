from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from bench.figures.measure.made import WALL_NS, lay
from bench.figures.measure.oracle import audit, opened
from messagebus.recording.events import EVENTS


def rows_of(lake: Path, kind: str) -> list[dict[str, Any]]:
    [path] = (lake / kind).rglob("*.parquet/*.parquet")
    return list(pq.ParquetFile(path).read().to_pylist())


def test_one_of_each_fault_is_in_the_rows_and_nothing_else(tmp_path: Path) -> None:
    planted = lay(tmp_path, 1000)
    published, delivered = (rows_of(tmp_path, kind) for kind in ("published", "delivered"))
    bodies = {row["message_id"].hex(): row["body_hash"] for row in published}
    assert (len(bodies), len(delivered)) == (1000, 1001)
    had = [row["message_id"].hex() for row in delivered]
    assert set(bodies) - set(had) == {planted.lost}
    assert set(had) - set(bodies) == {planted.orphan}
    assert {name for name in had if had.count(name) > 1} == {planted.doubled}
    wrong = [
        r for r in delivered if bodies.get(r["message_id"].hex()) not in (None, r["body_hash"])
    ]
    assert [row["message_id"].hex() for row in wrong] == [planted.altered]


def test_the_same_seed_makes_the_same_run(tmp_path: Path) -> None:
    assert lay(tmp_path / "a", 200) == lay(tmp_path / "b", 200)
    assert lay(tmp_path / "c", 200, seed=2) != lay(tmp_path / "d", 200)


@pytest.mark.parametrize("kind", ["published", "delivered"])
def test_a_lake_has_all_columns_of_the_events_by_the_wall_clock(tmp_path: Path, kind: str) -> None:
    lay(tmp_path, 1000)
    rows = rows_of(tmp_path, kind)
    assert rows[0].keys() == {c.name for c in EVENTS[kind]} - {"run_id"}
    at = "sent_ns" if kind == "published" else "received_ns"
    assert 0 <= rows[0][at] - WALL_NS < 1_000_000_000
    assert isinstance(rows[0]["message_id"], bytes)


def test_what_is_noted_of_it_is_what_there_is(tmp_path: Path) -> None:
    planted = lay(tmp_path, 1000)
    noted = json.loads((tmp_path / "runs" / "made" / "ingested.json").read_text())
    good = {file["kind"]: file["good"] for file in noted["files"].values()}
    assert good == {"published": 1000, "delivered": 1001}
    with opened(tmp_path) as database:
        assert audit(database)["late"] == [planted.late]
