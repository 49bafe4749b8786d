"""Actions of operators: nothing without a plan, nothing beyond it, nothing that is not written down."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from messagebus import Secret
from messagebus.admin import (
    ParkedCount,
    ParkedCounts,
    ParkedMoved,
    ParkedProgress,
    PurgedMessages,
    SubscriptionCount,
    SubscriptionCounts,
)
from messagebus.services.monitor import actions, hash_password
from messagebus.services.monitor.config import MonitorConfig
from messagebus.services.monitor.eventlog import EventLog
from messagebus.services.monitor.people import Person, Role
from messagebus.services.monitor.plans import Effects, Line, differs
from messagebus.services.monitor.watch import Watch
from messagebus.services.monitor.web import Monitor
from tests.support.eventually import eventually_async
from tests.support.watched import PROXIED, MadeUp

BASE = "http://127.0.0.1:8085"
NAME = "orders/billing"
MB1, MB2 = "mb1.example:5672", "mb2.example:5672"
PASSWORD = "correct horse"
KEPT = Secret(hash_password(PASSWORD))
PEOPLE = tuple(
    Person(name, KEPT, role)
    for name, role in (
        ("v.iew", Role.VIEWER),
        ("o.one", Role.OPERATOR),
        ("o.two", Role.OPERATOR),
        ("a.dmin", Role.ADMIN),
    )
)


class Library:
    """The admin functions as the monitor calls them. parked, waiting: messages by broker."""

    def __init__(self) -> None:
        self.parked = {MB1: 3, MB2: 37}
        self.waiting = {MB1: 120, MB2: 4}
        self.calls: list[tuple[Any, ...]] = []
        self.goes_on = threading.Event()
        self.goes_on.set()

    def replaces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Stand in for the library's functions."""
        for name in dir(Library):
            if not name.startswith("_") and name != "replaces":
                monkeypatch.setattr(actions, name, getattr(self, name))
        monkeypatch.setattr(actions, "EFFECT_WITHIN_S", 0.0)

    def count_parked(self, _bus: Any, names: list[str], *, where: Any) -> ParkedCounts:
        found = [
            ParkedCount(name=names[0], broker=b, count=n, oldest_ms=1, reasons={"<b>boom</b>": n})
            for b, n in self.parked.items()
            if n and where.brokers in ((), (b,))
        ]
        return ParkedCounts(tuple(found), {}, {}, tuple(self.parked))

    def redrive_parked(
        self, _bus: Any, names: list[str], *, where: Any, count_max: int, rate_per_s: float,
        on_progress: Callable[[ParkedProgress], None],
    ) -> ParkedMoved:  # fmt: skip
        broker = where.brokers[0]
        self.calls.append(("redrive", names[0], broker, count_max, rate_per_s))
        for number in range(1, min(count_max, self.parked[broker]) + 1):
            assert self.goes_on.wait(30)
            self.parked[broker] -= 1
            on_progress(ParkedProgress(name=names[0], broker=broker, moved=1, total=number))
        return ParkedMoved({(names[0], broker): count_max})

    def count_subscriptions(self, _bus: Any) -> SubscriptionCounts:
        counts = [
            SubscriptionCount(name=NAME, broker=b, ready=n, consumers=0)
            for b, n in self.waiting.items()
        ]
        return SubscriptionCounts(tuple(counts), {}, tuple(self.waiting))

    def purge_subscriptions(self, _bus: Any, names: list[str], *, token: Secret) -> PurgedMessages:
        self.calls.append(("purge", *names, token.reveal()))
        return PurgedMessages({b: {names[0]: n} for b, n in self.waiting.items()})

    def declare(self, _bus: Any, names: list[str]) -> None:
        self.calls.append(("declare", *names))

    def drain_broker(self, _bus: Any, name: str, *, draining: bool, token: Secret) -> None:
        self.calls.append(("drain", name, draining, token.reveal()))


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    made.replaces(monkeypatch)
    return made


