"""Queues that a broker lost, recovers, or delays by its ladder."""

from __future__ import annotations

import logging
import time
from typing import Any, cast

import pytest

from messagebus.services.agent.broker import recovery as module
from messagebus.services.agent.broker.losses import (
    AUDITED_MAX,
    LOSSES_KEPT,
    NAMES_KEPT,
    AuditRounds,
    Deletions,
    Loss,
    Losses,
)
from messagebus.services.agent.broker.plan import wanted_of
from messagebus.services.agent.broker.recovery import LEADERS_WAIT_S, LOOK_EVERY_S, Ladder, Recovery
from messagebus.services.agent.broker.settle import Settler
from messagebus.services.agent.topology.register import Entry
from messagebus.topology import LADDER, Declarations


class FakeSettler:
    leaderless: int | None = 0
    dead: int | None = 0
    looks = 0
    workers = 2
    bodies: list[str] | None = None

    async def queues_dead(self) -> list[str] | None:
        return self.bodies

    async def queues_without_leader(self) -> int | None:
        return self.leaderless

    async def queues_revived(self) -> int | None:
        return self.dead

    async def dead_lettering_revived(self) -> int | None:
        self.looks += 1
        return self.workers


@pytest.fixture
def settler() -> FakeSettler:
    return FakeSettler()


@pytest.fixture
def recovery(settler: FakeSettler) -> Recovery:
    return Recovery("mb1:5672", cast(Settler, cast(Any, settler)))


@pytest.mark.parametrize("known", [0, None])
async def test_where_all_have_leaders_or_nobody_knows_there_is_no_wait(
    recovery: Recovery, settler: FakeSettler, known: int | None
) -> None:
    settler.leaderless = known
    assert await recovery.has_leaders()


