"""Answers to health checks of a worker."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator

import pytest

from messagebus import ConfigError
from messagebus.worker.health import (
    REQUESTS_MAX,
    Answer,
    HealthServer,
    answer_of,
    parse_address,
)
from messagebus.worker.pulse import LIVE_S, Pulse
from tests.support.eventually import eventually


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_ready_says_what_the_loop_said() -> None:
    pulse = Pulse(Clock())
    ask = answer_of(pulse)
    assert ask("/ready").code == 503
    pulse.tell({"ready": True, "status": "running"})
    assert ask("/ready").code == 200
    assert json.loads(ask("/ready").body) == {"ready": True, "status": "running"}
    pulse.tell({"ready": False, "status": "stopping"})
    assert ask("/ready").code == 503


def test_live_while_the_loop_turns() -> None:
    clock = Clock()
    pulse = Pulse(clock)
    ask = answer_of(pulse)
    pulse.tell({"ready": True})
    assert ask("/live").code == 200
    clock.now_s = LIVE_S + 1
    assert ask("/live").code == 503
    assert json.loads(ask("/live").body)["why"] == "no turn for 11.0 s"
    assert ask("/ready").code == 503, "what does not turn is not ready"


def test_an_application_that_is_imported_for_long_is_live_and_not_ready() -> None:
    clock = Clock()
    ask = answer_of(Pulse(clock))
    clock.now_s = 10 * LIVE_S
    assert ask("/live").code == 200
    assert ask("/ready").code == 503


def test_metrics_are_what_is_told() -> None:
    ask = answer_of(Pulse(Clock()), lambda: ("text/plain", b"x 1\n"))
    assert ask("/metrics") == (200, "text/plain", b"x 1\n")
    assert answer_of(Pulse(Clock()))("/metrics").code == 404


def test_other_paths_are_told_what_there_is() -> None:
    assert answer_of(Pulse(Clock()))("/")[0] == 404


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:80", ("127.0.0.1", 80)), (":8080", ("", 8080)), ("[::1]:0", ("::1", 0))],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "8080", "host:", "host:http", "host:65536", "host:-1"])
def test_what_is_no_address_is_told(text: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT wanted"):
        parse_address(text)


@pytest.fixture
def server() -> Iterator[HealthServer]:
    made = HealthServer(
        ("127.0.0.1", 0), lambda path: Answer(200, "text/plain", b"ok"), timeout_s=60
    )
    yield made
    made.close()


def probed(server: HealthServer) -> str:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as probe:
        probe.sendall(b"GET /live HTTP/1.0\r\n\r\n")
        with probe.makefile("rb") as answer:
            return answer.read().decode().split("\r\n")[0]


def test_many_slow_clients_keep_no_probe_out(server: HealthServer) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(2 * REQUESTS_MAX):
            slow = socket.create_connection(("127.0.0.1", server.port), timeout=5)
            stack.enter_context(slow)
            slow.sendall(b"G")
        for _ in range(10):
            assert probed(server) == "HTTP/1.0 200 OK"


def test_who_sends_a_request_byte_by_byte_is_hung_up_on_at_its_time() -> None:
    server = HealthServer(
        ("127.0.0.1", 0), lambda path: Answer(200, "text/plain", b"ok"), timeout_s=0.3
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