class Desk:
    """A monitor with people, and one client for each."""

    def __init__(self, folder: Path, asker: MadeUp | None = None, **more: Any) -> None:
        (folder / "token").write_text("operators-token\n")
        settings: dict[str, Any] = {"token_file": str(folder / "token"), "people": PEOPLE, **more}
        config = MonitorConfig(bus=PROXIED, state_dir=str(folder), **settings)
        self.events = EventLog(str(folder / "events.sqlite"))
        self.watch = Watch(asker or MadeUp(), self.events)
        self.monitor = Monitor(config, self.watch)
        self._application = self.monitor.application()

    def client(self, name: str) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=self._application, client=("10.0.0.3", 4_000))
        cookies = {"monitor": self.monitor.logins.begin(name)}
        headers = {"Sec-Fetch-Site": "same-origin"}
        return httpx.AsyncClient(
            transport=transport, base_url=BASE, cookies=cookies, headers=headers
        )

    async def post(self, who: str, path: str, **fields: str) -> httpx.Response:
        async with self.client(who) as client:
            page = (await client.get("/")).text
            token = _field(page, "form_token")
            return await client.post(path, data={"form_token": token, **fields})

    async def get(self, who: str, path: str) -> str:
        async with self.client(who) as client:
            return (await client.get(path)).text

    async def planned(self, who: str, do: str, about: str = NAME, **more: str) -> tuple[str, str]:
        """Make a plan; returns its address and the token of its form, "" where it cannot run."""
        answer = await self.post(who, "/plans", do=do, about=about, **more)
        assert answer.status_code == 303, answer.text
        address = answer.headers["location"]
        page = await self.get(who, address)
        return address, _field(page, "plan_token") if "plan_token" in page else ""

    async def ended(self, address: str) -> str:
        """Wait for the end of a run; returns its result."""
        plan = self.monitor.actions.find(address.removeprefix("/plans/"))
        assert plan is not None
        await eventually_async(
            lambda: bool(plan.ended_ms and not self.monitor.actions._runs), within_s=60
        )
        return f"{plan.state}: {plan.result}"

    def told(self) -> list[tuple[str, str]]:
        return [(each.text, each.by) for each in self.events.recent(20, kind="action")][::-1]


def _field(page: str, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]+)"', page)
    assert found is not None, page
    return found[1]


@pytest.fixture
async def desk(tmp_path: Path, library: Library) -> AsyncIterator[Desk]:
    made = Desk(tmp_path)
    await made.watch.once()
    yield made
    await made.monitor.actions.close()
    made.events.close()


async def test_a_plan_shows_counts_by_broker_and_does_nothing(desk: Desk, library: Library) -> None:
    address, _ = await desk.planned("o.one", "redrive")
    page = await desk.get("o.one", address)
    assert "Redrive: 40 messages on 2 brokers" in page
    assert "37 times &lt;b&gt;boom&lt;/b&gt;" in page
    assert "planned by <b>o.one</b>" in page
    assert library.calls == []
    assert desk.told() == []


async def test_a_run_does_what_the_plan_says_and_who_did_it_is_kept(
    desk: Desk, library: Library
) -> None:
    address, token = await desk.planned("o.one", "redrive", rate="500")
    answer = await desk.post("o.two", f"{address}/run", plan_token=token)
    assert answer.status_code == 303
    assert await desk.ended(address) == "done: 40 messages put back"
    assert library.calls == [("redrive", NAME, MB1, 3, 500), ("redrive", NAME, MB2, 37, 500)]
    (began, by), (ended, _) = desk.told()
    assert began.startswith(f"redrive of {NAME} (40 messages on 2 brokers) began")
    assert ended.endswith("done: 40 messages put back")
    assert by == "o.two from 10.0.0.3"


async def test_a_plan_may_be_narrowed_to_one_broker(desk: Desk, library: Library) -> None:
    address, token = await desk.planned("o.one", "redrive", broker=MB1)
    await desk.post("o.one", f"{address}/run", plan_token=token)
    await desk.ended(address)
    assert library.calls == [("redrive", NAME, MB1, 3, 100)]


