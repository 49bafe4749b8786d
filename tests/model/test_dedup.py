"""Deduplication through every schedule of small worlds: nothing dropped, nothing run twice, nothing stuck."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.dedup_model import Rules, World, explore

WORLDS = {
    "quiet": World(copies=3, lost_acks=1),
    "lost calls and replies": World(lost_calls=1, lost_replies=1),
    "a death": World(deaths=1, unended_max=1),
    "deaths": World(deaths=2),
    "a lost link": World(lost_links=1, lost_calls=1),
    "a late call": World(late_calls=1, fails=1),
    "a late call after a lost link": World(late_calls=1, lost_links=1),
    "failed runs": World(fails=2, lost_replies=1),
    "a late lease": World(late_leases=1, deaths=1),
    "a store that forgets": World(forgets=1),
    "a store that is away, and runs go on": World(lost_calls=1, fails=1, run_when_away=True),
}
# Rule -> a world that shows why it is there, and the fault that is found without it.
NEEDED = {
    "token": (World(lost_replies=1, unended_max=1), "NEEDLESS"),
    "token_of_turn": (World(late_calls=1, fails=1, lost_links=1), "TWICE"),
    "keep_done": (World(copies=3), "TWICE"),
    "park_at_the_end": (World(deaths=1, unended_max=1), "DROPPED"),
    "owner_release": (World(late_calls=1, fails=2), "TWICE"),
    "release_counts_back": (World(fails=2, unended_max=1), "NEEDLESS"),
    "done_first": (World(deaths=1), "TWICE"),
    "ack_after": (World(deaths=1), "DROPPED"),
    "expire_late": (World(), "TWICE"),
    "park_before_ack": (World(deaths=1, unended_max=1), "DROPPED"),
}


@pytest.mark.guarantee("handled-once")
@pytest.mark.parametrize("name", WORLDS)
def test_no_schedule_drops_repeats_or_blocks_a_message(name: str) -> None:
    fault, _states, steps = explore(WORLDS[name], Rules())
    assert not fault, "\n".join([fault, *steps])


@pytest.mark.parametrize("rule", NEEDED)
def test_each_rule_is_needed(rule: str) -> None:
    world, wanted = NEEDED[rule]
    fault, _states, _steps = explore(world, replace(Rules(), **{rule: False}))
    assert fault.startswith(wanted), f"without {rule}: {fault or 'no fault'}"
