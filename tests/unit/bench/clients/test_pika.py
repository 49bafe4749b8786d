"""The confirms of pika's asynchronous adapter; tests/integration/test_bench_turns.py has its turns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pika

from bench.clients.pika import Sender
from bench.harness.outcomes import CONFIRMED, OTHERWISE
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
