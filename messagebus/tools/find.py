"""Search for one message by its id or the beginning of it: parked, in agents' trails, in a recording."""

from __future__ import annotations

import asyncio
import json
import mmap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from messagebus.admin.parked import ParkedFilter, read_parked
from messagebus.clock import NS_PER_MS
from messagebus.config import BusConfig
from messagebus.errors import MessageBusError, RecordingFailed
from messagebus.observing.ask import Asker
from messagebus.observing.trace import Evidence
from messagebus.recording.files import message_id_hex

PARKED_MAX = 20
ID_CHARS_MIN, ID_CHARS_MAX = 6, 255

# Files are searched newest first, at about 1 GB/s from memory.
BYTES_MAX = 8 << 30
ROWS_MAX = 100
FULL_ID = 32


def evidence_of(
    bus: BusConfig,
    message_id: str,
    *,
    recording: str | Path = "",
    topic: str = "",
    published_ms: int | None = None,
) -> Evidence:
    """Look for a message everywhere but in queues in use: that would count as a delivery.

    recording: folder of a recorder's rows, "" for none. topic, published_ms: as somebody said. Waits for
    brokers and agents. Raises ValueError for an id that none is, and MessageBusError.
    """
    if not ID_CHARS_MIN <= len(message_id) <= ID_CHARS_MAX:
        bounds = f"{ID_CHARS_MIN} to {ID_CHARS_MAX}"
        raise ValueError(f"an id, or its beginning, has {bounds} characters")
    with ThreadPoolExecutor(1) as beside:
        asking = beside.submit(lambda: asyncio.run(_trail_of(bus, message_id)))
        rows = find_rows(recording, message_id) if recording else []
        found = read_parked(bus, where=ParkedFilter(message_id=message_id), count_max=PARKED_MAX)
        trail, faults = asking.result()
    return Evidence(
        id=message_id,
        parked=found.messages,
        recorded=rows,
        trail=trail,
        published_ms=published_ms,
        topic=topic.removeprefix("queue:"),
        faults={**found.faults, **faults},
    )


async def _trail_of(bus: BusConfig, id: str) -> tuple[list[dict[str, Any]], dict[str, str]]:
    asker = Asker(bus)
    try:
        return await asker.trail(id)
    except MessageBusError as fault:
        return [], {"the trail": str(fault)}
    finally:
        await asker.close()


def find_rows(folder: str | Path, message_id: str) -> list[dict[str, Any]]:
    """Return rows of published and delivered files about an id, at most 100, the earliest first.

    Each has ``at_ms`` beside its columns: when it was confirmed or sent, answered or received, since 1970.
    Newest files count first, at most 8 GiB of them. Parquet files are not searched. Raises RecordingFailed.
    """
    digits = set("0123456789abcdef")
    is_hex = digits.issuperset(message_id) and len(message_id) <= FULL_ID
    needle = f'"message_id":"{message_id if is_hex else message_id_hex(message_id)}'.encode()
    if not Path(folder).is_dir():
        raise RecordingFailed(f"{folder}: no such folder")
    rows: list[dict[str, Any]] = []
    left = BYTES_MAX
    try:
        files = [
            path
            for kind in ("published", "delivered")
            for path in Path(folder).rglob(f"{kind}-*.ndjson")
        ]
        for path in sorted(files, key=lambda each: -each.stat().st_mtime_ns):
            left -= path.stat().st_size
            if left < 0 or len(rows) >= ROWS_MAX:
                break
            rows += _rows(path, needle)
    except OSError as fault:
        raise RecordingFailed(f"{folder}: {fault.strerror}") from fault
    return sorted(rows[:ROWS_MAX], key=lambda row: row["at_ms"])


def _rows(path: Path, needle: bytes) -> Iterator[dict[str, Any]]:
    if not path.stat().st_size:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        anchor = _read(text[: text.find(b"\n") + 1]).get("anchor", {})
        wall_ns = anchor.get("wall_minus_monotonic_ns", 0)
        at = text.find(needle)
        while at >= 0:
            begin, end = text.rfind(b"\n", 0, at) + 1, text.find(b"\n", at)
            if end < 0:
                return
            if row := _read(text[begin:end]):
                yield {**row, "at_ms": (wall_ns + _time_ns(row)) // NS_PER_MS}
            at = text.find(needle, end)


def _time_ns(row: dict[str, Any]) -> int:
    names = ("confirmed_ns", "sent_ns", "acknowledged_ns", "received_ns")
    return next((row[name] for name in names if isinstance(row.get(name), int)), 0)


def _read(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}
