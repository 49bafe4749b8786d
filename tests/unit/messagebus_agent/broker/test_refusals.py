"""agent.broker.refusals: a refused entry rests for a while, unless it is wanted otherwise."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from messagebus.topology import QueueSpec
from messagebus_agent.broker.refusals import REFUSED_RETRY_S, Refusals, differences
from messagebus_agent.topology.register import Entry

ENTRY = Entry(wanted="queue:a", number=1, origin="mb1", alive=True, tomb=0)
QUEUE = QueueSpec(name="q", arguments={"x-queue-type": "quorum", "mb-born": 7})


def test_a_refused_entry_rests_and_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 10.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    made = Refusals()
    assert not made.rests(ENTRY)
    made.refused(ENTRY, "two values")
    assert made.rests(ENTRY)
    assert not made.rests(replace(ENTRY, number=2))
    now_s += REFUSED_RETRY_S
    assert not made.rests(ENTRY)


def test_reasons_are_of_those_that_are_refused() -> None:
    made = Refusals()
    made.refused(ENTRY, "two values")
    assert "queue:a" in made
    assert made.reasons(["queue:a", "queue:b"]) == ["queue:a: two values"]
    made.taken("queue:a")
    assert made.reasons(["queue:a"]) == []


def test_what_is_wanted_otherwise_now_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 10.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    made = Refusals()
    made.refused(ENTRY, "queue 'a': x is wanted 1 and exists 2")
    other = replace(ENTRY, wanted="queue:b")
    made.refused(other, "exchange 'b': type is wanted 1 and exists 2")
    assert (len(made), made.is_due) == (2, False)
    assert made.is_about_a_queue("queue:a")
    assert not made.is_about_a_queue("queue:b")
    made.keep({"queue:a": ENTRY, "queue:b": replace(other, alive=False)})
    assert (len(made), made.is_about_a_queue("queue:b")) == (1, False)
    now_s += REFUSED_RETRY_S
    assert made.is_due


@pytest.mark.parametrize(
    ("exists", "told"),
    [
        ({"durable": True, "x-queue-type": "quorum", "mb-born": 3}, ""),
        ({"durable": True}, "x-queue-type is wanted 'quorum' and exists 'classic'"),
        ({"durable": False, "x-queue-type": "quorum"}, "durable is wanted True and exists False"),
        (
            {"durable": True, "x-queue-type": "quorum", "x-expires": 5},
            "x-expires is wanted none and exists 5",
        ),
    ],
)
def test_each_argument_that_differs_is_named(exists: dict[str, Any], told: str) -> None:
    assert differences(QUEUE, exists) == told
