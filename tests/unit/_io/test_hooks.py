from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus._io.hooks import LOGGED_EVERY, HookChain, hook_chain, with_id
from messagebus._io.publish.targets import Targets
from messagebus.bodies import BINARY
from messagebus.core.deliveries import Receipt
from messagebus.core.headers import OF_BROKERS
from messagebus.destination import Queue
from messagebus.hooks import Hooks
from messagebus.message import Delivery, Message
from messagebus.stats import Durability, Outcome, Published

SHAPE = Targets().plain("orders")
DELIVERY = Delivery(Message(body=b"x", message_id="1"), Receipt("b:1", 1, 1), Queue("jobs"))


class Noting(Hooks):
    """Hooks that add one header and keep their calls."""

    def __init__(self, name: str, notes: list[Any]) -> None:
        self.name, self.notes = name, notes
        self.given: list[Message] = []

    def publishing(self, destination: str, message: Message) -> Message:
        made = dataclasses.replace(message, headers={**message.headers, self.name: destination})
        self.given.append(made)
        return made

    def published(self, destination: str, message: Message, published: Published) -> None:
        self.notes.append((self.name, published.outcome.value, message is self.given[-1]))

    @contextlib.contextmanager
    def handling(self, delivery: Delivery) -> Iterator[None]:
        self.notes.append(f"{self.name} in")
        try:
            yield
        except ValueError:
            self.notes.append(f"{self.name} saw it")
            raise
        finally:
            self.notes.append(f"{self.name} out")

    def handled(self, delivery: Delivery, answer: str, error: BaseException | None) -> None:
        self.notes.append((self.name, answer, error))


class Failing(Hooks):
    error: type[BaseException] = OSError

    def publishing(self, destination: str, message: Message) -> Message:
        raise self.error("publishing")

    def published(self, destination: str, message: Message, published: Published) -> None:
        raise self.error("published")

    def spooled(self, destination: str, published: Published) -> None:
        raise self.error("spooled")

    def handling(self, delivery: Delivery) -> contextlib.AbstractContextManager[None]:
        raise self.error("handling")

    def handled(self, delivery: Delivery, answer: str, error: BaseException | None) -> None:
        raise self.error("handled")

    def deduplicated(self, delivery: Delivery, verdict: str) -> None:
        raise self.error("deduplicated")


class LeavingBadly(Hooks):
    @contextlib.contextmanager
    def handling(self, delivery: Delivery) -> Iterator[None]:
        yield
        raise OSError("on the way out")


class Swallowing(Hooks):
    def handling(self, delivery: Delivery) -> contextlib.AbstractContextManager[None]:
        return contextlib.suppress(Exception)


class Waiter:
    def __init__(self, done: bool = False) -> None:
        self.result: Any = None
        self._done = done

    def done(self) -> bool:
        return self._done

    def set_result(self, result: Any, /) -> None:
        self.result = result


def end(message: Message, outcome: Outcome = Outcome.CONFIRMED) -> Published:
    return Published(message.message_id, outcome, Durability.FSYNC)


def test_without_hooks_there_is_no_chain() -> None:
    assert hook_chain(()) is None


def test_what_is_no_hook_is_told_at_once() -> None:
    with pytest.raises(TypeError, match="int is no messagebus"):
        HookChain([3])  # type: ignore[list-item]


def test_each_hook_adds_its_headers_and_hears_the_end_of_what_it_returned() -> None:
    notes: list[Any] = []
    chain = HookChain([Noting("a", notes), Noting("b", notes)])
    waiter = Waiter()
    message, watched = chain.publishing(SHAPE, b"body", None, waiter)
    assert (message.body, message.content_type) == (b"body", BINARY)
    assert message.headers == {"a": "orders", "b": "orders"}
    assert len(message.message_id) == 32
    assert not watched.done()
    watched.set_result(end(message))
    assert notes == [("a", "confirmed", True), ("b", "confirmed", True)]
    assert waiter.result == end(message)


def test_hooks_hear_the_end_also_when_nobody_else_waits() -> None:
    notes: list[Any] = []
    chain = HookChain([Noting("a", notes)])
    for waiter in (None, gone := Waiter(done=True)):
        message, watched = chain.publishing(SHAPE, b"", None, waiter)
        watched.set_result(end(message))
    assert notes == [("a", "confirmed", True)] * 2
    assert gone.result is None


def test_a_hook_that_changes_the_id_is_not_heard() -> None:
    class Renaming(Hooks):
        def publishing(self, destination: str, message: Message) -> Message:
            return dataclasses.replace(message, message_id="other")

    own = Message(body=b"", message_id="mine")
    assert HookChain([Renaming()]).publishing(SHAPE, b"", own, None)[0].message_id == "mine"


