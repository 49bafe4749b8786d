"""The blocking publisher: a thin layer over the driver on a background loop. Thread-safe."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Self

from messagebus._io.amqp_wire import AmqpWire
from messagebus._io.hooks import HookChain, Watched, hook_chain
from messagebus._io.loop import LoopThread, OneStop, is_interrupting, warn_dropped
from messagebus._io.publish.calls import Call, Outgoing, checked_payloads, no_room, whole_timeout_ms
from messagebus._io.publish.door import Door
from messagebus._io.publish.drivers import Drivers, refuse_batches
from messagebus._io.publish.publishes import Many, Waiter
from messagebus._io.publish.targets import Target
from messagebus._io.wire import Wire
from messagebus.clock import LogLimit, monotonic_ms, whole_ms
from messagebus.config import BusConfig, PublisherConfig, Spool, settings_of
from messagebus.destination import Destination
from messagebus.errors import (
    ConfigError,
    PublishError,
    Refused,
    Stopped,
    Unknown,
    Unroutable,
)
from messagebus.handling import checked_grace
from messagebus.hooks import Hooks
from messagebus.message import NONE_GIVEN, Header, Payload, given_options
from messagebus.stats import RUNNING, Outcome, Published, PublisherStats, Status, why_not_running
from messagebus.terminal import plural

__all__ = ["Publisher", "raise_unless_confirmed"]

log = logging.getLogger("messagebus.publisher")

# One line a minute for all publishers of the process.
_waits_in_a_loop = LogLimit(60_000)
STOP_TIMEOUT_S = 10.0
START_TIMEOUT_S = 10.0

_ERRORS: dict[Outcome, type[PublishError]] = {
    Outcome.REFUSED: Refused,
    Outcome.UNROUTABLE: Unroutable,
    Outcome.UNKNOWN: Unknown,
}


def raise_unless_confirmed(published: Published, destination: Destination | str) -> Published:
    """Return a confirmed or spooled publish; raise Refused, Unroutable or Unknown for another outcome."""
    error = _ERRORS.get(published.outcome)
    if error is not None:
        raise error(published.message_id, published.reason, str(destination))
    return published


def with_spool(config: PublisherConfig | None, spool: Spool | str | Path | None) -> PublisherConfig:
    """Return the config with this spool; None leaves the config's own."""
    config = config or PublisherConfig()
    if spool is None:
        return config
    return replace(config, spool=spool if isinstance(spool, Spool) else Spool(spool))


def ends_or_raise(ends: list[Published], failed: Exception | None) -> list[Published]:
    """Return the ends of those that were accepted; raise the error with them, where one was not."""
    if failed is not None:
        with contextlib.suppress(AttributeError):  # a frozen class of the application's
            failed.ends = ends  # type: ignore[attr-defined]
        raise failed
    return ends


def refuse_unconfirmed(target: Target) -> None:
    """Raise ConfigError where a publish is not confirmed."""
    if not target.confirms:
        raise ConfigError(
            f"{target.address.name} has durability none: nothing is confirmed; use send"
        )


class _Submitted:
    """Publish of a thread, on its way to the loop."""

    __slots__ = ("body", "call", "deadline_ms", "target", "waiter")

    def __init__(self, call: Call, deadline_ms: int, waiter: Waiter | Many | None) -> None:
        self.call, self.deadline_ms, self.waiter = call, deadline_ms, waiter
        self.target, self.body, _message = call

    def hand_over(self, to: Drivers | Door, now: int) -> None:
        timeout_ms = max(1, self.deadline_ms - now)
        publish = to.submit(self.call, timeout_ms, self.waiter)
        if isinstance(self.waiter, Many):
            self.waiter.add(publish)


class _Waiting:
    """Call that found no room. queue: of those that wait, until it is admitted or sent away."""

    def __init__(self, submitted: _Submitted, queue: deque[_Waiting]) -> None:
        self.submitted, self.queue = submitted, queue
        self.is_accepted = False
        # A bare lock: a signal handler that interrupts an Event's wait would meet the Event's own lock.
        self._woken = threading.Lock()
        self._woken.acquire()
        queue.append(self)

    def wait(self, timeout_s: float) -> None:
        """Wait until `wake`, up to timeout_s."""
        self._woken.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX))

    def wake(self, *, is_accepted: bool) -> None:
        """End the wait; once, by whoever takes it out of its queue."""
        self.is_accepted = is_accepted
        self._woken.release()


