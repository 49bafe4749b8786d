"""Agents' answers about subscriptions, and agents without an answer."""

from __future__ import annotations

import json

import httpx
import pytest

from messagebus import BusConfig, ConfigError, LinkLost, LoginRefused, Secret, TopologyError
from messagebus._io.agents import subscriptions as module
from messagebus._io.agents.http import http_client
from messagebus._io.agents.subscriptions import (
    SubscriptionCount,
    count,
    delete,
    purge,
    set_draining,
)
from messagebus.broker import BrokerList
from tests.support.proving import proven

BROKERS = BrokerList.parse("mb1:5672\nmb2:5672 agent=9000\n")
BUS = BusConfig(
    list_urls=("http://lb1/consumer-list", "http://lb2/consumer-list"),
    user="bus",
    password=Secret("s3cret"),
)
TOKEN = Secret("operators")
BILLING = {"ready": 3, "consumers": 1, "unacked": 2, "single_active": True}
DONE = {"complete": True, "held": ["mb1:5672"], "later": ["mb2:5672"], "missing": {}}
MAP = {"entries": [{"wanted": "orders/billing", "alive": False}]}

Answer = httpx.Response | Exception


class Agents:
    """Agents. answers: ``METHOD host:port/path`` -> response; an agent that is not in it refuses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[str, Answer] = {}
        self.requests: list[httpx.Request] = []
        real = http_client

        def through_us(bus: BusConfig, *, timeout: float | None = None) -> httpx.AsyncClient:
            return real(bus, timeout=timeout, transport=httpx.MockTransport(self))

        monkeypatch.setattr(module, "http_client", through_us)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        key = f"{request.method} {request.url.netloc.decode()}{request.url.path}"
        answer = self.answers.get(key, httpx.ConnectError("refused"))
        if isinstance(answer, Exception):
            raise answer
        wants = {"WWW-Authenticate": 'MB-Proof nonce="1"'} if answer.status_code == 401 else {}
        copy = httpx.Response(answer.status_code, content=answer.content, headers=wants)
        return proven(request, copy, broker=f"{request.url.host}:5672")


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> Agents:
    return Agents(monkeypatch)


def told(what: object, status: int = 200) -> httpx.Response:
    return httpx.Response(status, json=what)


def counted(broker: str) -> httpx.Response:
    return told({"broker": broker, "subscriptions": {"orders/billing": BILLING}})


async def test_each_broker_is_counted_by_its_own_agent(agents: Agents) -> None:
    agents.answers = {
        "GET mb1:8081/subscriptions": counted("mb1:5672"),
        "GET mb2:9000/subscriptions": counted("mb2:5672"),
    }
    found = await count(BUS, BROKERS)
    assert found.counts == tuple(
        SubscriptionCount(
            name="orders/billing",
            broker=broker,
            ready=3,
            consumers=1,
            unacked=2,
            single_active=True,
        )
        for broker in ("mb1:5672", "mb2:5672")
    )
    assert found.unanswered == {}


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (httpx.ConnectError("refused"), "refused"),
        (httpx.ReadTimeout(""), "ReadTimeout"),
        (told({"error": "no link"}, 503), "HTTP 503 no link"),
        (httpx.Response(500, text="oh"), "HTTP 500 oh"),
        (httpx.Response(200, text="<html>"), "Expecting value"),
        (told([]), "another agent"),
        (counted("mb9:5672"), "another agent"),
        (told({"broker": "mb2:5672"}), "not an agent's answer"),
        (told({"broker": "mb2:5672", "subscriptions": {"a/b": {}}}), "not an agent's answer"),
    ],
    ids=str,
)
async def test_a_broker_that_does_not_answer_is_named(
    agents: Agents, answer: Answer, why: str
) -> None:
    agents.answers = {
        "GET mb1:8081/subscriptions": counted("mb1:5672"),
        "GET mb2:9000/subscriptions": answer,
    }
    found = await count(BUS, BROKERS)
    assert {each.broker for each in found.counts} == {"mb1:5672"}
    assert why in found.unanswered["mb2:5672"]


async def test_purging_tells_how_many_on_each_broker(agents: Agents) -> None:
    purged = {"broker": "mb1:5672", "purged": {"orders/billing": 7}}
    agents.answers = {"POST mb1:8081/subscriptions/purge": told(purged)}
    done = await purge(BUS, BROKERS, ["orders/billing"], token=TOKEN)
    assert done.dropped == {"mb1:5672": {"orders/billing": 7}}
    assert set(done.unanswered) == {"mb2:5672"}
    assert json.loads(agents.requests[0].content) == {"wanted": ["orders/billing"]}
    assert "operators" not in str(agents.requests[0].headers)


async def test_one_agent_deletes_for_all_and_another_is_asked_if_it_cannot(agents: Agents) -> None:
    agents.answers = {
        "GET mb1:8081/topology": told(MAP),
        "POST mb1:8081/topology": told({"error": "no majority"}, 409),
        "GET mb2:9000/topology": told(MAP),
        "POST mb2:9000/topology": told(DONE),
    }
    done = await delete(BUS, BROKERS, ["orders/billing"], token=TOKEN)
    assert (done.complete, done.held, done.later) == (True, ("mb1:5672",), ("mb2:5672",))
    assert json.loads(agents.requests[-1].content) == {"wanted": ["orders/billing"], "alive": False}


async def test_what_never_was_cannot_be_deleted(agents: Agents) -> None:
    agents.answers = {"GET mb1:8081/topology": told(MAP)}
    with pytest.raises(TopologyError, match="there is no orders/billin"):
        await delete(BUS, BROKERS, ["orders/billin"], token=TOKEN)
    assert len(agents.requests) == 1


async def test_nothing_is_said_to_be_deleted_when_nobody_can(agents: Agents) -> None:
    agents.answers = {"GET mb2:9000/topology": told([])}
    with pytest.raises(TopologyError, match="there is no"):
        await delete(BUS, BROKERS, ["orders/billing"], token=TOKEN)
    agents.answers = {"GET mb2:9000/topology": told(MAP), "POST mb2:9000/topology": told({})}
    with pytest.raises(TopologyError, match="nothing is known to be deleted"):
        await delete(BUS, BROKERS, ["orders/billing"], token=TOKEN)


async def test_a_broker_is_drained_by_its_own_agent(agents: Agents) -> None:
    second = list(BROKERS)[1]
    agents.answers = {"POST mb2:9000/drain": told({"draining": True})}
    await set_draining(BUS, second, draining=True, token=TOKEN)
    assert json.loads(agents.requests[-1].content) == {"draining": True}
    for answer in (told({"error": "not stored: disk full"}, 503), httpx.ConnectError("refused")):
        agents.answers = {"POST mb2:9000/drain": answer}
        with pytest.raises(LinkLost, match=r"disk full|refused"):
            await set_draining(BUS, second, draining=True, token=TOKEN)


@pytest.mark.parametrize("text", ["", "two lines\nof it", "with blanks", "münchen", "nul\0"])
async def test_what_cannot_be_a_token_is_refused_and_not_shown(agents: Agents, text: str) -> None:
    for ask in (
        delete(BUS, BROKERS, ["orders/billing"], token=Secret(text)),
        purge(BUS, BROKERS, ["orders/billing"], token=Secret(text)),
    ):
        with pytest.raises(ConfigError) as raised:
            await ask
        assert not text or text not in str(raised.value)
    assert not agents.requests


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_token_or_login_is_told_at_once(agents: Agents, status: int) -> None:
    refusal = told({"error": "operators' token wanted"}, status)
    agents.answers = {
        "GET mb1:8081/topology": told(MAP),
        "POST mb1:8081/topology": refusal,
        "POST mb1:8081/subscriptions/purge": refusal,
        "GET mb1:8081/subscriptions": refusal,
    }
    with pytest.raises(LoginRefused, match="token wanted"):
        await delete(BUS, BROKERS, ["orders/billing"], token=TOKEN)
    with pytest.raises(LoginRefused):
        await purge(BUS, BROKERS, ["orders/billing"], token=TOKEN)
    with pytest.raises(LoginRefused):
        await count(BUS, BROKERS)
