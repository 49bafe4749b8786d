"""Registration and subscriptions at the agents."""

from __future__ import annotations

import asyncio
import json
import ssl
from typing import Any

import httpx
import pytest

from messagebus import (
    BusConfig,
    CertificateRefused,
    ConfigError,
    Durability,
    LinkLost,
    LoginRefused,
    NameInvalid,
    Queue,
    RegistrationIncomplete,
    Secret,
    Subscription,
    Topic,
    TopologyError,
    TopologyMismatch,
)
from messagebus._io.agents import registration as module
from messagebus._io.agents import subscriptions as subscriptions
from messagebus._io.agents.http import http_client
from messagebus._io.agents.registration import Agents, Alone, credentials, topology_for
from messagebus._io.agents.subscriptions import (
    SubscriptionCount,
    count,
    delete,
    purge,
    set_draining,
)
from messagebus._io.amqp.link import _parameters, dial
from messagebus._io.wire import Registration
from messagebus.broker import Broker, BrokerList
from messagebus.errors import ChannelRefused
from messagebus.topology import Wanted, parse_wanted
from ops.local.certificates import issue_missing
from tests.support.fake_amqp import fake_rabbit
from tests.support.proving import proven

COMPLETE = {"complete": True, "held": ["mb1:5672"], "later": ["mb2:5672"], "missing": {}}
PARTLY = {"complete": False, "held": ["mb1:5672"], "later": [], "missing": {"mb2:5672": "down"}}

Answer = httpx.Response | Exception


