"""Errors, secrets and counters: what they say, and what they keep to themselves."""

from __future__ import annotations

import copy
import json
import pickle
import re
import traceback
from collections.abc import Callable
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

import consumer_lists.errors
import lb.errors
import ops.errors
from messagebus import errors
from messagebus.core.deliveries import Receipt
from messagebus.destination import Queue
from messagebus.hooks import Hooks
from messagebus.message import Delivery, Message
from messagebus.recording.events import OUTCOMES
from messagebus.secret import Secret
from messagebus.stats import Durability, Outcome, Published, Status, why_not_running

CLASSES = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("told_by", [errors, lb.errors, consumer_lists.errors, ops.errors])
def test_the_printed_tree_is_the_tree(told_by: ModuleType) -> None:
    told: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in (told_by.__doc__ or "").splitlines():
        if found := re.match(r"( *)([A-Z]\w+)(?: |$)", line):
            depth, name = len(found[1]), found[2]
            above = [each for each in above if each[0] < depth]
            if kind := getattr(told_by, name, None):
                if (
                    kind.__module__ == told_by.__name__
                ):  # else it is another package's, and has children here
                    told[name] = above[-1][1] if above else "Exception"
                above.append((depth, name))
    kinds = [
        kind
        for kind in vars(told_by).values()
        if getattr(kind, "__module__", "") == told_by.__name__
    ]
    classes = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Exception)]
    bases = {kind.__name__: [base.__name__ for base in kind.__bases__] for kind in classes}
    assert told.keys() == bases.keys()
    root, *_ = told
    assert [name for name in told if name != root and told[name] not in bases[name]] == []


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_says_when_it_is_raised(kind: type[Exception]) -> None:
    assert re.match("Raised when|Root of", kind.__doc__ or "")


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if kind is not errors.MessageBusError])
def test_a_traceback_of_an_error_names_its_section(kind: type[errors.MessageBusError]) -> None:
    fault = kind.__new__(kind, "broken")
    told = traceback.format_exception(fault)
    assert told[-1] == f"see: messagebus explain {kind.__name__.lower()}\n"
    assert "docs/" not in str(fault)


def test_notes_of_an_application_stand_beside_the_section() -> None:
    fault = errors.NotReady("broken")
    fault.add_note("while order 17 was published")
    told = ["see: messagebus explain notready", "while order 17 was published"]
    assert fault.__notes__ == told == pickle.loads(pickle.dumps(fault)).__notes__
    assert errors.NotReady("another").__notes__ == told[:1]


def test_an_error_of_others_names_no_section_but_one_below_ours_names_that() -> None:
    class Own(errors.MessageBusError):
        pass

    class Below(errors.NotFound):
        pass

    assert not hasattr(Own(), "__notes__")
    assert Below.docs == errors.NotFound.docs


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


SHOWN: list[Callable[[Secret], object]] = [
    repr,
    str,
    ascii,
    lambda secret: f"{secret}",
    lambda secret: f"{secret:>40}",
    lambda secret: f"{secret!r}",
    lambda secret: "%s" % secret,  # noqa: UP031 - that is what loggers do
    lambda secret: [secret],
    lambda secret: {"x": secret},
]


@pytest.mark.parametrize("show", SHOWN)
def test_nothing_shows_it(show: Callable[[Secret], object]) -> None:
    assert "sesame" not in str(show(Secret("sesame")))


def test_reveal_is_the_one_way() -> None:
    assert Secret("sesame").reveal() == "sesame"
    assert not hasattr(Secret("sesame"), "__dict__")


@pytest.mark.parametrize("leave", [pickle.dumps, json.dumps, copy.deepcopy, copy.copy])
def test_it_does_not_leave_the_process(leave: Callable[[Secret], object]) -> None:
    with pytest.raises(TypeError):
        leave(Secret("sesame"))


@given(st.text(), st.text())
def test_equal_texts_are_equal_secrets(one: str, other: str) -> None:
    assert (Secret(one) == Secret(other)) == (one == other)
    assert Secret(one) != one
    assert hash(Secret(one)) == hash(Secret(one))


def test_bytes_of_an_environment_that_are_no_text_compare() -> None:
    assert Secret("\udcff") == Secret("\udcff")


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


class Mute(Exception):
    def __str__(self) -> str:
        raise OSError


def test_a_reason_is_one_bounded_line_whatever_the_error_is() -> None:
    assert errors.reason_of(ValueError(" one\n two\tthree ")) == "one two three"
    assert errors.reason_of(ValueError("one two"), 5) == "one t"
    assert errors.reason_of(ValueError()) == "ValueError"
    assert errors.reason_of(Mute()) == "(its text fails: OSError)"
