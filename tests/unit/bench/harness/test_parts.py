from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.errors import InputInvalid
from bench.harness.parts import PARTS, read_parts, read_published, read_received, unreadable
from tests.support.runs import write_run

NAMES = ["consumer-0", "publisher-0", "publisher-1"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_run(tmp_path)
    return tmp_path


def test_parts_are_read_as_they_were_written(folder: Path) -> None:
    parts = read_parts(folder)
    assert [part.name for part in parts] == NAMES
    assert unreadable(folder, NAMES) == []
    published = read_published(folder, parts)
    assert {number: len(each.outcomes) for number, each in published.items()} == {0: 1200, 1: 1200}
    assert [each.intended_ns[0] for each in published.values()] == [0, 0]
    (received,) = read_received(folder, parts)
    assert (received.subscription, len(received.sequences)) == ("load0/sink0", 2400)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"brokers": [], "odd": 1}', b"\xff"]
)
def test_a_part_whose_numbers_are_spoilt_is_named_and_does_not_count(
    folder: Path, content: bytes
) -> None:
    (folder / PARTS / "publisher-0.json").write_bytes(content)
    assert [part.name for part in read_parts(folder)] == ["consumer-0", "publisher-1"]
    (line,) = unreadable(folder)
    assert line.startswith("publisher-0: not readable: publisher-0.json: ")
    assert line.count("\n") == 0


@pytest.mark.parametrize("content", [None, b"", b"PAR1", b"PAR1" * 50])
def test_a_part_whose_rows_are_spoilt_is_named_and_does_not_count(
    folder: Path, content: bytes | None
) -> None:
    path = folder / PARTS / "consumer-0.parquet"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert [part.name for part in read_parts(folder)] == ["publisher-0", "publisher-1"]
    (line,) = unreadable(folder)
    assert line.startswith("consumer-0: not readable: consumer-0.parquet: ")


def test_rows_of_another_kind_are_named(folder: Path) -> None:
    pq.write_table(pa.table({"sequence": [1]}), folder / PARTS / "consumer-0.parquet")
    assert unreadable(folder) == [
        "consumer-0: not readable: consumer-0.parquet: without broker, publisher, received_ns"
    ]


def test_a_part_that_is_gone_is_named(folder: Path) -> None:
    (folder / PARTS / "publisher-1.json").unlink()
    assert unreadable(folder, NAMES) == ["publisher-1: what it wrote is gone"]


def test_rows_that_are_spoilt_in_their_middle_are_one_line(folder: Path) -> None:
    path = folder / PARTS / "publisher-0.parquet"
    content = bytearray(path.read_bytes())
    content[4:200] = bytes(196)
    path.write_bytes(content)
    parts = read_parts(folder)
    with pytest.raises(InputInvalid, match=r"publisher-0\.parquet: not readable: "):
        read_published(folder, parts)


def test_a_value_of_another_type_is_named(folder: Path) -> None:
    path = folder / PARTS / "publisher-0.json"
    values = json.loads(path.read_text()) | {"kind": "sender"}
    path.write_text(json.dumps(values))
    assert unreadable(folder) == ["publisher-0: not readable: publisher-0.json: 'sender'"]