class Asked:
    """Agents that give their answers in turn, the last one for ever."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, content=answer.content, headers=answer.headers)


def told(what: dict[str, Any], status: int = 200) -> httpx.Response:
    return httpx.Response(status, json=what)


def said(text: str, status: int) -> httpx.Response:
    return httpx.Response(status, text=text)


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_FIRST_MS", 1)
    monkeypatch.setattr(module, "RETRY_MAX_MS", 1)


def agents(asked: Asked) -> Agents:
    bus = BusConfig(
        list_urls=("http://a.example/consumer-list", "http://b.example/consumer-list"),
        user="bus",
        password=Secret("s3cret"),
    )
    return Agents(bus, httpx.MockTransport(asked))


async def register(asked: Asked, *, timeout_ms: int = 5_000, enough: bool = False) -> Registration:
    wanted = [parse_wanted("orders"), parse_wanted("orders/billing")]
    return await agents(asked).register(wanted, timeout_ms=timeout_ms, enough=enough)


async def test_who_deletes_asks_once_and_another_agent_when_one_does_not_answer() -> None:
    asked, source = Asked(httpx.ConnectError("refused"), told(PARTLY)), Subscription.ephemeral("t")
    await agents(asked).delete(source, timeout_ms=1_000)
    assert [request.url.host for request in asked.requests] == ["a.example", "b.example"]
    content = json.loads(asked.requests[-1].content)
    assert content["alive"] is False
    assert [each["name"] for each in content["wanted"]] == [str(source)]


async def test_what_no_agent_deletes_is_told() -> None:
    asked = Asked(said("no majority", 409))
    with pytest.raises(TopologyError, match="no majority"):
        await agents(asked).delete(Subscription.ephemeral("t"), timeout_ms=1_000)
    assert len(asked.requests) == 2


async def test_a_complete_answer_is_a_complete_registration() -> None:
    asked = Asked(told(COMPLETE))
    assert await register(asked) == Registration(True, ("mb1:5672",), ("mb2:5672",), {})
    (request,) = asked.requests
    assert str(request.url) == "http://a.example/topology"
    assert json.loads(request.content) == {"wanted": ["orders", "orders/billing"], "alive": True}
    assert request.headers["authorization"].startswith("Basic ")


async def test_an_incomplete_one_is_repeated_until_it_is_complete() -> None:
    asked = Asked(told(PARTLY), told(PARTLY), told(COMPLETE))
    assert (await register(asked)).complete
    assert [request.url.host for request in asked.requests] == [
        "a.example",
        "b.example",
        "a.example",
    ]


async def test_it_stays_incomplete_with_the_broker_named_and_within_its_time() -> None:
    with pytest.raises(RegistrationIncomplete) as raised:
        await register(Asked(told(PARTLY)), timeout_ms=30)
    assert raised.value.missing == {"mb2:5672": "down"}


async def test_one_broker_that_holds_it_is_enough_where_that_is_asked_for() -> None:
    assert await register(Asked(told(PARTLY)), enough=True) == Registration(
        False, ("mb1:5672",), (), {"mb2:5672": "down"}
    )


async def test_what_exists_beside_a_name_is_told_by_agents_that_say_it() -> None:
    options = {"orders/billing": {"single_active": True, "delivery_limit": 20}}
    assert (await register(Asked(told({**COMPLETE, "options": options})))).options == options
    assert (await register(Asked(told(COMPLETE)))).options == {}


async def test_what_is_new_is_told_by_agents_that_say_it() -> None:
    found = await register(Asked(told({**COMPLETE, "created": ["orders/billing"]})))
    assert found.created == ("orders/billing",)
    partly = told({**PARTLY, "created": ["orders/billing"]})
    assert (await register(Asked(partly, told(COMPLETE)))).created == ("orders/billing",)
    assert (await register(Asked(told(COMPLETE)))).created == ()


@pytest.mark.parametrize(
    "trouble",
    [
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("late"),
        said("no majority", 409),
        told({"error": "no majority"}, 409),
        told({}, 409),
        said("own broker not reachable", 503),
        said("", 500),
        said("<html>hello</html>", 200),
        told({}),
        told({"complete": True, "held": None, "later": [], "missing": {}}),
        told({**COMPLETE, "options": ["orders/billing"]}),
        told({**COMPLETE, "options": {"orders/billing": 5}}),
        told({**COMPLETE, "created": 5}),
        said("[]", 200),
        said("null", 200),
        said("<html>moved</html>", 302),
    ],
    ids=str,
)
async def test_trouble_is_tried_again_and_told_in_the_end(trouble: Answer) -> None:
    assert (await register(Asked(trouble, told(COMPLETE)))).complete
    with pytest.raises(RegistrationIncomplete, match=r"a\.example"):
        await register(Asked(trouble), timeout_ms=30)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_login_is_told_at_once_without_the_password(status: int) -> None:
    asked = Asked(said("no", status))
    with pytest.raises(LoginRefused) as raised:
        await register(asked)
    assert len(asked.requests) == 1
    assert "s3cret" not in str(raised.value)


async def test_a_mismatch_is_told_at_once() -> None:
    asked = Asked(told({"error": "wanted fsync and exists none", "mismatch": True}, 409))
    with pytest.raises(TopologyMismatch, match="wanted fsync and exists none"):
        await register(asked)
    assert len(asked.requests) == 1


async def test_what_is_asked_beside_the_name_is_told_to_the_agent() -> None:
    asked = Asked(told(COMPLETE))
    agents = Agents(
        BusConfig(list_urls=("http://a.example/consumer-list",), password=Secret("s3cret")),
        httpx.MockTransport(asked),
    )
    wanted: list[Wanted] = [
        Queue("jobs", Durability.NONE),
        Subscription(Topic("o"), "s", single_active=True),
    ]
    await agents.register(wanted, timeout_ms=5_000)
    assert json.loads(asked.requests[0].content)["wanted"] == [
        {"name": "queue:jobs", "durability": "none"},
        {"name": "o/s", "single_active": True},
    ]


async def test_a_name_that_the_agent_refuses_is_told_at_once() -> None:
    with pytest.raises(NameInvalid, match="too long"):
        await register(Asked(said("name is too long", 400)))


def test_agents_own_the_topology_where_there_is_a_list() -> None:
    assert isinstance(topology_for(BusConfig(list_urls=("http://a.example/l",))), Agents)
    assert isinstance(topology_for(BusConfig()), Alone)


def test_credentials_say_who_we_are(tmp_path: Any) -> None:
    file = tmp_path / "password"
    file.write_text("zero")
    bus = BusConfig(user="u", password_file=str(file), vhost="v", heartbeat_s=7, client_id="me")
    for password in ("one", "two"):  # it may rotate
        file.write_text(password + "\n")
        made = credentials(bus)
        assert made.password.reveal() == password
    assert (made.user, made.vhost, made.heartbeat_s, made.client_id) == ("u", "v", 7, "me")
    assert credentials(BusConfig()).client_id == "messagebus"


def test_certificates_behind_the_balancer_alone_are_for_the_server_name(tmp_path: Any) -> None:
    issue_missing(tmp_path, {"client": ()})
    bus = BusConfig(
        broker="lb.example:5671",
        tls=True,
        tls_ca_file=str(tmp_path / "ca.pem"),
        tls_server_name="bus.example",
    )
    found = credentials(bus)
    asked = {
        text: _parameters("10.0.0.9", Broker.parse(text), found, 500).ssl_options.server_hostname
        for text in ("lb.example:5671", "mb1.example:5671", "10.0.0.1:5671", "[::1]:5671")
    }
    assert list(asked.values()) == ["bus.example", "mb1.example", "10.0.0.1", "::1"]
    plain = _parameters("10.0.0.9", Broker.parse("mb1"), credentials(BusConfig()), 500)
    assert (plain.host, plain.ssl_options) == ("10.0.0.9", None)


def not_trusted() -> httpx.ConnectError:
    fault = httpx.ConnectError("failed")
    fault.__cause__ = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] no")
    fault.__cause__.verify_message = "no"
    return fault


async def test_one_agent_with_a_strange_certificate_is_passed_over() -> None:
    asked = Asked(not_trusted(), not_trusted(), not_trusted(), told(COMPLETE))
    assert (await register(asked)).complete


async def test_many_strange_certificates_in_a_row_are_told_at_once() -> None:
    asked = Asked(not_trusted())
    with pytest.raises(CertificateRefused, match="its certificate is not good: no"):
        await register(asked)
    assert len(asked.requests) == module.STRANGERS_MAX


async def test_thousands_of_destinations_are_looked_for_on_one_channel() -> None:
    topics = [Topic(f"t{n}") for n in range(3_000)]
    with fake_rabbit() as rabbit:
        for topic in topics:
            rabbit.exchanges[topic.exchange] = "fanout"
        del rabbit.exchanges[topics[7].exchange]
        rabbit.manners.forbidden = {topics[9].exchange}
        bus = BusConfig(broker=rabbit.name)
        link = await dial(bus.address, credentials(bus), timeout_ms=60_000)
        channels, new_channel = list[str](), link._new_channel

        async def counted() -> Any:
            channels.append("")
            return await new_channel()

        link._new_channel = counted  # type: ignore[method-assign]
        faults = await agents(Asked(told(COMPLETE))).verify(link, topics)
        await link.close()
    codes = {topic: fault.code for topic, fault in faults.items()}  # type: ignore[attr-defined]
    assert codes == {topics[7]: 404, topics[9]: 403}
    assert len(channels) == 3, "one more for each that closes it"


async def test_a_link_that_ends_while_destinations_are_looked_for_is_told_as_that() -> None:
    with fake_rabbit() as rabbit:
        bus = BusConfig(broker=rabbit.name)
        link = await dial(bus.address, credentials(bus), timeout_ms=60_000)
        rabbit.stop_reading()
        looking = asyncio.ensure_future(
            agents(Asked(told(COMPLETE))).verify(link, [Topic(f"t{n}") for n in range(9)])
        )
        await asyncio.sleep(0)
        rabbit.drop_connections()
        with pytest.raises(LinkLost):
            await looking
        await link.close()


def known(*names: str) -> httpx.Response:
    return told({"entries": [{"wanted": name, "alive": name != "queue:gone"} for name in names]})


async def exists(asked: Asked) -> bool:
    return await agents(asked).exists(Queue("jobs"), timeout_ms=5_000)


async def test_a_queue_exists_when_one_agent_knows_it() -> None:
    assert await exists(Asked(known("orders", "queue:jobs")))
    # The first has just started, the second does not answer.
    assert await exists(Asked(known(), httpx.ConnectError("refused"), known("queue:jobs")))


async def test_a_queue_is_absent_when_agents_say_so_again_and_again() -> None:
    asked = Asked(known("queue:gone", "jobs", "orders/jobs"))
    assert not await exists(asked)
    assert len(asked.requests) == module.ABSENT_SURE
    assert not await agents(Asked(known("queue:gone"))).exists(Queue("gone"), timeout_ms=5_000)


async def test_whether_a_queue_exists_is_never_guessed() -> None:
    with pytest.raises(RegistrationIncomplete, match="queue:jobs"):
        await agents(Asked(said("busy", 503))).exists(Queue("jobs"), timeout_ms=20)
    with pytest.raises(RegistrationIncomplete):
        await agents(Asked(said("<html>", 200))).exists(Queue("jobs"), timeout_ms=20)
    with pytest.raises(LoginRefused):
        await exists(Asked(said("", 401)))


async def test_what_the_rights_do_not_cover_costs_that_destination_and_is_no_refused_login() -> (
    None
):
    told = {"error": "the rights of user 'bus' do not cover orders", "forbidden": True}
    asked = Asked(httpx.Response(403, json=told))
    with pytest.raises(ChannelRefused, match=r"ACCESS_REFUSED.*do not cover orders") as raised:
        await register(asked)
    assert raised.value.code == 403


async def test_plain_sources_of_a_publishers_destinations_are_told() -> None:
    entries = [
        {"wanted": name, "alive": name != "orders/gone", "plain": name != "orders/all"}
        for name in ("orders", "orders/go", "orders/gone", "orders/all", "clicks/go", "queue:jobs")
    ]
    entries[0].pop("plain")
    asked = Asked(told({"entries": entries}))
    assert await agents(asked).plain_sources(["orders", "queue:jobs"]) == [
        "orders/go",
        "queue:jobs",
    ]


async def test_a_publisher_starts_while_nobody_can_say_who_is_plain() -> None:
    for trouble in (said("busy", 503), said("", 401), httpx.ConnectError("refused")):
        assert await agents(Asked(trouble)).plain_sources(["orders"]) == []


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


class AnsweringAgents:
    """Agents. answers: ``METHOD host:port/path`` -> response; an agent that is not in it refuses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[str, Answer] = {}
        self.requests: list[httpx.Request] = []
        real = http_client

        def through_us(bus: BusConfig, *, timeout: float | None = None) -> httpx.AsyncClient:
            return real(bus, timeout=timeout, transport=httpx.MockTransport(self))

        monkeypatch.setattr(subscriptions, "http_client", through_us)

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
def answering(monkeypatch: pytest.MonkeyPatch) -> AnsweringAgents:
    return AnsweringAgents(monkeypatch)


