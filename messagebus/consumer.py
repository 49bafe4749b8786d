"""The blocking consumer: a thin face over the driver on a background loop. Thread-safe."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from messagebus._io.clock import now_ms
from messagebus._io.consuming import ConsumeDriver
from messagebus._io.loopthread import LoopThread
from messagebus._io.wire import Wire, amqp_wire
from messagebus.config import BusConfig, ConsumerConfig
from messagebus.destination import Destination, Source, Subscription, Topic, parse_destination
from messagebus.errors import AlreadySettled, NameInvalid, NotReady, RegistrationIncomplete, Stopped
from messagebus.message import Delivery
from messagebus.stats import ConsumerStats, Status

__all__ = ["Consumer", "as_source", "fulfilled"]

log = logging.getLogger("messagebus.consumer")

START_TIMEOUT_S = 10.0
DRAIN_S = 10.0
# A handler that fails at once must not spin: its delivery waits that long before it is given back.
FAILED_HANDLER_PAUSE_S = 1.0


def as_source(destination: Destination | Source | str, subscription: str) -> Source:
    """What to consume from. Raises NameInvalid: a topic needs a subscription, nothing else has one."""
    parsed = parse_destination(destination) if isinstance(destination, str) else destination
    if not isinstance(parsed, Topic):
        if subscription:
            raise NameInvalid(f"{parsed} has no subscriptions")
        return parsed
    if not subscription:
        raise NameInvalid(f"{parsed} is a topic: say which subscription")
    return Subscription(parsed, subscription)


async def fulfilled(driver: ConsumeDriver, require: str | None, timeout_s: float) -> bool:
    """Wait for what start(require=...) asks for. Raises LoginRefused."""
    conditions: dict[str | None, Callable[[], bool]] = {
        None: lambda: driver.registration is not None,
        "one": driver.is_attached_to_one,
        "all": driver.is_attached_to_all,
    }
    if require not in conditions:
        raise ValueError(f"require={require!r}: None, 'one' or 'all'")
    condition = conditions[require]
    await driver.wait_until(lambda: driver.fatal is not None or condition(), timeout_s)
    if driver.fatal is not None:
        raise driver.fatal
    return condition()


def not_ready(driver: ConsumeDriver, require: str, timeout_s: float) -> NotReady:
    missing = driver.registration.missing if driver.registration else {}
    states = {broker: each.state for broker, each in driver.stats().brokers.items()}
    why = f"brokers {states or 'unknown: no list'}"
    if missing:
        why += f"; {RegistrationIncomplete('registration', missing)}"
    return NotReady(f"require={require!r} not fulfilled within {timeout_s:g} s: {why}")


class Consumer:
    """Consumes from every broker of the list at once, as one stream.

        with Consumer(bus, "orders", subscription="billing") as consumer:
            for delivery in consumer:
                handle(delivery.body)
                consumer.ack(delivery)

    Any thread may call any method. Nothing is acked before `ack`, unless the config says at_most_once.
    """

    def __init__(
        self,
        bus: BusConfig,
        destination: Destination | Source | str,
        *,
        subscription: str = "",
        config: ConsumerConfig | None = None,
    ) -> None:
        self._bus = bus
        self._source = as_source(destination, subscription)
        self._config = config or ConsumerConfig()
        self._wire = self._make_wire()
        self._status = Status.INITIALIZED
        self._thread: LoopThread | None = None
        self._driver: ConsumeDriver | None = None
        # Taken from the driver and not yet received; bounded by handed_out_max.
        self._arrived = threading.Condition()
        self._ready: deque[Delivery] = deque()
        self._open: set[Delivery] = set()
        self._answers: deque[tuple[Delivery, str]] = deque()
        self._woken = False
        self._paused = False

    # ------------------------------------------------------------------ life
    @property
    def status(self) -> Status:
        return self._status

    def start(self, *, require: str | None = None, timeout_s: float = START_TIMEOUT_S) -> bool:
        """Register the subscription and attach to the brokers; goes on in the background.

        require: None waits up to timeout_s for an answer about the registration and returns in any
        case; "one" insists on one attached broker; "all" on every listed broker and a complete
        registration. Returns whether the registration is complete: every message confirmed from
        then on reaches this subscription.
        Raises NotReady when `require` was not fulfilled, LoginRefused.
        """
        if self._status is not Status.INITIALIZED:
            raise Stopped(f"a consumer starts once; this one is {self._status.value}")
        self._thread = LoopThread("messagebus-consumer")
        self._driver = self._thread.run(self._make_driver())
        self._status = Status.RUNNING
        self._thread.call_soon(self._on_ready)  # what arrived before there was a driver to ask
        try:
            done = self._thread.run(fulfilled(self._driver, require, timeout_s))
        except BaseException:
            self.stop(drain_s=0)
            raise
        if require and not done:
            self.stop(drain_s=0)
            raise not_ready(self._driver, require, timeout_s)
        return self._driver.registration is not None and self._driver.registration.complete

    async def _make_driver(self) -> ConsumeDriver:
        driver = ConsumeDriver(self._bus, self._source, self._config, self._on_ready, self._wire)
        driver.start()
        return driver

    def _make_wire(self) -> Wire:
        return amqp_wire(self._bus)

    def stop(self, drain_s: float = DRAIN_S) -> int:
        """Take no more, wait up to drain_s for open answers, hang up.

        Returns how many received deliveries had no answer: the brokers deliver them again, unless
        the subscription goes with its consumer (`Subscription.ephemeral`): then it is deleted.
        In a forked child it does nothing: what is open there is the parent's.
        """
        if self._thread is not None and not self._thread.is_here:
            return 0
        with self._arrived:
            if self._status is not Status.RUNNING:
                self._status = Status.STOPPED
                return 0
            self._status = Status.STOPPED
            thread, driver = self._running()
            untouched = sum(delivery.ledger.is_live for delivery in self._ready)
            self._ready.clear()
            self._arrived.notify_all()
        left = thread.run(driver.stop(drain_s, untouched=untouched))
        thread.stop()
        return left

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop(DRAIN_S if kind is None else 0)

    # ------------------------------------------------------------------ receiving
    def receive(self, timeout_s: float | None = None) -> Delivery | None:
        """Wait for the next delivery; None after timeout_s, or when the consumer is stopped."""
        self._running()
        until_ms = None if timeout_s is None else now_ms() + int(timeout_s * 1000)
        with self._arrived:
            while (delivery := self._next()) is None:
                wait_s = None if until_ms is None else (until_ms - now_ms()) / 1000
                if self._status is not Status.RUNNING or (wait_s is not None and wait_s <= 0):
                    return None
                self._arrived.wait(wait_s)
            return delivery

    def receive_immediate(self) -> Delivery | None:
        """A delivery that has arrived already, or None."""
        self._running()
        with self._arrived:
            return self._next()

    def receive_many(self, count_max: int, max_wait_s: float | None = None) -> list[Delivery]:
        """Wait for one delivery as `receive` does, and return it with all that are there, in order.

        At most count_max; none after max_wait_s, or when the consumer is stopped.
        """
        first = self.receive(max_wait_s)
        found = [] if first is None else [first]
        with self._arrived:
            while found and len(found) < count_max and (delivery := self._next()) is not None:
                found.append(delivery)
        return found

    def pause(self) -> None:
        """Hand out nothing until `resume`. Links stay open, and their buffers fill once.

        A broker takes back what it has waited for longer than its consumer timeout (30 minutes,
        if not set otherwise): to rest for longer, stop.
        """
        self._set_paused(True)

    def resume(self) -> None:
        """Hand out again."""
        self._set_paused(False)

    def _set_paused(self, paused: bool) -> None:
        thread, driver = self._running()
        with self._arrived:
            self._paused = paused
            self._arrived.notify_all()
        thread.call_soon(driver.pause if paused else driver.resume)

    def _next(self) -> Delivery | None:
        """Holds `_arrived`. What a lost link delivered comes again: it is not handed out twice."""
        while self._ready and not self._paused:
            delivery = self._ready.popleft()
            if delivery.ledger.is_live:
                if self._config.at_most_once:
                    self._send_answer(delivery, "ack")
                else:
                    self._open.add(delivery)
                return delivery
        return None

    def __iter__(self) -> Iterator[Delivery]:
        """Deliveries until the consumer is stopped."""
        while (delivery := self.receive()) is not None:
            yield delivery

    def run(self, handler: Callable[[Delivery], object], *, workers: int = 1) -> None:
        """Call handler for each delivery, in `workers` threads, until the consumer is stopped.

        A delivery is acked when its handler returns. One whose handler raises is given back to its
        broker after a pause; it comes again.
        """
        threads = [
            threading.Thread(target=self._work, args=(handler,), name=f"messagebus-worker-{n}")
            for n in range(workers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(self, handler: Callable[[Delivery], object]) -> None:
        for delivery in self:
            try:
                handler(delivery)
            except Exception:  # whatever an application raises must not end the worker
                log.exception("handler failed message=%s", delivery.message_id)
                with self._arrived:
                    self._arrived.wait_for(self._is_stopped, FAILED_HANDLER_PAUSE_S)
                self.nack(delivery)
            else:
                self.ack(delivery)

    # ------------------------------------------------------------------ answering
    def ack(self, delivery: Delivery) -> bool:
        """Tell the broker that the delivery is done with; sent with others, within a loop turn.

        False: its link has ended meanwhile, or the consumer is stopped: the broker delivers it again;
        counted as stale. With at_most_once it is answered already: True, and nothing is sent.
        Raises AlreadySettled when this delivery was answered before.
        """
        return self._answer(delivery, "ack")

    def nack(self, delivery: Delivery, *, requeue: bool = True) -> bool:
        """Give the delivery back, or (requeue=False) reject it into the parking queue.

        As `ack`; with at_most_once False, because it cannot be given back any more.
        """
        return self._answer(delivery, "requeue" if requeue else "reject")

    def ack_safe(self, delivery: Delivery, timeout_s: float = 10.0) -> bool:
        """Ack, and return when the broker has received it. A crash of it may still deliver again."""
        thread, driver = self._running()
        if self._config.at_most_once:
            return True
        self._close(delivery)
        try:
            return thread.run(driver.ack_safe(delivery, timeout_s))
        except Stopped:
            return False

    def _answer(self, delivery: Delivery, answer: str) -> bool:
        self._running()
        if self._config.at_most_once:
            return answer == "ack"
        self._close(delivery)
        # Asked first: a stop that waits for this answer ends the link a moment after it.
        live = delivery.ledger.is_live
        self._send_answer(delivery, answer)
        return live

    def _send_answer(self, delivery: Delivery, answer: str) -> None:
        self._answers.append((delivery, answer))
        if not self._woken:
            self._woken = True  # a race wakes twice, never not at all: cleared before taking
            thread, _driver = self._running()
            # Stopped: the loop has ended and its links with it, the brokers deliver it again.
            with contextlib.suppress(Stopped):
                thread.call_soon(self._take_answers)

    def _close(self, delivery: Delivery) -> None:
        try:
            self._open.remove(delivery)
        except KeyError:
            raise AlreadySettled(f"{delivery.message_id} was answered before") from None

    def _take_answers(self) -> None:
        """On the loop."""
        assert self._driver is not None
        self._woken = False
        while self._answers:
            delivery, answer = self._answers.popleft()
            if answer == "ack":
                self._driver.ack(delivery)
            else:
                self._driver.nack(delivery, requeue=answer == "requeue")

    # ------------------------------------------------------------------ questions
    def keep_alive(self) -> bool:
        """Whether the links to all listed brokers are open. AMQP has no lease to renew."""
        return self._running()[1].keep_alive()

    def stats(self) -> ConsumerStats:
        """A snapshot, taken on the loop."""
        thread, driver = self._running()
        if self._status is not Status.RUNNING:
            return driver.stats()
        return thread.run(_stats(driver))

    # ------------------------------------------------------------------ inside
    def _on_ready(self) -> None:
        """On the loop: take over what may be handed out."""
        driver = self._driver
        if driver is None:
            return
        with self._arrived:
            before = len(self._ready)
            while (delivery := driver.take()) is not None:
                self._ready.append(delivery)
            if len(self._ready) > before:
                self._arrived.notify(len(self._ready) - before)

    def _is_stopped(self) -> bool:
        return self._status is not Status.RUNNING

    def _running(self) -> tuple[LoopThread, ConsumeDriver]:
        """Raises Stopped before the start, and in a forked child: its copy is nobody's consumer."""
        if self._thread is None or self._driver is None:
            raise Stopped("not started")
        self._thread.check_is_here()
        return self._thread, self._driver


async def _stats(driver: ConsumeDriver) -> ConsumerStats:
    return driver.stats()
