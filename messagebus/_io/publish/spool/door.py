"""The door to a disk spool: to the disk while no broker takes anything, then on to one.

It stands before the driver's door into memory. `core.spool` says what lies where and what may be sent; the
`Keeper` has the files, the `Writer` what goes to the disk, the `Replayer` what goes from there to a broker.
This object alone decides which way a publish goes. A destination of which something waits for the disk, or
was not sent from there yet, takes nothing past the spool, so nothing is overtaken.

The door has one of four phases, by which all three work:

    SENDING ──no broker for after_ms, or a deadline passes──▶ AWAY ──a broker takes──▶ SENDING
       │ stop                                                   │ stop
       ▼                                                        ▼
    ENDING  ──no broker for after_ms, or the stop's time is over──▶ DRAINING

AWAY and DRAINING: all that no broker has confirmed goes to the disk. ENDING and DRAINING: nothing is sent
from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import cast

from messagebus._io.hooks import HookChain
from messagebus._io.publish.calls import Call
from messagebus._io.publish.door import Sending, SpoolCounts
from messagebus._io.publish.publishes import Bundle, Many, Publish, Waiter, encode_publish
from messagebus._io.publish.spool.keeper import DISK_RETRY_MS, Keeper
from messagebus._io.publish.spool.records import Records, name_of
from messagebus._io.publish.spool.replayer import REPLAY_MESSAGES, Replayed, Replayer
from messagebus._io.publish.spool.writer import Disk, Writer, fits
from messagebus._io.publish.targets import Target
from messagebus.clock import monotonic_ms, whole_ms
from messagebus.config import BusConfig, PublisherConfig
from messagebus.core.confirms import Packing
from messagebus.core.ends import CONFIRMED, NOT_ENCODED, Item

log = logging.getLogger("messagebus.publisher")

# What other processes leave behind is looked for in this interval, while brokers take messages.
ADOPT_MS = 30_000
# Limit of a stop for what still goes to the disk.
STOP_S = 10.0


class Phase(Enum):
    """Phase of the door, as in the module's table."""

    SENDING = "sending"
    AWAY = "away"
    ENDING = "ending"
    DRAINING = "draining"


class Phases:
    """The door's phase, and when a broker took publishes last."""

    def __init__(self, after_ms: int) -> None:
        """Begin with SENDING. after_ms: without a broker for so long, messages go to the disk."""
        self.now = Phase.SENDING
        self._after_ms, self._usable_ms = after_ms, monotonic_ms()

    @property
    def is_away(self) -> bool:
        """True while all that no broker has confirmed goes to the disk."""
        return self.now in (Phase.AWAY, Phase.DRAINING)

    def broker_takes(self, now: int) -> bool:
        """Note that a broker takes publishes. Returns whether they go to one again from now on."""
        self._usable_ms = now
        if self.now is not Phase.AWAY:
            return False
        self.now = Phase.SENDING
        return True

    def has_waited(self, now: int) -> bool:
        """Return whether no broker has taken anything for after_ms."""
        return now - self._usable_ms >= self._after_ms

    def to_disk(self) -> None:
        """Begin to put what waits on the disk."""
        self.now = Phase.AWAY if self.now is Phase.SENDING else Phase.DRAINING

    def stop(self) -> None:
        """Note that the publisher stops."""
        self.now = Phase.DRAINING if self.is_away else Phase.ENDING

    def put_forward(self, ms: int) -> None:
        """Advance the time by ms, for a bus in memory."""
        self._usable_ms -= ms


