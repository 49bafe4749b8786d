"""Counting, reading and dropping of messages in a spool, whether its processes live or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from messagebus import ConfigError, Message, PublisherConfig, Spool
from messagebus.__main__ import cli
from messagebus._io.publish import spool_folder
from messagebus.admin import spool
from messagebus.testing import MemoryBus
from tests.support.eventually import eventually


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A spool that a process left behind: 3 orders and 2 jobs."""
    bus = MemoryBus()
    bus.stop_brokers()
    where = Spool(tmp_path / "spool", after_ms=0)
    with bus.publisher(spool=where) as publisher:
        for number in range(3):
            publisher.send_safe("orders", Message.json({"n": number}, headers={"shop": number}))
        publisher.send_many("queue:jobs", [b"job 0", b"job 1"])
    return tmp_path / "spool"


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["spool", *words], standalone_mode=False)


def arrived(path: Path) -> list[bytes]:
    """Send what is in the spool; return what arrived."""
    bus = MemoryBus()
    bus.declare("orders/billing", "queue:jobs")
    with bus.publisher(spool=path) as publisher:
        publisher.flush()
        eventually(lambda: not publisher.stats().spool_messages, within_s=10)
    return [message.body for name in ("orders", "queue:jobs") for message in bus.published(name)]


def test_it_is_counted_and_read_without_a_change(path: Path) -> None:
    before = {each: each.read_bytes() for each in path.rglob("*") if each.is_file()}
    (found,) = spool.spool_status(path)
    assert (found.messages, found.in_use, found.faults) == (5, False, ())
    assert found.destinations == {"orders": 3, "queue:jobs": 2}
    assert [each.message.body for each in spool.read_spool(path)] == [
        *(b'{"n":%d}' % number for number in range(3)),
        b"job 0",
        b"job 1",
    ]
    assert {each: each.read_bytes() for each in path.rglob("*") if each.is_file()} == before
    with pytest.raises(ConfigError, match="no such folder"):
        spool.spool_status(path / "none")


@pytest.mark.parametrize("segment_bytes", [1, 1 << 24])
def test_a_drop_takes_what_is_meant_and_keeps_the_rest_in_order(
    path: Path, monkeypatch: pytest.MonkeyPatch, segment_bytes: int
) -> None:
    monkeypatch.setattr(spool, "SEGMENT_BYTES", segment_bytes)
    monkeypatch.setattr(spool, "GROUP", 1)
    second = [each.message.message_id for each in spool.read_spool(path)][1]
    done = spool.drop_spooled(path, lambda each: each.message.message_id == second, dry_run=True)
    assert (done.messages, spool.spool_status(path)[0].messages) == (1, 5)
    done = spool.drop_spooled(path, lambda each: each.message.message_id == second)
    assert (done.messages, done.in_use) == (1, ())
    (left,) = spool.spool_status(path)
    assert (left.messages, left.faults) == (4, ())
    assert arrived(path) == [b'{"n":0}', b'{"n":2}', b"job 0", b"job 1"]


def test_a_spool_in_use_is_left_alone(path: Path) -> None:
    bus = MemoryBus()
    bus.stop_brokers()
    with bus.publisher(PublisherConfig(spool=Spool(path))) as publisher:
        publisher.flush()
        assert run("drop", str(path), "--all", "--yes").exit_code == 3
        assert {each.in_use for each in spool.spool_status(path)} == {True}
    assert sum(each.messages for each in spool.spool_status(path)) == 5
    assert run("drop", str(path), "--all", "--yes").exit_code == 0
    assert spool.spool_status(path) == []


def test_the_commands_say_what_there_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = run("status", str(path))
    assert told.exit_code == 0
    assert "left behind: 5 messages" in told.output
    assert "3  orders" in told.output
    monkeypatch.setenv("MESSAGEBUS_PUBLISHER_SPOOL", str(path))
    (row,) = json.loads(run("status", "--json").output)
    assert row["destinations"] == {"orders": 3, "queue:jobs": 2}
    told = run("show", "--destination", "queue:jobs", "--limit", "1")
    assert "queue:jobs  5 bytes  job 0" in told.output
    lines = run("show", "--json").stdout.splitlines()
    assert json.loads(lines[0])["headers"] == {"shop": 0}
    assert "would drop 3 messages" in run("drop", "--destination", "orders", "--dry-run").output


def test_damage_is_found(path: Path) -> None:
    (segment,) = path.glob("*/*.seg")
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(bytes(data))
    told = run("status", str(path))
    assert told.exit_code == 7
    assert "are damaged" in told.output
    assert spool_folder.HOLE not in " ".join(each.name for each in path.rglob("*"))


def test_a_drop_keeps_what_is_damaged(path: Path) -> None:
    (segment,) = path.glob("*/*.seg")
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(bytes(data))
    assert run("drop", str(path), "--destination", "queue:jobs", "--yes").exit_code == 0
    assert run("drop", str(path), "--all", "--yes").exit_code == 0
    told = run("status", str(path))
    assert told.exit_code == 7
    assert "was put aside as damaged" in told.output
    (kept,) = path.glob(f"*/*{spool_folder.HOLE}-*")
    assert kept.read_bytes() in data


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MESSAGEBUS_PUBLISHER_SPOOL", raising=False)


def test_what_is_sent_while_somebody_looks_is_no_damage(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sent(*_: object) -> bytes:
        raise FileNotFoundError

    (before,) = spool.spool_status(path)
    monkeypatch.setattr(spool_folder.SpoolFolder, "read", sent)
    (after,) = spool.spool_status(path)
    assert (before.messages, after.messages, after.faults) == (5, 0, ())
    assert list(spool.read_spool(path)) == []


def test_a_publisher_that_starts_while_somebody_looks_takes_over_what_was_left(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It held the folder's lock as long as it read: the publisher's own messages went first."""
    looked: list[int] = []
    look = spool._look

    def look_slowly(folder: Path) -> spool_folder.Store:
        if not looked:
            found, _damaged = spool_folder.adopt(path)
            looked.append(sum(each.index.messages for each in found))
            for each in found:
                each.folder.close()
        return look(folder)

    monkeypatch.setattr(spool, "_look", look_slowly)
    spool.spool_status(path)
    assert looked == [5]


def test_an_export_has_all_of_a_message(tmp_path: Path) -> None:
    bus = MemoryBus()
    bus.stop_brokers()
    fields: dict[str, Any] = {
        "priority": 3,
        "correlation_id": "c",
        "reply_to": "r",
        "ttl_ms": 5_000,
    }
    headers: dict[str, Any] = {"raw": b"\0\xff", "deep": {"list": [1, None]}}
    with bus.publisher(spool=Spool(tmp_path / "spool", after_ms=0)) as publisher:
        publisher.send_safe("orders", Message(body=b"x", headers=headers, **fields))
    row = json.loads(run("show", str(tmp_path / "spool"), "--json").stdout)
    assert {name: row[name] for name in fields} == fields
    assert row["headers"] == {"raw": {"$bytes": "00ff"}, "deep": {"list": [1, None]}}