def test_a_hook_that_fails_harms_neither_the_message_nor_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    notes: list[Any] = []
    chain = HookChain([Failing(), Noting("a", notes), LeavingBadly()])
    waiter = Waiter()
    with caplog.at_level(logging.WARNING, "messagebus.hooks"):
        message, watched = chain.publishing(SHAPE, b"", None, waiter)
        watched.set_result(end(message))
        with chain.handling(DELIVERY):
            notes.append("handler")
        chain.handled(DELIVERY, "ack", None)
    assert message.headers == {"a": "orders"}
    assert waiter.result == end(message)
    assert notes == [("a", "confirmed", True), "a in", "handler", "a out", ("a", "ack", None)]
    assert [record.getMessage() for record in caplog.records] == [
        "hook failed hook=Failing where=publishing failures=1 error=OSError"
    ]


ENDINGS = [SystemExit, asyncio.CancelledError, GeneratorExit, KeyboardInterrupt]


@pytest.mark.parametrize("error", ENDINGS)
def test_a_hook_that_would_end_the_process_ends_no_more_than_its_own_call(
    error: type[BaseException],
) -> None:
    failing, notes, waiter = Failing(), list[Any](), Waiter()
    failing.error = error
    chain = HookChain([failing, Noting("a", notes)])

    def call_all() -> None:
        message, watched = chain.publishing(SHAPE, b"", None, waiter)
        watched.set_result(end(message))
        chain.spooled("orders", end(message))
        with chain.handling(DELIVERY):
            notes.append("handler")
        chain.handled(DELIVERY, "ack", None)
        chain.deduplicated(DELIVERY, "duplicate")
        notes.append("end")

    thread = threading.Thread(target=call_all)  # where no signal handler raises
    thread.start()
    thread.join()
    assert notes == [
        ("a", "confirmed", True),
        "a in",
        "handler",
        "a out",
        ("a", "ack", None),
        "end",
    ]
    assert waiter.result is not None


def test_ctrl_c_within_a_hook_of_the_main_thread_reaches_the_application() -> None:
    failing = Failing()
    failing.error = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        HookChain([failing]).handled(DELIVERY, "ack", None)


@pytest.mark.parametrize("returned", [None, "x"])
def test_a_hook_that_returns_no_message_harms_neither_the_message_nor_the_others(
    returned: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Forgetful(Hooks):
        def publishing(self, destination: str, message: Message) -> Message:
            return returned  # type: ignore[no-any-return]

    notes: list[Any] = []
    chain = HookChain([Forgetful(), Noting("a", notes)])
    message, watched = chain.publishing(SHAPE, b"x", None, None)
    assert message.headers == {"a": "orders"}
    watched.set_result(Published(message.message_id, Outcome.CONFIRMED, Durability.FSYNC))
    assert notes == [("a", "confirmed", True)]
    assert "hook failed hook=Forgetful where=publishing" in caplog.text


def test_failures_are_told_again_after_many(caplog: pytest.LogCaptureFixture) -> None:
    chain = HookChain([Failing()])
    with caplog.at_level(logging.WARNING, "messagebus.hooks"):
        for _ in range(LOGGED_EVERY + 1):
            chain.handled(DELIVERY, "ack", None)
    assert len(caplog.records) == 2
    assert f"failures={LOGGED_EVERY + 1}" in caplog.records[1].getMessage()


def test_a_handlers_error_reaches_every_hook_and_then_the_runner() -> None:
    notes: list[Any] = []
    chain = HookChain([Noting("a", notes), Swallowing(), Noting("b", notes)])
    with pytest.raises(ValueError, match="of the handler"), chain.handling(DELIVERY):
        raise ValueError("of the handler")
    assert notes == ["a in", "b in", "b saw it", "b out", "a saw it", "a out"]


def test_a_batch_is_the_run_of_each_of_its_deliveries_for_hooks_of_single_ones() -> None:
    notes: list[Any] = []
    chain = HookChain([Noting("a", notes), Hooks()])
    with chain.handling_many([DELIVERY, DELIVERY]):
        notes.append("handler")
    assert notes == ["a in", "a in", "handler", "a out", "a out"]
    with pytest.raises(ValueError, match="of the handler"), chain.handling_many([DELIVERY]):
        raise ValueError("of the handler")
    assert notes[-2:] == ["a saw it", "a out"]


TEXT = st.text(max_size=20)
# Hypothesis tries constants of the sources, too, and names of brokers' headers are among these.
NAMES = TEXT.filter(lambda name: not name.startswith("mb-") and name not in OF_BROKERS)


@given(
    body=st.binary(max_size=20),
    content_type=TEXT,
    key=TEXT,
    priority=st.none() | st.integers(0, 9),
    headers=st.dictionaries(NAMES, TEXT),
)
def test_a_copy_under_an_id_differs_in_nothing_else(**fields: Any) -> None:
    message = Message(**fields)
    assert with_id(message, "new") == dataclasses.replace(message, message_id="new")