async def test_the_wait_has_a_bound_that_counts_anew_with_each_link(
    recovery: Recovery, settler: FakeSettler, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 50.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    settler.leaderless = 3
    assert not await recovery.has_leaders()
    now_s += LEADERS_WAIT_S - 1
    assert not await recovery.has_leaders()
    recovery.begin_anew()
    assert not await recovery.has_leaders()
    now_s += LEADERS_WAIT_S
    assert await recovery.has_leaders()


async def test_what_is_revived_is_counted(recovery: Recovery, settler: FakeSettler) -> None:
    for dead in (2, None, 1):
        settler.dead = dead
        await recovery.revive()
    assert recovery.revived == 3


async def test_dead_lettering_is_looked_at_now_and_then_and_not_all_the_time(
    recovery: Recovery, settler: FakeSettler, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 50.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    await recovery.revive()
    await recovery.look()
    assert settler.looks == 1
    now_s += LOOK_EVERY_S
    await recovery.look()
    await recovery.look()
    assert settler.looks == 2
    assert recovery.revived == 0


def losses() -> tuple[Losses, list[int]]:
    """Return losses, and their reports."""
    reports: list[int] = []
    return Losses("mb1:5672", lambda: reports.append(1)), reports


def test_what_is_missing_is_told_once_until_it_is_there_again() -> None:
    made, reports = losses()
    for how in ("event", "audit"):
        made.noticed("orders/a", "queue", "q", how=how, now_ms=5)
    assert (made.missing, made.total, len(reports)) == (1, 1, 1)
    made.repaired(7)
    made.repaired(8)
    assert (made.missing, len(reports)) == (0, 2)
    (loss,) = made.kept
    assert (loss.how, loss.noticed_at_ms, loss.repaired_at_ms) == ("event", 5, 7)
    made.noticed("orders/a", "queue", "q", how="event", now_ms=9)
    assert (made.missing, made.total, len(made.kept)) == (1, 2, 2)


def test_every_change_has_another_mark() -> None:
    made, _reports = losses()
    marks = [made.mark]
    made.noticed("a", "queue", "q", how="event", now_ms=1)
    marks.append(made.mark)
    made.repaired(2)
    marks.append(made.mark)
    assert len(set(marks)) == 3


def test_a_binding_that_went_with_its_queue_is_called_a_queue() -> None:
    made, reports = losses()
    made.noticed("a", "binding", "q", how="event", now_ms=1_000)
    made.was_a_queue("q", deleted_at_ms=2_000)
    assert made.kept[0].what == "binding", "another deletion, much later"
    made.was_a_queue("q", deleted_at_ms=1_001)
    assert made.kept[0].what == "queue"
    assert len(reports) == 2


def test_few_are_kept_and_those_of_an_earlier_process_too() -> None:
    made, _reports = losses()
    made.restore([Loss(wanted="a", what="queue", name="q", how="start", noticed_at_ms=1)])
    assert made.missing == 1
    for number in range(2 * LOSSES_KEPT):
        made.noticed("a", "queue", f"q{number}", how="event", now_ms=2)
    assert len(made.kept) == LOSSES_KEPT


def entry(wanted: str, *, alive: bool = True) -> Entry:
    return Entry(wanted=wanted, number=1, origin="mb1", alive=alive, tomb=0)


ENTRIES = [entry("orders"), entry("orders/a"), entry("gone/b", alive=False)]


@pytest.mark.parametrize(
    ("what", "name", "headers", "struck"),
    [
        ("queue", "mb.sub/orders/a", {}, ["orders/a"]),
        ("queue", "mb.park/orders/a", {}, ["orders/a"]),
        ("queue", "mb.sub/gone/b", {}, []),
        ("exchange", "mb.topic/orders", {}, ["orders", "orders/a"]),
        ("binding", "mb.sub/orders/a", {"source_name": "mb.topic/orders"}, ["orders/a"]),
        ("binding", "mb.sub/orders/a", {"source_name": ""}, []),
    ],
)
def test_what_a_deletion_strikes(
    what: str, name: str, headers: dict[str, Any], struck: list[str]
) -> None:
    found = Deletions.struck(ENTRIES, what, name, headers)
    assert [each.wanted for each in found] == struck


def test_our_own_deletions_and_those_elsewhere_are_nothing_to_us() -> None:
    made = Deletions()
    made.ordered("q")
    assert made.is_ours("q", {})
    assert made.is_ours("other", {"vhost": "elsewhere"})
    assert not made.is_ours("other", {"vhost": "/"})


def test_what_is_declared_again_is_not_deleted_by_an_event_that_comes_late() -> None:
    made, wanted = Deletions(), wanted_of(entry("orders/a"))
    made.ordered("mb.sub/orders/a")
    made.declaring(wanted, 100)
    assert not made.is_ours("mb.sub/orders/a", {})
    assert made.is_undone("mb.sub/orders/a", 99)
    assert not made.is_undone("mb.sub/orders/a", 100)
    assert not made.is_undone("never declared", 0)


def test_while_events_are_proven_the_audit_goes_round_in_steps() -> None:
    rounds, names = AuditRounds(), [f"t{number:02}" for number in range(25)]
    assert rounds.next(names, events_proven=False) == names
    seen = [name for _ in range(9) for name in rounds.next(names, events_proven=True)]
    assert seen == names


def test_an_audit_of_many_names_costs_no_more_at_once_than_one_of_a_few() -> None:
    rounds, names = AuditRounds(), [f"t{number:04}" for number in range(1_000)]
    steps = [rounds.next(names, events_proven=True) for _ in range(1_000 // AUDITED_MAX)]
    assert {len(step) for step in steps} == {AUDITED_MAX}
    assert [name for step in steps for name in step] == names


def test_names_that_come_and_go_are_not_kept_for_ever() -> None:
    made = Deletions()
    for number in range(3 * NAMES_KEPT):
        made.ordered(f"mb.sub/orders/{number}")
        made.declaring(wanted_of(entry(f"queue:{number}")), 5)
    assert len(made._own) == len(made._declared_at_ms) == NAMES_KEPT
    assert made.is_ours(f"mb.sub/orders/{3 * NAMES_KEPT - 1}", {})


ME = "a:5672"
IS_DECLARED = [
    f"declare {name}" for name in (*(each.name for each in LADDER.exchanges), "mb.park/mb.due")
]
IS_BOUND = "bind mb.undelivered mb.park/mb.due"


class FakeControl:
    """Control that records requests."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.waiting: int | None = 0

    async def declare(self, wanted: Declarations) -> None:
        names = [each.name for each in wanted.exchanges] + [each.name for each in wanted.queues]
        self.asked += [f"declare {name}" for name in names]

    async def bind(self, wanted: Declarations) -> None:
        self.asked += [f"bind {each.exchange} {each.queue}" for each in wanted.bindings]

    async def counts(self, _queue: str) -> tuple[int, int] | None:
        return None if self.waiting is None else (self.waiting, 0)

    def taken(self) -> list[str]:
        asked, self.asked = self.asked, []
        return asked


@pytest.fixture
def control() -> FakeControl:
    return FakeControl()


async def test_all_is_declared_first_and_bound_last(control: FakeControl) -> None:
    ladder = Ladder(ME)
    await ladder.begin(control)  # type: ignore[arg-type]
    assert control.taken() == IS_DECLARED
    assert not ladder.leads_out
    await ladder.lead_out(control)  # type: ignore[arg-type]
    await ladder.lead_out(control)  # type: ignore[arg-type]
    assert control.taken() == [IS_BOUND]
    assert ladder.leads_out


async def test_the_undelivered_are_told_once_and_again_when_they_double(
    control: FakeControl, caplog: pytest.LogCaptureFixture
) -> None:
    ladder = Ladder(ME)
    caplog.set_level(logging.WARNING, "messagebus.agent")
    for control.waiting in (0, 1, 1, 2, 3, 0, 1):
        await ladder.look(control)  # type: ignore[arg-type]
        assert ladder.undelivered == control.waiting
    assert [told.getMessage().split("messages=")[1][:1] for told in caplog.records] == [
        "1",
        "2",
        "1",
    ]


async def test_what_somebody_deleted_is_made_again(
    control: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REPAIR_EVERY", 1)
    ladder = Ladder(ME)
    await ladder.begin(control)  # type: ignore[arg-type]
    await ladder.lead_out(control)  # type: ignore[arg-type]
    control.taken()
    await ladder.look(control)  # type: ignore[arg-type]
    assert sorted(control.taken()) == sorted([*IS_DECLARED, IS_BOUND])
    control.waiting = None
    await ladder.look(control)  # type: ignore[arg-type]
    assert control.taken() == IS_DECLARED
    assert not ladder.leads_out


async def test_a_queue_whose_process_stays_dead_is_named_until_it_lives(
    recovery: Recovery, settler: FakeSettler, caplog: pytest.LogCaptureFixture
) -> None:
    """Its name is listed and its declaration is answered, but it takes and gives nothing."""
    settler.bodies = ["mb.sub/t/s"]
    for _ in range(2):
        assert await recovery.find_dead() == {"mb.sub/t/s"}
    assert "mb.sub/t/s" in recovery.fault
    assert "restart the broker" in recovery.fault
    assert caplog.text.count("queues stuck") == 1
    settler.bodies = None  # not known: nothing is told that was not seen
    assert await recovery.find_dead() == {"mb.sub/t/s"}
    settler.bodies = ["mb.stream/t"]
    await recovery.find_dead()
    assert "a stream that stays dead has lost its coordinator: OPERATIONS.md" in recovery.fault
    settler.bodies = []
    assert not await recovery.find_dead()
    assert recovery.fault == ""


async def test_dead_lettering_that_ends_again_and_again_is_a_fault(
    recovery: Recovery, settler: FakeSettler
) -> None:
    await recovery.revive()
    assert recovery.fault == ""
    for _ in range(2):
        await recovery.revive()
    assert "dead-lettering ends again and again" in recovery.fault
    settler.workers = 0
    for _ in range(6):
        await recovery.revive()
    assert recovery.fault == ""
