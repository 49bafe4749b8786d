"""Search of a recording for one message."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from messagebus.recording.events import SCHEMA
from messagebus.recording.files import message_id_hex
from messagebus_tools.find import find_rows

IDS = [f"{number:032x}" for number in range(300)]
WALL_NS = 1_700_000_000_000_000_000


def recorded(folder: Path) -> Path:
    head = {
        "schema": SCHEMA,
        "anchor": {"host": "h", "process": "p", "wall_minus_monotonic_ns": WALL_NS},
    }
    published = [
        {"message_id": each, "topic": "orders", "outcome": "confirmed", "confirmed_ns": 5_000_000}
        for each in [*IDS, message_id_hex("order-4711")]
    ]
    delivered = [
        {"message_id": each, "topic": "orders", "ack": "acked", "acknowledged_ns": 9_000_000}
        for each in IDS[::2]
    ]
    for kind, rows in (("published", published), ("delivered", delivered)):
        lines = [json.dumps(each, separators=(",", ":")) for each in (head, *rows)]
        (folder / f"{kind}-p.ndjson").write_text("\n".join(lines) + '\n{"message_id":"cut')
    (folder / "published-empty.ndjson").write_text("")
    return folder


@pytest.mark.parametrize("number", [0, 1, 255])
def test_every_row_of_an_id_is_found_in_the_order_of_time(tmp_path: Path, number: int) -> None:
    rows = find_rows(recorded(tmp_path), IDS[number])
    assert [row["at_ms"] for row in rows] == [
        1_700_000_000_005,
        *([1_700_000_000_009] if number % 2 == 0 else []),
    ]
    assert {row["message_id"] for row in rows} == {IDS[number]}


def test_a_beginning_finds_all_that_begin_so_within_a_bound(tmp_path: Path) -> None:
    assert len(find_rows(recorded(tmp_path), IDS[255][:31])) == 16 + 8
    assert len(find_rows(tmp_path, "0000")) == 100


def test_an_id_of_another_form_is_found_by_its_digest(tmp_path: Path) -> None:
    assert len(find_rows(recorded(tmp_path), "order-4711")) == 1
    assert find_rows(tmp_path, "order-47") == []
