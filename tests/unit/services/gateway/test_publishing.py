"""The gateway's publishes over real HTTP, with brokers in memory."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import socket
import ssl
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messagebus import ConfigError, MessageInvalid, NameInvalid, PublisherConfig
from messagebus.core.headers import OF_BROKERS
from messagebus.http.allowance import Places
from messagebus.message import BODY_BYTES_MAX
from messagebus.services.gateway import publishing
from messagebus.services.gateway.config import GatewayConfig, Limits
from messagebus.services.gateway.people import LOOK_EVERY_MS, People, Principal, read_tokens
from messagebus.services.gateway.problems import DOCS, Problem
from messagebus.services.gateway.publishing import LARGE_BYTES
from messagebus.services.gateway.reading import read_lines
from messagebus.testing import MemoryBus
from ops.local.certificates import issue_missing
from tests.support.eventually import eventually_async
from tests.support.examples import examples
from tests.support.gateway import gateway_on, make_bus, token_entry, write_tokens

NDJSON = {"Content-Type": "application/x-ndjson"}
BATCH = "/v1/topics/orders/messages:batch"


def lines(*entries: Any) -> bytes:
    return b"\n".join(json.dumps(each).encode() for each in entries)


async def test_the_body_is_the_message_and_201_means_confirmed() -> None:
    bus = make_bus()
    body = bytes(range(256))
    headers = {
        "Content-Type": "image/png",
        "Idempotency-Key": "order-1",
        "MB-Key": "customer-7",
        "MB-Priority": "3",
        "MB-Type": "placed",
        "MB-Correlation-Id": "c",
        "MB-Reply-To": "r",
        "MB-TTL-S": "60",
        "MB-Header-Shop": "Größe 12",
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    }
    async with gateway_on(bus) as served:
        answer = await served.http.post(
            "/v1/topics/orders/messages",
            content=body,
            # In UTF-8.
            headers={name.encode(): value.encode() for name, value in headers.items()},
        )
    assert answer.status_code == 201
    assert answer.json() == {"id": "order-1", "outcome": "confirmed", "broker": bus.brokers[0]}
    (message,) = bus.assert_published("orders", count=1)
    assert (message.body, message.content_type, message.message_id) == (
        body,
        "image/png",
        "order-1",
    )
    assert (message.key, message.priority, message.type) == ("customer-7", 3, "placed")
    assert (message.correlation_id, message.reply_to, message.ttl_s) == ("c", "r", 60)
    assert message.headers["shop"] == "Größe 12"
    assert str(message.headers["traceparent"]).startswith("00-4bf9")


async def test_an_id_is_made_and_told_where_none_is_given() -> None:
    bus = make_bus()
    async with gateway_on(bus) as served:
        told = (await served.publish()).json()["id"]
    assert [each.message_id for each in bus.published("orders")] == [told]


async def test_every_end_has_its_status_and_words() -> None:
    bus = make_bus()
    async with gateway_on(bus) as served:
        missing = await served.publish(to="nobody")
        bus.refuse_next("orders")
        refused = await served.publish(idempotency_key="k2")
        bus.freeze()
        unknown = await served.publish(idempotency_key="k3", mb_timeout_s="0.2")
        bus.thaw()
        again = await served.publish(idempotency_key="k3")
    for answer, status, outcome, retry in (
        (missing, 404, "unroutable", False),
        (refused, 503, "refused", True),
        (unknown, 504, "unknown", True),
    ):
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        told = answer.json()
        assert (told["status"], told["outcome"], told["retry"]) == (status, outcome, retry)
        assert told["docs"] == f"docs/reference/errors.md#{outcome}"
        assert told["message_id"]
    assert refused.headers["retry-after"] == "1"
    assert unknown.json()["message_id"] == "k3"
    assert again.status_code == 201
    assert "idempotent-replayed" not in again.headers


async def test_where_no_broker_is_nothing_is_sent_and_it_says_so() -> None:
    bus = make_bus()
    bus.stop_brokers()
    async with gateway_on(bus) as served:
        answer = await served.publish(mb_timeout_s="0.2")
        ready = await served.http.get(f"{served.gateway.admin_url}/readyz")
    assert (answer.status_code, answer.json()["outcome"]) == (503, "not sent")
    assert ready.status_code == 503


async def test_a_full_backlog_is_told_within_the_wait() -> None:
    bus = make_bus()
    few = PublisherConfig(backlog_messages_max=1, window=1)
    async with gateway_on(bus, publisher=few, limits={"admit_wait_s": 0.1}) as served:
        await served.publish()
        bus.freeze()
        ends = [asyncio.create_task(served.publish(mb_timeout_s="1")) for _ in range(8)]
        statuses = [(await each).json()["outcome"] for each in ends]
        bus.thaw()
    assert set(statuses) <= {"unknown", "not sent"}
    assert statuses.count("not sent") >= 5


async def test_a_key_that_comes_again_is_answered_and_not_published() -> None:
    bus = make_bus()
    async with gateway_on(bus) as served:
        first = await served.publish("a", idempotency_key="k")
        again = await served.publish("a", idempotency_key="k")
        other = await served.publish("b", idempotency_key="k")
    assert again.json() == first.json()
    assert again.headers["idempotent-replayed"] == "true"
    assert (other.status_code, len(bus.published("orders"))) == (422, 1)


async def test_two_requests_with_one_key_at_once_are_one_message() -> None:
    bus = make_bus()
    async with gateway_on(bus) as served:
        both = await asyncio.gather(*(served.publish("a", idempotency_key="k") for _ in range(5)))
    assert {each.status_code for each in both} == {201}
    assert len(bus.published("orders")) == 1


async def test_two_requests_with_one_key_that_wait_for_room_are_one_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arrived: list[str] = []
    check = Principal.check

    def noted(self: Principal, right: str, name: str) -> None:
        arrived.append(name)
        check(self, right, name)

    monkeypatch.setattr(Principal, "check", noted)
    bus = make_bus()
    few = PublisherConfig(backlog_messages_max=1, window=1)
    async with gateway_on(bus, publisher=few, limits={"admit_wait_s": 20}) as served:
        await served.publish()
        bus.freeze()
        asked = [
            asyncio.create_task(served.publish("f", mb_timeout_s="30", **key))
            for key in [dict[str, str]()] * 3 + [{"idempotency_key": "k"}] * 2
        ]
        await eventually_async(lambda: len(arrived) == 1 + len(asked), within_s=60)
        await served.http.get("/")  # those that arrived wait by now
        bus.thaw()
        ends = await asyncio.gather(*asked)
    assert {each.status_code for each in ends} == {201}
    assert [each.message_id for each in bus.published("orders")].count("k") == 1


async def test_no_confirm_is_waited_for_where_none_is_wanted() -> None:
    bus = make_bus()
    async with gateway_on(bus) as served:
        await served.publish()
        bus.freeze()
        answer = await served.publish(mb_durability="none", idempotency_key="n")
        bus.thaw()
        assert (answer.status_code, answer.json()["outcome"]) == (202, "accepted")
        await eventually_async(lambda: len(bus.published("orders")) == 2, within_s=60)


@pytest.mark.parametrize(
    "headers",
    [
        {"Idempotency-Key": "a b"},
        {"Idempotency-Key": "x" * 129},
        {"MB-Priority": "10"},
        {"MB-Priority": "-1"},
        {"MB-Delay-S": "nan"},
        {"MB-Delay-S": "604801"},
        {"MB-TTL-S": "-1"},
        {"MB-Timeout-S": "31"},
        {"MB-Durability": "some"},
        {"MB-Nonsense": "1"},
        {"MB-Header-": "1"},
        {"MB-Key": "k" * 256},
        {"MB-Reply-To": "amq.rabbitmq.reply-to"},
        {"Content-Encoding": "gzip"},
        {"ce-id": "1"},
        {"Content-Type": "application/cloudevents+json"},
        {f"MB-Header-{n}": "x" for n in range(65)},
    ],
)
async def test_a_wrong_header_is_a_400_and_nothing_is_sent(headers: dict[str, str]) -> None:
    bus = make_bus()
    async with gateway_on(bus) as served:
        answer = await served.http.post("/v1/topics/orders/messages", content=b"x", headers=headers)
    assert (answer.status_code, answer.json()["outcome"]) == (400, "not sent")
    assert bus.published("orders") == []


async def test_names_that_may_not_be_and_ways_that_are_not_there_are_problems() -> None:
    async with gateway_on(make_bus()) as served:
        for method, path, status in (
            ("POST", "/v1/topics/amq.x/messages", 400),
            ("POST", "/v1/topics/a%20b/messages", 400),
            ("GET", "/v1/topics/orders/messages", 405),
            ("GET", "/nowhere", 404),
        ):
            answer = await served.http.request(method, path)
            assert answer.status_code == status
            assert answer.json()["docs"] == (NameInvalid.docs if status == 400 else DOCS)
            assert answer.headers["content-type"] == "application/problem+json"


async def test_a_body_over_its_bound_is_a_413_with_and_without_a_length() -> None:
    async def chunks() -> Any:
        for _ in range(17):
            yield b"x" * (1 << 20)

    async with gateway_on(make_bus()) as served:
        told = await served.publish(b"x" * (BODY_BYTES_MAX + 1))
        streamed = await served.http.post("/v1/topics/orders/messages", content=chunks())
        largest = await served.publish(b"x" * BODY_BYTES_MAX, mb_timeout_s="30")
    assert (told.status_code, streamed.status_code, largest.status_code) == (413, 413, 201)


# Batches.
async def test_a_batch_is_201_only_if_all_of_it_is_confirmed() -> None:
    bus = make_bus()
    entries = [
        {"id": "b1", "body": "text", "key": "k", "headers": {"a": 1}},
        {"body_base64": "/w==", "content_type": "image/png", "delay_s": 0, "received": {}},
        {"body": ""},
    ]
    async with gateway_on(bus) as served:
        answer = await served.http.post(BATCH, content=lines(*entries), headers=NDJSON)
        bus.refuse_next("orders")
        partly = await served.http.post(BATCH, content=lines(*entries), headers=NDJSON)
        nowhere = "/v1/topics/nobody/messages:batch"
        lost = await served.http.post(nowhere, content=lines(*entries), headers=NDJSON)
        bus.freeze()
        unknown = await served.http.post(
            BATCH, content=lines(*entries), headers=NDJSON | {"MB-Timeout-S": "0.2"}
        )
    told = answer.json()
    assert (answer.status_code, told["confirmed"], len(told["messages"])) == (201, 3, 3)
    assert told["messages"][0] == {"id": "b1", "outcome": "confirmed", "broker": bus.brokers[0]}
    assert (partly.status_code, partly.json()["confirmed"]) == (503, 2)
    assert sum(each["outcome"] == "refused" for each in partly.json()["messages"]) == 1
    assert (lost.status_code, lost.json()["confirmed"]) == (404, 0)
    assert (unknown.status_code, unknown.json()["outcome"]) == (504, "unknown")


async def test_a_backlog_that_fills_in_the_middle_of_a_batch_makes_nothing_unknown() -> None:
    bus = make_bus()
    bound = PublisherConfig(backlog_bytes_max=100_000, window=1)
    # A whole line each: they are handed over together.
    entries = lines(*({"id": f"b{n}", "body": "x" * 9_000} for n in range(5))) + b"\n"
    async with gateway_on(bus, publisher=bound) as served:
        assert (await served.publish()).status_code == 201
        bus.freeze()
        before = [
            asyncio.create_task(served.publish(b"x" * 60_000, mb_timeout_s="20")) for _ in range(2)
        ]
        waiting = served.gateway._publishers.own.stats
        await eventually_async(lambda: waiting().backlog == 1, within_s=60)
        headers = NDJSON | {"MB-Timeout-S": "0.5"}
        answer = await served.http.post(BATCH, content=entries, headers=headers)
        bus.thaw()
        await asyncio.gather(*before)
    told = answer.json()
    assert [each["id"] for each in told["messages"]] == [f"b{n}" for n in range(5)]
    assert {each["outcome"] for each in told["messages"]} == {"not sent"}
    assert answer.status_code == 503
    assert {each.message_id for each in bus.published("orders")}.isdisjoint({"b0", "b4"})


async def test_a_body_that_is_no_text_is_a_malformed_line() -> None:
    bus = make_bus()
    for more in ("", ', "key": "k"'):
        async with gateway_on(bus) as served:
            line = f'{{"body": "\\ud800"{more}}}'.encode()
            answer = await served.http.post(BATCH, content=line, headers=NDJSON)
        assert (answer.status_code, answer.json()["line"]) == (400, 1)
    assert bus.published("orders") == []


async def test_a_malformed_line_is_named_with_the_ends_of_those_before_it() -> None:
    bus = make_bus()
    text = lines({"id": "a", "body": "1"}, {"id": "b", "body": "2"}) + b"\n\n{oops\n" + lines({})
    async with gateway_on(bus) as served:
        answer = await served.http.post(BATCH, content=text, headers=NDJSON)
        whole = await served.http.post(f"{BATCH}?whole=1", content=text, headers=NDJSON)
        empty = await served.http.post(BATCH, content=b"\n \n", headers=NDJSON)
    told = answer.json()
    assert (answer.status_code, told["line"]) == (400, 4)
    assert [each["id"] for each in told["messages"]] == ["a", "b"]
    assert (whole.status_code, whole.json()["line"]) == (400, 4)
    assert (empty.status_code, empty.json()["detail"]) == (400, "an empty batch")
    assert [each.message_id for each in bus.published("orders")] == ["a", "b"]


async def test_a_batch_is_published_while_it_is_read() -> None:
    bus = make_bus()
    go_on = asyncio.Event()

    async def stream() -> Any:
        yield lines({"id": "first", "body": "1"}) + b"\n"
        await go_on.wait()
        yield lines({"id": "last", "body": "2"})

    async with gateway_on(bus) as served:
        sending = asyncio.create_task(served.http.post(BATCH, content=stream(), headers=NDJSON))
        await eventually_async(lambda: len(bus.published("orders")) == 1, within_s=60)
        go_on.set()
        answer = await sending
    assert [each["id"] for each in answer.json()["messages"]] == ["first", "last"]


async def test_large_batches_that_are_held_whole_take_turns() -> None:
    half = json.dumps({"body": "x" * 2 * LARGE_BYTES}).encode() + b"\n"
    head = f"POST {BATCH}?whole=1 HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
    head += f"Content-Length: {2 * len(half)}\r\n\r\n"
    bus = make_bus()
    async with gateway_on(bus, limits={"large_bytes_max": BODY_BYTES_MAX}) as served:
        reader, writer = await served.connect(head.encode() + half)
        sent = asyncio.create_task(
            served.http.post(f"{BATCH}?whole=1", content=half * 2, headers=NDJSON)
        )
        small = await served.http.post(f"{BATCH}?whole=1", content=lines({}), headers=NDJSON)
        assert small.status_code == 201
        assert not sent.done()
        writer.write(half)
        assert b" 201 " in await reader.readline()
        assert (await sent).status_code == 201
        writer.close()


async def test_a_large_line_waits_for_its_turn_and_gives_it_back() -> None:
    turn = asyncio.Semaphore(1)

    async def chunks() -> AsyncIterator[bytes]:
        for chunk in (b"x" * LARGE_BYTES, b"x", b"y"):
            yield chunk
            assert turn.locked() == (chunk != b"x" * LARGE_BYTES)
        yield b"\nz"

    assert not turn.locked()
    room = Places(2 * LARGE_BYTES)
    found = [lines async for lines in read_lines(chunks(), turn, room)]
    assert [len(each) for part in found for each in part] == [LARGE_BYTES + 2, 1]
    assert not turn.locked()
    assert not room.taken


async def test_a_batch_of_events_is_checked_whole() -> None:
    bus = make_bus()
    good = {"specversion": "1.0", "id": "1", "type": "t", "source": "/s", "data": {"a": 1}}
    headers = {"Content-Type": "application/cloudevents-batch+json"}
    path = "/v1/topics/orders/messages"
    async with gateway_on(bus) as served:
        wrong = await served.http.post(path, content=json.dumps([good, {}]), headers=headers)
        assert (wrong.status_code, wrong.json()["line"]) == (400, 2)
        right = await served.http.post(path, content=json.dumps([good]), headers=headers)
    assert right.status_code == 201
    assert [each.message_id for each in bus.published("orders")] == ["1"]


@settings(max_examples=examples(200))
@given(
    st.one_of(
        st.binary(max_size=60),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(
                        [
                            "id",
                            "body",
                            "body_base64",
                            "key",
                            "headers",
                            "priority",
                            "delay_s",
                            "ttl_s",
                            "content_type",
                            "x",
                        ]
                    ),
                    inner,
                    max_size=4,
                )
            ),
            max_leaves=8,
        ).map(lambda value: json.dumps(value).encode()),
    )
)
def test_no_line_is_read_without_a_plain_answer(line: bytes) -> None:
    with contextlib.suppress(MessageInvalid, TypeError):  # which the answer tells
        publishing.read_line(line)


@pytest.mark.parametrize("value", [1e308, 10**400, -1, 604_801, "1e308", True, None])
async def test_a_number_out_of_range_ends_a_batch_with_its_line_and_the_ends_before(
    value: Any,
) -> None:
    bus = make_bus()
    lines = [{"id": "good-1", "body": "x"}, {"id": "good-2", "body": "x"}]
    lines.append({"id": "bad-3", "body": "x", "delay_s": value})
    text = "\n".join(map(json.dumps, lines))
    async with gateway_on(bus) as served:
        answer = await served.publish(text, content_type="application/x-ndjson")
        single = await served.publish("x", mb_delay_s=str(value))
    told = answer.json()
    assert (answer.status_code, told["line"]) == (400, 3)
    assert "delay_s" in told["detail"]
    assert [each["id"] for each in told["messages"]] == ["good-1", "good-2"]
    assert [each["outcome"] for each in told["messages"]] == ["confirmed"] * 2
    assert single.status_code == 400


async def test_a_fault_in_a_batch_tells_the_ends_of_the_lines_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bus = make_bus()

    async def fails(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("messagebus.services.gateway.web.submit", fails)
    monkeypatch.setattr("messagebus.services.gateway.publishing.submit", fails)
    text = (
        '{"id": "good-1", "body": "x"}\n{"id": "good-2", "body": "x"}\n{"body": "x", "delay_s": 1}'
    )
    async with gateway_on(bus) as served:
        answer = await served.publish(text, content_type="application/x-ndjson")
    assert answer.status_code == 500
    assert [each["outcome"] for each in answer.json()["messages"]] == ["confirmed"] * 2


@pytest.mark.parametrize("name", sorted(OF_BROKERS))
def test_no_header_routes_past_the_rights_of_a_token_or_stops_a_broker(name: str) -> None:
    line = json.dumps({"headers": {name: ["mb.sub/salaries/audit"]}, "delay_s": 1})
    with pytest.raises(MessageInvalid, match=f"header '{name}': brokers route or count by it"):
        publishing.read_line(line.encode())
    if name == name.lower():
        with pytest.raises(Problem, match="brokers route or count by it"):
            publishing.read_wanted([(f"mb-header-{name}", "text")], b"")


def test_no_line_ends_the_channel_of_all_by_a_reply_to_nobody() -> None:
    with pytest.raises(MessageInvalid, match="reply_to"):
        publishing.read_line(b'{"reply_to": "amq.rabbitmq.reply-to"}')


# Who.
async def test_tokens_have_rights_and_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    path = write_tokens(
        tmp_path / "tokens.toml", token_entry("shop", "s3cret", publish=["orders", "clicks.*"])
    )
    bus = make_bus()
    bus.declare("clicks.web/all")

    def bearer(token: str) -> dict[str, str]:
        return {"authorization": f"Bearer {token}"}

    async with gateway_on(bus, tokens_file=str(path)) as served:
        assert (await served.publish(**bearer("s3cret"))).status_code == 201
        assert (await served.publish(to="clicks.web", **bearer("s3cret"))).status_code == 201
        assert (await served.publish(to="other", **bearer("s3cret"))).status_code == 403
        for refused in (await served.publish(), await served.publish(**bearer("wrong"))):
            assert refused.status_code == 401
            assert "Bearer" in refused.headers["www-authenticate"]
            assert "s3cret" not in refused.text
        pull = await served.http.post(
            "/v1/subscriptions/orders/billing/pull", headers=bearer("s3cret")
        )
        assert pull.status_code == 403
        write_tokens(path, token_entry("shop", "other", publish=["orders"]))

        async def status(token: str) -> int:
            return int((await served.publish(**bearer(token))).status_code)

        for _ in range(600):
            if await status("other") == 201:
                break
            await asyncio.sleep(0.05)
        assert await status("s3cret") == 401
        path.write_text("nonsense")
        assert await status("other") == 201


def test_tokens_that_cannot_be_read_leave_those_of_before_until_they_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is half written, away, or not to be read; new permissions change no time of its content."""
    path = write_tokens(tmp_path / "tokens.toml", token_entry("shop", "before"))
    looks = count(LOOK_EVERY_MS, LOOK_EVERY_MS)
    people = People(str(path), bus_login=False, anonymous="", limits=Limits(), now_ms=0)
    for half in (path.read_text()[:-30], "nonsense"):
        path.write_text(half)
        assert people.principal("Bearer before", next(looks)).name == "shop"
    path.unlink()
    assert people.principal("Bearer before", next(looks)).name == "shop"
    write_tokens(path, token_entry("shop", "afterwards"))

    def no_right(_path: Path) -> str:
        raise PermissionError("Permission denied")

    with monkeypatch.context() as patch:  # root may read anything
        patch.setattr(Path, "read_text", no_right)
        assert people.principal("Bearer before", next(looks)).name == "shop"
    path.chmod(0o640)
    assert people.principal("Bearer afterwards", next(looks)).name == "shop"


