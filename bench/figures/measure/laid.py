"""The same run as tables of a lake, as `spark ingest` writes them.

For sizes at which ingest would take longer than what is to be measured.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.figures.measure.made import RUN_ID, WALL_NS, Planted, make
from messagebus.events import EVENTS

__all__ = ["lay"]

TYPES = {"text": pa.string(), "id16": pa.binary(), "long": pa.int64(), "int": pa.int32()}
DAY = time.strftime("%Y-%m-%d", time.gmtime(WALL_NS // 1_000_000_000))
# Of a Parquet file, as JSON: how much work it is to read.
WEIGHT = 10


def lay(lake: Path, messages: int) -> Planted:
    """Write a lake with a run of so many messages, and the notes of its ingest."""
    files: dict[str, dict[str, Any]] = {}

    def save(name: str, events: pa.Table) -> None:
        files[f"{name}.parquet"] = _kept(lake, name, events)

    notes = lake / "runs" / RUN_ID
    planted = make(notes, messages, save=save)
    noted = {
        "folder": str(lake),
        "files": files,
        "skipped": [],
        "missing": [],
        "clock_spread_ns": 0,
    }
    (notes / "ingested.json").write_text(json.dumps(noted))
    return planted


def _kept(lake: Path, name: str, events: pa.Table) -> dict[str, Any]:
    """Write one file, return what is noted of it."""
    kind = name.split("-")[0]
    source = f"{name}.parquet"
    folder = lake / kind / f"date={DAY}" / f"run_id={RUN_ID}" / f"source={source}"
    folder.mkdir(parents=True)
    path = folder / "part-00000.snappy.parquet"
    pq.write_table(_wall_clock(kind, events), path)
    size = path.stat().st_size
    return {
        "kind": kind,
        "form": "parquet",
        "bytes": size,
        "weight": size * WEIGHT,
        "sha256": name,
        "anchors": 0,
        "has_anchor": True,
        "good": events.num_rows,
        "bad": {},
        "examples": {},
    }


def _wall_clock(kind: str, events: pa.Table) -> pa.Table:
    """All columns of the kind but the partitions', times by the wall clock."""
    columns = {}
    for column in EVENTS[kind]:
        if column.name == "run_id":
            continue
        values = pa.nulls(events.num_rows, TYPES[column.kind])
        if column.name in events.column_names:
            values = events[column.name]
        if column.name.endswith("_ns"):
            values = pc.add(values, WALL_NS)
        columns[column.name] = values
    return pa.table(columns)