def answer_of(what: object, status: int = 200) -> httpx.Response:
    return httpx.Response(status, json=what)


def counted(broker: str) -> httpx.Response:
    return answer_of({"broker": broker, "subscriptions": {"orders/billing": BILLING}})


async def test_each_broker_is_counted_by_its_own_agent(answering: AnsweringAgents) -> None:
    answering.answers = {
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
        (answer_of({"error": "no link"}, 503), "HTTP 503 no link"),
        (httpx.Response(500, text="oh"), "HTTP 500 oh"),
        (httpx.Response(200, text="<html>"), "Expecting value"),
        (answer_of([]), "another agent"),
        (counted("mb9:5672"), "another agent"),
        (answer_of({"broker": "mb2:5672"}), "not an agent's answer"),
        (answer_of({"broker": "mb2:5672", "subscriptions": {"a/b": {}}}), "not an agent's answer"),
    ],
    ids=str,
)
async def test_a_broker_that_does_not_answer_is_named(
    answering: AnsweringAgents, answer: Answer, why: str
) -> None:
    answering.answers = {
        "GET mb1:8081/subscriptions": counted("mb1:5672"),
        "GET mb2:9000/subscriptions": answer,
    }
    found = await count(BUS, BROKERS)
    assert {each.broker for each in found.counts} == {"mb1:5672"}
    assert why in found.unanswered["mb2:5672"]