class DiskDoor:
    """The way into the memory of a driver, or to the disk. Raises ConfigError for an unusable folder."""

    def __init__(
        self, driver: Sending, bus: BusConfig, config: PublisherConfig, hooks: HookChain | None
    ) -> None:
        assert config.spool is not None
        self._driver, self._memory, self._pending = driver, driver.memory, driver.pending
        self._settings, self._records = config.spool, Records()
        root = Path(config.spool.path).absolute()  # whatever folder the process goes to
        self._keeper = Keeper(root, name_of(bus), self._records, driver.tasks, self._deleted)
        self._writer = Writer(
            driver,
            self._keeper,
            self._records,
            config.spool,
            count_max=self._count_max,
            release=self._release,
            on_written=self._written,
        )
        self._replayer = Replayer(
            driver.memory,
            self._keeper,
            self._records,
            config,
            hooks,
            may_send=self._may_replay,
            on_disk_fault=self._writer.failed,
            on_pass=self._passed,
            on_failed=self._concerned,
        )
        self._phases = Phases(whole_ms(config.spool.after_s))
        self._is_plain = False  # nothing concerns the spool: publishes go their usual way
        self._taken_over_ms = monotonic_ms()

    # Accepting.
    @property
    def fault(self) -> str:
        """The reason why the disk takes nothing, "" where it does."""
        return self._writer.fault

    def submit(self, call: Call, timeout_ms: int, waiter: Waiter | Many | None) -> Publish:
        target, body, message = call
        if self._is_plain or not self._goes_to_disk(target):
            return self._memory.submit(call, timeout_ms, waiter)
        message_id = (message.message_id if message else "") or next(self._driver.ids)
        publish = Publish(message_id, target, body, None, monotonic_ms() + timeout_ms, waiter)
        try:
            if message is None:
                publish.properties = self._records.bare(target.content_type, message_id)
            else:
                publish.properties = encode_publish(target, message, message_id, alone=True)
        except Exception as fault:  # an AMQP table cannot hold it
            return self._memory.refuse(publish, f"{NOT_ENCODED}: {type(fault).__name__}")
        self._to_disk(publish)
        return publish

    def submit_bodies(
        self, target: Target, bodies: list[bytes], size: int, timeout_ms: int, waiter: Many
    ) -> Sequence[Publish]:
        if self._is_plain or not self._goes_to_disk(target):
            return self._memory.submit_bodies(target, bodies, size, timeout_ms, waiter)
        ids = [next(self._driver.ids) for _ in bodies]
        bundle = Bundle(ids, bodies, size, target, monotonic_ms() + timeout_ms, waiter)
        self._to_disk(bundle)
        return (bundle,)

    def _to_disk(self, publish: Publish) -> None:
        self._writer.add(publish)
        self._concerned()

    def packing_of(self, target: Target) -> Packing | None:
        packing = self._memory.packing_of(target) if self._memory.packed_max(target) else None
        return packing if packing is not None and fits(packing, self._settings) else None

    # Which way.
    @property
    def _is_open(self) -> bool:
        """True when it is known what processes that have ended left."""
        return self._keeper.taken_over.is_set()

    def _goes_to_disk(self, target: Target) -> bool:
        if not target.confirms:
            return False
        if self._phases.is_away or not self._is_open or self._settings.always:
            return True
        destination = target.destination
        return self._writer.has(destination) or self._keeper.is_unread(destination)

    def _concerned(self) -> None:
        self._is_plain = False

    def _concerns_nothing(self) -> bool:
        return (
            self._writer.is_idle
            and self._is_open
            and not (self._phases.is_away or self._settings.always or self._keeper.has_unread)
        )

    def _reflect(self) -> None:
        """Find out anew whether anything concerns the spool; wake who may have something to do."""
        self._is_plain = self._concerns_nothing()
        self._writer.wanted.set()
        self._replayer.wanted.set()

    def _withdraw(self) -> None:
        """Take out of `pending` all that waits for a broker: to the disk, if it is not there already."""
        taken = self._pending.take_out(lambda item: cast(Publish, item).target.confirms)
        for publish in cast(list[Publish], taken):
            if isinstance(publish.waiter, Replayed):
                self._replayer.withdrawn(publish.waiter)
                continue
            if type(publish) is Publish:
                publish.properties = self._records.alone(publish)
            self._to_disk(publish)

    def _release(self) -> None:
        """Give what waits for the disk to `pending`, where brokers take it and nothing is before it."""
        if (
            not self._is_open
            or self._phases.is_away
            or self._settings.always
            or self._writer.is_idle
        ):
            return
        writer, keeper = self._writer, self._keeper
        queued = writer.queued()
        stay = {name for name in queued if writer.is_writing(name) or keeper.is_unread(name)}
        if len(stay) == len(queued):
            return
        for publish in writer.take_out(stay):
            if isinstance(publish, Bundle):
                self._memory.accept_bundle(publish)
            else:
                self._memory.accept_alone(publish)
        self._reflect()

    # What writer, replayer and keeper ask and report.
    def _count_max(self) -> int:
        """Return how many messages may be written now; where nothing is sent there is no limit."""
        least = REPLAY_MESSAGES if self._settings.always else 0
        pace = self._replayer.pace
        is_sending = not self._phases.is_away and pace.is_sending(monotonic_ms())
        if is_sending and self._keeper.messages > least:
            return pace.allowed
        return self._settings.messages_max

    def _may_replay(self) -> bool:
        if self._phases.now is not Phase.SENDING or not self._is_open:
            return False
        return self._driver.is_taking(monotonic_ms())

    def _written(self, count: int) -> None:
        self._replayer.pace.pay(count)
        self._replayer.wanted.set()

    def _passed(self) -> None:
        self._release()
        self._is_plain = self._concerns_nothing()

    def _deleted(self) -> None:
        self._writer.has_room_again()
        self._reflect()

    # The driver's own moments.
    def start(self) -> None:
        for work in (self._take_over, self._writer.run, self._replayer.run):
            self._driver.tasks.keep_running(work, DISK_RETRY_MS / 1000)

    async def _take_over(self) -> None:
        self._taken_over_ms = monotonic_ms()
        await self._keeper.take_over()
        self._reflect()

    async def opened(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._keeper.taken_over.wait()

    def before_tick(self, now: int) -> None:
        phases = self._phases
        if self._driver.is_taking(now):
            if phases.broker_takes(now):
                messages = self._keeper.messages
                log.warning("spool is sent broker=%s messages=%d", self._driver.reached, messages)
        elif not phases.is_away and (
            phases.has_waited(now)
            or any(item.deadline_ms <= now for item in self._pending.unsettled())
        ):
            phases.to_disk()
            self._reflect()
            folder = self._keeper.root
            log.warning("no broker accepts messages: they go to the spool folder=%s", folder)
        if phases.is_away:
            self._withdraw()

    def after_tick(self, now: int) -> None:
        self._replayer.pace.tick(now)
        self._writer.expire(now)
        self._release()
        self._keeper.tidy(now)
        is_due = now - self._taken_over_ms >= ADOPT_MS
        if is_due and not self._phases.is_away and self._is_open:
            self._driver.tasks.keep_running(self._take_over, DISK_RETRY_MS / 1000)
        self._writer.wanted.set()
        self._replayer.wanted.set()

    def put_forward(self, ms: int) -> None:
        self._writer.put_forward(ms)
        self._phases.put_forward(ms)
        self._keeper.put_forward(ms)

    def unsettled(self) -> list[Item]:
        ours = [
            item
            for item in self._memory.unsettled()
            if not isinstance(cast(Publish, item).waiter, Replayed)
        ]
        return [*ours, *self._writer.unsettled()]

    def begin_stop(self) -> None:
        self._phases.stop()

    async def drain(self) -> None:
        """Write what no broker has confirmed, within STOP_S."""
        self._phases.now = Phase.DRAINING
        self._withdraw()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                while not self._writer.is_idle and self._writer.disk is Disk.TAKING:
                    self._writer.wanted.set()
                    await asyncio.sleep(0.001)

    def end(self) -> int:
        return self._writer.end_all()

    async def close(self) -> None:
        await self._keeper.close()

    # Counts.
    def counts(self) -> SpoolCounts:
        keeper, replayer = self._keeper, self._replayer
        replayed = replayer.pace.sent
        return SpoolCounts(
            keeper.messages,
            keeper.bytes,
            keeper.oldest_s,
            replayed,
            replayer.failures,
            keeper.damaged,
            {**replayer.ends, CONFIRMED: replayed},
        )
