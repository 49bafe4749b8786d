"""The consumer list, fetched by HTTP."""

from __future__ import annotations

import asyncio
import gzip
import logging
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from messagebus import BusConfig
from messagebus._io.agents import consumer_list as module
from messagebus._io.agents.consumer_list import ListFollower, fetch_list
from messagebus._io.agents.http import http_client
from messagebus.broker import LIST_BYTES_MAX, BrokerList
from messagebus.errors import ConfigError, ListInvalid, ListUnavailable
from messagebus.tls import TlsFiles, trusting_nobody
from ops.local.certificates import issue_missing
from tests.support.eventually import eventually_async

URL = "http://127.0.0.10:8081/consumer-list"
GOOD = "# cluster: prod\n# generation: 7\nmb1.example:5672\nmb2.example:5672 draining\n"
NEWER = "# cluster: prod\n# generation: 8\nmb1.example:5672\nmb3.example:5672\n"

Answer = httpx.Response | Exception


def text(body: str, status: int = 200) -> httpx.Response:
    return httpx.Response(status, text=body)


BAD: dict[str, Answer] = {
    "empty": text(""),
    "blank": text(" \n\n\t\n"),
    "comments only": text("# cluster: prod\n# generation: 9\n"),
    "HTML": text("<html><body>502 Bad Gateway</body></html>"),
    "a good list with HTML behind it": text(NEWER + "</html>"),
    "truncated in a line": text("# cluster: prod\n# generation: 8\nmb1.example:5672\nmb2.example:"),
    "truncated by its length": httpx.Response(
        200, content=NEWER[:60].encode(), headers={"content-length": str(len(NEWER))}
    ),
    "oversized": text(NEWER + "#" * LIST_BYTES_MAX),
    "older generation": text(NEWER.replace("8", "6")),
    "no generation": text("mb9.example:5672\n"),
    "bad port": text(NEWER.replace("mb3.example:5672", "mb3.example:99999")),
    "port zero": text(NEWER.replace("mb3.example:5672", "mb3.example:0")),
    "a broker twice": text(NEWER + "mb1.example:5672\n"),
    "another cluster": text(NEWER.replace("prod", "test")),
    "no cluster": text(NEWER.replace("# cluster: prod\n", "")),
    "a host that is not allowed": text(NEWER.replace("mb3.example", "evil.test")),
    "not UTF-8": httpx.Response(200, content=b"\xff\xfe" + NEWER.encode()),
    "500": text(NEWER, 500),
    "503": text("no list", 503),
    "404": text(NEWER, 404),
    "redirected": httpx.Response(302, headers={"location": "http://evil.test/"}, text=NEWER),
    "no connection": httpx.ConnectError("refused"),
    "timed out": httpx.ReadTimeout("late"),
    "cut off": httpx.RemoteProtocolError("peer closed connection"),
    "not gzip": httpx.ReadError("broken"),
}


