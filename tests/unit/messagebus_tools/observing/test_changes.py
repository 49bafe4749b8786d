"""Events between two observations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from messagebus_tools.observing.changes import changes
from messagebus_tools.observing.snapshot import Balancer, Bus, Loss, Server
from tests.support.observed import bus, row, seen

BILLING = "orders/billing"
LOST = Loss(wanted=BILLING, what="queue", name="mb.sub/x", noticed_at_ms=1, repaired=False)


def told(**more: Any) -> Bus:
    consumers = more.pop("consumers", 1)
    return bus(seen("mb1", row(BILLING, consumers=consumers), **more))


@pytest.mark.parametrize(
    ("old", "new", "kind", "text"),
    [
        ({}, {"fault": "timed out"}, "agent", "its agent does not answer: timed out"),
        ({"fault": "timed out"}, {}, "agent", "its agent answers again"),
        ({}, {"verdict": "down", "reason": "no link"}, "broker", "is down: no link"),
        ({"verdict": "down"}, {}, "broker", "takes publishes"),
        (
            {},
            {"verdict": "drain", "draining": "x", "reason": "x"},
            "broker",
            "asks publishers to leave: x",
        ),
        ({}, {"topology": "t2", "entries": 3}, "topology", "its topology has 3 names, 1 before"),
        ({}, {"losses": (LOST,)}, "loss", "queue mb.sub/x vanished"),
        (
            {"losses": (LOST,)},
            {"losses": (replace(LOST, repaired=True),)},
            "loss",
            "queue mb.sub/x was made again",
        ),
        ({}, {"consumers": 0}, "consumers", "has no consumer any more on mb1"),
        ({"consumers": 0}, {}, "consumers", "has its first consumer on mb1"),
        ({}, {"consumers": 2}, "", ""),
        ({}, {}, "", ""),
    ],
)
def test_one_change_is_one_event(
    old: dict[str, Any], new: dict[str, Any], kind: str, text: str
) -> None:
    found = [(each.kind, each.text) for each in changes(told(**old), told(**new))]
    assert found == ([(kind, text)] if kind else [])


def test_a_new_list_says_who_came_and_who_left() -> None:
    old, new = bus(seen("mb1"), seen("mb2")), replace(bus(seen("mb2"), seen("mb3")), generation=2)
    assert [each.text for each in changes(old, new)] == ["generation 2 is served: + mb3, - mb1"]


def test_a_balancer_that_judges_otherwise_is_told() -> None:
    old, new = (
        bus(balancers=[Balancer(url="http://lb1", servers=(Server(name="mb1", status=status),))])
        for status in ("UP", "DOWN")
    )
    (event,) = changes(old, new)
    assert (event.about, event.text) == ("mb1", "http://lb1 has mb1 as DOWN, UP before")


def test_nothing_is_told_of_a_broker_without_an_earlier_answer() -> None:
    old = bus(replace(seen("mb1"), last=None, fault="not asked yet"))
    assert [each.kind for each in changes(old, told(verdict="down"))] == ["agent"]
