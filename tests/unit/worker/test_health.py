"""Pulse and health of a worker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import threading
import traceback
from collections.abc import Iterator
from dataclasses import replace

import pytest

import messagebus
from messagebus import App, BrokerStats, ConfigError, ConsumerStats, Status
from messagebus.worker.health import REQUESTS_MAX, Answer, HealthServer, answer_of, parse_address
from messagebus.worker.pulse import LIVE_S, STUCK_S, Pulse, Watchdog, look, of_application
from tests.support.eventually import eventually


class ZeroClock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_ready_says_what_the_loop_said() -> None:
    pulse = Pulse(ZeroClock())
    ask = answer_of(pulse)
    assert ask("/ready").code == 503
    pulse.tell({"ready": True, "status": "running"})
    assert ask("/ready").code == 200
    assert json.loads(ask("/ready").body) == {"ready": True, "status": "running"}
    pulse.tell({"ready": False, "status": "stopping"})
    assert ask("/ready").code == 503


def test_live_while_the_loop_turns() -> None:
    clock = ZeroClock()
    pulse = Pulse(clock)
    ask = answer_of(pulse)
    pulse.tell({"ready": True})
    assert ask("/live").code == 200
    clock.now_s = LIVE_S + 1
    assert ask("/live").code == 503
    assert json.loads(ask("/live").body)["why"] == "no turn for 11.0 s"
    assert ask("/ready").code == 503, "what does not turn is not ready"


def test_an_application_that_is_imported_for_long_is_live_and_not_ready() -> None:
    clock = ZeroClock()
    ask = answer_of(Pulse(clock))
    clock.now_s = 10 * LIVE_S
    assert ask("/live").code == 200
    assert ask("/ready").code == 503


def test_metrics_are_what_is_told() -> None:
    ask = answer_of(Pulse(ZeroClock()), lambda: ("text/plain", b"x 1\n"))
    assert ask("/metrics") == (200, "text/plain", b"x 1\n")
    assert answer_of(Pulse(ZeroClock()))("/metrics").code == 404


def test_other_paths_are_told_what_there_is() -> None:
    assert answer_of(Pulse(ZeroClock()))("/")[0] == 404


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


STATS = ConsumerStats(
    brokers={"b1:5672": BrokerStats(state="open", delivered=3, owed=1)},
    delivered=3,
    acked=2,
    nacked=0,
    acks_stale=0,
    batches_damaged=0,
    buffered=0,
    handed_out=1,
    list_generation=1,
    list_age_ms=5,
    list_faults=0,
    handling=1,
    oldest_run_s=1.25,
)
ALONE = replace(STATS, brokers={"b1:5672": BrokerStats(state="dialing", delivered=0, owed=0)})
AWAY = replace(STATS, dedup_state="waiting", store_away_s=31)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class FakeApp(App):
    def __init__(self, status: Status, **stats: ConsumerStats) -> None:
        super().__init__()
        self._told, self._status = stats, status

    def stats(self) -> dict[str, ConsumerStats]:
        return self._told


@pytest.mark.parametrize(
    ("app", "ready", "status"),
    [
        (FakeApp(Status.RUNNING, orders=STATS), True, "running"),
        (FakeApp(Status.RUNNING, orders=STATS, jobs=ALONE), False, "running"),
        (FakeApp(Status.STOPPED, orders=STATS), False, "stopping"),
        (FakeApp(Status.RUNNING, orders=replace(AWAY, store_away_s=29)), True, "running"),
        (FakeApp(Status.RUNNING, orders=AWAY), False, "running"),
        (FakeApp(Status.RUNNING, orders=replace(AWAY, dedup_state="open")), True, "running"),
        (FakeApp(Status.RUNNING, orders=replace(STATS, keys_stopped=1)), False, "running"),
        (FakeApp(Status.INITIALIZED), False, "starting"),
    ],
)
def test_an_app_is_ready_when_it_runs_and_is_attached(app: App, ready: bool, status: str) -> None:
    told = look(app)
    assert (told["ready"], told["status"]) == (ready, status)


def test_each_subscription_is_told() -> None:
    assert look(FakeApp(Status.RUNNING, orders=STATS))["subscriptions"]["orders"] == {
        "brokers": {"b1:5672": "open"},
        "handling": 1,
        "oldest_run_s": 1.2,
        "parked": 0,
        "retried": 0,
    }


def test_a_pulse_ages_until_it_is_told_again() -> None:
    clock = Clock()
    pulse = Pulse(clock)
    clock.now_s += LIVE_S
    assert pulse.age_s == LIVE_S
    assert pulse.look["ready"] is False
    pulse.tell({"ready": True})
    assert pulse.age_s == 0
    assert pulse.look == {"ready": True}


def test_a_stuck_loop_is_named_once_each_time(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    pulse = Pulse(clock)
    watchdog = Watchdog(pulse, threading.get_ident())
    with caplog.at_level(logging.WARNING, "messagebus.worker"):
        watchdog.check()
        clock.now_s += STUCK_S
        watchdog.check()
        watchdog.check()
        pulse.tell({})
        watchdog.check()
        clock.now_s += STUCK_S
        watchdog.check()
    assert len(caplog.messages) == 2
    assert "loop stuck stuck_s=2.0" in caplog.messages[0]
    assert "test_health.py" in caplog.messages[0]


@pytest.mark.parametrize(
    ("file", "ours"),
    [
        ("/srv/shop/orders.py", True),
        (asyncio.__file__.replace("asyncio/__init__.py", "site-packages/shop/orders.py"), True),
        (asyncio.__file__, False),
        (messagebus.__file__, False),
        ("<frozen importlib._bootstrap>", False),
    ],
)
def test_lines_of_others_are_left_out(file: str, ours: bool) -> None:
    frame = traceback.FrameSummary(file, 3, "f", line="")
    assert of_application([frame]) == ([frame] if ours else [])
