"""The generated run: the tables of a lake, of any size, with faults whose ids are known.

It is generated, not measured, and written as Parquet, column by column: ten million rows take seconds. It has
one topic with one subscription. Every publisher's messages arrive in order, except for planted faults. The
tables have the form that `spark ingest` writes, for sizes at which ingest would take longer than the
measurement.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from messagebus.recording.events import EVENTS

RUN_ID, TOPIC, SUBSCRIPTION = "made", "orders", "billing"
BROKERS = tuple(f"127.0.0.{11 + n}:5672" for n in range(4))
PUBLISHERS, CONSUMERS = 50, 4
ID_BYTES = 16
S, MS = 1_000_000_000, 1_000_000
# Noon, so that the largest set stays within its day.
WALL_NS = 1_790_000_000 // 86_400 * 86_400 * S + 43_200 * S
RATE_PER_S = 20_000
ANCHOR = {"host": "made", "process": "made", "wall_minus_monotonic_ns": WALL_NS}

Ids = NDArray[np.uint8]
Numbers = NDArray[np.int64]
# Turns an id into another id.
FLIP = np.uint8(0xFF)


@dataclass(frozen=True, slots=True)
class Planted:
    """The ids of one planted fault of each kind, as hex text. late: delivered after a later message."""

    lost: str
    altered: str
    doubled: str
    orphan: str
    late: str


def lay(lake: Path, messages: int, *, seed: int = 1) -> Planted:
    """Write a lake with a whole run of `messages` messages, at least 200, and the notes of its ingest."""
    chance = np.random.default_rng(seed)
    number = np.arange(messages, dtype=np.int64)
    ids, bodies = (chance.integers(0, 256, (messages, ID_BYTES), dtype=np.uint8) for _ in range(2))
    sent_ns = WALL_NS + number * (S // RATE_PER_S)
    files = _write(lake, "published", _published(number, ids, bodies, sent_ns, chance))
    lost, altered, doubled, late = (int(messages * part) for part in (0.2, 0.4, 0.6, 0.7))
    late = min(late, messages - 1 - PUBLISHERS)
    at_ns, following = sent_ns + 10 * MS, late + PUBLISHERS
    # A message and the next one of its publisher, at one consumer, exchange their times.
    at_ns[late], at_ns[following] = at_ns[following], at_ns[late]
    bodies[altered] = 0
    # Behind all others come a repeat of a message, and an orphan.
    which = np.concatenate([np.delete(number, lost), [doubled, doubled]])
    ids_had, had_ns = ids[which], at_ns[which]
    ids_had[-1] ^= FLIP
    had_ns[-2:] = at_ns.max() + S
    files |= _write(lake, "delivered", _delivered(which, ids_had, bodies[which], had_ns))
    _write_notes(lake, files, end_ns=messages * (S // RATE_PER_S) + 60 * S)
    named = {"lost": lost, "altered": altered, "doubled": doubled, "late": late}
    return Planted(**{name: _hex(ids[at]) for name, at in named.items()}, orphan=_hex(ids_had[-1]))


def _published(
    number: Numbers, ids: Ids, bodies: Ids, sent_ns: Numbers, chance: np.random.Generator
) -> dict[str, pa.Array]:
    count = len(number)
    took_ns = (chance.lognormal(1.6, 0.7, count) * MS).astype(np.int64)
    return {
        "message_id": _binary(ids),
        "topic": _same(TOPIC, count),
        "broker": _named(BROKERS, _broker_of(number)),
        "publisher": _named([f"publisher-{n}" for n in range(PUBLISHERS)], number % PUBLISHERS),
        "sequence": pa.array(number // PUBLISHERS),
        "size": pa.array(np.full(count, 1024, dtype=np.int32)),
        "body_hash": _binary(bodies),
        "outcome": _same("confirmed", count),
        "attempts": pa.array(np.ones(count, dtype=np.int32)),
        "intended_ns": pa.array(sent_ns - 1000),
        "sent_ns": pa.array(sent_ns),
        "confirmed_ns": pa.array(sent_ns + took_ns),
    }


def _broker_of(number: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the broker of each message; a publisher stays at one for a while."""
    return (number // (PUBLISHERS * 1000) + number % PUBLISHERS) % len(BROKERS)


def _delivered(number: Numbers, ids: Ids, bodies: Ids, at_ns: Numbers) -> dict[str, pa.Array]:
    count = len(number)
    return {
        "message_id": _binary(ids),
        "topic": _same(TOPIC, count),
        "subscription": _same(SUBSCRIPTION, count),
        "broker": _named(BROKERS, _broker_of(number)),
        "consumer": _named(
            [f"consumer-{n}" for n in range(CONSUMERS)], number % PUBLISHERS % CONSUMERS
        ),
        "publisher": _named([f"publisher-{n}" for n in range(PUBLISHERS)], number % PUBLISHERS),
        "sequence": pa.array(number // PUBLISHERS),
        "size": pa.array(np.full(count, 1024, dtype=np.int32)),
        "body_hash": _binary(bodies),
        "redelivered": pa.array(np.zeros(count, dtype=np.int32)),
        "ack": _same("acked", count),
        "received_ns": pa.array(at_ns),
        "acknowledged_ns": pa.array(at_ns + MS),
    }


def _write_notes(lake: Path, files: dict[str, dict[str, Any]], *, end_ns: int) -> None:
    """Write the manifest, whose times are monotonic, and the note of the files."""
    manifest = {
        "run_id": RUN_ID,
        "topics": {TOPIC: [SUBSCRIPTION]},
        "brokers": list(BROKERS),
        "anchor": ANCHOR,
        "start_ns": 0,
        "end_ns": end_ns,
        "publishers": [f"publisher-{n}" for n in range(PUBLISHERS)],
        "consumers": [
            {"name": f"consumer-{n}", "subscription": SUBSCRIPTION} for n in range(CONSUMERS)
        ],
        "complete": True,
    }
    noted = {"folder": str(lake), "files": files, "skipped": [], "missing": []}
    notes = lake / "runs" / RUN_ID
    notes.mkdir(parents=True)
    (notes / "manifest.json").write_text(json.dumps(manifest))
    (notes / "ingested.json").write_text(json.dumps({**noted, "clock_spread_ns": 0}))


def _binary(rows: Ids) -> pa.Array:
    buffer = pa.py_buffer(np.ascontiguousarray(rows))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(ID_BYTES), len(rows), [None, buffer])


def _named(names: Sequence[str], of: NDArray[np.int64]) -> pa.Array:
    return pa.array(names).take(pa.array(of))


def _same(text: str, count: int) -> pa.Array:
    return pa.repeat(text, count)


def _hex(row: Ids) -> str:
    return row.tobytes().hex()


TYPES = {"text": pa.string(), "id16": pa.binary(), "long": pa.int64(), "int": pa.int32()}
DAY = time.strftime("%Y-%m-%d", time.gmtime(WALL_NS // 1_000_000_000))
# The weight of a Parquet file's byte against one of JSON, as a measure of the work to read it.
WEIGHT = 10


def _write(lake: Path, kind: str, known: dict[str, pa.Array]) -> dict[str, Any]:
    """Write one file, and return its entry in the notes: all columns but the partitions' ones."""
    source = f"{kind}-000.parquet"
    folder = lake / kind / f"date={DAY}" / f"run_id={RUN_ID}" / f"source={source}"
    folder.mkdir(parents=True)
    path = folder / "part-00000.snappy.parquet"
    count = len(known["message_id"])
    columns = {
        column.name: known.get(column.name, pa.nulls(count, TYPES[column.kind]))
        for column in EVENTS[kind]
        if column.name != "run_id"
    }
    pq.write_table(pa.table(columns), path)
    size = path.stat().st_size
    return {
        source: {
            **{"kind": kind, "form": "parquet", "bytes": size, "weight": size * WEIGHT},
            **{"sha256": source, "anchors": 0, "has_anchor": True},
            **{"good": count, "bad": {}, "examples": {}},
        }
    }
