"""agent.deletions: whose a deletion is, and what an audit looks at next."""

from __future__ import annotations

from typing import Any

import pytest

from messagebus.agent.deletions import NAMES_KEPT, AuditRounds, Deletions
from messagebus.agent.plan import wanted_of
from messagebus.core.register import Entry


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
