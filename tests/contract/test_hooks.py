"""Hooks around publishes, on every kind of bus and through every way in."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from messagebus import BacklogFull, Batching, Hooks, Message, Published, Stopped
from tests.contract.conftest import Bus, end_of, receive_and_ack
from tests.contract.test_publishing import WITHIN_S


class Noting(Hooks):
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.began: dict[str, str] = {}
        self.ended: dict[str, list[str]] = {}
        self.calls: list[str] = []

    def publishing(self, destination: str, message: Message) -> Message:
        with self.lock:
            assert message.message_id not in self.began
            self.began[message.message_id] = destination
        return dataclasses.replace(message, headers={**message.headers, "seen": "yes"})

    def published(self, destination: str, message: Message, published: Published) -> None:
        assert message.headers["seen"] == "yes"
        with self.lock:
            ends = self.ended.setdefault(published.message_id, [])
        ends.append(published.outcome.value)

    @contextlib.contextmanager
    def publishing_many(self, destination: str) -> Iterator[None]:
        before = len(self.began)
        yield
        self.calls.append(f"{destination}: {len(self.began) - before}")


class Broken(Hooks):
    def publishing(self, destination: str, message: Message) -> Message:
        raise RuntimeError("telemetry is down")

    def published(self, destination: str, message: Message, published: Published) -> None:
        raise RuntimeError("telemetry is down")

    def publishing_many(self, destination: str) -> contextlib.AbstractContextManager[None]:
        raise RuntimeError("telemetry is down")


@pytest.mark.parametrize("batches", [False, True])
async def test_each_publish_is_seen_once_with_its_end(bus: Bus, batches: bool) -> None:
    hooks = Noting()
    consumer = await bus.consumer()
    batch = {bus.topic: Batching(count_max=3, linger_s=0.005)} if batches else {}
    publisher = await bus.publisher(hooks=[hooks], batch=batch)
    await publisher.call("send", bus.topic, b"1")
    own = Message.text("2", message_id="mine", headers={"mine": 1})
    await end_of(await publisher.call("submit", bus.topic, own))
    await publisher.call("send_safe", bus.topic, "3", timeout_s=WITHIN_S)
    many = await publisher.call("send_many", bus.topic, [b"4", "5"], timeout_s=WITHIN_S)
    await publisher.call("flush")
    got = await receive_and_ack(consumer, 5)
    assert {each.message.message_id for each in got} == set(hooks.began) == set(hooks.ended)
    assert set(hooks.began.values()) == {bus.topic}
    assert list(hooks.ended.values()) == [["confirmed"]] * 5
    assert all(each.message.headers["seen"] == "yes" for each in got)
    assert [each.message.headers for each in got if each.message.message_id == "mine"] == [
        {"seen": "yes", "mine": 1}
    ]
    assert own.headers == {"mine": 1}
    assert [each.outcome.value for each in many] == ["confirmed"] * 2
    assert hooks.calls == [f"{bus.topic}: 2"]


async def test_what_finds_no_room_ends_as_refused(bus: Bus) -> None:
    hooks = Noting()
    publisher = await bus.deaf_publisher(hooks=[hooks], backlog_messages_max=1)
    await publisher.call("submit", bus.topic, b"first", timeout_s=WITHIN_S)
    with pytest.raises(BacklogFull):
        await publisher.call("submit", bus.topic, b"second", timeout_s=0.1)
    await publisher.call("stop", 0)
    with pytest.raises(Stopped):
        await publisher.call("send", bus.topic, b"third")
    assert set(hooks.ended) <= set(hooks.began)
    assert sorted(ends[0] for ends in hooks.ended.values())[0] == "refused"
    assert all(len(ends) == 1 for ends in hooks.ended.values())
    assert set(hooks.ended) == set(hooks.began)


async def test_hooks_that_fail_lose_nothing(bus: Bus) -> None:
    consumer = await bus.consumer()
    publisher = await bus.publisher(hooks=[Broken(), noting := Noting()])
    await publisher.call("send_safe", bus.topic, b"1", timeout_s=WITHIN_S)
    ends: list[Any] = await publisher.call("send_many", bus.topic, [b"2", b"3"])
    assert [end.outcome.value for end in ends] == ["confirmed"] * 2
    got = await receive_and_ack(consumer, 3)
    assert {each.body for each in got} == {b"1", b"2", b"3"}
    assert len(noting.ended) == 3
