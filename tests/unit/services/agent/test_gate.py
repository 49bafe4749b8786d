"""The gate's opening, and the answers to balancers."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from messagebus.services.agent.gate import (
    BEHIND_MS,
    Condition,
    Gate,
    VerdictKind,
    may_open,
    verdict,
)

SERVING = Condition(linked=True, gate_open=True, informed=True, wanted_version=3, brought_version=3)
SHUT = replace(SERVING, gate_open=False)


def test_the_gate_opens_for_an_informed_map_that_is_all_there() -> None:
    assert may_open(SHUT)


@pytest.mark.parametrize(
    "changed",
    [
        replace(SHUT, linked=False),
        replace(SHUT, gate_open=True),
        replace(SHUT, informed=False),
        replace(SHUT, brought_version=2),
        replace(SHUT, vanished=1),
    ],
)
def test_the_gate_stays_as_it_is_when_anything_is_amiss(changed: Condition) -> None:
    assert not may_open(changed)


def test_the_gate_against_a_table() -> None:
    for linked, gate_open, informed, behind, vanished in product((False, True), repeat=5):
        condition = Condition(
            linked=linked,
            gate_open=gate_open,
            informed=informed,
            wanted_version=2,
            brought_version=1 if behind else 2,
            vanished=int(vanished),
        )
        wanted = (linked, gate_open, informed, behind, vanished)
        assert may_open(condition) == (wanted == (True, False, True, False, False))


@pytest.mark.parametrize(
    ("steps", "state"),
    [
        ("", "unknown"),
        ("there", "open"),
        ("missing", "shut"),
        ("missing opening", "unknown"),
        ("missing opening opened", "open"),
        ("there link_ended", "unknown"),
        ("missing link_ended", "shut"),
        ("there link_ended broker_gone", "shut"),
        ("missing opening link_ended broker_gone", "shut"),
        ("there broker_gone", "open"),
        ("there missing", "shut"),
        ("there link_ended missing link_ended", "shut"),
    ],
)
def test_a_gate_is_open_or_shut_only_where_that_is_certain(steps: str, state: str) -> None:
    gate = Gate()
    for step in steps.split():
        if step in ("there", "missing"):
            gate.looked(step == "there")
        else:
            getattr(gate, step)()
    states = {"open": gate.is_open, "shut": gate.is_shut, "unknown": gate.is_unknown}
    assert [name for name, holds in states.items() if holds] == [state]


@pytest.mark.parametrize(
    ("changes", "kind", "reason"),
    [
        ({}, VerdictKind.READY, ""),
        # A restart of all agents drains nobody, but the missing majority is named.
        ({"informed": False}, VerdictKind.READY, "ready, but no majority of agents was read"),
        # It is on all brokers at once, as a rule.
        ({"losing": "policy 'ttl' loses"}, VerdictKind.READY, "ready, but policy 'ttl' loses"),
        ({"stuck": "queues take nothing"}, VerdictKind.DRAIN, "queues take nothing"),
    ],
)
def test_a_verdict_says_what_is_amiss(
    changes: dict[str, Any], kind: VerdictKind, reason: str
) -> None:
    said = verdict(replace(SERVING, **changes), 0)
    assert (said.kind, said.reason) == (kind, reason)


def test_down_without_a_link_or_a_gate() -> None:
    assert verdict(replace(SERVING, linked=False), 0).kind is VerdictKind.DOWN
    assert verdict(SHUT, 0).kind is VerdictKind.DOWN
    assert "majority" in verdict(replace(SHUT, informed=False), 0).reason


@pytest.mark.parametrize(
    "changed",
    [
        replace(SERVING, draining="operators drain it"),
        replace(SERVING, alarm="alarm: memory"),
        replace(SERVING, vanished=2),
        replace(SERVING, joining=True),
    ],
)
def test_drain_has_its_reasons(changed: Condition) -> None:
    said = verdict(changed, 0)
    assert said.kind is VerdictKind.DRAIN
    assert said.reason


def test_a_creation_in_progress_drains_nobody() -> None:
    behind = replace(SERVING, brought_version=2, behind_since_ms=1_000)
    assert verdict(behind, 1_000 + BEHIND_MS).kind is VerdictKind.READY
    assert verdict(behind, 1_001 + BEHIND_MS).kind is VerdictKind.DRAIN


def test_an_open_gate_without_a_majority_drains_nobody() -> None:
    """No change can have been completed without this broker while it served."""
    assert verdict(replace(SERVING, informed=False), 0).kind is VerdictKind.READY