async def test_a_plan_runs_once_and_the_second_operator_is_told_by_whom(
    desk: Desk, library: Library
) -> None:
    library.goes_on.clear()
    address, token = await desk.planned("o.one", "redrive")
    other, other_token = await desk.planned("o.two", "redrive")
    await desk.post("o.one", f"{address}/run", plan_token=token)
    again = await desk.post("o.two", f"{address}/run", plan_token=token)
    assert again.status_code == 409
    assert "o.one has run this plan already" in again.text
    beside = await desk.post("o.two", f"{other}/run", plan_token=other_token)
    assert beside.status_code == 409
    assert "o.one is running it" in beside.text
    library.goes_on.set()
    await desk.ended(address)
    late = await desk.post("o.two", f"{other}/run", plan_token=other_token)
    assert late.status_code == 303
    assert (await desk.ended(other)).startswith("failed: ")
    assert sum(count for *_, count, _ in library.calls) == 40


async def test_what_has_changed_too_far_is_not_done_and_that_is_told(
    desk: Desk, library: Library
) -> None:
    address, token = await desk.planned("o.one", "redrive")
    library.parked[MB2] = 60
    await desk.post("o.one", f"{address}/run", plan_token=token)
    assert "60 messages on mb2.example:5672, and 37 when the plan was made" in await desk.ended(
        address
    )
    assert library.calls == []
    assert "no longer as planned" in desk.told()[-1][0]


async def test_a_form_of_another_plan_session_or_page_does_nothing(
    desk: Desk, library: Library
) -> None:
    address, token = await desk.planned("o.one", "redrive")
    other, _ = await desk.planned("o.one", "redrive", broker=MB1)
    assert (await desk.post("o.one", f"{other}/run", plan_token=token)).status_code == 409
    async with desk.client("o.one") as client:
        for fields, headers in (
            ({"form_token": "guessed"}, {}),
            ({}, {}),
            ({"form_token": _field(await desk.get("o.two", "/"), "form_token")}, {}),
            ({"form_token": "x"}, {"Sec-Fetch-Site": "cross-site"}),
        ):
            answer = await client.post(
                f"{address}/run", data={"plan_token": token, **fields}, headers=headers
            )
            assert answer.status_code == 403
        assert (await client.get(f"{address}/run")).status_code == 405
    assert library.calls == []


async def test_roles_bound_what_somebody_may_order(desk: Desk, library: Library) -> None:
    assert (await desk.post("v.iew", "/plans", do="redrive", about=NAME)).status_code == 403
    refused = await desk.post("o.one", "/plans", do="purge", about=NAME)
    assert refused.status_code == 409
    assert "Only admins may do that" in refused.text
    address, token = await desk.planned("a.dmin", "purge")
    answer = await desk.post("o.one", f"{address}/run", plan_token=token, typed=NAME)
    assert answer.status_code == 409
    assert "Purge…" not in await desk.get("o.one", f"/subscriptions/{NAME}")
    assert "Purge…" in await desk.get("a.dmin", f"/subscriptions/{NAME}")
    assert library.calls == []


async def test_messages_are_lost_for_good_only_when_the_name_is_typed(
    desk: Desk, library: Library
) -> None:
    address, token = await desk.planned("a.dmin", "purge")
    wrong = await desk.post("a.dmin", f"{address}/run", plan_token=token, typed="orders")
    assert f"Type {NAME} to confirm" in wrong.text
    await desk.post("a.dmin", f"{address}/run", plan_token=token, typed=NAME)
    assert await desk.ended(address) == "done: 124 messages dropped"
    assert library.calls == [("purge", NAME, "operators-token")]


async def test_a_run_is_stopped_between_two_messages_and_says_how_far_it_came(
    desk: Desk, library: Library
) -> None:
    library.goes_on.clear()
    address, token = await desk.planned("o.one", "redrive")
    await desk.post("o.one", f"{address}/run", plan_token=token)
    await eventually_async(lambda: bool(library.calls), within_s=60)
    assert (await desk.post("o.two", f"{address}/cancel")).status_code == 303
    library.goes_on.set()
    assert await desk.ended(address) == "cancelled: 1 message until then"
    assert library.parked == {MB1: 2, MB2: 37}


