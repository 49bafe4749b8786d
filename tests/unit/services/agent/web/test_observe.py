"""Pages of an agent about its broker, its metrics, and its HTTP server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest

from messagebus.clock import monotonic_ms
from messagebus.errors import LinkLost
from messagebus.observing.snapshot import Answer, merged, read_answer
from messagebus.services.agent.broker.loads import ATTACHED_OLD_MS, Loads
from messagebus.services.agent.broker.losses import Losses
from messagebus.services.agent.broker.management import (
    Attached,
    Load,
    Management,
    ManagementUnavailable,
    Overview,
    Room,
)
from messagebus.services.agent.broker.upkeep import Upkeep
from messagebus.services.agent.consumer_list import Clients, ListFile
from messagebus.services.agent.gate import Condition, verdict
from messagebus.services.agent.topology.register import Entry, Register, Snapshot
from messagebus.services.agent.web import observe
from messagebus.services.agent.web.metrics import (
    Figure,
    Metrics,
    MirrorState,
    figures_of_mirror,
    look,
    read,
)
from messagebus.services.agent.web.observe import Observer

ME = "mb1:5672"
BILLING, PARKED, JOBS = "mb.sub/orders/billing", "mb.park/orders/billing", "mb.queue/jobs"


def entry(name: str) -> Entry:
    return Entry(wanted=name, number=1, origin=ME, alive=True, tomb=0)


class FakeUpkeep:
    def __init__(self) -> None:
        self.there: dict[str, tuple[int, int] | None] = {BILLING: (3, 2), JOBS: (0, 0)}
        self.losses = Losses(ME, lambda: None)
        self.is_settled = True
        self.asked: list[list[str]] = []

    @property
    def link(self) -> FakeUpkeep:
        return self

    partitions = link

    async def counts(self, queues: Iterable[str]) -> dict[str, tuple[int, int] | None]:
        self.asked.append(list(queues))
        if not self.there:
            raise LinkLost(ME, "no link to the broker")
        return {queue: self.there.get(queue) for queue in queues}

    def segment_queues(self, name: str) -> dict[str, str]:
        below = f"mb.seg/{name}/"
        return {each.removeprefix(below): each for each in self.there if each.startswith(below)}

    def missing(self) -> list[str]:
        return [f"orders/m{number:02}" for number in range(25)]


class FakeManagement:
    is_there = True

    def __init__(self) -> None:
        self.says: list[Load] | None = None
        self.published = 7
        self.attached_: list[Attached] | None = []

    async def attached(self) -> list[Attached]:
        if self.attached_ is None:
            raise ManagementUnavailable("away")
        return self.attached_

    async def loads(self) -> list[Load]:
        if self.says is None:
            raise ManagementUnavailable("away")
        return self.says

    async def room(self) -> Room:
        return Room(
            disk_free_bytes=9, disk_limit_bytes=2, memory_used_bytes=3, memory_limit_bytes=4
        )

    async def overview(self) -> Overview:
        totals = {"publish": self.published, "confirm": 6, "deliver_get": 5}
        return Overview(version="3.12.14", connections=4, totals=totals)


@dataclass
class Rig:
    upkeep: FakeUpkeep = field(default_factory=FakeUpkeep)
    management: FakeManagement = field(default_factory=FakeManagement)
    clients: Clients = field(default_factory=Clients)
    condition: Condition = field(
        default_factory=lambda: Condition(linked=True, gate_open=True, informed=True)
    )
    clock_ms: int = field(default_factory=monotonic_ms)
    last: Answer | None = None

    def __post_init__(self) -> None:
        entries = tuple(map(entry, ("orders", "orders/billing", "queue:jobs", "delay:1000")))
        self.register = Register(ME, Snapshot(intact=True, entries=entries))
        self.loads = Loads(cast(Management, self.management))
        self.lists = ListFile("-")
        self.observer = Observer(
            observe.Parts(
                broker=ME,
                started="s",
                register=self.register,
                upkeep=cast(Upkeep, self.upkeep),
                lists=self.lists,
                clients=self.clients,
                loads=self.loads,
                condition=lambda: self.condition,
                verdict=lambda: verdict(self.condition, 0),
                mirror=lambda: MirrorState(copies=1, connected=False, alone=False),
                certificate_s=lambda: 90.4,
            )
        )

    async def sweep(self, *loads: Load, later_s: int = 0) -> None:
        self.management.says = list(loads)
        await self.loads.look(monotonic_ms() + later_s * 1000)

    async def ask(self, **how: object) -> Answer:
        told = await self.observer.answer(cast(None, how.pop("allowed", None)), **how)  # type: ignore[arg-type]
        return read_answer(json.loads(json.dumps(told)), received_at_ms=monotonic_ms())


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setattr(observe, "COUNT_EVERY_MS", 0)
    monkeypatch.setattr(observe, "COUNTS_A_S", 1_000_000)
    return Rig()


def load(queue: str, messages: int, departed: int = 0, unacked: int = 0) -> Load:
    return Load(queue=queue, messages=messages, consumers=1, departed=departed, unacked=unacked)


async def test_ready_and_consumers_are_of_amqp_and_the_rest_of_the_last_sweep(rig: Rig) -> None:
    await rig.sweep(load(BILLING, 9, departed=4, unacked=1), load(PARKED, 2))
    rows = (await rig.ask()).rows
    billing, parked = rows["orders/billing", "sub"], rows["orders/billing", "park"]
    assert (billing.ready, billing.consumers, billing.unacked) == (3, 2, 1)
    assert (billing.arrived, billing.departed) == (9, 0)
    assert (parked.ready, parked.consumers, parked.arrived) == (2, 1, 2)
    assert rows["queue:jobs", "queue"].unacked is None
    assert set(rows) == {
        ("orders/billing", "sub"),
        ("orders/billing", "park"),
        ("queue:jobs", "queue"),
    }
    assert rig.upkeep.asked == [[BILLING, JOBS]]


async def test_without_management_parking_queues_are_counted_and_the_rest_is_not_known(
    rig: Rig,
) -> None:
    rig.management.is_there = False
    rig.upkeep.there[PARKED] = (1, 0)
    told = await rig.ask()
    row = told.rows["orders/billing", "park"]
    assert (row.ready, row.unacked, row.arrived, row.swept_at_ms) == (1, None, None, None)
    assert (told.room, told.totals, told.swept_at_ms) == (None, None, None)


async def test_of_a_broker_that_is_away_the_last_figures_grow_old(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.sweep(load(BILLING, 9))
    await rig.ask()
    rig.upkeep.there, rig.management.says = {}, None
    await rig.loads.look(monotonic_ms() + 10_000)
    monkeypatch.setattr(observe, "monotonic_ms", lambda: monotonic_ms() + 10_000)
    told = await rig.ask()
    row = told.rows["orders/billing", "sub"]
    assert row.ready == 3
    assert told.counted_age_ms(row, told.received_at_ms) >= 10_000


async def test_only_what_has_changed_is_told_again(rig: Rig) -> None:
    await rig.sweep(load(BILLING, 3), load(JOBS, 0))
    first = await rig.ask()
    assert first.whole
    assert not (await rig.ask(since=first.mark)).rows
    rig.upkeep.there[JOBS] = (5, 0)
    part = await rig.ask(since=first.mark)
    assert not part.whole
    assert list(part.rows) == [("queue:jobs", "queue")]
    both = merged(first, part)
    assert both.rows["orders/billing", "sub"].ready == 3
    assert both.rows["queue:jobs", "queue"].ready == 5


async def test_a_mark_of_another_run_of_the_agent_has_everything_told(rig: Rig) -> None:
    await rig.sweep(load(BILLING, 3))
    first = await rig.ask()
    number = first.mark.partition("-")[2]
    for mark in ("", "0", number, f"ffffffff-{number}", first.mark + "x", first.mark + "9" * 5_000):
        assert (await rig.ask(since=mark)).whole


async def test_a_clock_that_is_put_back_hides_no_change(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.sweep(load(BILLING, 3))
    first = await rig.ask()
    monkeypatch.setattr("time.time_ns", lambda: 1)
    rig.upkeep.there[BILLING] = (5, 2)
    assert (await rig.ask(since=first.mark)).rows["orders/billing", "sub"].ready == 5


async def test_everything_is_told_again_when_a_queue_is_gone(rig: Rig) -> None:
    await rig.sweep(load(BILLING, 3), load(JOBS, 0))
    first = await rig.ask()
    rig.register.receive(
        Snapshot(intact=True, entries=(replace(entry("queue:jobs"), alive=False, number=2),))
    )
    await rig.ask()
    told = await rig.ask(since=first.mark)
    assert told.whole
    assert list(told.rows) == [("orders/billing", "sub")]


async def test_names_are_counted_now_and_come_alone_with_all_their_clients(rig: Rig) -> None:
    rig.clients.note_request("a@h", "orders/billing", 0, monotonic_ms())
    rig.clients.note_request("b@h", "queue:jobs", 0, monotonic_ms())
    rig.upkeep.there[PARKED] = (1, 0)
    told = await rig.ask(names=["orders/billing"])
    assert set(told.rows) == {("orders/billing", "sub"), ("orders/billing", "park")}
    assert rig.upkeep.asked == [[BILLING, PARKED]]
    assert [each.id for each in told.clients] == ["a@h"]
    assert (told.client_count, told.whole) == (2, False)


async def test_consumers_are_listed_beside_for_those_who_ask_by_name_or_for_all_clients(
    rig: Rig,
) -> None:
    rig.management.attached_ = [
        Attached(queue=queue, client="c", peer="p", prefetch=9, owed=2, active=True)
        for queue in (BILLING, "mb.queue/jobs", "mb.sub/other/unknown")
    ]
    assert (await rig.ask(names=["orders/billing"])).consumers == ()
    await asyncio.sleep(0)  # the listing, which no answer waits for
    (told,) = (await rig.ask(names=["orders/billing"])).consumers
    assert (told.name, told.client, told.prefetch, told.owed) == ("orders/billing", "c", 9, 2)
    every = (await rig.ask(all_clients=True)).consumers
    assert {each.name for each in every} == {"orders/billing", "queue:jobs"}
    (mine,) = (await rig.ask(all_clients=True, allowed={"queue:jobs"})).consumers
    assert mine.name == "queue:jobs"
    assert (await rig.ask()).consumers == ()
    rig.management.attached_ = None
    assert rig.loads.attached(monotonic_ms() + ATTACHED_OLD_MS) == []


async def test_what_a_search_holds_of_the_parked_is_still_parked(rig: Rig) -> None:
    rig.upkeep.there[PARKED] = (0, 1)
    await rig.sweep(load(PARKED, 9, unacked=9))
    park = (await rig.ask(names=["orders/billing"])).rows["orders/billing", "park"]
    assert park.waiting == 9
    rig.upkeep.there[PARKED] = (9, 0)
    park = (await rig.ask(names=["orders/billing"])).rows["orders/billing", "park"]
    assert park.waiting == 9


async def test_counting_is_shared_by_those_who_ask_at_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observe, "COUNT_EVERY_MS", 60_000)
    await rig.ask()
    await rig.ask()
    assert len(rig.upkeep.asked) == 1


async def test_many_queues_are_counted_seldom(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observe, "COUNTS_A_S", 1)
    await rig.ask()
    await rig.ask()
    assert len(rig.upkeep.asked) == 1
    await rig.ask(names=["queue:jobs"])
    assert len(rig.upkeep.asked) == 2


async def test_the_state_says_what_is_missing_and_at_most_so_much(rig: Rig) -> None:
    await rig.sweep()
    state = (await rig.ask(state_only=True)).state
    assert (len(state.missing), state.missing_count) == (20, 25)
    assert (state.verdict, state.gate, state.rabbitmq, state.certificate_s) == (
        "ready",
        True,
        "3.12.14",
        90,
    )
    assert state.mirror
    assert state.mirror.copies == 1
    assert state.entries == 4


async def test_each_change_of_the_state_has_another_version(rig: Rig) -> None:
    before = rig.observer.version
    rig.condition = replace(rig.condition, behind_since_ms=1)
    assert rig.observer.version == before
    rig.condition = replace(rig.condition, alarm="alarm: disk")
    after = rig.observer.version
    assert after != before
    rig.upkeep.losses.noticed("orders", "queue", "mb.x", how="event", now_ms=1)
    assert rig.observer.version != after
    (loss,) = (await rig.ask(state_only=True)).state.losses
    assert (loss.name, loss.repaired) == ("mb.x", False)


async def test_equal_maps_have_equal_digests(rig: Rig) -> None:
    other = Rig()
    first, second = await rig.ask(), await other.ask()
    assert first.state.topology == second.state.topology != ""
    other.register.receive(Snapshot(intact=True, entries=(entry("orders/audit"),)))
    assert (await other.ask()).state.topology != first.state.topology


async def test_counters_that_went_back_begin_another_life(rig: Rig) -> None:
    await rig.sweep(load(BILLING, 9, departed=4))
    first = await rig.ask()
    rig.management.published = 0
    await rig.sweep(load(BILLING, 2, departed=0))
    told = await rig.ask(since=first.mark)
    assert told.life != first.life
    assert told.whole
    assert told.rows["orders/billing", "sub"].arrived == 2


async def test_who_may_not_see_a_name_is_not_told_it(rig: Rig) -> None:
    assert {name for name, _ in (await rig.ask(allowed=["queue:jobs"])).rows} == {"queue:jobs"}


async def test_whoever_asks_has_the_statistics_looked_at_sooner(rig: Rig) -> None:
    await rig.sweep()
    now_ms = monotonic_ms()
    rig.loads.hurry(now_ms)
    assert not rig.loads._hurried.is_set()
    rig.loads.hurry(now_ms + 6_000)
    assert rig.loads._hurried.is_set()


async def test_a_thousand_queues_are_looked_at_every_seven_seconds_at_most(rig: Rig) -> None:
    await rig.sweep(*(load(f"mb.sub/a/s{n}", 0) for n in range(1_000)))
    now_ms = monotonic_ms()
    rig.loads.hurry(now_ms + 6_000)
    assert not rig.loads._hurried.is_set()
    rig.loads.hurry(now_ms + 7_200)
    assert rig.loads._hurried.is_set()


async def test_the_segments_of_a_subscription_are_one_row(rig: Rig) -> None:
    """Nothing in its one queue, which is not there, would be zero of zero."""
    options = (("partitions", 4),)
    payments = replace(entry("payments/ledger"), options=options)
    rig.register.receive(Snapshot(intact=True, entries=(payments,)))
    group, first = "mb.group/payments/ledger", "mb.seg/payments/ledger/0.1"
    rig.upkeep.there |= {group: (0, 3), first: (4, 1), "mb.seg/payments/ledger/3.1": (5, 1)}
    row = (await rig.ask()).rows["payments/ledger", "sub"]
    assert (row.ready, row.consumers, row.unacked) == (9, 3, None)
    await rig.sweep(
        load(first, 6, departed=2, unacked=2),
        load("mb.seg/payments/ledger/3.1", 5, departed=1),
    )
    row = (await rig.ask()).rows["payments/ledger", "sub"]
    assert (row.ready, row.unacked, row.arrived) == (9, 2, 11)


HEAD = """version: 8.4.11 (api:1/proto:86-101)
srcversion: 96ED19D4C144624490A9AB1
"""
COUNTS = "\n    ns:40 nr:0 dw:40 dr:1153 al:3 bm:0 lo:0 pe:0 ua:0 ap:0 ep:1 wo:f oos:0\n"


def test_figures_are_read_at_each_scrape() -> None:
    value = [1.0]
    metrics = Metrics(
        "h:1",
        lambda: [Figure("ready", value[0]), Figure("lost", 2)],
    )
    assert b'messagebus_agent_ready{broker="h:1"} 1.0' in metrics.text()
    value[0] = 0
    text = metrics.text()
    assert b'messagebus_agent_ready{broker="h:1"} 0.0' in text
    assert b'messagebus_agent_lost_total{broker="h:1"} 2.0' in text


def test_nothing_is_collected_before_the_first_scrape() -> None:
    def too_early() -> list[Figure]:
        raise AssertionError("collected")

    Metrics("h:1", too_early)


def test_figures_of_queues_have_their_names() -> None:
    figures = [
        Figure("ready", 1),
        Figure("queue_messages", 3, queue="mb.sub/a/b"),
        Figure("queue_messages", 4, queue='"\\'),
    ]
    text = Metrics("h:1", lambda: figures).text().decode()
    assert 'messagebus_agent_queue_messages{broker="h:1",queue="mb.sub/a/b"} 3.0' in text
    assert 'messagebus_agent_queue_messages{broker="h:1",queue="\\"\\\\"} 4.0' in text
    assert text.count("# TYPE messagebus_agent_queue_messages gauge") == 1


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("cs:Connected ro:Primary/Secondary ds:UpToDate/UpToDate C r-----", (2, True, False)),
        ("cs:WFConnection ro:Primary/Unknown ds:UpToDate/Outdated C r-----", (1, False, False)),
        ("cs:WFConnection ro:Primary/Unknown ds:UpToDate/DUnknown C s-----", (1, False, False)),
        ("cs:StandAlone ro:Primary/Unknown ds:UpToDate/DUnknown   r-----", (1, False, True)),
        ("cs:SyncSource ro:Primary/Secondary ds:UpToDate/Inconsistent C r-----", (1, True, False)),
        ("cs:Connected ro:Primary/Secondary ds:Diskless/UpToDate C r-----", (1, True, False)),
        ("cs:WFConnection ro:Secondary/Unknown ds:Outdated/DUnknown C r-----", (0, False, False)),
    ],
)
def test_a_state_in_three_numbers(line: str, state: tuple[int, bool, bool]) -> None:
    other = " 1: cs:Connected ro:Primary/Secondary ds:UpToDate/UpToDate C r-----"
    text = f"{HEAD}{other}{COUNTS}10: {line}{COUNTS} 0: {line}{COUNTS}"
    assert read(text, "/dev/drbd0") == MirrorState(*state)
    assert read(text, "/dev/drbd10") == MirrorState(*state)
    assert read(text, "/dev/drbd1") == MirrorState(2, True, False)


@pytest.mark.parametrize("text", ["", HEAD, f"{HEAD} 0: cs:Unconfigured\n"])
def test_a_device_that_is_not_there_has_no_state(text: str) -> None:
    assert read(text, "/dev/drbd0") is None
    assert read(text, "/dev/sda") is None


def test_without_drbd_there_is_nothing_to_see(tmp_path: Path) -> None:
    assert look("/dev/drbd0", tmp_path / "none") is None


def test_what_monitoring_sees(tmp_path: Path) -> None:
    proc = tmp_path / "drbd"
    assert list(figures_of_mirror("", proc)) == []
    assert [figure.value for figure in figures_of_mirror("/dev/drbd0", proc)] == [0, False, False]
    proc.write_text(f"{HEAD} 0: cs:StandAlone ro:Primary/Unknown ds:UpToDate/DUnknown   r-----\n")
    assert [figure.value for figure in figures_of_mirror("/dev/drbd0", proc)] == [1, False, True]
