"""Event files of a run that never happened, of any size, with faults whose ids are known.

Parquet, column by column, so that ten million rows take seconds. One topic with one subscription;
every publisher's messages arrive in order, but for what is planted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

__all__ = ["Planted", "make"]

RUN_ID, TOPIC, SUBSCRIPTION = "made", "orders", "billing"
BROKERS = tuple(f"127.0.0.{11 + n}:5672" for n in range(4))
PUBLISHERS, CONSUMERS = 50, 4
FILE_ROWS = 2_000_000
ID_BYTES = 16
S, MS = 1_000_000_000, 1_000_000
# Noon, so that the largest set stays within its day.
WALL_NS = 1_790_000_000 // 86_400 * 86_400 * S + 43_200 * S
RATE_PER_S = 20_000
ANCHOR = {"host": "made", "process": "made", "wall_minus_monotonic_ns": WALL_NS}

Ids = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Planted:
    """One of each, as hex text. late: came after a later one."""

    lost: str
    altered: str
    doubled: str
    orphan: str
    late: str


def make(folder: Path, messages: int, *, seed: int = 1) -> Planted:
    """Write a whole run of so many messages, 200 at least."""
    folder.mkdir(parents=True)
    chance = np.random.default_rng(seed)
    ids = chance.integers(0, 256, (messages, ID_BYTES), dtype=np.uint8)
    bodies = chance.integers(0, 256, (messages, ID_BYTES), dtype=np.uint8)
    number = np.arange(messages, dtype=np.int64)
    sent_ns = number * (S // RATE_PER_S)
    took_ns = (chance.lognormal(1.6, 0.7, messages) * MS).astype(np.int64)
    _save(folder, "published", _published(ids, bodies, number, sent_ns, took_ns))
    lost, altered, doubled, late = (int(messages * part) for part in (0.2, 0.4, 0.6, 0.7))
    received = _received(ids, bodies, number, sent_ns + 10 * MS)
    _swap(received, late)
    received["body_hash"][altered] = 0
    orphan = _orphan(received, doubled)
    _save(folder, "delivered", _delivered(received, lost, doubled, orphan))
    _write_manifest(folder, int(sent_ns[-1]) + 60 * S)
    return Planted(
        lost=_hex(ids[lost]),
        altered=_hex(ids[altered]),
        doubled=_hex(ids[doubled]),
        orphan=_hex(orphan),
        late=_hex(ids[late]),
    )


def _published(
    ids: Ids, bodies: Ids, number: NDArray[np.int64], sent_ns: NDArray[np.int64], took_ns: Any
) -> dict[str, pa.Array]:
    return {
        "run_id": _same(RUN_ID, len(number)),
        "message_id": _binary(ids),
        "topic": _same(TOPIC, len(number)),
        "broker": _named(BROKERS, _broker_of(number)),
        "publisher": _named([f"publisher-{n}" for n in range(PUBLISHERS)], number % PUBLISHERS),
        "sequence": pa.array(number // PUBLISHERS),
        "size": pa.array(np.full(len(number), 1024, dtype=np.int32)),
        "body_hash": _binary(bodies),
        "outcome": _same("confirmed", len(number)),
        "attempts": pa.array(np.ones(len(number), dtype=np.int32)),
        "intended_ns": pa.array(sent_ns - 1000),
        "sent_ns": pa.array(sent_ns),
        "confirmed_ns": pa.array(sent_ns + took_ns),
    }


def _received(
    ids: Ids, bodies: Ids, number: NDArray[np.int64], received_ns: NDArray[np.int64]
) -> dict[str, Any]:
    return {
        "message_id": ids.copy(),
        "body_hash": bodies.copy(),
        "number": number.copy(),
        "received_ns": received_ns.copy(),
    }


def _broker_of(number: NDArray[np.int64]) -> NDArray[np.int64]:
    """A publisher stays for a while."""
    return (number // (PUBLISHERS * 1000) + number % PUBLISHERS) % len(BROKERS)


def _swap(received: dict[str, Any], late: int) -> None:
    """A message and the next of its publisher, at one consumer, change places."""
    following = late + PUBLISHERS
    times = received["received_ns"]
    times[late], times[following] = times[following], times[late]


def _orphan(received: dict[str, Any], like: int) -> Ids:
    orphan: Ids = received["message_id"][like] ^ 0xFF
    return orphan


def _delivered(
    received: dict[str, Any], lost: int, doubled: int, orphan: Ids
) -> dict[str, pa.Array]:
    keep = np.flatnonzero(received["number"] != lost)
    # A repeat of one, and a stranger, behind all others.
    rows = np.concatenate([keep, [doubled, doubled]])
    ids = received["message_id"][rows]
    ids[-1] = orphan
    number = received["number"][rows]
    times = received["received_ns"][rows]
    times[-2:] = times[:-2].max() + S
    count = len(rows)
    return {
        "run_id": _same(RUN_ID, count),
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
        "body_hash": _binary(received["body_hash"][rows]),
        "redelivered": pa.array(np.zeros(count, dtype=np.int32)),
        "ack": _same("acked", count),
        "received_ns": pa.array(times),
        "acknowledged_ns": pa.array(times + MS),
    }


def _save(folder: Path, kind: str, columns: dict[str, pa.Array]) -> None:
    head = {b"messagebus": json.dumps({"schema": 1, "anchor": ANCHOR})}
    table = pa.table(columns).replace_schema_metadata(head)
    for number, part in enumerate(_parts(table)):
        pq.write_table(part, folder / f"{kind}-{number:03}.parquet")


def _parts(table: pa.Table) -> Iterator[pa.Table]:
    for start in range(0, table.num_rows, FILE_ROWS):
        yield table.slice(start, FILE_ROWS)


def _write_manifest(folder: Path, end_ns: int) -> None:
    values = {
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
    (folder / "manifest.json").write_text(json.dumps(values))


def _binary(rows: Ids) -> pa.Array:
    buffer = pa.py_buffer(np.ascontiguousarray(rows))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(ID_BYTES), len(rows), [None, buffer])


def _named(names: Sequence[str], of: NDArray[np.int64]) -> pa.Array:
    return pa.array(names).take(pa.array(of))


def _same(text: str, count: int) -> pa.Array:
    return pa.repeat(text, count)


def _hex(row: Ids) -> str:
    return row.tobytes().hex()
