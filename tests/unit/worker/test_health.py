"""Pulse and health of a worker."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import traceback
from dataclasses import replace

import pytest

import messagebus
from messagebus import App, AppStats, BrokerStats, ConsumerStats, PublisherStats, Status
from messagebus.worker import pulse as pulse_module
from messagebus.worker import supervisor
from messagebus.worker.health import answer_of
from messagebus.worker.pulse import LIVE_S, STUCK_S, Pulse, Watchdog, look, of_application


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


def test_without_prometheus_client_metrics_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    told = answer_of(Pulse(ZeroClock()))("/metrics")
    assert told.code == 404
    assert b"pip install 'messagebus-rabbitmq[prometheus]'" in told.body
    assert supervisor._metrics({"worker 1": None}) == told


def test_other_paths_are_told_what_there_is() -> None:
    assert answer_of(Pulse(ZeroClock()))("/")[0] == 404


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
    list_age_s=0.005,
    list_faults=0,
    handling=1,
    oldest_run_s=1.25,
)
PUBLISHER = PublisherStats(
    confirmed=0, refused=0, unroutable=0, unknown=0, unconfirmed=0, retried=0, backlog=0, window=0,
    settling=0, broker="b1:5672", dials=1, moves=0, links_lost=0, last_confirm_age_s=None,
    list_age_s=None, list_faults=0,
)  # fmt: skip
ALONE = replace(STATS, brokers={"b1:5672": BrokerStats(state="dialing", delivered=0, owed=0)})
AWAY = replace(STATS, dedup_state="waiting", store_away_s=31)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


# All places of the handler are held by runs that never end, and deliveries wait.
HUNG = replace(STATS, handling=102, overrunning=102, buffered=3)


class FakeApp(App):
    def __init__(self, status: Status, **stats: ConsumerStats) -> None:
        super().__init__()
        self._told, self._status = stats, status

    def stats(self) -> AppStats:
        return AppStats(consumers=self._told, publisher=PUBLISHER)


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
        (FakeApp(Status.RUNNING, orders=HUNG), False, "running"),
        (FakeApp(Status.RUNNING, orders=replace(HUNG, handling=103)), True, "running"),
        (FakeApp(Status.RUNNING, orders=replace(HUNG, buffered=0)), True, "running"),
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
    watchdog = Watchdog(pulse)
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


def test_a_loop_that_no_processor_was_free_for_is_not_stuck(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited_s = [5.0]
    monkeypatch.setattr(pulse_module, "starved_s", lambda _thread: waited_s[0])
    clock = Clock()
    watchdog = Watchdog(Pulse(clock))
    clock.now_s += STUCK_S
    waited_s[0] += STUCK_S
    watchdog.check()
    assert caplog.messages == []
    clock.now_s += 2 * STUCK_S
    watchdog.check()
    assert len(caplog.messages) == 1


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