async def test_purging_tells_how_many_on_each_broker(answering: AnsweringAgents) -> None:
    purged = {"broker": "mb1:5672", "purged": {"orders/billing": 7}}
    answering.answers = {"POST mb1:8081/subscriptions/purge": answer_of(purged)}
    done = await purge(BUS, BROKERS, ["orders/billing"], token=TOKEN)
    assert done.dropped == {"mb1:5672": {"orders/billing": 7}}
    assert set(done.unanswered) == {"mb2:5672"}
    assert json.loads(answering.requests[0].content) == {"wanted": ["orders/billing"]}
    assert "operators" not in str(answering.requests[0].headers)


async def test_one_agent_deletes_for_all_and_another_is_asked_if_it_cannot(
    answering: AnsweringAgents,
) -> None:
    answering.answers = {
        "GET mb1:8081/topology": answer_of(MAP),
        "POST mb1:8081/topology": answer_of({"error": "no majority"}, 409),
        "GET mb2:9000/topology": answer_of(MAP),
        "POST mb2:9000/topology": answer_of(DONE),
    }
    done = await delete(BUS, BROKERS, ["orders/billing"], token=TOKEN)
    assert (done.complete, done.held, done.later) == (True, ("mb1:5672",), ("mb2:5672",))
    assert json.loads(answering.requests[-1].content) == {
        "wanted": ["orders/billing"],
        "alive": False,
    }


