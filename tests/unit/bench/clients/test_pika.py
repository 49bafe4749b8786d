"""pika's confirms, and blocking clients in threads; tests/integration/test_bench_turns.py has their turns."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pika
import pytest

from bench.clients.pika import Sender
from bench.clients.threaded import ThreadedReceiver, ThreadedSender
from bench.errors import BenchError
from bench.harness.outcomes import CONFIRMED, OTHERWISE, UNKNOWN
from tests.support.bench_task import bench_task


class Channel:
    """A channel that takes every publish."""

    def basic_publish(self, *_: Any, **__: Any) -> None: ...


async def sent(*sequences: int) -> Sender:
    task = bench_task(system="pika", window=50)
    sender = Sender(task.profile, task.where)
    sender._channel, sender._broker = Channel(), "b"
    for sequence in sequences:
        await sender.send(sequence, b"x", "")
    return sender


def confirm(sender: Sender, tag: int, *, multiple: bool = False, good: bool = True) -> None:
    kind = pika.spec.Basic.Ack if good else pika.spec.Basic.Nack
    sender._on_confirm(SimpleNamespace(method=kind(tag, multiple)))


async def test_a_confirm_for_many_settles_all_up_to_it_and_none_twice() -> None:
    sender = await sent(10, 11, 12, 13)
    confirm(sender, 2)
    confirm(sender, 3, multiple=True)
    ends = sender.ends()
    assert [end.sequence for end in ends] == [11, 10, 12]
    assert {end.outcome for end in ends} == {CONFIRMED}
    confirm(sender, 4, good=False)
    assert [(end.sequence, end.outcome) for end in sender.ends()] == [(13, OTHERWISE)]


async def test_what_comes_back_is_not_confirmed_although_the_broker_says_so() -> None:
    sender = await sent(1, 2)
    sender._on_return(None, None, pika.BasicProperties(message_id="1"), b"x")
    confirm(sender, 2, multiple=True)
    outcomes = {end.sequence: end.outcome for end in sender.ends()}
    assert outcomes == {1: OTHERWISE, 2: CONFIRMED}


class Blocks:
    """Client that publishes when the test lets it, and receives its messages once."""

    broker = "mb1"

    def __init__(self, *, lets: bool = True) -> None:
        self.let = threading.Event()
        if lets:
            self.let.set()
        self.bodies: list[bytes] = []
        self.keys: list[str] = []
        self.outcome = CONFIRMED

    def publish(self, body: bytes, sequence: int, key: str) -> int:
        self.let.wait(30)
        self.keys.append(key)
        return self.outcome

    def take(self, max_wait_s: float) -> list[bytes]:
        found, self.bodies = self.bodies, []
        return found

    def close(self) -> None: ...


def test_everything_that_was_handed_over_ends_once() -> None:
    async def work() -> list[int]:
        sender = ThreadedSender(Blocks, window=2)
        await sender.open()
        for number in range(10):
            await sender.room()
            await sender.send(number, b"x", "")
        await sender.close(30)
        return [end.sequence for end in sender.ends()]

    assert asyncio.run(work()) == list(range(10))


def test_what_has_no_answer_at_the_end_is_unknown() -> None:
    client = Blocks(lets=False)

    async def work() -> list[int]:
        sender = ThreadedSender(lambda: client, window=2)
        await sender.open()
        await sender.send(0, b"x", "")
        await sender.close(0.01)
        client.let.set()
        return [end.outcome for end in sender.ends()]

    assert asyncio.run(work()) == [UNKNOWN]


def test_one_that_cannot_connect_says_why() -> None:
    def refuse() -> Blocks:
        raise OSError("refused")

    with pytest.raises(BenchError, match="refused"):
        asyncio.run(ThreadedSender(refuse, window=1).open())
    with pytest.raises(BenchError, match="refused"):
        asyncio.run(ThreadedReceiver(refuse).open())
