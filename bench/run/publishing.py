"""The load of one publishing process: sends when it is due, whatever the answers do, and keeps the times.

Latency counts from the intended time; beside it, service time from the sending. How late the loop
itself looked at what was due is kept too, so that a run can say whether it measured itself.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from bench.run.drivers import End, Sender
from bench.run.fates import UNKNOWN
from bench.run.latencies import Latencies
from bench.run.stamp import Filler, stamped

__all__ = ["Publishing", "Sent"]

# How often ends are taken in. More often costs, less often holds more of them.
TICK_NS = 50_000_000
# Sends between two looks at the network, of a load that is late.
TOGETHER_MAX = 50
# A send that took longer waited for room: what is late then is the system, not the pacer.
WAITED_NS = 1_000_000
SLEEP_MAX_S = 0.05
CLOSE_S = 60.0


@dataclass(slots=True)
class Sent:
    """What one publisher has done. Times: the run's wall clock; outcomes: one byte per message."""

    start_ns: int
    intended_ns: array[int] = field(default_factory=lambda: array("q"))
    outcomes: bytearray = field(default_factory=bytearray)
    waits: int = 0
    confirm: Latencies = field(init=False)
    service: Latencies = field(init=False)
    pacing: Latencies = field(init=False)

    def __post_init__(self) -> None:
        self.confirm, self.service, self.pacing = (Latencies(self.start_ns) for _ in range(3))


class Publishing:
    """times: intended, in ns since the start. offset_ns: from the monotonic clock to the run's."""

    def __init__(
        self,
        sender: Sender,
        *,
        publisher: int,
        start_ns: int,
        offset_ns: int,
        fillers: Iterator[Filler],
        keys: Iterator[str],
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._sender = sender
        self._publisher = publisher
        self._offset_ns = offset_ns
        self._fillers, self._keys = fillers, keys
        self._clock_ns = clock_ns
        self._late: list[tuple[int, int]] = []
        self._next_tick_ns = 0
        self.stopping = False
        self.sent = Sent(start_ns)

    async def run(self, times: Iterator[int], until_ns: int) -> Sent:
        """Send what is intended before `until_ns` (of the run), then wait for all ends."""
        sent, send, clock = self.sent, self._sender.send, self._clock_ns
        start_ns, offset, publisher = sent.start_ns, self._offset_ns, self._publisher
        fillers, keys, late = self._fillers, self._keys, self._late
        now_ns, free_ns, together = clock() + offset, 0, 0
        for since_ns in times:
            intended_ns = start_ns + since_ns
            if intended_ns > now_ns:
                now_ns = await self._until(intended_ns, now_ns)
            if intended_ns >= until_ns or now_ns >= until_ns or self.stopping:
                break
            late.append((intended_ns, now_ns - max(intended_ns, free_ns)))
            sequence = len(sent.outcomes)
            sent.intended_ns.append(intended_ns)
            sent.outcomes.append(UNKNOWN)
            body = stamped(next(fillers), publisher, sequence, intended_ns)
            await send(sequence, body, next(keys))
            before_ns, now_ns = now_ns, clock() + offset
            if now_ns - before_ns > WAITED_NS:
                sent.waits += 1
                free_ns = now_ns
            together += 1
            if together >= TOGETHER_MAX:
                together = 0
                await asyncio.sleep(0)
                now_ns = clock() + offset
                if now_ns >= self._next_tick_ns:
                    self._tick(now_ns)
        await self._sender.close(CLOSE_S)
        self._tick(clock() + offset)
        return sent

    async def _until(self, intended_ns: int, now_ns: int) -> int:
        """Sleep until it is due; returns the time then. What is late is not slept for."""
        while now_ns < intended_ns and not self.stopping:
            await asyncio.sleep(min((intended_ns - now_ns) / 1e9, SLEEP_MAX_S))
            now_ns = self._clock_ns() + self._offset_ns
            if now_ns >= self._next_tick_ns:
                self._tick(now_ns)
        return now_ns

    def _tick(self, now_ns: int) -> None:
        self._next_tick_ns = now_ns + TICK_NS
        self._take(self._sender.ends())
        if self._late:
            late = np.array(self._late, dtype=np.int64)
            self._late.clear()
            self.sent.pacing.add("", late[:, 0], late[:, 1])

    def _take(self, ends: list[End]) -> None:
        """All at once: a value costs a fraction of a microsecond then."""
        sent = self.sent
        by_broker: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        for sequence, outcome, broker, sent_ns, settled_ns in ends:
            sent.outcomes[sequence] = outcome
            if outcome == 1:
                by_broker[broker].append((sent.intended_ns[sequence], sent_ns, settled_ns))
        for broker, rows in by_broker.items():
            times = np.array(rows, dtype=np.int64)
            settled = times[:, 2] + self._offset_ns
            sent.confirm.add(broker, times[:, 0], settled - times[:, 0])
            sent.service.add(broker, times[:, 0], times[:, 2] - times[:, 1])