class _End(Future[Published]):
    """The future of one publish's end, whose callbacks cannot end the publisher's thread."""

    def add_done_callback(self, fn: Callable[[Future[Published]], object]) -> None:
        def called(future: Future[Published]) -> None:
            try:
                fn(future)
            except (SystemExit, KeyboardInterrupt) as fault:
                if threading.current_thread() is threading.main_thread():
                    raise
                log.error(
                    "a done-callback raised %s, which ends nothing",
                    type(fault).__name__,
                    exc_info=fault,
                )

        super().add_done_callback(called)


class Publisher:
    """Publisher that sends to one broker, chosen by the balancer, and changes it when that broker fails.

        with Publisher() as publisher:
            publisher.send_safe("orders", b"...")

    Every accepted publish ends in exactly one `Outcome`. Thread: any thread may call any method.
    bus: settings of the bus; None reads them, and those of `config`, from the environment. Without settings
    the broker is localhost:5672.
    spool: a folder, or a `Spool`, for messages that no broker takes at the moment; None: as the config.
    """

    def __init__(
        self,
        bus: BusConfig | None = None,
        config: PublisherConfig | None = None,
        *,
        spool: Spool | str | Path | None = None,
        hooks: Sequence[Hooks] = (),
        _wire: Wire | None = None,
    ) -> None:
        bus, config = settings_of(bus, config, PublisherConfig)
        self._config = with_spool(config, spool)
        self._hooks = hook_chain(hooks)
        self._intake = _Intake(bus, self._config, self._hooks, _wire or AmqpWire(bus))
        self._outgoing = self._intake.outgoing
        self._accept = self._intake.accept

    # Life.
    @property
    def status(self) -> Status:
        """The current `Status`."""
        return self._intake.status

    def start(self, *, require: str | None = None, timeout_s: float = START_TIMEOUT_S) -> None:
        """Connect to a broker, in the background.

        require: "one": wait until there is a connection; None: return at once. Without brokers the publisher
        tries again until it is stopped.
        Raises NotReady if there is no connection within timeout_s, and LoginRefused if user, password or
        virtual host are wrong, both only with `require`. Raises ConfigError if the folder of the spool cannot
        be used, or if a subscription that accepts no batches (`plain`) would receive some; the agents are
        asked for these, if one answers.
        """
        if require not in (None, "one"):
            raise ValueError(f"require={require!r}: None or 'one'")
        thread = self._intake.start()
        try:
            if require:
                thread.run(self._intake.fulfil(timeout_s))
        except BaseException:
            self._intake.stop(0)
            raise

    def request_stop(self) -> None:
        """Accept no more publishes: each further call, and each that waits for room, raises Stopped.

        It does not block, so a signal handler may call it. Accepted publishes go on; `stop` waits for them.
        """
        self._intake.request_stop()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Wait for the outcome of accepted publishes, then disconnect.

        timeout_s: the longest wait, in seconds. Returns the number of publishes without a known outcome:
        their futures end as `unknown`, or as `refused` if they were never sent; the log has their number. A
        further call waits for the same stop. In a signal handler it returns 0 at once and continues in the
        background; the exit of the interpreter waits for it.
        Raises RuntimeError on the publisher's own thread, and ConfigError if timeout_s is not a number of
        seconds.
        """
        timeout_s = checked_grace(timeout_s)
        if is_interrupting(self, __file__):
            self._intake.begin_stop(timeout_s, waits=False)
            return 0
        return self._intake.stop(timeout_s)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __del__(self) -> None:
        intake: _Intake | None = getattr(self, "_intake", None)
        if intake is not None and intake.status is RUNNING and intake.is_here:
            warn_dropped(self, "with")
            intake.begin_stop(STOP_TIMEOUT_S, waits=False)

    # Publishing.
    def submit(
        self,
        destination: Destination | str,
        payload: Payload,
        *,
        timeout_s: float | None = None,
        headers: Mapping[str, Header] | None = None,
        key: str | None = None,
        priority: int | None = None,
        ttl_s: float | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        message_id: str | None = None,
        type: str | None = None,
        content_encoding: str | None = None,
        app_id: str | None = None,
        deliver_after_s: float | None = None,
        deliver_at: datetime | float | None = None,
        redundant: bool | str | None = None,
    ) -> Future[Published]:
        """Accept a publish and return the future of its `Published`. The future raises for no outcome.

        destination: a topic, such as ``orders``, or ``queue:jobs``. payload: a `Message`, bytes or text; any
        other value is published as JSON.
        timeout_s: limit in seconds for the wait for room and the publish together; None: the deadline of the
        config.
        headers, key, priority, ttl_s, correlation_id, reply_to, message_id, type, content_encoding, app_id:
            as in `Message`; a given one replaces that of a `Message` payload. The ttl_s of a delayed message
            begins when the message is due.
        deliver_after_s, deliver_at: earliest time of delivery, rounded up to a step of the delay ladder (1,
            2, 5, 10 s ... 7 days). deliver_at: an aware datetime, or seconds since 1970. At most one of them.
        redundant: True: two brokers must confirm, according to the publisher's `redundancy`; "required",
            "preferred": the same with this redundancy; False: one broker; None: the publisher's `redundant`.
        Raises BacklogFull, Stopped, NameInvalid or MessageInvalid; nothing is sent then.
        """
        given = (headers, key, priority, ttl_s, correlation_id, reply_to, message_id, type,
                 content_encoding, app_id, deliver_after_s, deliver_at, redundant)  # fmt: skip
        future = _End()
        # It cannot be cancelled: an accepted publish is sent, and ends.
        future.set_running_or_notify_cancel()
        self._accept(self._outgoing.read(destination, payload, given), timeout_s, future)
        return future

    def send(
        self,
        destination: Destination | str,
        payload: Payload,
        *,
        headers: Mapping[str, Header] | None = None,
        key: str | None = None,
        priority: int | None = None,
        ttl_s: float | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        message_id: str | None = None,
        type: str | None = None,
        content_encoding: str | None = None,
        app_id: str | None = None,
        deliver_after_s: float | None = None,
        deliver_at: datetime | float | None = None,
        redundant: bool | str | None = None,
    ) -> None:
        """Accept a publish without waiting for its outcome, which is only counted in `stats`.

        A message may be lost without an error: use `send_safe` where that matters. Raises as `submit`.
        """
        given = (headers, key, priority, ttl_s, correlation_id, reply_to, message_id, type,
                 content_encoding, app_id, deliver_after_s, deliver_at, redundant)  # fmt: skip
        self._accept(self._outgoing.read(destination, payload, given), None, None)

    def send_safe(
        self,
        destination: Destination | str,
        payload: Payload,
        *,
        timeout_s: float | None = None,
        headers: Mapping[str, Header] | None = None,
        key: str | None = None,
        priority: int | None = None,
        ttl_s: float | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        message_id: str | None = None,
        type: str | None = None,
        content_encoding: str | None = None,
        app_id: str | None = None,
        deliver_after_s: float | None = None,
        deliver_at: datetime | float | None = None,
        redundant: bool | str | None = None,
    ) -> Published:
        """Publish and wait for the confirm. `Published.durability` says what the message survives then.

        With a spool the publish may end as spooled instead: the message is on this host's disk.
        Raises the errors of `submit`; Refused, Unroutable or Unknown if the publish has another outcome; and
        ConfigError for a destination of durability `none`, which has no confirms.
        """
        given = (headers, key, priority, ttl_s, correlation_id, reply_to, message_id, type,
                 content_encoding, app_id, deliver_after_s, deliver_at, redundant)  # fmt: skip
        outgoing = self._outgoing.read(destination, payload, given)
        refuse_unconfirmed(outgoing[0])
        self._intake.refuse_here()
        future: Future[Published] = Future()
        self._accept(outgoing, timeout_s, future)
        return raise_unless_confirmed(future.result(), destination)

    def send_many(
        self,
        destination: Destination | str,
        payloads: Iterable[Payload],
        *,
        timeout_s: float | None = None,
        headers: Mapping[str, Header] | None = None,
        key: str | None = None,
        priority: int | None = None,
        ttl_s: float | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        type: str | None = None,
        content_encoding: str | None = None,
        app_id: str | None = None,
        deliver_after_s: float | None = None,
        deliver_at: datetime | float | None = None,
        redundant: bool | str | None = None,
    ) -> list[Published]:
        """Publish several payloads without waiting between them; return their results, in order.

        payloads: an iterable of payloads of `submit`. timeout_s: limit of each publish, in seconds.
        Raises the errors of `submit`. If a payload is not accepted, or the iterable raises an error, that
        error is raised when all payloads before it have an outcome; its `ends` has their results, in order.
        """
        given = (headers, key, priority, ttl_s, correlation_id, reply_to, None, type,
                 content_encoding, app_id, deliver_after_s, deliver_at, redundant)  # fmt: skip
        given = NONE_GIVEN if given == NONE_GIVEN else given  # compared once, not for each payload
        failed: Exception | None = None
        payloads = checked_payloads(payloads)
        self._intake.refuse_here()
        if self._hooks is not None:
            ends: list[Future[Published]] = []
            with self._hooks.publishing_many(self._outgoing.name_of(destination)):
                try:
                    for each in payloads:
                        ends.append(
                            self.submit(
                                destination, each, timeout_s=timeout_s, **given_options(given)
                            )
                        )
                except Exception as fault:  # also of the application's iterable
                    failed = fault
                return ends_or_raise([end.result() for end in ends], failed)
        thread, finished, read = self._running()[0], Future[None](), self._outgoing.read
        many = Many(finished)
        try:
            for payload in payloads:
                self._accept(read(destination, payload, given), timeout_s, many)
        except Exception as fault:  # also of the application's iterable
            failed = fault
        if not thread.try_call_soon(many.all_added):  # behind them all, on the loop
            many.all_added()  # it has ended, and all of them before it
        finished.result()
        return ends_or_raise(many.results(), failed)

    def flush(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Wait for the outcome of every accepted publish. Returns how many have none after timeout_s."""
        return self._running()[0].run(self._intake.flush(timeout_s))

    def refresh_connection(self) -> None:
        """Open a new connection through the balancer and move to it; no publish becomes unknown."""
        thread, drivers = self._running()
        thread.call_soon(drivers.renew)

    def stats(self) -> PublisherStats:
        """Return a snapshot. Cost: some microseconds."""
        if self._drivers is None:
            raise Stopped(why_not_running(Status.INITIALIZED, "publisher", "with"))
        return self._drivers.stats(extra_backlog=len(self._intake.inbox))

    # Inside.
    @property
    def _drivers(self) -> Drivers | None:
        return self._intake.drivers

    def _running(self) -> tuple[LoopThread, Drivers]:
        return self._intake.running()


