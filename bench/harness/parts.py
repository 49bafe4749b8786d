"""The parts that load processes write at their end, and their reader: JSON for numbers, Parquet for rows.

``parts/NAME.json`` has its latencies as histogram bins and its own behaviour; ``parts/NAME.parquet``
a row per message. Both are replaced whole, so an existing part is complete. A part that was spoilt
afterwards does not count, and its name is reported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.errors import InputInvalid
from bench.harness.consuming import Had
from bench.harness.histograms import Counts, Latencies
from bench.harness.outcomes import Published, Received
from bench.harness.publishing import Sent
from messagebus.errors import reason_of
from messagebus.files import replace_file

PARTS = "parts"
PUBLISHER, CONSUMER = "publisher", "consumer"
# The columns that are read again.
COLUMNS = {
    PUBLISHER: {"outcome", "intended_ns"},
    CONSUMER: {"publisher", "sequence", "broker", "intended_ns", "received_ns"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The numbers of one load process. number: of a publisher in the run.

    latencies: measure -> `Latencies.as_json`. counts: `Counts.as_json`, confirms of a publisher or deliveries
    of a consumer, by their times. cpu_s: CPU time in its measured part, which lasted measured_s; its share,
    if per_process clients ran in one process. busy_s: from the start of the load to its last confirm, or from
    the start of consuming to its last delivery. intended: messages of its schedule; sent: those that were
    sent. start_ns: start of the load, in the times of its rows.
    """

    name: str
    kind: str
    number: int = 0
    subscription: str = ""
    latencies: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    counts: list[dict[str, Any]] = field(default_factory=list)
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
    start_ns: int = 0


def write_sent(folder: Path, part: Part, sent: Sent) -> None:
    unsettled = len(sent.outcomes) - len(sent.settled_ns)
    table = pa.table(
        {
            "sequence": pa.array(range(len(sent.outcomes)), pa.int64()),
            "intended_ns": pa.array(sent.intended_ns, pa.int64()),
            "settled_ns": pa.array(np.pad(sent.settled_ns, (0, unsettled)), pa.int64()),
            "outcome": pa.array(np.frombuffer(bytes(sent.outcomes), dtype=np.uint8)),
        }
    )
    measures = {"confirm": sent.confirm, "service": sent.service, "pacing": sent.pacing}
    _write(folder, replace(part, start_ns=sent.start_ns), table, measures, sent.settled)


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
    started = replace(part, start_ns=had.start_ns)
    _write(folder, started, table, {"delivery": had.delivery}, had.received)


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
    # Written last: a part exists when its JSON does.
    replace_file(parts / f"{part.name}.json", json.dumps(values))


def read_parts(folder: Path) -> list[Part]:
    """Read the parts of all processes that came to their end, by name; unreadable ones are left out."""
    return [found for found in _read(folder).values() if isinstance(found, Part)]


def unreadable(folder: Path, names: Iterable[str] = ()) -> list[str]:
    """Return a line for each unreadable part, and for each of these names without a part."""
    read = _read(folder)
    bad = [f"{name}: not readable: {why}" for name, why in read.items() if isinstance(why, str)]
    return bad + [f"{name}: what it wrote is gone" for name in names if name not in read]


def _read(folder: Path) -> dict[str, Part | str]:
    """Read all parts that have a JSON: name -> the part, or its fault."""
    found: dict[str, Part | str] = {}
    for path in sorted((folder / PARTS).glob("[!.]*.json")):
        try:
            found[path.stem] = _part(path)
        except InputInvalid as fault:
            found[path.stem] = str(fault)
    return found


def _part(path: Path) -> Part:
    """Read a part. Raises InputInvalid for an invalid JSON, or a Parquet that is cut or has other columns."""
    try:
        values: dict[str, Any] = json.loads(path.read_text())
        part = Part(**{**values, "brokers": tuple(values["brokers"])})
        wanted = COLUMNS[part.kind]
    except (OSError, ValueError, TypeError, KeyError) as fault:
        raise InputInvalid(f"{path.name}: {reason_of(fault)}") from fault
    rows = path.with_suffix(".parquet")
    try:
        names = set(pq.read_schema(rows).names)
    except (OSError, pa.ArrowException) as fault:
        raise InputInvalid(f"{rows.name}: {reason_of(fault)}") from fault
    if lacking := wanted - names:
        raise InputInvalid(f"{rows.name}: without {', '.join(sorted(lacking))}")
    return part


def read_published(folder: Path, parts: Iterable[Part]) -> dict[int, Published]:
    """Read each publisher's rows, by its number. Raises InputInvalid, with the file, for spoilt rows."""
    found = {}
    for part in parts:
        if part.kind == PUBLISHER:
            columns = _columns(folder, part)
            is_timed = "settled_ns" in columns.column_names
            found[part.number] = Published(
                outcomes=columns["outcome"].to_numpy(),
                intended_ns=columns["intended_ns"].to_numpy() - part.start_ns,
                settled_ns=columns["settled_ns"].to_numpy() - part.start_ns if is_timed else None,
            )
    return found


def read_received(folder: Path, parts: Iterable[Part]) -> list[Received]:
    """Read each consumer's rows. Raises InputInvalid, with the file, for spoilt rows."""
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
                    received_ns=columns["received_ns"].to_numpy() - part.start_ns,
                    intended_ns=columns["intended_ns"].to_numpy() - part.start_ns,
                    names=part.brokers,
                )
            )
    return found


def _columns(folder: Path, part: Part) -> pa.Table:
    path = folder / PARTS / f"{part.name}.parquet"
    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowException) as fault:
        raise InputInvalid(f"{path}: not readable: {reason_of(fault)}") from fault
