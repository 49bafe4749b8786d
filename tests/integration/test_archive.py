"""`messagebus to-file`, `from-file` and `to-http` on a real cluster."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from messagebus import BusConfig, Consumer, Message, Publisher, declare
from messagebus.admin import read_parked
from messagebus.admin.directory import count_subscriptions
from messagebus.envelope import read_envelope
from messagebus.tools.archive import recover, unpacked
from ops.local.cluster import LocalCluster
from tests.support.eventually import eventually

WITHIN_S = 60
# A release tries 50: ARCHIVE_KILLS=50.
KILLS = int(os.environ.get("ARCHIVE_KILLS", "3"))


@contextmanager
def running(cluster: LocalCluster, *words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "messagebus", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **cluster.client_env()},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def waiting(bus: BusConfig, name: str) -> int:
    found = [each for each in count_subscriptions(bus).counts if each.name == name]
    return sum(each.ready + (each.unacked or 0) for each in found)


def archived(folder: Path) -> list[Message]:
    found = []
    for path in sorted(folder.glob("*.ndjson*")):
        with path.open("rb") as raw, unpacked(raw, path.suffix) as file:
            found += [read_envelope(line).message for line in file]
    return found


@pytest.mark.parametrize("compress", ["none", "zstd"])
def test_whatever_kills_to_file_no_message_is_lost(
    cluster: LocalCluster, bus: BusConfig, topic: str, tmp_path: Path, compress: str
) -> None:
    """Acked messages are on the disk; all others come again under their ids."""
    declare(bus, [f"{topic}/all"])
    words = ("to-file", topic, str(tmp_path), "-s", "all", "--compress", compress)
    sent = set[str]()
    with Publisher(bus) as publisher:
        for number in range(KILLS):
            ids = [f"{number}-{n}" for n in range(1_000)]
            with running(cluster, *words) as process:
                bodies = [Message(body=b"x" * 1_000, message_id=each) for each in ids]
                for outcome in publisher.send_many(topic, bodies, timeout_s=WITHIN_S):
                    sent.add(outcome.message_id)
                eventually(lambda: any(tmp_path.glob("*.part")), within_s=WITHIN_S)
                process.kill()
                process.wait(WITHIN_S)
    with running(cluster, *words, "--idle-exit-s", "5") as process:
        _out, err = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 0, err
    # A kill before the first block leaves an empty one.
    assert [each for each in tmp_path.glob("*.part") if each.stat().st_size] == []
    found = archived(tmp_path)
    assert {each.message_id for each in found} == sent
    assert len(sent) == 1_000 * KILLS
    assert {each.body for each in found} == {b"x" * 1_000}
    eventually(lambda: waiting(bus, f"{topic}/all") == 0, within_s=WITHIN_S)


def test_an_archive_is_published_again_with_all_but_the_time(
    cluster: LocalCluster, bus: BusConfig, topic: str, tmp_path: Path
) -> None:
    declare(bus, [f"{topic}/all", f"{topic}-again/all"])
    sent = [Message(body=bytes([n]), key=f"k{n}", headers={"n": n, "b": b"\xff"}) for n in range(9)]
    with Publisher(bus) as publisher:
        publisher.send_many(topic, sent)
    words = ("to-file", topic, str(tmp_path), "-s", "all", "--compress", "gzip")
    with running(cluster, *words, "--idle-exit-s", "3") as process:
        process.communicate(timeout=WITHIN_S)
    files = [str(path) for path in tmp_path.iterdir()]
    with running(cluster, "from-file", *files, "--to", f"{topic}-again") as process:
        _out, err = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, err) == (0, "published 9: confirmed 9\n")
    with Consumer(bus, f"{topic}-again", subscription="all") as consumer:
        found = list[Message]()
        while len(found) < 9:
            delivery = consumer.receive(timeout_s=WITHIN_S)
            assert delivery is not None
            found.append(delivery.message)
            consumer.ack(delivery)
    assert sorted(map(str, found)) == sorted(map(str, archived(tmp_path)))
    assert sorted(each.body for each in found) == [each.body for each in sent]
    assert recover(tmp_path) == []


SECRET = f"whsec_{base64.b64encode(b'k' * 32).decode()}"


class Receiver(ThreadingHTTPServer):
    """Receiver of webhooks that verifies signatures; the body says how it answers."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receiving)
        self.seen = Counter[str]()


class _Receiving(BaseHTTPRequestHandler):
    server: Receiver
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        told = Webhook(SECRET).verify(body, dict(self.headers))
        self.server.seen[told["name"]] += 1
        code = told["codes"][min(self.server.seen[told["name"]], len(told["codes"])) - 1]
        self.send_response(code)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"why")

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_webhooks_are_signed_retried_parked_and_ended_by_410(
    cluster: LocalCluster, bus: BusConfig, topic: str, tmp_path: Path, receiver: Receiver
) -> None:
    declare(bus, [f"{topic}/hook"])
    (tmp_path / "secret").write_text(SECRET)
    url = f"http://127.0.0.1:{receiver.server_port}/hook"
    words = ("to-http", topic, url, "-s", "hook", "--secret-file", str(tmp_path / "secret"))
    with running(cluster, *words) as process:
        _out, err = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, "127.0.0.1 is not public: --allow-host 127.0.0.1" in err) == (
        2,
        True,
    ), err
    codes = {"good": [200], "again": [503, 204], "bad": [422]}
    with (
        Publisher(bus) as publisher,
        running(cluster, *words, "--allow-host", "127.0.0.1") as process,
    ):
        for name, answers in codes.items():
            publisher.send(topic, Message.json({"name": name, "codes": answers}))
        publisher.flush(WITHIN_S)
        eventually(lambda: receiver.seen == {"good": 1, "again": 2, "bad": 1}, within_s=WITHIN_S)
        eventually(lambda: waiting(bus, f"{topic}/hook") == 0, within_s=WITHIN_S)
        # One that is being handled does not wait either.
        (parked,) = eventually(
            lambda: read_parked(bus, [f"{topic}/hook"]).messages, within_s=WITHIN_S
        )
        assert (json.loads(parked.body)["name"], parked.reason) == ("bad", "HTTP 422: why")
        publisher.send_safe(topic, Message.json({"name": "gone", "codes": [410]}))
        _out, err = process.communicate(timeout=WITHIN_S)
    assert (process.returncode, "410 Gone" in err) == (1, True), err
    eventually(lambda: waiting(bus, f"{topic}/hook") == 1, within_s=WITHIN_S)
