"""Promise: an answer that is no good list changes nothing, is counted, and is reported once.

A request that is given up leaves no socket.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urljoin

import httpx
import pytest

from messagebus import BusConfig, Consumer, ConsumerConfig
from messagebus._io.agents.http import http_client
from messagebus.broker import LIST_BYTES_MAX
from ops.local.cluster import LocalCluster
from tests.support.eventually import FACTOR, eventually

READY_WITHIN_S = 60.0
FAULTS = 2
HTML = "<html><body>It works!</body></html>"


class ListServer(ThreadingHTTPServer):
    """Server of the list with steered answers; it passes registrations on to the real agents."""

    daemon_threads = True

    def __init__(self, real_list_url: str, text: str) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.topology_url = urljoin(real_list_url, "topology")
        self.status, self.text, self.declared_more = 200, text, 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/consumer-list"


class _Answer(BaseHTTPRequestHandler):
    server: ListServer

    def do_GET(self) -> None:
        body = self.server.text.encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body) + self.server.declared_more))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {"Authorization": self.headers["Authorization"]}
        answer = httpx.post(
            self.server.topology_url, content=body, headers=headers, timeout=READY_WITHIN_S
        )
        self.send_response(answer.status_code)
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def _served(cluster: LocalCluster, text: str) -> Iterator[ListServer]:
    with ListServer(cluster.list_url, text) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.guarantee("bad-list-changes-nothing")
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param(" \n\n", id="blank"),
        pytest.param("# generation: 99\n", id="no-broker"),
        pytest.param(HTML, id="html"),
        pytest.param("# generation: 99\n127.0.0.1:99999\n", id="bad-port"),
        pytest.param("# generation: 99\n127.0.0.1:5672 drainin\n", id="bad-attribute"),
        pytest.param("# cluster: local\n# generation: 1\n127.0.0.1:9\n", id="older-generation"),
        pytest.param("# cluster: other\n# generation: 99\n127.0.0.1:9\n", id="other-cluster"),
        pytest.param("127.0.0.1:9\n" + "#" * LIST_BYTES_MAX, id="too-large"),
    ],
)
def test_a_bad_list_changes_nothing_and_is_counted_and_told_once(
    cluster: LocalCluster,
    bus: BusConfig,
    topic: str,
    caplog: pytest.LogCaptureFixture,
    text: str,
) -> None:
    _check_nothing_changes(cluster, bus, topic, caplog, text=text)


@pytest.mark.guarantee("bad-list-changes-nothing")
def test_a_truncated_list_changes_nothing(
    cluster: LocalCluster, bus: BusConfig, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = cluster.node("mb1").broker
    text = f"# generation: 99\n{first}\n"
    _check_nothing_changes(cluster, bus, topic, caplog, text=text, declared_more=30)


@pytest.mark.guarantee("bad-list-changes-nothing")
@pytest.mark.parametrize("status", [500, 503, 404])
def test_an_error_instead_of_a_list_changes_nothing(
    cluster: LocalCluster,
    bus: BusConfig,
    topic: str,
    caplog: pytest.LogCaptureFixture,
    status: int,
) -> None:
    text = "# generation: 99\n127.0.0.1:9\n"
    _check_nothing_changes(cluster, bus, topic, caplog, text=text, status=status)


def _check_nothing_changes(
    cluster: LocalCluster,
    bus: BusConfig,
    topic: str,
    caplog: pytest.LogCaptureFixture,
    *,
    text: str,
    status: int = 200,
    declared_more: int = 0,
) -> None:
    caplog.set_level(logging.WARNING, logger="messagebus")
    good = _good_list(cluster)
    with _served(cluster, good) as server:
        bus = replace(bus, list_urls=(server.url,), cluster=cluster.layout.cluster)
        consumer = Consumer(bus, f"queue:{topic}", config=ConsumerConfig(refresh_interval_s=1))
        consumer.start(require="all", timeout_s=READY_WITHIN_S * FACTOR)
        try:
            before = consumer.stats()
            server.status, server.text, server.declared_more = status, text, declared_more
            eventually(lambda: consumer.stats().list_faults >= FAULTS, within_s=READY_WITHIN_S)
            after = consumer.stats()
            assert after.brokers.keys() == before.brokers.keys()
            assert consumer.keep_alive()
            assert after.list_generation == before.list_generation
            age_s = after.list_age_s
            assert age_s is not None
            warnings = [r for r in caplog.records if "list fault" in r.getMessage()]
            assert len(warnings) == 1
            server.status, server.text, server.declared_more = 200, good, 0
            eventually(
                lambda: (consumer.stats().list_age_s or 0) < age_s,
                within_s=READY_WITHIN_S,
                what="a good list is believed again",
            )
        finally:
            consumer.stop(timeout_s=0)


def _good_list(cluster: LocalCluster) -> str:
    """Return a list of generation 7, so that others can be older."""
    lines = cluster.layout.list_file.read_text().splitlines(keepends=True)
    return "".join(line for line in lines if "generation" not in line) + "# generation: 7\n"


GONE_WITHIN_S = 60.0


async def test_a_request_given_up_during_its_handshake_leaves_no_socket() -> None:
    hello, gone = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        hello.set()
        while await reader.read(1_000):
            pass
        gone.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with http_client(BusConfig(tls=True)) as http:
        work = asyncio.ensure_future(http.get(f"https://127.0.0.1:{port}/", timeout=0.3))
        await hello.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    await asyncio.wait_for(gone.wait(), GONE_WITHIN_S)
    server.close()
