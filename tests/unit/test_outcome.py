"""messagebus.outcome: the four ends of a publish, and what was promised."""

from __future__ import annotations

import pytest

from messagebus.events import OUTCOMES
from messagebus.outcome import Durability, Outcome, Published


def test_a_publish_has_four_ends_and_recorders_know_them() -> None:
    assert tuple(outcome.value for outcome in Outcome) == OUTCOMES


def test_durability_has_three_levels() -> None:
    assert [level.value for level in Durability] == ["fsync", "page-cache", "none"]


def test_the_end_of_a_publish_is_a_value() -> None:
    published = Published(
        message_id="x", outcome=Outcome.CONFIRMED, durability=Durability.FSYNC, broker="mb1:5672"
    )
    assert (published.attempts, published.reason) == (1, "")
    with pytest.raises(AttributeError):
        published.attempts = 2  # type: ignore[misc]