@pytest.mark.parametrize("digest", [hashlib.sha256().hexdigest(), "ab " * 21 + "a", "a" * 63])
def test_a_digest_of_nothing_or_of_another_form_is_refused(tmp_path: Path, digest: str) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(f'[[token]]\nname = "shop"\nsha256 = "{digest}"\n')
    with pytest.raises(ConfigError, match="sha256") as caught:
        read_tokens(path)
    assert digest not in str(caught.value)


async def test_a_rate_is_kept_and_says_when_to_come_again(tmp_path: Path) -> None:
    path = write_tokens(
        tmp_path / "tokens.toml", token_entry("shop", "t", publish=["*"], rate_per_s=2)
    )
    async with gateway_on(make_bus(), tokens_file=str(path)) as served:
        ends = [await served.publish(authorization="Bearer t") for _ in range(5)]
    limited = [each for each in ends if each.status_code == 429]
    assert limited
    assert int(limited[0].headers["retry-after"]) >= 1
    assert limited[0].headers["ratelimit-policy"] == '"messages";q=2;w=1'


async def test_a_bus_login_has_links_of_its_own_and_a_refused_one_is_401() -> None:
    bus = make_bus()
    async with gateway_on(bus, bus_login=True) as served:
        good = await served.http.post(
            "/v1/topics/orders/messages", content=b"x", auth=("shop", "right")
        )
        bad = await served.http.post(
            "/v1/topics/orders/messages", content=b"x", auth=("shop", "wrong")
        )
        torn = [
            await served.http.post(
                "/v1/topics/orders/messages", content=b"x", headers=[(b"Authorization", each)]
            )
            for each in (b"Basic !", b"Basic \xe9")
        ]
    assert (good.status_code, bad.status_code) == (201, 401)
    assert [each.status_code for each in torn] == [401, 401]
    assert served.bus.logins == ["shop"], "a wrong password opens no link of its own"


