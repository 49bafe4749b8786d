"""The hook that tells agents of failures and of a share of all messages, and never holds anybody up."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from messagebus import BusConfig, ConfigError, Message, Secret
from messagebus.stats import Durability, Outcome, Published
from messagebus.testing import MemoryBus
from messagebus_tools import trail
from messagebus_tools.trail import NO_CONFIRM, Trail


class Agent(ThreadingHTTPServer):
    """An agent that keeps what it is told. code: of its answers."""

    daemon_threads = True
    code = 200

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.rows: list[dict[str, Any]] = []
        self.asked: list[str] = []

    @property
    def bus(self) -> BusConfig:
        url = f"http://127.0.0.1:{self.server_port}/consumer-list"
        return BusConfig(list_urls=(url,), user="shop", password=Secret("hush"))


class _Answers(BaseHTTPRequestHandler):
    server: Agent

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append(f"{self.path} {self.headers['Authorization'].split()[0]}")
        if self.server.code == 200:
            self.server.rows += [json.loads(line) for line in body.splitlines()]
        self.send_response_only(self.server.code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def agent() -> Iterator[Agent]:
    with Agent() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ended(outcome: Outcome, reason: str = "") -> Published:
    return Published("id-1234", outcome, Durability.NONE, "mb1:5672", reason=reason)


def test_failures_are_told_always_and_successes_by_their_share(agent: Agent) -> None:
    for share, expected in ((0.0, 3), (1.0, 5)):
        agent.rows.clear()
        hook = Trail(agent.bus, share=share, client="shop-1")
        for outcome in (Outcome.UNKNOWN, Outcome.REFUSED, Outcome.UNROUTABLE, Outcome.CONFIRMED):
            hook.published("orders", Message(body=b"secret", message_id="id-1234"), ended(outcome))
        unwaited = ended(Outcome.UNKNOWN, NO_CONFIRM)
        hook.published("orders", Message(body=b"x", message_id="id-1234"), unwaited)
        hook.close()
        assert len(agent.rows) == hook.told == expected
    assert set(agent.asked) == {"/trail Basic"}
    assert agent.rows[0]["what"] == "published: unknown"
    assert "secret" not in str(agent.rows)


async def test_a_handler_that_fails_leaves_rows_of_its_runs(agent: Agent) -> None:
    bus = MemoryBus()
    bus.declare("orders/billing")
    hook = Trail(agent.bus, share=0.0)
    async with bus.async_publisher() as publisher:
        await publisher.send_safe("orders", Message(body=b"x", message_id="id-1234"))
    consumer = bus.async_consumer("orders", subscription="billing", hooks=[hook])
    async with consumer:
        delivery = await consumer.receive(timeout_s=10)
        assert delivery is not None
        hook.handled(delivery, "retry", KeyError("customer"))
        hook.handled(delivery, "ack", None)
        consumer.ack(delivery)
    hook.close()
    (row,) = agent.rows
    assert (row["name"], row["what"], row["attempt"]) == ("orders/billing", "handled: retry", 1)
    assert row["error"] == "KeyError: 'customer'"


@pytest.mark.parametrize("code", [401, 404, 429, 507])
def test_rows_that_no_agent_takes_are_dropped_and_counted(agent: Agent, code: int) -> None:
    agent.code = code
    hook = Trail(agent.bus, share=1.0)
    hook.published("orders", Message(body=b"x", message_id="id-1234"), ended(Outcome.CONFIRMED))
    hook.close()
    assert (hook.told, hook.dropped) == (0, 1)


def test_an_agent_that_is_away_holds_up_nobody(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trail, "ROWS_MAX", 100)
    bus = BusConfig(list_urls=("http://127.0.0.1:1/consumer-list",))
    hook, stays = Trail(bus, share=1.0), threading.Event()
    monkeypatch.setattr(hook, "_begin", stays.set)
    for _ in range(150):
        hook.published("orders", Message(body=b"x", message_id="id-1234"), ended(Outcome.CONFIRMED))
    assert hook.dropped == 50
    monkeypatch.undo()
    hook.published("orders", Message(body=b"x", message_id="id-1234"), ended(Outcome.CONFIRMED))
    hook.close()
    assert (hook.told, hook.dropped) == (0, 151)


def test_a_trail_without_agents_or_with_a_share_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="list_urls"):
        Trail(BusConfig())
    with pytest.raises(ConfigError, match="share 2"):
        Trail(BusConfig(list_urls=("http://x/list",)), share=2)
