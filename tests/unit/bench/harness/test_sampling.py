from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.errors import InputInvalid
from bench.harness.parts import PARTS, read_parts, read_published, read_received, unreadable
from bench.harness.sampling import (
    Busy,
    Probe,
    Sample,
    Sampler,
    between,
    load,
    look,
    look_at_machine,
    save,
    totals,
    usage,
)
from tests.support.runs import write_run


def counts() -> Mapping[str, int]:
    return {"syncs": 3, "ready": 5, "unacked": 1}


def silent() -> Mapping[str, int]:
    raise httpx.ConnectError("no")


def test_a_broker_that_does_not_answer_has_no_counts_and_no_zero() -> None:
    sample = look(Probe("mb1", os.getpid(), silent), 1.0)
    assert sample is not None
    assert sample.memory_mib > 1
    assert (sample.ready, sample.syncs) == (None, None)
    known = look(Probe("mb1", os.getpid(), counts), 1.0)
    assert known is not None
    assert (known.ready, known.syncs) == (5, 3)


def test_a_process_that_is_gone_has_no_sample() -> None:
    assert look(Probe("mb1", 1 << 22, counts), 1.0) is None


def test_a_run_that_is_over_at_once_has_its_first_and_its_last_look() -> None:
    """The brokers' usage between the two is the cost of the messages, however short the run."""
    sampler = Sampler([Probe("mb1", os.getpid(), counts)], time.monotonic_ns())
    sampler.start()
    samples, busy = sampler.stop()
    assert len(samples) == len(busy) == 2
    assert samples[0].cpu_s <= samples[1].cpu_s


def test_totals_are_of_the_measured_part() -> None:
    samples = [
        Sample(
            "mb1", float(at), cpu_s=at * 0.5, memory_mib=100 + at, written_bytes=at * 10, ready=at
        )
        for at in range(10)
    ]
    found = totals(samples, 2, 6)["mb1"]
    assert found["seconds"] == 4
    assert found["cpu_s"] == pytest.approx(2)
    assert (found["written_bytes"], found["memory_mib"], found["ready_max"]) == (40, 107, 7)
    assert found["syncs"] is None
    assert totals(samples[:1], 0, 9) == {}


def test_what_was_used_between_two_samples_is_counted_by_its_part() -> None:
    seen = [
        Sample("mb1", at, cpu_s=at * 0.5, memory_mib=1.0, written_bytes=0) for at in (0.4, 1.4, 2.4)
    ]
    found = totals(seen, 0.9, 2.0)["mb1"]
    assert found["seconds"] == pytest.approx(1.1)
    assert found["cpu_s"] == pytest.approx(0.55)


def test_a_broker_that_nobody_looked_at_meanwhile_has_its_share_of_cpu_and_no_memory() -> None:
    """The sampler had no turn on a busy machine: one look before, the next long after."""
    seen = [
        Sample("mb1", at, cpu_s=at, memory_mib=1.0, written_bytes=0, ready=3) for at in (-1.0, 15.0)
    ]
    found = totals(seen, 1.0, 3.0)["mb1"]
    assert (found["seconds"], found["cpu_s"]) == (2.0, pytest.approx(2.0))
    assert (found["memory_mib"], found["ready_max"]) == (None, None)


def test_a_broker_that_was_killed_meanwhile_has_no_totals() -> None:
    seen = [Sample("mb1", float(at), at * 0.5, 100.0, at) for at in range(10)]
    assert list(totals(seen, 0, 12)) == ["mb1"]
    assert totals(seen, 0, 40) == {}


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" * 50])
def test_a_file_of_samples_that_is_cut_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "brokers.parquet"
    path.write_bytes(content)
    with pytest.raises(InputInvalid, match=r"brokers\.parquet: not readable: "):
        load(path, Sample)


def test_samples_of_another_kind_are_named(tmp_path: Path) -> None:
    save(tmp_path / "m.parquet", [Busy(1.0, 2.0, 0.5, 3.0)])
    with pytest.raises(InputInvalid, match=r"m\.parquet: not readable: "):
        load(tmp_path / "m.parquet", Sample)


def test_samples_are_read_as_they_were_written(tmp_path: Path) -> None:
    samples = [Sample("mb1", 1.0, 2.0, 3.0, 4), Sample("mb1", 2.0, 2.5, 3.0, 5, 6, 7, 8)]
    save(tmp_path / "s.parquet", samples)
    assert load(tmp_path / "s.parquet", Sample) == samples
    assert load(tmp_path / "none.parquet", Sample) == []
    busy = [Busy(1.0, 2.0, 0.5, 3.0)]
    save(tmp_path / "m.parquet", busy)
    assert load(tmp_path / "m.parquet", Busy) == busy


def busy(at_s: float, busy_s: float, *, stolen_s: float = 0.0, load: float = 1.0) -> Busy:
    return Busy(at_s, busy_s, stolen_s, load)


def test_what_is_neither_brokers_nor_load_is_the_rest() -> None:
    seen = [busy(0, 50), busy(2, 100, load=9), busy(4, 103, load=2), busy(6, 107), busy(9, 200)]
    found = usage(seen, range(2, 6), cores=2, brokers=0.75, clients=0.5)
    assert found is not None
    assert found.busy == pytest.approx(1.75)
    assert found.rest == pytest.approx(0.5)
    assert found.load_max == 9
    assert str(found) == "1.75 of 2 cores busy: load 0.50, brokers 0.75, all else 0.50"


def test_cores_that_went_to_others_are_said() -> None:
    found = usage(
        [busy(0, 0), busy(10, 5, stolen_s=2)], range(11), cores=2, brokers=0.5, clients=0.5
    )
    assert found is not None
    assert found.rest == 0
    assert str(found).endswith("; 0.20 given to others")


def test_one_look_says_nothing() -> None:
    assert usage([busy(1, 5)], range(9), cores=2, brokers=0.0, clients=0.0) is None
    assert usage([], range(9), cores=2, brokers=0.0, clients=0.0) is None


def test_the_machine_is_busier_later() -> None:
    first = look_at_machine(0.0)
    sum(range(3_000_000))
    assert look_at_machine(1.0).busy_s > first.busy_s
    assert first.load >= 0


def test_a_counter_is_known_between_its_points_alone() -> None:
    points = [(1.0, 10.0), (3.0, 30.0)]
    assert between(points, 1.5, 2.5) == pytest.approx(10)
    assert between(points, 0.5, 2.0) is None
    assert between(points, 2.0, 3.5) is None
    assert between([], 0.0, 1.0) is None


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
        "consumer-0: not readable: consumer-0.parquet: "
        "without broker, intended_ns, publisher, received_ns"
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
