from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from bench.figures.measure.made import make


def test_one_of_each_fault_is_in_the_rows_and_nothing_else(tmp_path: Path) -> None:
    planted = make(tmp_path / "run", 1000)
    published = pq.read_table(next((tmp_path / "run").glob("published-*"))).to_pylist()
    delivered = pq.read_table(next((tmp_path / "run").glob("delivered-*"))).to_pylist()
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
    assert make(tmp_path / "a", 200) == make(tmp_path / "b", 200)