async def test_the_end_of_the_monitor_ends_a_run_and_the_journal_says_how_far_it_came(
    desk: Desk, library: Library
) -> None:
    library.goes_on.clear()
    address, token = await desk.planned("o.one", "redrive")
    await desk.post("o.one", f"{address}/run", plan_token=token)
    await eventually_async(lambda: bool(library.calls), within_s=60)
    ends = asyncio.create_task(desk.monitor.actions.close())
    await asyncio.sleep(0)
    library.goes_on.set()
    await ends
    assert "cancelled: 1 message until then" in desk.told()[-1][0]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"do": "explode", "about": NAME}, "There is no such action: explode"),
        ({"do": "redrive", "about": " "}, "is required"),
        ({"do": "redrive", "about": "x" * 1_001}, "is required"),
        *(
            ({"do": "redrive", "about": NAME, "rate": rate}, "Messages a second: 1 to")
            for rate in ("0", "-1", "fast", "\u0661", "1e3", "9" * 12, "9" * 5_000)
        ),
    ],
)
async def test_a_form_that_says_nothing_that_can_be_done_is_told_why(
    fields: dict[str, str], told: str, desk: Desk, library: Library
) -> None:
    answer = await desk.post("o.one", "/plans", **fields)
    assert (answer.status_code, told in answer.text) == (409, True)
    assert library.calls == []


async def test_only_names_can_be_declared_and_what_exists_is_told(
    desk: Desk, library: Library
) -> None:
    answer = await desk.post("a.dmin", "/plans", do="declare", about="orders/<b>")
    assert answer.status_code == 409
    assert "&lt;b&gt;" in answer.text
    address, token = await desk.planned("a.dmin", "declare", "orders orders/billing")
    assert token == ""
    assert "all of it exists" in await desk.get("a.dmin", address)
    address, token = await desk.planned("a.dmin", "declare", "orders/new, queue:jobs")
    assert "makes orders/new, queue:jobs" in await desk.get("a.dmin", address)
    await desk.post("a.dmin", f"{address}/run", plan_token=token)
    assert await desk.ended(address) == "done: declared on every broker"
    assert library.calls == [("declare", "orders/new", "queue:jobs")]


async def test_a_broker_is_drained_by_its_agent_and_never_the_last_one(
    tmp_path: Path, library: Library
) -> None:
    desk = Desk(tmp_path, MadeUp(brokers=2, silent=False))
    await desk.watch.once()
    address, token = await desk.planned("o.one", "drain", MB1)
    await desk.post("o.one", f"{address}/run", plan_token=token)
    assert (await desk.ended(address)).startswith("done")
    assert library.calls == [("drain", MB1, True, "operators-token")]
    alone = Desk(tmp_path, MadeUp(brokers=1, silent=False))
    await alone.watch.once()
    address, token = await alone.planned("o.one", "drain", MB1)
    assert token == ""
    assert "ready to take over" in await alone.get("o.one", address)
    for each in (desk, alone):
        each.events.close()


async def test_without_an_audit_or_the_token_there_are_commands_to_copy(
    desk: Desk, library: Library, tmp_path: Path
) -> None:
    address, token = await desk.planned("o.one", "redrive")
    desk.events._broke(OSError("disk full"))
    answer = await desk.post("o.one", f"{address}/run", plan_token=token)
    assert answer.status_code == 409
    assert "cannot be written to disk" in answer.text
    page = await desk.get("a.dmin", f"/subscriptions/{NAME}")
    assert "messagebus parked redrive orders/billing" in page
    assert "Redrive…" not in page
    desk.events.fault = ""
    (tmp_path / "token").unlink()
    assert "token cannot be read" in await desk.get("a.dmin", f"/subscriptions/{NAME}")
    assert library.calls == []


@pytest.mark.parametrize(
    ("before", "after", "may"),
    [
        ({MB1: 3}, {MB1: 13}, True),
        ({MB1: 3}, {MB1: 14}, False),
        ({MB1: 1_000}, {MB1: 1_200}, True),
        ({MB1: 1_000}, {MB1: 790}, False),
        ({MB1: 40}, {MB2: 40}, False),
    ],
)
def test_a_plan_may_drift_by_ten_messages_or_a_fifth_on_each_broker(
    before: dict[str, int], after: dict[str, int], may: bool
) -> None:
    def effects(counts: dict[str, int]) -> Effects:
        return Effects(tuple(Line(broker, count) for broker, count in counts.items()))

    assert (differs(effects(before), effects(after)) == "") is may


def test_other_facts_are_another_plan() -> None:
    assert differs(Effects((), ("mb1 answers",)), Effects((), ())) == "no longer mb1 answers"
