"""The load of one publishing process: sends at the intended times, independent of answers, and records times.

Latency counts from the intended time; service time counts from the sending. The lateness of the loop itself
is recorded too, so that a run can report whether it measured itself.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from bench.harness.histograms import Counts, Latencies
from bench.harness.interface import End, Sender
from bench.harness.outcomes import CONFIRMED, UNKNOWN
from bench.load.bodies import Filler, stamped

# How often ends are handled. More often costs CPU; less often holds more of them.
TICK_NS = 50_000_000
# Sends between two turns of the event loop, for a load that is late.
TOGETHER_MAX = 50
# A longer send waited for room: the system is late then, not the pacer.
WAITED_NS = 1_000_000
# Messages due at the end are still sent for this long: they would be missing among the slowest.
OVERDUE_NS = 1_000_000_000
SLEEP_MAX_S = 0.05
# A steered load asks for its rate so often.
SLICE_NS = 100_000_000
# Less than the time that a coordinator gives publishers to end.
CLOSE_S = 100.0


@dataclass(slots=True)
class Sent:
    """The publishes of one publisher. Times: the run's wall clock; outcomes: one byte per message.

    settled_ns: the end of each message, up to the last known one; 0 for none. ended_ns: the last end so far.
    waited_ns: time in sends that waited for room. settled: confirms, by their times. brokers: confirms so
    far, by broker.
    """

    start_ns: int
    intended_ns: array[int] = field(default_factory=lambda: array("q"))
    outcomes: bytearray = field(default_factory=bytearray)
    settled_ns: array[int] = field(default_factory=lambda: array("q"))
    waited_ns: int = 0
    ended_ns: int = 0
    brokers: Counter[str] = field(default_factory=Counter)
    confirm: Latencies = field(init=False)
    service: Latencies = field(init=False)
    pacing: Latencies = field(init=False)
    settled: Counts = field(init=False)

    def __post_init__(self) -> None:
        self.settled = Counts(self.start_ns)
        self.confirm, self.service, self.pacing = (Latencies(self.start_ns) for _ in range(3))


class Publishing:
    """The loop of one publisher.

    offset_ns: from the monotonic clock to the run's. sleep: waits between messages.
    """

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
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._sender = sender
        self._publisher = publisher
        self._offset_ns = offset_ns
        self._fillers, self._keys = fillers, keys
        self._clock_ns, self._sleep = clock_ns, sleep
        # The lateness of the last messages, in their order.
        self._late: list[int] = []
        self._next_tick_ns = self._free_ns = 0
        self.stopping = False
        self.sent = Sent(start_ns)

    def stop(self) -> None:
        """Send no more; open publishes are still waited for."""
        self.stopping = True

    async def run(self, times: Iterator[int], until_ns: int) -> Sent:
        """Send all messages intended before `until_ns` (of the run), then wait for all ends."""
        await self._send_due(times, until_ns)
        return await self._close()

    async def run_steered(self, rate_per_s: Callable[[], float], count: int, until_ns: int) -> Sent:
        """Send `count` messages at a rate that may change at any time, then wait for all ends.

        rate_per_s: asked at the beginning of each slice; its messages are spread evenly over the slice.
        """
        sent, since_ns, owed = self.sent, 0, 0.0
        while len(sent.outcomes) < count and not self.stopping:
            begin_ns = sent.start_ns + since_ns
            await self._until(begin_ns, self._clock_ns() + self._offset_ns)
            if begin_ns >= until_ns:
                break
            rate = rate_per_s()
            owed_now = owed + rate * SLICE_NS / 1e9
            whole = min(int(owed_now), count - len(sent.outcomes))
            # Message n of the slice is due when n + 1 messages are owed.
            times = (since_ns + int((n + 1 - owed) / rate * 1e9) for n in range(whole))
            await self._send_due(times, until_ns)
            since_ns, owed = since_ns + SLICE_NS, owed_now % 1
            # A load that is late would keep the others of its process from their turn.
            await asyncio.sleep(0)
        return await self._close()

    async def _send_due(self, times: Iterator[int], until_ns: int) -> None:
        sent, send, clock = self.sent, self._sender.send, self._clock_ns
        start_ns, offset, publisher = sent.start_ns, self._offset_ns, self._publisher
        fillers, keys, late = self._fillers, self._keys, self._late
        # Looked up once: each lookup would add to the harness's cost of a message.
        add_late, add_intended, add_outcome = (
            late.append,
            sent.intended_ns.append,
            sent.outcomes.append,
        )
        now_ns, free_ns, together = clock() + offset, self._free_ns, 0
        for sequence, since_ns in enumerate(times, len(sent.outcomes)):
            intended_ns = start_ns + since_ns
            if intended_ns > now_ns:
                now_ns = await self._until(intended_ns, now_ns)
            if intended_ns >= until_ns or now_ns >= until_ns + OVERDUE_NS or self.stopping:
                break
            add_late(now_ns - (intended_ns if intended_ns > free_ns else free_ns))
            add_intended(intended_ns)
            add_outcome(UNKNOWN)
            body = stamped(next(fillers), publisher, sequence, intended_ns)
            await send(sequence, body, next(keys))
            before_ns, now_ns = now_ns, clock() + offset
            if now_ns - before_ns > WAITED_NS:
                sent.waited_ns += now_ns - before_ns
                free_ns = self._free_ns = now_ns
            together += 1
            if together >= TOGETHER_MAX:
                together = 0
                await asyncio.sleep(0)
                now_ns = clock() + offset
                if now_ns >= self._next_tick_ns:
                    self._tick(now_ns)

    async def run_closed(self, count: int, until_ns: int) -> Sent:
        """Send `count` messages, each when the window has room for it, then wait for all ends."""
        sent, sender, clock, offset = self.sent, self._sender, self._clock_ns, self._offset_ns
        now_ns = await self._until(sent.start_ns, clock() + offset)
        for sequence in range(count):
            await sender.room()
            if (now_ns := clock() + offset) >= until_ns or self.stopping:
                break
            sent.intended_ns.append(now_ns)
            sent.outcomes.append(UNKNOWN)
            body = stamped(next(self._fillers), self._publisher, sequence, now_ns)
            await sender.send(sequence, body, next(self._keys))
            if now_ns >= self._next_tick_ns:
                self._tick(now_ns)
        return await self._close()

    async def _close(self) -> Sent:
        """Wait for all ends, and record them."""
        await self._sender.close(CLOSE_S)
        self._tick(self._clock_ns() + self._offset_ns)
        return self.sent

    async def _until(self, intended_ns: int, now_ns: int) -> int:
        """Sleep until the intended time, not at all if it is past; return the time then."""
        while now_ns < intended_ns and not self.stopping:
            await self._sleep(min((intended_ns - now_ns) / 1e9, SLEEP_MAX_S))
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
            intended = np.array(self.sent.intended_ns[-len(late) :], dtype=np.int64)
            self.sent.pacing.add("", intended, late)

    def _take(self, ends: list[End]) -> None:
        """Record many ends at once: a value costs a fraction of a microsecond then."""
        if not ends:
            return
        sent = self.sent
        sequences, outcomes, brokers, sent_ns, settled_ns = zip(*ends, strict=True)
        which = np.array(sequences, dtype=np.int64)
        ended = np.array(outcomes, dtype=np.uint8)
        # Views of growing arrays: they must be gone at the return, or the arrays could not grow.
        np.frombuffer(sent.outcomes, dtype=np.uint8)[which] = ended
        intended = np.frombuffer(sent.intended_ns, dtype=np.int64)[which]
        times = np.array(sent_ns, dtype=np.int64)
        took = np.array(settled_ns, dtype=np.int64)
        sent.settled_ns.frombytes(bytes(8 * (len(sent.outcomes) - len(sent.settled_ns))))
        np.frombuffer(sent.settled_ns, dtype=np.int64)[which] = took + self._offset_ns
        sent.ended_ns = max(sent.ended_ns, int(took.max()) + self._offset_ns)
        known = set(brokers)
        # Texts cost more than all the numbers of an end, and mostly there is one broker.
        names = np.array(brokers) if len(known) > 1 else None
        for broker in known:
            own = ended == CONFIRMED
            if names is not None:
                own &= names == broker
            settled = took[own] + self._offset_ns
            sent.brokers[broker] += len(settled)
            sent.settled.add(broker, settled)
            sent.confirm.add(broker, intended[own], settled - intended[own])
            sent.service.add(broker, intended[own], took[own] - times[own])
