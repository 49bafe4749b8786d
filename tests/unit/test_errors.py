"""messagebus.errors: one tree, shown in its docstring, and the attributes of each error."""

from __future__ import annotations

import re

import pytest

from messagebus import errors
from messagebus.stats import Outcome

CLASSES = [getattr(errors, name) for name in errors.__all__]


def test_the_printed_tree_is_the_tree() -> None:
    told: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"( *)([A-Z]\w+)(?: |$)", line):
            depth, name = len(found[1]), found[2]
            above = [each for each in above if each[0] < depth]
            if hasattr(errors, name):
                told[name] = above[-1][1] if above else "Exception"
                above.append((depth, name))
    assert told == {kind.__name__: kind.__bases__[0].__name__ for kind in CLASSES}


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_says_when_it_is_raised(kind: type[Exception]) -> None:
    assert re.match("Raised when|Root of", kind.__doc__ or "")


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        (errors.Refused, Outcome.REFUSED),
        (errors.Unroutable, Outcome.UNROUTABLE),
        (errors.Unknown, Outcome.UNKNOWN),
    ],
)
def test_a_publish_error_carries_id_and_outcome(
    kind: type[errors.PublishError], outcome: Outcome
) -> None:
    error = kind("id7", "no room")
    assert (error.message_id, error.reason, error.outcome) == ("id7", "no room", outcome)
    assert str(error) == f"message id7 {outcome.value}: no room"
    assert str(kind("id7")) == f"message id7 {outcome.value}"


def test_a_link_error_carries_the_broker() -> None:
    refused = errors.ChannelRefused("mb1:5672", 404, "NOT_FOUND")
    assert (refused.broker, refused.code) == ("mb1:5672", 404)
    assert str(refused) == "mb1:5672: 404 NOT_FOUND"


def test_a_bad_list_carries_the_line() -> None:
    assert str(errors.ListInvalid("no port", line=3)) == "line 3: no port"
    assert str(errors.ListInvalid("no broker")) == "no broker"


def test_an_incomplete_registration_names_the_brokers() -> None:
    error = errors.RegistrationIncomplete("orders/billing", {"mb2:5672": "silent", "mb1:5672": "x"})
    assert error.missing == {"mb1:5672": "x", "mb2:5672": "silent"}
    assert str(error) == "orders/billing is incomplete: mb1:5672 (x), mb2:5672 (silent)"
    assert "no agent answered" in str(errors.RegistrationIncomplete("orders", {}))
