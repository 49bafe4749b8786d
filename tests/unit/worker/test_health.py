"""What is answered to whom asks how a worker is."""

from __future__ import annotations

import json

import pytest

from messagebus import ConfigError
from messagebus.worker.health import answer_of, parse_address
from messagebus.worker.pulse import LIVE_S, Pulse


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