class _Intake:
    """The way of publishes from all threads to the loop, and the life of that loop.

    It has no reference to its `Publisher`, which can so be collected without a stop. A signal handler may
    interrupt any line of it: its lock can be taken again by the thread that holds it.
    """

    def __init__(
        self, bus: BusConfig, config: PublisherConfig, hooks: HookChain | None, wire: Wire
    ) -> None:
        self._bus, self._config, self._hooks, self._wire = bus, config, hooks, wire
        self._deadline_ms = whole_ms(config.deadline_s)
        self.status = Status.INITIALIZED
        self.thread: LoopThread | None = None
        self.drivers: Drivers | None = None
        self._pid = os.getpid()
        self._ending, self._left = OneStop(), 0
        self.outgoing = Outgoing(
            config.redundant, config.redundancy, has_spool=config.spool is not None
        )
        # Guards all below. Inbox: submitted and not yet taken over by the loop. Queues: calls that wait for
        # room, first come, first served, so that no thread is starved by the others. Redundant publishes wait
        # in the second one: where there is one broker left, no others wait for room with them.
        self._lock = threading.RLock()
        self.inbox: deque[_Submitted] = deque()
        self._inbox_bytes = 0
        self._queue: deque[_Waiting] = deque()
        self._redundant_queue: deque[_Waiting] = deque()
        self._woken = False

    # Life.
    @property
    def is_here(self) -> bool:
        """False in a forked child: open publishes are the parent's."""
        return os.getpid() == self._pid

    def start(self) -> LoopThread:
        """Start thread and drivers. Raises Stopped at a second start, and ConfigError."""
        with self._lock:
            if self.status is not Status.INITIALIZED or self.thread is not None:
                raise Stopped(f"a publisher starts once; this one is {self.status.value}")
            self._pid = os.getpid()  # made before a fork and started after it is well
            self.thread = thread = LoopThread("messagebus-publisher")
        if self._hooks is not None:
            self._hooks.begin()
        try:
            thread.run(self._make_drivers())
        except BaseException:  # ConfigError: the spool's folder, or batches that are refused
            thread.stop()
            self.thread = None
            raise
        return thread

    async def _make_drivers(self) -> None:
        await refuse_batches(self._config, self._wire)
        if self.status is not Status.INITIALIZED:
            raise Stopped("the publisher was stopped while it started")
        drivers = Drivers(
            self._bus, self._config, self.outgoing, self._take_inbox, self._wire, self._hooks
        )
        drivers.own.start()
        self.drivers, self.status = drivers, RUNNING
        _running.add(self)

    async def fulfil(self, timeout_s: float) -> None:
        """Wait until start(require="one") is fulfilled. Raises NotReady, Stopped or LoginRefused."""
        _thread, drivers = self.running()
        await drivers.fulfil(timeout_s)
        if self.status is not RUNNING:
            raise Stopped("the publisher was stopped while it started")
        drivers.refuse_unnamed()

    def request_stop(self) -> None:
        """Accept no more. Never waits for the loop."""
        self.status = Status.STOPPED
        if self.thread is not None:
            self.thread.try_call_soon(self._send_away)

    def stop(self, timeout_s: float) -> int:
        """Begin the stop, if nobody has, and wait for its end. Returns how many were left."""
        if self.is_here and self.thread is not None:
            self.thread.refuse_here()
        ending = self.begin_stop(timeout_s)
        return 0 if ending is None else self.wait_stopped(ending)

    def begin_stop(self, timeout_s: float, *, waits: bool = True) -> Future[int] | None:
        """Begin the stop, if nobody has, and return the future of its end. None: nothing is to stop.

        waits: the caller waits for the end (`wait_stopped`).
        """
        if not self.is_here:
            return None
        self.status = Status.STOPPED
        if self.thread is None:
            return None
        return self.thread.begin_stop(self._stop(timeout_s), waits=waits)

    def wait_stopped(self, ending: Future[int]) -> int:
        """Wait for a stop, and for the end of the loop. Returns how many were left."""
        if self.thread is not None:
            self.thread.wait_stopped(ending)
        return self._left

    async def _stop(self, timeout_s: float) -> int:
        if not self._ending.has_begun:
            self._ending.begin(self._stop_once(timeout_s))
        return await self._ending.wait()

    async def _stop_once(self, timeout_s: float) -> int:
        try:
            self._send_away()
            if self.drivers is not None:
                self._take_all(self.drivers)
                self._left = await self.drivers.stop(timeout_s)
        finally:
            _running.discard(self)
        return self._left

    def _send_away(self) -> None:
        """Have all calls that wait for room raise Stopped. On the loop."""
        with self._lock:
            for queue in (self._queue, self._redundant_queue):
                while queue:
                    queue.popleft().wake(is_accepted=False)

    async def flush(self, timeout_s: float) -> int:
        """Take over all that was submitted, and wait for it."""
        _thread, drivers = self.running()
        self._take_all(drivers)
        return await drivers.flush(timeout_s)

    def running(self) -> tuple[LoopThread, Drivers]:
        """Return thread and drivers. Raises Stopped before the start."""
        if self.thread is None or self.drivers is None:
            raise Stopped(why_not_running(Status.INITIALIZED, "publisher", "with"))
        return self.thread, self.drivers

    def refuse_here(self) -> None:
        """Raise RuntimeError for a call that waits on the loop's own thread; warn on that of another loop."""
        if self.thread is not None:
            self.thread.refuse_here()
        if asyncio._get_running_loop() is not None and _waits_in_a_loop.allows():
            log.warning(
                "a call that waits stops the event loop of this thread: use AsyncPublisher, submit, or"
                " asyncio.to_thread"
            )

    # On any thread.
    def accept(
        self,
        call: Call,
        timeout_s: float | None,
        waiter: Waiter | Many | None,
    ) -> None:
        """Accept a publish; wait for room. On the loop's own thread there is room at once, or BacklogFull."""
        if self._hooks is not None and not isinstance(waiter, Watched | Many):
            with self._hooks.accepting(call, waiter) as (call, watched):
                self.accept(call, timeout_s, watched)
            return
        timeout_ms = self._deadline_ms if timeout_s is None else whole_timeout_ms(timeout_s)
        submitted = _Submitted(call, monotonic_ms() + timeout_ms, waiter)
        if os.getpid() != self._pid:  # before the lock, which no thread may be left to open
            raise Stopped("started in another process: start a publisher after fork, not before")
        with self._lock:
            self._check_running()
            queue = self._redundant_queue if submitted.target.redundancy else self._queue
            if queue or not self._has_room(submitted):
                waiting = _Waiting(submitted, queue)
            else:
                waiting = None
                self._put_in(submitted)
            wake, self._woken = not self._woken, True
        if wake:
            self.running()[0].try_call_soon(self._take_inbox)  # or a stop has taken it
        if waiting is not None:
            self._wait_for_room(waiting, timeout_ms)

    def _put_in(self, submitted: _Submitted) -> None:
        """Add a publish to the inbox; the caller holds the lock."""
        self.inbox.append(submitted)
        self._inbox_bytes += len(submitted.body)

    def _wait_for_room(self, waiting: _Waiting, timeout_ms: int) -> None:
        """Wait until the loop admits the call. Raises BacklogFull."""
        thread, drivers = self.running()
        try:
            if thread.is_own:  # nobody else would make room
                self._take_all(drivers)
            else:
                waiting.wait(timeout_ms / 1000)
        except BaseException:  # of a signal handler
            self._take_back(waiting)
            if waiting.is_accepted and isinstance(waiting.submitted.waiter, Watched):
                waiting.submitted.waiter.is_accepted = True  # it has an end of its own
            raise
        if self._take_back(waiting):
            self._check_running()
            thread.try_call_soon(self._take_inbox)  # there may be room for the next call
            size, is_plain = len(waiting.submitted.body), not waiting.submitted.target.redundancy
            full = drivers.full_limit(size, is_plain=is_plain)
            raise no_room(size, timeout_ms, full, drivers.own.door.fault)

    def _take_back(self, waiting: _Waiting) -> bool:
        """Have a call wait no more. False: it is accepted.

        Its target may have got partitions since it began to wait: they would name the other queue.
        """
        with self._lock:
            if not waiting.is_accepted:
                with contextlib.suppress(ValueError):  # sent away
                    waiting.queue.remove(waiting)
        return not waiting.is_accepted

    def _check_running(self) -> None:
        if self.status is not RUNNING:
            raise Stopped(why_not_running(self.status, "publisher", "with"))

    def _has_room(self, submitted: _Submitted) -> bool:
        """Return whether there is room, within one inbox: the loop's count may be one turn old."""
        assert self.drivers is not None
        config, backlog = self._config, self.drivers.own.pending.backlog
        waiting, waiting_bytes = backlog.messages, backlog.bytes
        if submitted.target.redundancy:
            waiting, waiting_bytes = self.drivers.waiting
        waiting += len(self.inbox)
        total = self._inbox_bytes + waiting_bytes + len(submitted.body)
        return waiting < config.backlog_messages_max and (
            total <= config.backlog_bytes_max or not waiting
        )

    def _take_inbox(self) -> None:
        """Take over submitted publishes and admit waiting calls. On the loop."""
        if self.drivers is not None and (self.inbox or self._queue or self._redundant_queue):
            self._take_all(self.drivers)

    def _take_all(self, drivers: Drivers) -> None:
        with self._lock:
            self._woken = False
            for queue in (self._queue, self._redundant_queue):
                while queue and self._has_room(queue[0].submitted):
                    waiting = queue.popleft()
                    self._put_in(waiting.submitted)
                    waiting.wake(is_accepted=True)
            # Handed over under the lock, so that a call that asks for room finds each of them counted once.
            now, door = monotonic_ms(), drivers.own.door
            while self.inbox:
                submitted = self.inbox.popleft()
                submitted.hand_over(drivers if submitted.target.redundancy else door, now)
            self._inbox_bytes = 0


# At the interpreter's exit open publishes are waited for, as in `stop`, of all publishers side by side.
_running: set[_Intake] = set()


@atexit.register
def _stop_all() -> None:
    ending = [(each, each.begin_stop(STOP_TIMEOUT_S)) for each in list(_running)]
    left = sum(each.wait_stopped(end) for each, end in ending if end is not None)
    if left and sys.stderr is not None:
        # The application is gone: nobody else can read what stop returned.
        print(
            f"messagebus: exit with {plural(left, 'publish')} without a known outcome",
            file=sys.stderr,
        )
