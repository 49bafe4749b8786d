"""The gate's opening, and the answers to balancers."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

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


def test_ready_needs_no_reason() -> None:
    said = verdict(SERVING, 0)
    assert (said.kind, said.reason) == (VerdictKind.READY, "")


def test_a_broker_whose_agent_read_no_majority_is_ready_and_says_so() -> None:
    """A restart of all agents drains nobody, but the missing majority is named."""
    said = verdict(replace(SERVING, informed=False), 0)
    assert (said.kind, said.reason) == (
        VerdictKind.READY,
        "ready, but no majority of agents was read",
    )


def test_a_policy_that_loses_messages_is_named_and_drains_nobody() -> None:
    """It is on all brokers at once, as a rule."""
    told = verdict(
        replace(SERVING, losing="policy 'ttl' loses messages by message-ttl: mb.sub/t/s"), 0
    )
    assert (told.kind, told.reason) == (
        VerdictKind.READY,
        "ready, but policy 'ttl' loses messages by message-ttl: mb.sub/t/s",
    )


def test_a_broker_with_a_queue_that_neither_takes_nor_gives_is_not_ready() -> None:
    told = verdict(replace(SERVING, stuck="queues take and give nothing: mb.sub/t/s"), 0)
    assert (told.kind, told.reason) == (
        VerdictKind.DRAIN,
        "queues take and give nothing: mb.sub/t/s",
    )


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
