"""agent.broker.losses: each loss is reported once, and once more when repaired; the origin of a deletion."""

from __future__ import annotations

from typing import Any

import pytest

from messagebus_agent.broker.losses import (
    LOSSES_KEPT,
    NAMES_KEPT,
    AuditRounds,
    Deletions,
    Loss,
    Losses,
)
from messagebus_agent.broker.plan import wanted_of
from messagebus_agent.topology.register import Entry


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


def test_names_that_come_and_go_are_not_kept_for_ever() -> None:
    made = Deletions()
    for number in range(3 * NAMES_KEPT):
        made.ordered(f"mb.sub/orders/{number}")
        made.declaring(wanted_of(entry(f"queue:{number}")), 5)
    assert len(made._own) == len(made._declared_at_ms) == NAMES_KEPT
    assert made.is_ours(f"mb.sub/orders/{3 * NAMES_KEPT - 1}", {})
