"""Latencies of a turn: from the time at which a message was due, without the warm-up."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import replace

import pytest

from bench.figures.client import latency
from bench.harness.interface import Delivered, End
from bench.harness.outcomes import CONFIRMED
from tests.support.bench_task import bench_task

LATE_NS = 3_000_000


class Stored:
    """A broker that confirms and delivers each message LATE_NS after it was sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes, int]] = []
        self._ended = self._taken = 0

    async def open(self) -> None: ...

    async def close(self, _timeout_s: float = 0) -> None: ...

    async def room(self) -> None: ...

    async def send(self, sequence: int, body: bytes, _key: str) -> None:
        self.sent.append((sequence, body, time.monotonic_ns()))

    def ends(self) -> list[End]:
        new, self._ended = self.sent[self._ended :], len(self.sent)
        return [End(number, CONFIRMED, "mb1", at, at + LATE_NS) for number, _body, at in new]

    async def take(self, _max_wait_s: float) -> list[Delivered]:
        await asyncio.sleep(0)
        new, self._taken = self.sent[self._taken :], len(self.sent)
        return [Delivered(body, "mb1", at + LATE_NS) for _number, body, at in new]


@pytest.mark.parametrize("rate", [0.0, 5_000.0])
async def test_both_latencies_of_each_message_are_from_its_time(
    rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = Stored()
    monkeypatch.setattr(latency, "sender", lambda *_of: stored)
    monkeypatch.setattr(latency, "receiver", lambda *_of: stored)
    found = await latency.turn(replace(bench_task(), messages=200, warm_up=50), rate)
    assert len(stored.sent) == 250
    assert {len(body) for _number, body, _at in stored.sent} == {bench_task().body_bytes}
    assert found["rate"] > 0
    for measure in latency.MEASURES:
        p50, p99, most = [found[f"{measure}_p{p:g}"] for p in latency.PERCENTILES]
        assert LATE_NS / latency.NS_PER_MS <= p50 <= p99 <= most
    if rate:  # a message that is sent late is late
        due_ns = [int.from_bytes(body[:8]) for _number, body, _at in stored.sent]
        gaps = {round((b - a) / 1e3) for a, b in itertools.pairwise(due_ns)}
        assert gaps == {200}


class SentLate(Stored):
    async def send(self, sequence: int, body: bytes, key: str) -> None:
        await asyncio.sleep(0.02)
        await super().send(sequence, body, key)


async def test_what_was_sent_late_counts_from_when_it_was_due() -> None:
    task = replace(bench_task(), messages=1, warm_up=0)
    (took_ns,) = await latency._published(SentLate(), task, 1_000.0, [])
    assert took_ns >= LATE_NS + 20_000_000
