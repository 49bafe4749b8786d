"""Administration: parked messages, proofs of rights, spools."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from messagebus import BusConfig, ConfigError, Message, PublisherConfig, Spool
from messagebus.__main__ import cli
from messagebus._io.admin.parking import SCAN_MAX, Inspection
from messagebus._io.publish.spool import folder as spool_folder
from messagebus.admin import ParkedFilter, directory, parked, read_parked, spool
from messagebus.admin.proof import ASK, Challenges, NotProven, TokenProof, answer_proof
from messagebus.secret import Secret
from messagebus.testing import MemoryBus
from tests.support.eventually import eventually
from tests.support.proving import proven

BUS = BusConfig(broker="mb1.example:5672")


class Deep:
    """A parking queue that gives less than it holds. seen: number of messages that come."""

    seen = 0

    def __init__(self, *_: object, **__: object) -> None: ...

    async def ready(self, sources: Iterable[Any]) -> dict[Any, int]:
        return dict.fromkeys(sources, 80_000)

    async def look(self, _source: Any, ready: int, count_max: int, _see: Any) -> Inspection:
        return Inspection(ready, min(self.seen, count_max))


@pytest.mark.parametrize(
    ("seen", "where", "count", "told"),
    [
        # A broker that is slow, another reader that has them all, and the bound of one look.
        (0, ParkedFilter(message_id="abcdef"), 20, "0 of 80,000 parked messages were looked at"),
        (SCAN_MAX, ParkedFilter(message_id="abcdef"), 20, "65,535 of 80,000"),
        (3, ParkedFilter(), 5, "3 of 80,000"),
        (80_000, ParkedFilter(), 5, ""),
    ],
)
def test_what_was_not_looked_at_is_told(
    monkeypatch: pytest.MonkeyPatch, seen: int, where: ParkedFilter, count: int, told: str
) -> None:
    monkeypatch.setattr(parked, "Parking", Deep)
    monkeypatch.setattr(Deep, "seen", seen)
    faults = read_parked(BUS, ["orders/billing"], where=where, count_max=count).faults
    assert told in faults.get("orders/billing on mb1.example:5672", "")
    assert bool(faults) == bool(told)


TOKEN = Secret("operators")
ASKED = "0123456789abcdef"


def test_the_vector_of_the_wire_format() -> None:
    signed = b"".join(
        b"%d:%s" % (len(part), part)
        for part in (b"answer", ASKED.encode(), b"GET", b"/topology", b"a:5672", b"200", b"", b"{}")
    )
    wanted = hmac.new(b"operators", signed, hashlib.sha256).hexdigest()
    assert wanted == "d90452fafa9e4705bc312292e0460514a1c4b7edd163ca414e6d9a194801b9a5"
    found = answer_proof(
        TOKEN,
        ask=ASKED,
        method="GET",
        target="/topology",
        broker="a:5672",
        status=200,
        etag="",
        body=b"{}",
    )
    assert found == f'MB-Proof broker="a:5672", proof="{wanted}"'


def test_a_nonce_is_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    challenges = Challenges(lambda: TOKEN)
    first = challenges.nonce
    assert challenges.nonce == first
    now_s[0] += 61
    second = challenges.nonce
    assert set(challenges._nonces) == {first, second}
    assert first != second
    now_s[0] += 61
    assert first not in (challenges.nonce, *challenges._nonces)
    now_s[0] += 121
    assert len({challenges.nonce, *challenges._nonces}) == 1


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_token_is_never_sent_and_an_answer_without_a_proof_not_believed(scheme: str) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers.get("Authorization", ""))
        status = 401 if request.method == "POST" else 200
        return httpx.Response(status, headers={"WWW-Authenticate": "Bearer"})

    auth = TokenProof(lambda: TOKEN)
    with httpx.Client(transport=httpx.MockTransport(answer), auth=auth) as http:
        assert http.post(f"{scheme}://a/drain").status_code == 401
        with pytest.raises(NotProven, match="does not prove"):
            http.get(f"{scheme}://a/drain")
    assert asked == ["", ""]


def test_an_answer_is_proved_for_one_request_of_one_agent() -> None:
    kept: list[httpx.Response] = []

    def answer(request: httpx.Request) -> httpx.Response:
        assert ASK in request.headers
        kept.append(proven(request, httpx.Response(200, text="a"), broker="a:1"))
        return kept[0]

    auth = TokenProof(lambda: TOKEN, to="a:1", signs=False)
    with httpx.Client(transport=httpx.MockTransport(answer)) as http:
        assert http.get("http://a/x", auth=auth).text == "a"
        with pytest.raises(NotProven, match="does not prove"):
            http.get("http://a/x", auth=auth)
        kept.clear()
        with pytest.raises(NotProven, match="the agent of a:1 answers"):
            http.get("http://a/x", auth=TokenProof(lambda: TOKEN, to="b:1", signs=False))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A spool that a process left behind: 3 orders and 2 jobs."""
    bus = MemoryBus()
    bus.stop_brokers()
    where = Spool(tmp_path / "spool", after_s=0)
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
            found, _damaged = spool_folder.adopt(path, "broker=memory:5672 vhost=/", set())
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
        "ttl_s": 5.0,
    }
    headers: dict[str, Any] = {"raw": b"\0\xff", "deep": {"list": [1, None]}}
    with bus.publisher(spool=Spool(tmp_path / "spool", after_s=0)) as publisher:
        publisher.send_safe("orders", Message(body=b"x", headers=headers, **fields))
    row = json.loads(run("show", str(tmp_path / "spool"), "--json").stdout)
    assert {name: row[name] for name in fields} == fields
    assert row["headers"] == {"raw": {"$bytes": "00ff"}, "deep": {"list": [1, None]}}


def test_a_host_that_is_off_leaves_time_for_the_next_address_of_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times_s: list[float] = []

    def connect(_address: object, timeout: float) -> socket.socket:
        times_s.append(timeout)
        return socket.socket()

    monkeypatch.setattr(socket, "create_connection", connect)
    directory.reach(BusConfig(), timeout_s=60)
    assert times_s == [directory.REACH_ONE_S]
