"""What a load process writes at its end, and how it is read again: JSON for numbers, Parquet for rows.

``parts/NAME.json`` has its latencies as histogram bins and its own behaviour; ``parts/NAME.parquet``
a row per message. Both are replaced whole, so a part that is there is complete.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.manifest import write_atomically
from bench.run.consuming import Had
from bench.run.counts import Counts
from bench.run.fates import Outcomes, Received
from bench.run.latencies import Latencies
from bench.run.publishing import Sent

__all__ = ["Part", "read_outcomes", "read_parts", "read_received", "write_had", "write_sent"]

PARTS = "parts"
PUBLISHER, CONSUMER = "publisher", "consumer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a load process says of itself. number: of a publisher in the run.

    latencies: measure -> of `Latencies.as_json`; counts: of `Counts.as_json`, confirms of a publisher and
    deliveries of a consumer, by when they came. cpu_s: used in the measured part, which lasted
    measured_s for it; its share, where per_process of them ran in one. busy_s: from the start of the
    load to its last confirm, or from when it was to consume to its last delivery. intended: messages of
    its schedule; sent: of these.
    """

    name: str
    kind: str
    number: int = 0
    subscription: str = ""
    latencies: Mapping[str, list[dict[str, object]]] = field(default_factory=dict)
    counts: list[dict[str, object]] = field(default_factory=list)
    below_zero: Mapping[str, int] = field(default_factory=dict)
    cpu_s: float = 0.0
    per_process: int = 1
    measured_s: float = 0.0
    busy_s: float = 0.0
    intended: int = 0
    sent: int = 0
    waited_s: float = 0.0
    altered: int = 0
    earlier: int = 0
    brokers: tuple[str, ...] = ()


def write_sent(folder: Path, part: Part, sent: Sent) -> None:
    table = pa.table(
        {
            "sequence": pa.array(range(len(sent.outcomes)), pa.int64()),
            "intended_ns": pa.array(sent.intended_ns, pa.int64()),
            "outcome": pa.array(np.frombuffer(bytes(sent.outcomes), dtype=np.uint8)),
        }
    )
    measures = {"confirm": sent.confirm, "service": sent.service, "pacing": sent.pacing}
    _write(folder, part, table, measures, sent.settled)


def write_had(folder: Path, part: Part, had: Had) -> None:
    table = pa.table(
        {
            "publisher": pa.array(had.publishers, pa.int64()),
            "sequence": pa.array(had.sequences, pa.int64()),
            "broker": pa.array(had.broker_of, pa.int64()),
            "intended_ns": pa.array(had.intended_ns, pa.int64()),
            "received_ns": pa.array(had.received_ns, pa.int64()),
        }
    )
    _write(folder, part, table, {"delivery": had.delivery}, had.received)


def _write(
    folder: Path, part: Part, table: pa.Table, measures: Mapping[str, Latencies], counts: Counts
) -> None:
    parts = folder / PARTS
    parts.mkdir(exist_ok=True)
    candidate = parts / f".{part.name}.parquet.part"
    pq.write_table(table, candidate)
    candidate.replace(parts / f"{part.name}.parquet")
    values = asdict(part) | {
        "latencies": {name: each.as_json() for name, each in measures.items()},
        "counts": counts.as_json(),
        "below_zero": {name: each.below_zero for name, each in measures.items()},
    }
    # Last: a part is there when its JSON is.
    write_atomically(parts / f"{part.name}.json", json.dumps(values))


def read_parts(folder: Path) -> list[Part]:
    """Of all processes that came to their end, by name."""
    found = []
    for path in sorted((folder / PARTS).glob("[!.]*.json")):
        values: dict[str, Any] = json.loads(path.read_text())
        found.append(Part(**{**values, "brokers": tuple(values["brokers"])}))
    return found


def read_outcomes(folder: Path, parts: Iterable[Part]) -> Outcomes:
    return {
        part.number: _columns(folder, part)["outcome"].to_numpy()
        for part in parts
        if part.kind == PUBLISHER
    }


def read_received(folder: Path, parts: Iterable[Part]) -> list[Received]:
    found = []
    for part in parts:
        if part.kind == CONSUMER:
            columns = _columns(folder, part)
            found.append(
                Received(
                    subscription=part.subscription,
                    publishers=columns["publisher"].to_numpy(),
                    sequences=columns["sequence"].to_numpy(),
                    brokers=columns["broker"].to_numpy(),
                    altered=part.altered,
                )
            )
    return found


def _columns(folder: Path, part: Part) -> pa.Table:
    return pq.read_table(folder / PARTS / f"{part.name}.parquet")
