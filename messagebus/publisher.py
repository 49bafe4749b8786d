"""The blocking publisher: a thin face over the driver on a background loop. Thread-safe."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import threading
import weakref
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from messagebus._io.clock import now_ms
from messagebus._io.loopthread import LoopThread
from messagebus._io.publishing import PublishDriver, Ticket
from messagebus.config import BusConfig, PublisherConfig
from messagebus.destination import Destination, parse_destination
from messagebus.errors import (
    BacklogFull,
    NotReady,
    PublishError,
    Refused,
    Stopped,
    Unknown,
    Unroutable,
)
from messagebus.message import Message
from messagebus.outcome import Outcome, Published
from messagebus.stats import PublisherStats, Status

__all__ = ["Payload", "Publisher", "as_message", "raise_unless_confirmed"]

Payload = Message | bytes | str
"""What may be published: a message, its bytes, or a text."""

STOP_TIMEOUT_S = 10.0
START_TIMEOUT_S = 10.0

_ERRORS: dict[Outcome, type[PublishError]] = {
    Outcome.REFUSED: Refused,
    Outcome.UNROUTABLE: Unroutable,
    Outcome.UNKNOWN: Unknown,
}


def as_message(payload: Payload) -> Message:
    """A message as it is, bytes as binary, str as text."""
    match payload:
        case Message():
            return payload
        case str():
            return Message.text(payload)
        case _:
            return Message(body=payload)


def as_destination(destination: Destination | str) -> Destination:
    return parse_destination(destination) if isinstance(destination, str) else destination


def raise_unless_confirmed(published: Published) -> Published:
    """Raises Refused, Unroutable or Unknown, by outcome."""
    if published.outcome is not Outcome.CONFIRMED:
        raise _ERRORS[published.outcome](published.message_id, published.reason)
    return published


class Publisher:
    """Publishes to whichever broker the balancer gives.

        with Publisher(BusConfig.from_env(os.environ)) as publisher:
            publisher.send_safe("orders", b"...")

    Every accepted publish ends in exactly one `Outcome`. Any thread may call any method.
    """

    def __init__(self, bus: BusConfig, config: PublisherConfig | None = None) -> None:
        self._bus = bus
        self._config = config or PublisherConfig()
        self._status = Status.INITIALIZED
        self._thread: LoopThread | None = None
        self._driver: PublishDriver | None = None
        # Submitted and not yet taken over by the loop; `_room` guards it and wakes who waits for room.
        self._room = threading.Condition()
        self._inbox: deque[tuple[Ticket, int]] = deque()
        self._inbox_bytes = 0
        self._waiters = 0
        self._woken = False

    # ------------------------------------------------------------------ life
    @property
    def status(self) -> Status:
        return self._status

    def start(self, *, require: str | None = None, timeout_s: float = START_TIMEOUT_S) -> None:
        """Begin to dial. Without `require` a bus that is down is tried again in the background.

        require: "one" insists on a link within timeout_s and raises NotReady otherwise.
        Raises LoginRefused when user, password or virtual host are wrong and `require` is given.
        """
        if self._status is not Status.INITIALIZED:
            raise Stopped(f"a publisher starts once; this one is {self._status.value}")
        if require not in (None, "one"):
            raise ValueError(f"require={require!r}: None or 'one'")
        self._thread = LoopThread("messagebus-publisher")
        self._driver = self._thread.run(self._make_driver())
        self._status = Status.RUNNING
        _running.add(self)
        if require and not self._thread.run(self._wait_connected(self._driver, timeout_s)):
            fatal = self._driver.fatal
            self.stop(timeout_s=0)
            raise fatal or NotReady(f"no link to {self._bus.broker} within {timeout_s:g} s")

    async def _make_driver(self) -> PublishDriver:
        driver = PublishDriver(self._bus, self._config, self._take_inbox)
        driver.start()
        return driver

    @staticmethod
    async def _wait_connected(driver: PublishDriver, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await driver.connected.wait()
        except TimeoutError:
            return False
        return driver.fatal is None

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Wait for what is open, then hang up. Returns how many publishes got no known outcome.

        Their futures say `unknown`, or `refused` for those that were never sent.
        """
        with self._room:
            if self._status is not Status.RUNNING:
                self._status = Status.STOPPED
                return 0
            self._status = Status.STOPPED
        thread, driver = self._running()
        left = thread.run(self._stop(driver, timeout_s))
        thread.stop()
        _running.discard(self)
        with self._room:
            self._room.notify_all()
        return left

    async def _stop(self, driver: PublishDriver, timeout_s: float) -> int:
        self._take_all(driver)
        return await driver.stop(timeout_s)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # ------------------------------------------------------------------ publishing
    def submit(
        self, destination: Destination | str, payload: Payload, *, timeout_s: float | None = None
    ) -> Future[Published]:
        """Accept a publish and return the future of its end, which never raises for an outcome.

        timeout_s: bounds the wait for room and the publish together; None takes the config's
        deadline. Raises BacklogFull, Stopped, NameInvalid or MessageInvalid; then nothing is sent.
        """
        future: Future[Published] = Future()
        # It cannot be cancelled: what is accepted is sent, and ends.
        future.set_running_or_notify_cancel()
        self._accept(destination, payload, timeout_s, future)
        return future

    def send(self, destination: Destination | str, payload: Payload) -> None:
        """Accept a publish and forget it; how it ends is only counted. Raises as `submit`."""
        self._accept(destination, payload, None, None)

    def send_safe(
        self, destination: Destination | str, payload: Payload, *, timeout_s: float | None = None
    ) -> Published:
        """Publish and wait for the confirm: the message is then stored and fsynced on a broker.

        Raises as `submit`, and Refused, Unroutable or Unknown when it ends otherwise.
        """
        return raise_unless_confirmed(
            self.submit(destination, payload, timeout_s=timeout_s).result()
        )

    def send_many(
        self,
        destination: Destination | str,
        payloads: Iterable[Payload],
        *,
        timeout_s: float | None = None,
    ) -> list[Published]:
        """Publish all in flight together; returns their ends, in order. Raises as `submit`."""
        futures = [self.submit(destination, each, timeout_s=timeout_s) for each in payloads]
        concurrent.futures.wait(futures)
        return [future.result() for future in futures]

    def flush(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Wait until everything accepted so far is settled. Returns how many are not, in time."""
        thread, driver = self._running()
        return thread.run(self._flush(driver, timeout_s))

    async def _flush(self, driver: PublishDriver, timeout_s: float) -> int:
        self._take_all(driver)
        return await driver.flush(timeout_s)

    def refresh_connection(self) -> None:
        """Dial anew through the balancer; in good order, nothing becomes unknown."""
        thread, driver = self._running()
        thread.call_soon(driver.renew)

    def stats(self) -> PublisherStats:
        """A snapshot; cheap."""
        if self._driver is None:
            raise Stopped("not started")
        return publisher_stats(self._driver, extra_backlog=len(self._inbox))

    # ------------------------------------------------------------------ inside
    def _running(self) -> tuple[LoopThread, PublishDriver]:
        if self._thread is None or self._driver is None:
            raise Stopped("not started")
        return self._thread, self._driver

    def _accept(
        self,
        destination: Destination | str,
        payload: Payload,
        timeout_s: float | None,
        future: Future[Published] | None,
    ) -> None:
        message = as_message(payload)
        on_done = future.set_result if future is not None else _forget
        ticket = Ticket(as_destination(destination), message, on_done)
        timeout_ms = self._config.deadline_ms if timeout_s is None else int(timeout_s * 1000)
        deadline_ms = now_ms() + timeout_ms
        with self._room:
            self._wait_for_room(len(message.body), timeout_ms)
            self._inbox.append((ticket, max(1, deadline_ms - now_ms())))
            self._inbox_bytes += len(message.body)
            wake, self._woken = not self._woken, True
        if wake:
            self._running()[0].call_soon(self._take_inbox)

    def _wait_for_room(self, size: int, timeout_ms: int) -> None:
        """Holds `_room`. The loop notifies when messages have left the backlog."""
        self._check_running()
        if self._has_room(size):
            return
        self._waiters += 1
        try:
            if not self._room.wait_for(
                lambda: self._status is not Status.RUNNING or self._has_room(size),
                timeout_ms / 1000,
            ):
                raise BacklogFull(f"no room for {size} bytes within {timeout_ms} ms")
        finally:
            self._waiters -= 1
        self._check_running()

    def _check_running(self) -> None:
        if self._status is not Status.RUNNING:
            raise Stopped(f"the publisher is {self._status.value}")

    def _has_room(self, size: int) -> bool:
        """The loop's own count may be one turn old: the bound holds within one inbox."""
        assert self._driver is not None
        config, outbox = self._config, self._driver.outbox
        waiting = len(self._inbox) + outbox.waiting
        total = self._inbox_bytes + outbox.waiting_bytes + size
        return waiting < config.backlog_messages_max and (
            total <= config.backlog_bytes_max or not waiting
        )

    def _take_inbox(self) -> None:
        """On the loop: take over what threads have submitted, tell those that wait for room."""
        if self._driver is not None and (self._inbox or self._waiters):
            self._take_all(self._driver)

    def _take_all(self, driver: PublishDriver) -> None:
        with self._room:
            taken, self._inbox = self._inbox, deque()
            self._inbox_bytes = 0
            self._woken = False
            if self._waiters:
                self._room.notify_all()
        for ticket, timeout_ms in taken:
            driver.submit(ticket, timeout_ms)


def _forget(_published: Published) -> None:
    pass


def publisher_stats(driver: PublishDriver, extra_backlog: int = 0) -> PublisherStats:
    counters = driver.counters
    return PublisherStats(
        confirmed=counters.confirmed,
        refused=counters.refused,
        unroutable=counters.unroutable,
        unknown=counters.unknown,
        retried=counters.retried,
        backlog=driver.outbox.waiting + extra_backlog,
        window=driver.outbox.in_flight,
        broker=driver.route.broker,
        dials=driver.route.dials,
        moves=driver.route.moves,
        links_lost=counters.links_lost,
        last_confirm_age_ms=now_ms() - counters.last_confirm_ms
        if counters.last_confirm_ms
        else None,
        list_age_ms=driver.list_age_ms,
        list_faults=driver.list_faults,
    )


# What an interpreter that exits leaves open is waited for, as in `stop`.
_running: weakref.WeakSet[Publisher] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for publisher in list(_running):
        publisher.stop()