@pytest.mark.parametrize(
    ("settings_", "told"),
    [
        ({}, "no login is possible"),
        ({"anonymous": "all", "listen": "0.0.0.0:8080"}, "loopback"),
        ({"anonymous": "some"}, "anonymous"),
        ({"anonymous": "all", "listn": "x"}, "did you mean 'listen'"),
        ({"anonymous": "all", "limits": {"requests_max": 0}}, "limits.requests_max"),
        ({"anonymous": "all", "bus": {"brokr": "x"}}, "brokr"),
        ({"anonymous": "all", "push": [{"url": "ftp://x"}]}, "push.subscription: missing"),
        ({"anonymous": "all", "drain_s": "5"}, "drain_s"),
        ({"anonymous": "all", "name": "a.b"}, "name"),
    ],
)
def test_a_wrong_setting_is_told_in_one_line(settings_: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GatewayConfig.from_mapping(settings_)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_a_request_that_comes_too_slowly_is_ended_and_others_are_served() -> None:
    async with gateway_on(make_bus(), limits={"request_s": 0.5}) as served:
        host, port = served.gateway.url.removeprefix("http://").split(":")
        slow = [await asyncio.open_connection(host, int(port)) for _ in range(20)]
        for _, writer in slow:
            writer.write(
                b"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: localhost\r\nContent-Le"
            )
        assert (await served.publish()).status_code == 201
        for reader, writer in slow:
            async with asyncio.timeout(30):
                with pytest.raises(ConnectionError):
                    raise ConnectionError if not await reader.read() else AssertionError
            writer.close()


POST = "POST /v1/topics/orders/messages"


@pytest.mark.parametrize(
    ("line", "headers", "body", "status", "told"),
    [
        (
            POST,
            ["Content-Length: 3", "Transfer-Encoding: chunked"],
            b"3\r\nabc\r\n0\r\n\r\n",
            400,
            "",
        ),
        (POST, ["Content-Length: 3", "Content-Length: 4"], b"abcd", 400, ""),
        (POST, ["Content-Length: " + "9" * 30], b"abc", 400, ""),
        (POST, ["Content-Length: \xb2"], b"abc", 400, ""),
        (POST, ["Transfer-Encoding: chunked"], b"fffffffffffffffff\r\na", 400, ""),
        (POST, ["Transfer-Encoding: gzip, chunked"], b"0\r\n\r\n", 400, "Transfer-Encoding"),
        (
            POST,
            ["Idempotency-Key: a", "Idempotency-Key: b", "Content-Length: 0"],
            b"",
            400,
            "two of",
        ),
        (POST, ["Idempotency-Key: größe", "Content-Length: 0"], b"", 400, "Idempotency-Key"),
        (POST, ["Idempotency-Key: " + "a" * 10_000, "Content-Length: 0"], b"", 400, "1 to 128"),
        (POST, ["Content-Length: 17000000", "Expect: 100-continue"], b"", 413, "16,777,216"),
        (POST.replace("orders", "%6frders"), ["Content-Length: 0"], b"", 201, "confirmed"),
        (POST.replace("orders", "or%2Fders"), ["Content-Length: 0"], b"", 404, "Not Found"),
        (POST.replace("orders", "orders%00"), ["Content-Length: 0"], b"", 400, "topic name"),
        (POST.replace("orders", "queue:jobs"), ["Content-Length: 0"], b"", 400, "topic name"),
        (POST.replace("POST", "HEAD"), [], b"", 405, ""),
        (POST.replace("POST", "OPTIONS"), [], b"", 405, "Method Not Allowed"),
    ],
)
async def test_a_strange_request_has_a_plain_answer(
    line: str, headers: list[str], body: bytes, status: int, told: str
) -> None:
    bus = make_bus()
    async with gateway_on(bus) as served:
        answer = await served.raw(line, *headers, body=body)
        assert answer.startswith(f"HTTP/1.1 {status} ")
        assert told in answer
        assert (await served.publish()).status_code == 201
    assert bus.waiting("orders/billing") == 1 + (status == 201)


async def test_a_field_behind_the_body_is_no_header() -> None:
    async with gateway_on(make_bus()) as served:
        chunks = b"1\r\na\r\n0\r\nIdempotency-Key: behind\r\n\r\n"
        answer = await served.raw(POST, "Transfer-Encoding: chunked", body=chunks)
    assert " 201 " in answer
    assert "behind" not in answer


async def test_requests_that_do_not_wait_for_answers_are_answered_in_order() -> None:
    head = "POST /v1/topics/orders/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
    many = "".join(f"{head}Idempotency-Key: n{n}\r\n\r\nx" for n in range(20))
    async with gateway_on(make_bus()) as served:
        reader, writer = await served.connect(many.encode())
        answers = ""
        async with asyncio.timeout(60):
            while answers.count("201 Created") < 20 or not answers.endswith("}"):
                answers += (await reader.read(65_536)).decode()
        writer.close()
    places = [answers.index(f'"id":"n{n}"') for n in range(20)]
    assert places == sorted(places)


async def test_a_page_of_another_site_may_not_use_what_browsers_send_by_themselves(
    tmp_path: Path,
) -> None:
    path = write_tokens(tmp_path / "tokens.toml", token_entry("shop", "t", publish=["*"]))
    bus = make_bus()
    evil = {"origin": "https://evil.example", "content_type": "text/plain"}
    settings_: dict[str, Any] = {
        "tokens_file": str(path),
        "anonymous": "all",
        "bus_login": True,
    }
    async with gateway_on(bus, origins=["https://shop.example"], **settings_) as served:
        assert (await served.publish(**evil)).status_code == 403
        assert (await served.publish(**evil, authorization="Basic YTpi")).status_code == 403
        assert (await served.publish(**evil, authorization="Bearer t")).status_code == 201
        assert (await served.publish(origin="https://shop.example")).status_code == 201
        assert (await served.publish()).status_code == 201
    assert bus.waiting("orders/billing") == 3


async def test_headers_over_their_bound_end_the_connection() -> None:
    async with gateway_on(make_bus()) as served:
        with pytest.raises(httpx.TransportError):
            await served.publish(mb_header_x="x" * 20_000)
        assert (await served.publish()).status_code == 201


def test_a_taken_port_is_told_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        async def serve() -> None:
            async with gateway_on(make_bus(), listen=f"127.0.0.1:{port}"):
                raise AssertionError

        with pytest.raises(ConfigError, match="listen"):
            asyncio.run(serve())


async def test_a_name_in_a_clients_certificate_is_a_principal(tmp_path: Path) -> None:
    issue_missing(tmp_path, {"gateway": ("127.0.0.1",), "shop": (), "stranger": ()})
    issue_missing(tmp_path / "other", {"shop": ()})
    path = tmp_path / "tokens.toml"
    path.write_text(
        '[[token]]\nname = "shop"\ncertificate = "shop"\npublish = ["orders"]\n'
        + token_entry("curl", "s3cret", publish=["orders"])
    )
    files: dict[str, Any] = {
        "tls_cert_file": str(tmp_path / "gateway.pem"),
        "tls_key_file": str(tmp_path / "gateway.key"),
        "tls_client_ca_file": str(tmp_path / "ca.pem"),
    }
    asked: dict[str, int | str] = {}
    async with gateway_on(make_bus(), tokens_file=str(path), **files) as served:
        for who in ("shop", "stranger", "other/shop", "nobody", "nobody with a token"):
            context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
            if not who.startswith("nobody"):
                context.load_cert_chain(tmp_path / f"{who}.pem", tmp_path / f"{who}.key")
            headers = {"authorization": "Bearer s3cret"} if "token" in who else {}
            async with httpx.AsyncClient(verify=context, trust_env=False) as http:
                try:
                    url = f"{served.gateway.url}/v1/topics/orders/messages"
                    asked[who] = (await http.post(url, content=b"x", headers=headers)).status_code
                except httpx.TransportError:
                    asked[who] = "no connection"
    assert asked == {
        "shop": 201,
        "stranger": 401,
        "other/shop": "no connection",
        "nobody": 401,
        "nobody with a token": 201,
    }


@pytest.mark.guarantee("slow-connections-are-bounded")
@pytest.mark.parametrize(
    ("path", "media"),
    [
        ("/v1/topics/orders/messages", "text/plain"),
        ("/v1/leases/ack", "application/json"),
        (BATCH, "application/x-ndjson"),
        (f"{BATCH}?whole=1", "application/x-ndjson"),
        (BATCH, "application/cloudevents-batch+json"),
    ],
)
async def test_bodies_that_hold_back_their_end_are_bounded_together_for_each_principal(
    path: str, media: str, tmp_path: Path
) -> None:
    bus = MemoryBus()
    bus.declare("orders/billing")
    rights = {"publish": ["orders"]}
    entries = [token_entry(name, name, **rights) for name in ("shop", "other")]
    file = write_tokens(tmp_path / "tokens.toml", *entries)
    limits = {"bodies_bytes_max": 1_000_000}
    async with gateway_on(bus, tokens_file=str(file), limits=limits) as served:

        def head(size: int) -> bytes:
            lines = f"Host: x\r\nAuthorization: Bearer shop\r\nContent-Length: {size}\r\n"
            return f"POST {path} HTTP/1.1\r\n{lines}Content-Type: {media}\r\n\r\n".encode()

        held = [await served.connect(head(400_000) + b" " * 399_999) for _ in range(5)]
        answers = [asyncio.create_task(reader.readline()) for reader, _ in held]
        await eventually_async(lambda: sum(each.done() for each in answers) == 3, within_s=60)
        assert {each.result().split()[1] for each in answers if each.done()} == {b"429"}
        more = await served.publish(b"x" * 900_000, authorization="Bearer other")
        assert more.status_code == 201, "of another principal"
        for each in answers:
            each.cancel()
        for _, writer in held:
            writer.close()
        async with asyncio.timeout(60):
            while (
                await served.publish(b"x" * 900_000, authorization="Bearer shop")
            ).status_code != 201:
                pass


@pytest.mark.guarantee("slow-connections-are-bounded")
@pytest.mark.parametrize(
    ("path", "media"),
    [
        ("/v1/topics/orders/messages", "text/plain"),
        (BATCH, "application/x-ndjson"),
        (f"{BATCH}?whole=1", "application/x-ndjson"),
        (BATCH, "application/cloudevents-batch+json"),
    ],
)
async def test_a_large_body_that_gets_no_turn_in_time_is_answered_and_may_be_sent_again(
    path: str, media: str, tmp_path: Path
) -> None:
    names = ("shop", "other", "third")
    entries = [token_entry(name, name, publish=["orders"]) for name in names]
    file = write_tokens(tmp_path / "tokens.toml", *entries)
    large = b"x" * 2 * LARGE_BYTES
    head = (
        f"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: x\r\nContent-Length: {len(large)}\r\n"
    )
    limits = {"large_bytes_max": 4 * BODY_BYTES_MAX, "request_s": 10}
    async with gateway_on(make_bus(), tokens_file=str(file), limits=limits) as served:
        people = served.gateway._people.by_name()
        held = [
            await served.connect(f"{head}Authorization: Bearer {name}\r\n\r\n".encode() + b"x")
            for name in names[:2] * 2
        ]
        await eventually_async(
            lambda: all(people[name].large.locked() for name in names[:2]), within_s=60
        )
        answer = await served.http.post(
            path, content=large, headers={"authorization": "Bearer third", "content-type": media}
        )
        assert answer.status_code == 503, answer.text
        assert int(answer.headers["retry-after"]) >= 1
        for _, writer in held:
            writer.close()
        await eventually_async(lambda: not people["shop"].large.locked(), within_s=60)
        again = await served.publish(large, authorization="Bearer third")
        assert again.status_code == 201


@pytest.mark.guarantee("slow-connections-are-bounded")
async def test_large_bodies_that_hold_back_their_end_keep_no_other_principal_out(
    tmp_path: Path,
) -> None:
    entries = [token_entry(name, name, publish=["orders"]) for name in ("shop", "other")]
    file = write_tokens(tmp_path / "tokens.toml", *entries)
    large = b"x" * 2 * LARGE_BYTES
    head = (
        f"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: x\r\nContent-Length: {len(large)}\r\n"
    )
    async with gateway_on(make_bus(), tokens_file=str(file)) as served:
        turns = Limits().large_turns
        held = [
            await served.connect(f"{head}Authorization: Bearer shop\r\n\r\n".encode() + b"x")
            for _ in range(turns)
        ]
        requests = served.gateway._people.by_name()["shop"].requests
        await eventually_async(lambda: requests.taken == turns, within_s=60)
        done = await served.publish(large, authorization="Bearer other")
        assert done.status_code == 201
        assert requests.taken == turns, "those that were held were not waited for"
        for _, writer in held:
            writer.close()
