"""The server of health checks: slow clients keep no probe out."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from messagebus import ConfigError
from messagebus.http.probes import CONNECTIONS_MAX, Answer, ProbeServer, parse_address
from tests.support.eventually import eventually


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:80", ("127.0.0.1", 80)), (":8080", ("", 8080)), ("[::1]:0", ("::1", 0))],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "8080", "host:", "host:http", "host:65536", "host:-1", "h:" + "9" * 5_000]
)
def test_what_is_no_address_is_told(text: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT wanted"):
        parse_address(text)


@pytest.fixture
def server() -> Iterator[ProbeServer]:
    made = ProbeServer(("127.0.0.1", 0), lambda path: Answer(200, "text/plain", b"ok"), head_s=60)
    yield made
    made.close()


def probed(server: ProbeServer, path: str = "/live") -> str:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as probe:
        probe.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        with probe.makefile("rb") as answer:
            return answer.read().decode().split("\r\n")[0]


def test_many_slow_clients_keep_no_probe_out(server: ProbeServer) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(3 * CONNECTIONS_MAX):
            slow = socket.create_connection(("127.0.0.1", server.port), timeout=5)
            stack.enter_context(slow)
            slow.sendall(b"G")
        for _ in range(10):
            assert probed(server) == "HTTP/1.0 200 OK"


def test_a_server_that_ends_hangs_up_on_whoever_is_connected() -> None:
    made = ProbeServer(("127.0.0.1", 0), lambda path: Answer(200, "text/plain", b"ok"), head_s=60)
    with socket.create_connection(("127.0.0.1", made.port), timeout=5) as waiting:
        waiting.sendall(b"G")
        assert probed(made) == "HTTP/1.0 200 OK"  # so the one before is accepted
        made.close()
        with contextlib.suppress(ConnectionResetError):
            assert waiting.recv(1) == b""


@pytest.mark.guarantee("slow-connections-are-bounded")
def test_clients_that_hang_up_leave_no_work_behind_that_keeps_a_probe_out() -> None:
    asked, go_on = Counter[str](), threading.Event()

    def ask(path: str) -> Answer:
        asked[path] += 1
        if path == "/metrics":
            go_on.wait()
        return Answer(200, "text/plain", b"ok")

    server = ProbeServer(("127.0.0.1", 0), ask)
    for _ in range(CONNECTIONS_MAX // 2):
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as gone:
            gone.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
    assert probed(server) == "HTTP/1.0 200 OK"
    assert asked == {"/metrics": 1, "/live": 1}
    go_on.set()
    eventually(lambda: probed(server, "/metrics") and asked["/metrics"] > 1, within_s=60)
    server.close()


def test_who_sends_a_request_byte_by_byte_is_hung_up_on_at_its_time() -> None:
    server = ProbeServer(
        ("127.0.0.1", 0), lambda path: Answer(200, "text/plain", b"ok"), head_s=0.3
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as slow:

        def is_hung_up_on() -> bool:
            try:
                slow.sendall(b"G")  # each byte in time, the request never
            except OSError:
                return True
            return False

        eventually(is_hung_up_on, within_s=20)
    server.close()


def test_a_head_without_an_end_is_hung_up_on(server: ProbeServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as greedy:
        greedy.sendall(b"GET /live HTTP/1.1\r\nA: ")

        def is_hung_up_on() -> bool:
            try:
                greedy.sendall(b"a" * 65_536)
            except OSError:
                return True
            return False

        eventually(is_hung_up_on, within_s=20)
    assert probed(server) == "HTTP/1.0 200 OK"


def test_an_answer_that_cannot_be_made_is_500_and_the_next_is_served(server: ProbeServer) -> None:
    answer, server.ask = server.ask, lambda path: 1 / 0  # type: ignore[assignment,return-value]
    assert probed(server) == "HTTP/1.0 500 Internal Server Error"
    server.ask = answer
    assert probed(server) == "HTTP/1.0 200 OK"


def test_a_path_of_a_stranger_forges_no_line_of_the_log(
    server: ProbeServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.ask = lambda path: 1 / 0  # type: ignore[assignment,return-value]
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as probe:
        probe.sendall(b"GET /\x1b[2J\nERROR\x85forged" + b"x" * 4_000 + b" HTTP/1.1\r\n\r\n")
        assert b" 500 " in probe.recv(100)
    (record,) = [each for each in caplog.records if "no answer" in each.getMessage()]
    assert record.getMessage().isprintable()
    assert len(record.getMessage()) < 300
