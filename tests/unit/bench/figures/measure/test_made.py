from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq

from bench.figures.measure.duck import audit
from bench.figures.measure.made import WALL_NS, lay, make
from messagebus.recording.events import EVENTS


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


def test_a_lake_has_the_events_of_the_run_by_the_wall_clock(tmp_path: Path) -> None:
    planted = lay(tmp_path / "lake", 1000)
    assert planted == make(tmp_path / "events", 1000)
    for kind in ("published", "delivered"):
        events = pq.read_table(tmp_path / "events" / f"{kind}-000.parquet")
        [path] = (tmp_path / "lake" / kind).rglob("*.parquet/*.parquet")
        kept = pq.ParquetFile(path).read()
        assert set(kept.column_names) == {c.name for c in EVENTS[kind]} - {"run_id"}
        assert kept["message_id"].to_pylist() == events["message_id"].to_pylist()
        at = "sent_ns" if kind == "published" else "received_ns"
        assert kept[at][0].as_py() == events[at][0].as_py() + WALL_NS


def test_what_is_noted_of_it_is_what_there_is(tmp_path: Path) -> None:
    planted = lay(tmp_path, 1000)
    noted = json.loads((tmp_path / "runs" / "made" / "ingested.json").read_text())
    good = {file["kind"]: file["good"] for file in noted["files"].values()}
    assert good == {"published": 1000, "delivered": 1001}
    assert audit(str(tmp_path))["late"] == [planted.late]
