"""The page of a trace: what is known, to whom, and nothing for ids that are none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from markupsafe import escape

from messagebus import LinkLost
from messagebus.admin import ParkedCount, ParkedCounts, ParkedMessage, ParkedMessages
from messagebus.services.monitor import parked
from messagebus.services.monitor.config import MonitorConfig
from messagebus.tools import find
from tests.support.watched import PROXIED
from tests.unit.services.monitor.test_web import (
    HOSTILE,
    client_of,
    configured,
    monitor_of,
    token_of,
)

ID = "5f0c2a9be1d04773a1b20000000000c4"
PARKED = ParkedMessage(
    name="payments/fraud", broker="mb2.example:5672", message_id=ID, key="k", reason="timeout",
    exception="KeyError: <script>", attempts=5, first_ms=1, parked_ms=1_700_000_000_000, redriven=0,
    headers={}, content_type="", body=b"secret", body_bytes=6,
)  # fmt: skip


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[ParkedMessages | Exception]:
    """The answers of `read_parked`, one after the other; the last one stays."""
    answers: list[ParkedMessages | Exception] = [ParkedMessages((PARKED,))]

    def read_parked(*_: Any, **asked: Any) -> ParkedMessages:
        assert asked["where"].message_id
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setattr(find, "read_parked", read_parked)
    return answers


async def page(address: str, role: str = "viewer") -> str:
    monitor, _ = await monitor_of(configured())
    async with client_of(monitor) as client:
        bearer = {"Authorization": f"Bearer {token_of(f'{role}-1')}"}
        return (await client.get(address, headers=bearer)).text


async def test_a_parked_message_is_found_and_its_exception_is_for_readers(
    found: list[ParkedMessages | Exception],
) -> None:
    seen = await page(f"/trace?id={ID}")
    assert "Parked in payments/fraud on mb2;" in seen
    assert "timeout, after 5 runs" in seen
    assert "KeyError" not in seen
    read = await page(f"/trace?id={ID}", "reader")
    assert "KeyError: &lt;script&gt;" in read
    assert "secret" not in read


def parked_by(
    monkeypatch: pytest.MonkeyPatch, message: ParkedMessage, reasons: dict[str, int]
) -> None:
    """Have one queue of parked messages on one broker."""
    counts = ParkedCounts(
        (
            ParkedCount(
                name=message.name, broker=message.broker, count=sum(reasons.values()),
                oldest_ms=1, reasons=reasons, unseen=7,
            ),
        )
    )  # fmt: skip
    monkeypatch.setattr(parked, "count_parked", lambda *_: counts)
    monkeypatch.setattr(parked, "read_parked", lambda *_, **__: ParkedMessages((message,)))


@pytest.mark.parametrize("text", [*HOSTILE, "<script>" + "x" * (4 << 20)], ids=range(9))
async def test_hostile_parked_messages_are_shown_and_never_run(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    body = text.encode("utf-8", "surrogatepass")
    hostile = replace(
        PARKED,
        message_id=text,
        key=text,
        reason=text,
        exception=text,
        headers={text: text},
        body=body,
    )
    parked_by(monkeypatch, hostile, {text: 1})
    told = await page("/subscriptions/payments/fraud?parked=1", "reader")
    assert "<script>alert" not in told
    assert "<script>x" not in told
    assert "<img" not in told
    assert ' onmouseover="' not in told
    assert "\0" not in told
    assert len(told) < 200_000
    assert escape(text[:20].replace("\0", "\N{SYMBOL FOR NULL}")) in told or text == "\ud800"


async def test_a_thousand_reasons_are_the_most_frequent_and_how_many_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parked_by(monkeypatch, PARKED, {f"reason {n}": 1_000 - n for n in range(1_000)})
    told = await page("/subscriptions/payments/fraud?parked=1", "viewer")
    assert "reason 19<" in told
    assert "reason 20<" not in told
    assert f"<b>{sum(range(1, 981)):,}</b><span>and 980 reasons more" in told
    assert "7 more were not looked at" in told


async def test_what_is_parked_nowhere_may_wait_or_is_deduced_not_to(
    found: list[ParkedMessages | Exception],
) -> None:
    found[:] = [ParkedMessages(())]
    assert "It might wait in" in await page(f"/trace?id={ID}")
    old = await page(f"/trace?id={ID}&topic=invoices&ago=86400")
    assert "It does not wait anywhere that answers; some places could not be looked at." in old
    assert "mb8.example:5672 is silent" in old or "mb8 is silent" in old


@pytest.mark.parametrize("id", ["short", "x" * 256, "<script>alert(1)</script>" * 20])
async def test_what_is_no_id_is_not_looked_for(
    found: list[ParkedMessages | Exception], id: str
) -> None:
    found[:] = [AssertionError("looked for")]
    told = await page(f"/trace?id={id}&ago=nonsense")
    assert "Not searched" in told
    assert "<script>alert" not in told


async def test_a_search_that_fails_says_why(found: list[ParkedMessages | Exception]) -> None:
    found[:] = [LinkLost("mb1:5672", "refused")]
    assert "Not searched: " in await page(f"/trace?id={ID}")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (ID, f"/trace?id={ID}"),
        ("parcel-4711", "/trace?id=parcel-4711"),
        ("report-nightly", "/clients?q=report-nightly"),
        ("shop@web-1", "/clients?q=shop%40web-1"),
        ("abc", "/clients?q=abc"),
        ("mb2", "/brokers/mb2.example%3A5672"),
        ("payments/", "/subscriptions?q=payments%2F"),
    ],
)
async def test_the_field_of_the_bar_leads_to_whatever_is_typed_in(text: str, address: str) -> None:
    monitor, _ = await monitor_of(MonitorConfig(bus=PROXIED))
    async with client_of(monitor) as client:
        answer = await client.get("/find", params={"q": text})
    assert answer.headers["location"] == address
