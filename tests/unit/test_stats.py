"""Statuses, the four ends of a publish and their promises, and hooks that do nothing."""

from __future__ import annotations

import pytest

from messagebus.core.deliveries import Receipt
from messagebus.destination import Queue
from messagebus.hooks import Hooks
from messagebus.message import Delivery, Message
from messagebus.recording.events import OUTCOMES
from messagebus.stats import Durability, Outcome, Published, Status, why_not_running

MESSAGE = Message(body=b"x", message_id="1")


def test_a_client_that_was_not_started_says_what_to_do() -> None:
    told = why_not_running(Status.INITIALIZED, "publisher", "async with")
    assert told == "the publisher was not started: call start(), or use it by `async with`"
    assert why_not_running(Status.STOPPED, "publisher", "with") == "the publisher is stopped"


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


def test_hooks_do_nothing_by_themselves() -> None:
    hooks = Hooks()
    delivery = Delivery(MESSAGE, Receipt("b:1", 1, 1), Queue("jobs"))
    assert hooks.publishing("orders", MESSAGE) is MESSAGE
    hooks.published("orders", MESSAGE, Published("1", Outcome.CONFIRMED, Durability.FSYNC))
    hooks.handled(delivery, "ack", None)
    with hooks.handling(delivery), hooks.publishing_many("orders"):
        pass