async def test_what_never_was_cannot_be_deleted(answering: AnsweringAgents) -> None:
    answering.answers = {"GET mb1:8081/topology": answer_of(MAP)}
    with pytest.raises(TopologyError, match="there is no orders/billin"):
        await delete(BUS, BROKERS, ["orders/billin"], token=TOKEN)
    assert len(answering.requests) == 1


@pytest.mark.parametrize("below", ["orders/billing", "stream:orders"])
async def test_a_topic_that_only_a_subscription_or_a_stream_made_can_be_deleted(
    answering: AnsweringAgents, below: str
) -> None:
    known = {"entries": [{"wanted": below, "alive": False}]}
    answering.answers = {
        "GET mb1:8081/topology": answer_of(known),
        "POST mb1:8081/topology": answer_of(DONE),
    }
    assert (await delete(BUS, BROKERS, ["orders"], token=TOKEN)).complete


async def test_a_topic_that_is_read_is_told_at_once(answering: AnsweringAgents) -> None:
    told = {"error": "orders is read: delete orders/billing first", "mismatch": True}
    answering.answers = {
        "GET mb1:8081/topology": answer_of(MAP),
        "POST mb1:8081/topology": answer_of(told, 409),
    }
    with pytest.raises(TopologyError, match=r"^orders is read: delete orders/billing first"):
        await delete(BUS, BROKERS, ["orders"], token=TOKEN)
    assert {request.url.host for request in answering.requests} == {"mb1"}


async def test_nothing_is_said_to_be_deleted_when_nobody_can(answering: AnsweringAgents) -> None:
    answering.answers = {"GET mb2:9000/topology": answer_of([])}
    with pytest.raises(TopologyError, match="there is no"):
        await delete(BUS, BROKERS, ["orders/billing"], token=TOKEN)
    answering.answers = {
        "GET mb2:9000/topology": answer_of(MAP),
        "POST mb2:9000/topology": answer_of({}),
    }
    with pytest.raises(TopologyError, match="nothing is known to be deleted"):
        await delete(BUS, BROKERS, ["orders/billing"], token=TOKEN)


async def test_a_broker_is_drained_by_its_own_agent(answering: AnsweringAgents) -> None:
    second = list(BROKERS)[1]
    answering.answers = {"POST mb2:9000/drain": answer_of({"draining": True})}
    await set_draining(BUS, second, draining=True, token=TOKEN)
    assert json.loads(answering.requests[-1].content) == {"draining": True}
    for answer in (
        answer_of({"error": "not stored: disk full"}, 503),
        httpx.ConnectError("refused"),
    ):
        answering.answers = {"POST mb2:9000/drain": answer}
        with pytest.raises(LinkLost, match=r"disk full|refused"):
            await set_draining(BUS, second, draining=True, token=TOKEN)


@pytest.mark.parametrize("text", ["", "two lines\nof it", "with blanks", "münchen", "nul\0"])
async def test_what_cannot_be_a_token_is_refused_and_not_shown(
    answering: AnsweringAgents, text: str
) -> None:
    for ask in (
        delete(BUS, BROKERS, ["orders/billing"], token=Secret(text)),
        purge(BUS, BROKERS, ["orders/billing"], token=Secret(text)),
    ):
        with pytest.raises(ConfigError) as raised:
            await ask
        assert not text or text not in str(raised.value)
    assert not answering.requests


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_token_or_login_is_told_at_once(
    answering: AnsweringAgents, status: int
) -> None:
    refusal = answer_of({"error": "operators' token wanted"}, status)
    answering.answers = {
        "GET mb1:8081/topology": answer_of(MAP),
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
