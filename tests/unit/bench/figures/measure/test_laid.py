from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq

from bench.figures.measure.duck import audit
from bench.figures.measure.laid import lay
from bench.figures.measure.made import WALL_NS, make
from messagebus.events import EVENTS


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
