"""agent.refusals: what was refused rests for a while, unless it is wanted otherwise."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from messagebus.agent.refusals import REFUSED_RETRY_S, Refusals
from messagebus.core.register import Entry

ENTRY = Entry(wanted="queue:a", number=1, origin="mb1", alive=True, tomb=0)


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