class Agent:
    """Agent that gives its answers in turn; then it keeps every request."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []
        self.idle = asyncio.Event()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if not self.answers:
            self.idle.set()
            await asyncio.Event().wait()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        # A response is read once: give a fresh one, unread as those of a network are.
        body = httpx.ByteStream(answer.content)
        return httpx.Response(answer.status_code, stream=body, headers=answer.headers)


def the_following() -> list[asyncio.Task[object]]:
    return [each for each in asyncio.all_tasks() if "ListFollower" in str(each.get_coro())]


def cancel_the_following() -> None:
    for task in the_following():
        task.cancel()


Follow = Callable[..., Awaitable[tuple[ListFollower, list[BrokerList], Agent]]]


@pytest.fixture
async def follow(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Follow]:
    """Function that follows a list: ``await follow(*answers)``.

    Returns the follower when all answers are read, the lists it applied, the agent.
    """
    for name in ("RETRY_FIRST_MS", "RETRY_MAX_MS", "ASK_EVERY_MS"):
        monkeypatch.setattr(module, name, 0)
    made: list[ListFollower] = []

    async def run(
        *answers: Answer, cache: Path | None = None, interval_s: int = 0
    ) -> tuple[ListFollower, list[BrokerList], Agent]:
        agent, applied = Agent(*answers), list[BrokerList]()
        bus = BusConfig(
            list_urls=(URL,),
            cluster="prod",
            broker_hosts_allowed=("*.example",),
            list_cache=str(cache) if cache else "",
            client_id="me",
        )
        follower = ListFollower(
            bus,
            subscription="orders/billing",
            interval_s=interval_s,
            on_list=applied.append,
            transport=httpx.MockTransport(agent),
        )
        made.append(follower)
        follower.start()
        await asyncio.wait_for(agent.idle.wait(), 60)
        return follower, applied, agent

    yield run
    for follower in made:
        await follower.stop()


async def test_a_newer_list_is_applied(follow: Follow) -> None:
    follower, applied, _ = await follow(text(GOOD), text(NEWER))
    assert [found.generation for found in applied] == [7, 8]
    assert follower.brokers == BrokerList.parse(NEWER)
    assert (follower.keeper.generation, follower.keeper.faults) == (8, 0)
    assert follower.keeper.good_ms is not None


@pytest.mark.parametrize("kind", BAD)
async def test_a_bad_answer_changes_nothing_is_counted_and_told_once(
    follow: Follow, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "messagebus.list"):
        follower, applied, _ = await follow(text(GOOD), *[BAD[kind]] * 5)
    assert applied == [BrokerList.parse(GOOD)]
    assert follower.brokers == BrokerList.parse(GOOD)
    assert follower.keeper.faults == 5
    assert follower.keeper.generation == 7
    assert len(caplog.records) == 1
    assert "list fault count=1" in caplog.text


async def test_after_bad_answers_a_good_one_is_believed_again(follow: Follow) -> None:
    follower, applied, _ = await follow(text(GOOD), *BAD.values(), text(GOOD))
    assert [found.generation for found in applied] == [7]
    assert follower.keeper.faults == len(BAD)
    assert follower.keeper.faults_in_a_row == 0


async def test_a_bad_list_does_not_age_the_good_one(follow: Follow) -> None:
    follower, _, _ = await follow(text(GOOD), text("", 503))
    good_ms = follower.keeper.good_ms
    assert good_ms is not None
    assert follower.keeper.age_ms(good_ms + 5_000) == 5_000


async def test_the_agent_is_told_who_asks_and_what_is_applied(follow: Follow) -> None:
    _, _, agent = await follow(text(GOOD), text(NEWER))
    asked = [dict(request.url.params) for request in agent.requests]
    who = {"client": "me", "subscription": "orders/billing"}
    assert asked == [
        who | {"applied": "0"},
        who | {"applied": "7", "generation": "7", "wait_s": "0"},
        who | {"applied": "8", "generation": "8", "wait_s": "0"},
    ]


@pytest.mark.parametrize("times", [0, 3])
async def test_an_application_that_cancels_all_tasks_does_not_end_the_following(
    follow: Follow, times: int
) -> None:
    follower, applied, agent = await follow(text(GOOD))
    for newer in range(8, 8 + times):
        cancel_the_following()
        agent.answers.append(text(NEWER.replace("generation: 8", f"generation: {newer}")))
        await eventually_async(lambda n=newer: applied[-1].generation == n, within_s=60)  # type: ignore[misc]
    cancel_the_following()
    await follower.stop()
    assert not the_following()


async def test_nothing_new_is_a_good_answer(follow: Follow) -> None:
    follower, applied, _ = await follow(text(GOOD), httpx.Response(304), httpx.Response(304))
    assert (len(applied), follower.keeper.faults) == (1, 0)


async def test_nothing_new_said_at_once_is_not_asked_in_a_tight_loop(
    follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(asyncio, "sleep", _recorded(waits))
    monkeypatch.setattr(module, "monotonic_ms", lambda: 1_000)
    run = follow(text(GOOD), *[httpx.Response(304)] * 3)
    monkeypatch.setattr(module, "ASK_EVERY_MS", 1_000)
    await run
    assert waits == [1.0, 1.0, 1.0]


async def test_lists_without_generation_are_not_asked_for_in_a_tight_loop(
    follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(asyncio, "sleep", _recorded(waits))
    one, two = "# cluster: prod\nmb1.example\n", "# cluster: prod\nmb2.example\n"
    _, applied, _ = await follow(text(one), text(two), text(two), interval_s=30)
    assert [str(entry.broker) for found in applied for entry in found] == [
        "mb1.example:5672",
        "mb2.example:5672",
    ]
    assert waits == [30, 30, 30]


def _recorded(waits: list[float]) -> Callable[[float], Awaitable[None]]:
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await real(0)

    return sleep


async def test_the_other_address_is_asked_after_a_fault(follow: Follow) -> None:
    agent = Agent(text("", 503), text(GOOD))
    bus = BusConfig(list_urls=("http://a.example/l", "http://b.example/l"))
    follower = ListFollower(
        bus,
        subscription="",
        interval_s=0,
        on_list=lambda _: None,
        transport=httpx.MockTransport(agent),
    )
    follower.start()
    await asyncio.wait_for(agent.idle.wait(), 60)
    await follower.stop()
    hosts = [request.url.host for request in agent.requests]
    assert hosts == ["a.example", "b.example", "b.example"]


async def test_without_addresses_the_configured_broker_is_the_whole_list() -> None:
    applied: list[BrokerList] = []
    bus = BusConfig(broker="mb9.example:5673")
    follower = ListFollower(bus, subscription="", interval_s=30, on_list=applied.append)
    follower.start()
    assert [found.names for found in applied] == [{"mb9.example:5673"}]
    await follower.stop()


async def test_who_asks_says_its_login_so_that_agents_count_it(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("geheim")
    agent = Agent(text(GOOD), text(NEWER))
    bus = BusConfig(list_urls=(URL,), client_id="c", user="shop", password_file=str(password))
    follower = ListFollower(
        bus,
        subscription="orders/billing",
        interval_s=0,
        on_list=lambda _: password.unlink(missing_ok=True),
        transport=httpx.MockTransport(agent),
    )
    follower.start()
    await asyncio.wait_for(agent.idle.wait(), 60)
    await follower.stop()
    shown = [request.headers.get("Authorization") for request in agent.requests]
    assert shown[0] == "Basic c2hvcDpnZWhlaW0="
    assert set(shown[1:]) == {None}, "a password that is gone holds up no list"


# The cache.
async def test_the_last_good_list_is_kept_on_disk_and_read_at_the_start(
    follow: Follow, tmp_path: Path
) -> None:
    cache = tmp_path / "list"
    await follow(text(GOOD), cache=cache)
    assert BrokerList.parse(cache.read_text()) == BrokerList.parse(GOOD)
    assert list(tmp_path.glob("*")) == [cache]  # noqa: ASYNC240
    follower, applied, _ = await follow(httpx.ConnectError("down"), cache=cache)
    assert applied == [BrokerList.parse(GOOD)]
    assert follower.keeper.good_ms is None, "a cached list has no good answer yet"


async def test_a_cached_list_gives_way_to_a_newer_one_only(follow: Follow, tmp_path: Path) -> None:
    cache = tmp_path / "list"
    cache.write_text(GOOD)
    _, applied, _ = await follow(text(GOOD.replace("7", "6")), text(NEWER), cache=cache)
    assert [found.generation for found in applied] == [7, 8]


@pytest.mark.parametrize(
    "content",
    [b"", b"<html>", b"\xff\xfe", NEWER.replace("prod", "test").encode(), b"evil.test:5672\n"],
)
async def test_a_cache_that_is_no_list_of_ours_is_ignored_and_told(
    follow: Follow, tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "list"
    cache.write_bytes(content)
    with caplog.at_level(logging.WARNING, "messagebus.list"):
        follower, applied, _ = await follow(text(GOOD), cache=cache)
    assert [found.generation for found in applied] == [7]
    assert follower.keeper.generation == 7
    assert "list cache ignored" in caplog.text


async def test_a_cache_that_cannot_be_written_is_told_and_harms_nothing(
    follow: Follow, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "messagebus.list"):
        _, applied, _ = await follow(text(GOOD), cache=tmp_path / "missing" / "list")
    assert [found.generation for found in applied] == [7]
    assert "list cache not written" in caplog.text


# One fetch.
async def fetch(answer: Answer, url: str = URL) -> BrokerList | None:
    async with httpx.AsyncClient(transport=httpx.MockTransport(Agent(answer))) as http:
        return await fetch_list(http, url)


async def test_a_compressed_list_is_read() -> None:
    packed = gzip.compress(GOOD.encode())
    answer = httpx.Response(
        200,
        stream=httpx.ByteStream(packed),
        headers={"content-encoding": "gzip", "content-length": str(len(packed))},
    )

    async with httpx.AsyncClient(transport=httpx.MockTransport(lambda _: answer)) as http:
        assert await fetch_list(http, URL) == BrokerList.parse(GOOD)


async def test_an_agent_that_is_not_there_is_unavailable_and_a_strange_answer_invalid() -> None:
    with pytest.raises(ListUnavailable, match="503"):
        await fetch(text("", 503))
    with pytest.raises(ListUnavailable, match="refused"):
        await fetch(httpx.ConnectError("refused"))
    with pytest.raises(ListInvalid, match="line 1"):
        await fetch(text("<html>"))


@pytest.mark.parametrize("page", ["OK", "abc\n", "moved\nlogin:80"])
async def test_the_word_of_a_login_page_is_no_list_of_one_broker(page: str) -> None:
    """A captive portal answers any address, before there is a list whose generation could be compared."""
    with pytest.raises(ListInvalid, match="port"):
        await fetch(text(page))
    assert str(await fetch(text("mb1.example:5672\nMB2.example:5673 draining\n")))
    assert str(await fetch(text("# generation: 1\nmb1.example\n")))


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "application/json"])
async def test_a_page_of_another_service_is_named_as_what_it_is(kind: str) -> None:
    page = httpx.Response(200, text="<!DOCTYPE HTML>", headers={"content-type": kind})
    told = f"{URL} answers {kind.partition(';')[0]}: no consumer list"
    with pytest.raises(ListInvalid, match=re.escape(told)):
        await fetch(page)


async def test_a_list_that_stays_away_is_told_again_after_a_minute(
    follow: Follow, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WARN_EVERY_MS", 0)
    await follow(*[BAD["empty"]] * 3)
    assert [each.split()[2] for each in caplog.messages if "list fault" in each] == [
        f"count={number}" for number in (1, 2, 3)
    ]


async def test_an_address_that_is_none_is_unavailable() -> None:
    with pytest.raises(ListUnavailable):
        await fetch(text(GOOD), url="http://host:port/")


async def test_a_list_is_told_as_applied_when_its_brokers_were_tried(follow: Follow) -> None:
    """The next request, which says so, waits for that."""
    bus = BusConfig(list_urls=(URL,), client_id="me")
    agent = Agent(text(GOOD), text(NEWER))
    tried, known = asyncio.Event(), asyncio.Event()
    follower = ListFollower(
        bus,
        subscription="",
        interval_s=0,
        on_list=lambda found: known.set(),
        transport=httpx.MockTransport(agent),
    )
    follower.until_tried = tried.wait
    follower.start()
    try:
        await asyncio.wait_for(known.wait(), 60)
        assert len(agent.requests) == 1
        tried.set()
        await asyncio.wait_for(agent.idle.wait(), 60)
        assert [each.url.params["applied"] for each in agent.requests][:2] == ["0", "7"]
    finally:
        await follower.stop()


def bus(folder: Path) -> BusConfig:
    issue_missing(folder, {"client": ()})
    return BusConfig(
        broker="10.0.0.1:5671",
        tls=True,
        tls_ca_file=str(folder / "ca.pem"),
        tls_cert_file=str(folder / "client.pem"),
        tls_key_file=str(folder / "client.key"),
        tls_server_name="bus.test",
    )


@pytest.mark.parametrize(
    ("url", "name"),
    [("https://10.0.0.1:8081/x", "bus.test"), ("https://10.0.0.2:8081/x", None)],
)
async def test_what_answers_behind_the_balancer_is_for_the_server_name(
    tmp_path: Path, url: str, name: str | None
) -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(200)

    async with http_client(bus(tmp_path), transport=httpx.MockTransport(answer)) as http:
        await http.get(url)
    assert asked[0].extensions.get("sni_hostname") == name


@pytest.mark.parametrize(("scheme", "loads"), [("http", False), ("HTTP", False), ("https", True)])
def test_certificate_authorities_are_loaded_for_https_alone(
    scheme: str, loads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[TlsFiles] = []

    def load(files: TlsFiles) -> ssl.SSLContext:
        loaded.append(files)
        return trusting_nobody()

    monkeypatch.setattr(TlsFiles, "client_context", load)
    http_client(BusConfig(broker="10.0.0.1:5672", list_urls=(f"{scheme}://10.0.0.1:8081/list",)))
    assert bool(loaded) is loads


def test_files_that_have_gone_since_are_told(tmp_path: Path) -> None:
    config = bus(tmp_path)
    (tmp_path / "client.key").unlink()
    with pytest.raises(ConfigError, match="tls_key_file"):
        http_client(config)
