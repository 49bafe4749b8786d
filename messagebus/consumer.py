"""The blocking consumer: a thin layer over the driver on a background loop. Thread-safe."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import logging
import queue
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Literal, Self

from messagebus._io.amqp_wire import AmqpWire
from messagebus._io.consume.driver import ConsumeDriver
from messagebus._io.consume.run_in_threads import HandlerThreads
from messagebus._io.consume.runs import (
    Answers,
    Handling,
    LateRunsByPost,
    Ticking,
    checked_count,
    handled_by,
    is_coroutine_handler,
    reason_text,
    run_context,
    words_of,
)
from messagebus._io.hooks import hook_chain
from messagebus._io.loop import (
    Ends,
    LoopThread,
    OneStop,
    Tasks,
    is_interrupting,
    warn_dropped,
)
from messagebus._io.wire import Wire
from messagebus.clock import monotonic_ms, whole_ms
from messagebus.config import AT_MOST_ONCE_DEDUP, BusConfig, ConsumerConfig, settings_of
from messagebus.destination import Destination, Source, Subscription, Topic, parse_destination
from messagebus.errors import (
    AlreadySettled,
    ConfigError,
    NameInvalid,
    NotReady,
    RegistrationIncomplete,
    Stopped,
)
from messagebus.handling import (
    RetryPolicy,
    checked_after,
    checked_grace,
    checked_most,
    checked_wait,
    park_headers,
    retry_headers,
)
from messagebus.hooks import Hooks
from messagebus.message import Delivery, Header, checked_delivery
from messagebus.stats import ConsumerStats, Status, why_not_running

if TYPE_CHECKING:
    from messagebus.secret import Secret
    from messagebus.stores import Dedup, Store

    Deduplication = Dedup | Store | str | Secret | Literal[False] | None

__all__ = ["Consumer", "as_dedup", "as_source", "fulfilled"]

log = logging.getLogger("messagebus.consumer")

START_TIMEOUT_S = 10.0
DRAIN_S = 10.0
# A wait is cut into pieces of this length: the main thread runs the handler of a signal that another thread
# got, or that came just before the wait, only when its wait ends.
SIGNALS_S = 0.5

Order = Literal["none", "key", "partition"]
"""The order in which a consumer hands deliveries out."""
AnswerByCopy = tuple[Literal["retry", "park"], int, Mapping[str, Header]]
"""Answer to a delivery by a copy: kind, delay in ms, headers."""


def as_dedup(given: Deduplication, config: ConsumerConfig) -> Dedup | None:
    """Return the deduplication of a consumer; None for none. Raises ConfigError.

    given: None takes that of the config; False is none, whatever the config says.
    """
    if given is False or (given is None and not config.dedup.reveal()):
        return None
    if config.at_most_once:
        raise ConfigError(AT_MOST_ONCE_DEDUP)
    from messagebus.stores import Dedup  # only where it is used

    wanted = config.dedup if given is None else given
    return wanted if isinstance(wanted, Dedup) else Dedup(wanted)


def with_order(config: ConsumerConfig, order: Order | None) -> ConsumerConfig:
    """Return the config with this order, where one is given. Raises ConfigError."""
    return config if order is None else dataclasses.replace(config, order=order)


def as_source(destination: Destination | Source | str, subscription: str) -> Source:
    """Return what to consume from. Raises NameInvalid: a topic needs a subscription, nothing else has one."""
    if isinstance(destination, str) and "/" in destination and not subscription:
        topic, _, name = destination.partition("/")
        raise NameInvalid(
            f"{destination!r} is a subscription: say ({topic!r}, subscription={name!r})"
        )
    parsed = parse_destination(destination) if isinstance(destination, str) else destination
    if not isinstance(parsed, Topic):
        if subscription:
            raise NameInvalid(f"{parsed} has no subscriptions")
        return parsed
    if not subscription:
        raise NameInvalid(
            f"{parsed} is a topic: say subscription=..., or 'queue:{parsed}' for a queue"
        )
    return Subscription(parsed, subscription)


async def fulfilled(driver: ConsumeDriver, require: str | None, timeout_s: float) -> bool:
    """Wait until start(require=...) is fulfilled; return whether it is. Raises LoginRefused, ConfigError."""
    conditions: dict[str | None, Callable[[], bool]] = {
        None: lambda: driver.registering.registration is not None,
        "one": driver.links.is_attached_to_one,
        "all": driver.links.is_attached_to_all,
    }
    if require not in conditions:
        raise ValueError(f"require={require!r}: None, 'one' or 'all'")
    condition, timeout_s = conditions[require], checked_grace(timeout_s)
    await driver.pipeline.check()
    await driver.wait_until(
        lambda: driver.registering.fatal is not None or driver.is_stopping or condition(), timeout_s
    )
    if driver.registering.fatal is not None:
        raise driver.registering.fatal
    if driver.is_stopping:
        raise Stopped("the consumer was stopped while it started")
    return condition()


def not_ready(driver: ConsumeDriver, require: str, timeout_s: float) -> NotReady:
    registration = driver.registering.registration
    missing = registration.missing if registration else {}
    faults = driver.links.outage.last_faults
    states = [
        f"{broker} {each.state}" + (f" ({faults[broker]})" if broker in faults else "")
        for broker, each in driver.stats().brokers.items()
    ]
    why = f"brokers {', '.join(states) or 'unknown: no list'}"
    if registration is None and not faults:
        why += "; no answer yet to its registration: a new queue takes some four seconds"
    if missing:
        why += f"; {RegistrationIncomplete('registration', missing)}"
    return NotReady(f"require={require!r} not fulfilled within {timeout_s:g} s: {why}")


class Consumer:
    """Consumer that reads from every broker of the bus, as one stream.

        with Consumer(bus, "orders", subscription="billing") as consumer:
            for delivery in consumer:
                handle(delivery.body)
                consumer.ack(delivery)

    Thread: any thread may call any method. A delivery is acked by `ack` only, unless the config sets
    at_most_once.
    bus: settings of the bus; None reads them from the environment.
    dedup: deduplication, at most one successful run for each message: a `Dedup`, a store, or its URL
    (docs/explanation/once.md). Duplicates are acked and not handed out. None: as the config; False: none.
    order: "key", "partition" or "none" (docs/explanation/order.md); None: as the config.
    """

    def __init__(
        self,
        bus: BusConfig | None,
        destination: Destination | Source | str,
        *,
        subscription: str = "",
        config: ConsumerConfig | None = None,
        hooks: Sequence[Hooks] = (),
        dedup: Deduplication = None,
        order: Order | None = None,
        _wire: Wire | None = None,
    ) -> None:
        bus, config = settings_of(bus, config, ConsumerConfig)
        self._bus = bus
        self._source = as_source(destination, subscription)
        self._config = with_order(config, order)
        self._dedup = as_dedup(dedup, self._config)
        self._hooks = hook_chain(hooks)
        self._wire = _wire or AmqpWire(bus)
        self._thread: LoopThread | None = None
        self._driver: ConsumeDriver | None = None
        self._arrivals = _Arrivals()
        self._arrived, self._ready = self._arrivals.arrived, self._arrivals.ready
        self._open: set[Delivery] = set()
        self._answers: deque[tuple[Delivery, str | AnswerByCopy]] = deque()
        self._woken = False
        self._copying: Tasks | None = None
        self._handlings: list[Handling] = []

    # Life.
    @property
    def status(self) -> Status:
        """The current `Status`."""
        return self._arrivals.status

    @property
    def registered(self) -> bool:
        """True once every broker has the subscription: it receives every message confirmed since then."""
        return self._driver is not None and self._driver.registering.is_complete

    def start(self, *, require: str | None = None, timeout_s: float = START_TIMEOUT_S) -> None:
        """Create the subscription if it does not exist, and connect to the brokers in the background.

        require: "one": wait until one broker delivers; "all": until every broker of the list delivers and has
        the subscription; None: wait up to timeout_s for the registration, and return with or without it
        (see `registered`).
        Raises NotReady if `require` is not met within timeout_s; the consumer is stopped again then. Raises
        LoginRefused, and ConfigError for a store of deduplication that cannot be used. If the store does not
        answer, the consumer waits for it.
        """
        arrivals = self._arrivals
        with self._arrived:
            if arrivals.status is not Status.INITIALIZED or arrivals.thread is not None:
                raise Stopped(f"a consumer starts once; this one is {arrivals.status.value}")
            self._thread = arrivals.thread = LoopThread("messagebus-consumer")
        try:
            self._driver = self._thread.run(self._make_driver())
            done = self._thread.run(fulfilled(self._driver, require, timeout_s))
        except BaseException:
            arrivals.stop(0)
            raise
        if require and not done:
            arrivals.stop(0)
            raise not_ready(self._driver, require, timeout_s)

    async def _make_driver(self) -> ConsumeDriver:
        arrivals = self._arrivals
        if arrivals.status is not Status.INITIALIZED:
            raise Stopped("the consumer was stopped while it started")
        driver = ConsumeDriver(
            self._bus,
            self._source,
            self._config,
            arrivals.on_ready,
            self._wire,
            withdraw=arrivals.withdraw,
            dedup=self._dedup,
            chain=self._hooks,
        )
        driver.start()
        arrivals.driver, arrivals.status = driver, Status.RUNNING
        return driver

    def request_stop(self) -> None:
        """Hand out no more deliveries: `receive` returns None once in each thread; iterations and `run` end.

        It does not block, so a signal handler may call it. The application can still answer the deliveries
        that it has; `stop`, or the end of the `with` block, waits for these answers and disconnects.
        """
        self._arrivals.request_stop()

    def stop(self, timeout_s: float | None = None) -> int:
        """Accept no more deliveries, wait for the answers to those handed out, disconnect.

        timeout_s: the longest wait, in seconds; None: the grace_s of `run`, or DRAIN_S.
        Returns the number of deliveries without an answer: the brokers redeliver them. An ephemeral
        subscription (`Subscription.ephemeral`) is deleted instead.
        A call from one of the consumer's own handlers, or in a signal handler, returns 0 at once, because the
        stop also waits for that handler. The stop continues in the background; other callers and the exit of
        the interpreter wait for it. A further call waits for the same stop, and may shorten it.
        Raises RuntimeError on the consumer's own thread, and ConfigError if timeout_s is not a number of
        seconds. In a forked child it does nothing: the connections belong to the parent.
        """
        timeout_s = None if timeout_s is None else checked_grace(timeout_s)
        arrivals = self._arrivals
        if handled_by() is self or is_interrupting(self, __file__):
            arrivals.begin_stop(timeout_s, waits=False)
            return 0
        return arrivals.stop(timeout_s)

    def __del__(self) -> None:
        arrivals: _Arrivals | None = getattr(self, "_arrivals", None)
        if arrivals is not None and arrivals.status is Status.RUNNING and arrivals.is_here:
            warn_dropped(self, "with")
            arrivals.begin_stop(0, waits=False)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for open answers as `stop` does, unless no thread is left that could give one."""
        self.stop(0 if kind is not None or _is_alone() else None)

    # Receiving.
    def receive(self, timeout_s: float | None = None) -> Delivery | None:
        """Wait for the next delivery and return it; None after timeout_s, or when the consumer is stopped.

        timeout_s: seconds; None: no limit; a negative number counts as 0.
        Raises ConfigError if timeout_s is not a number of seconds. Raises Stopped before the start, and in a
        thread to which a stopped consumer has returned None before: a loop without an end would spin.
        """
        delivery = self._receive(timeout_s)
        if delivery is None and self.status is not Status.RUNNING:
            self._arrivals.ends.give(threading.current_thread())
        return delivery

    def _receive(self, timeout_s: float | None = None) -> Delivery | None:
        self._running()
        timeout_s = checked_wait(timeout_s)
        until_ms = None if timeout_s is None else monotonic_ms() + whole_ms(timeout_s)
        with self._arrived:
            while (delivery := self._next()) is None:
                wait_s = None if until_ms is None else (until_ms - monotonic_ms()) / 1000
                if self.status is not Status.RUNNING or (wait_s is not None and wait_s <= 0):
                    return None
                self._running()[0].refuse_here()
                self._ask()
                self._arrived.wait(SIGNALS_S if wait_s is None else min(wait_s, SIGNALS_S))
            return delivery

    def _ask(self) -> None:
        """Ask idle links for deliveries, because none is here."""
        thread, driver = self._running()
        if driver.links.idle:
            thread.try_call_soon(driver.resume_idle)

    def receive_immediate(self) -> Delivery | None:
        """Return a delivery that has already arrived, or None."""
        self._running()
        with self._arrived:
            if (delivery := self._next()) is None and self.status is Status.RUNNING:
                self._ask()
            return delivery

    def receive_many(self, count_max: int, timeout_s: float | None = None) -> list[Delivery]:
        """Wait for one delivery as `receive` does; return it with all others that have arrived, in order.

        count_max: the largest number of deliveries, 0 or more. Returns an empty list after timeout_s, or when
        the consumer is stopped. Raises the errors of `receive`.
        """
        first = self.receive(timeout_s) if checked_most(count_max) else None
        found = [] if first is None else [first]
        with self._arrived:
            while found and len(found) < count_max and (delivery := self._next()) is not None:
                found.append(delivery)
        return found

    def pause(self) -> None:
        """Hand out nothing until `resume`. Connections stay open, and each buffers up to its prefetch.

        A broker takes back deliveries that are not answered within its consumer timeout (30 minutes by
        default): for a longer pause, stop the consumer.
        """
        self._set_paused(True)

    def resume(self) -> None:
        """Hand out deliveries again."""
        self._set_paused(False)

    def _set_paused(self, paused: bool) -> None:
        thread, driver = self._running()
        with self._arrived:
            self._arrivals.paused = paused or self.status is not Status.RUNNING
            self._arrived.notify_all()
        thread.call_soon(driver.pause if paused else driver.resume)

    def _next(self) -> Delivery | None:
        """Return the next delivery; the caller holds `_arrived`.

        Deliveries of a lost link are left out: their broker delivers them again.
        """
        while self._ready and not self._arrivals.paused:
            delivery = self._ready.popleft()
            if delivery._ledger.is_live:
                if self._config.at_most_once:
                    self._send_answer(delivery, "ack")
                else:
                    self._open.add(delivery)
                return delivery
            if self._dedup is not None or self._config.order != "none":
                self._send_answer(delivery, "unseen")
        return None

    def __iter__(self) -> Iterator[Delivery]:
        """Yield deliveries until the consumer is stopped."""
        while (delivery := self._receive()) is not None:
            yield delivery

    def run(
        self,
        handler: Callable[[Delivery], object],
        *,
        concurrency: int = 1,
        retry: RetryPolicy | None = None,
        time_limit_s: float | None = None,
        grace_s: float = DRAIN_S,
    ) -> int:
        """Call the handler for each delivery, in `concurrency` threads, until the consumer is stopped.

        A delivery is acked when its handler returns. The handler may return or raise `RetryLater`, `Park` or
        `Reject` instead. Any other exception is a failed run.
        retry: what happens after a failed run; None: `RetryPolicy()`.
        time_limit_s: the longest duration of a run, in seconds. A longer run counts as failed; its thread
        cannot be ended and is replaced.
        grace_s: seconds that handlers may take to end after a stop. Deliveries without an answer by then are
        redelivered.
        Returns the number of runs that had not ended by then. KeyboardInterrupt stops the consumer.
        """
        self._running()[0].refuse_here()
        if is_coroutine_handler(handler):
            raise TypeError("a coroutine function: AsyncConsumer.run takes it")
        checked_count("concurrency", concurrency)
        grace_s = checked_grace(grace_s, "grace_s")
        handling = Handling(
            handler,
            Answers(self.ack, self._retry_soon, self._park_soon),
            policy=retry,
            time_limit_s=time_limit_s,
            chain=self._hooks,
            words=lambda: words_of(self._bus),
            answers_first=self._config.at_most_once,
            consumer_timeout_s=self._config.consumer_timeout_s,
            order=self._config.order,
        )
        if (claims := self._running()[1].pipeline.run_handlers()) is not None:
            handling.claims = LateRunsByPost(claims, self._on_loop)
        threads = HandlerThreads(handling, self._receive, context=run_context(self))
        ticking = Ticking(handling)
        self._arrivals.grace_s = grace_s
        self._handlings.append(handling)
        self._on_loop(ticking.start)
        wait_s = grace_s
        try:
            threads.start(concurrency)
            self._arrivals.wait_for_stop()
        except BaseException:
            self._arrivals.stop(grace_s)
            wait_s = 0  # that was the grace
            raise
        finally:
            left = threads.join(wait_s)
            self._on_loop(ticking.stop)
        return left

    def _on_loop(self, function: Callable[[], None]) -> None:
        with contextlib.suppress(Stopped):  # of `_running`
            self._running()[0].call_soon(function)

    # Answering.
    def ack(self, delivery: Delivery) -> bool:
        """Acknowledge the delivery. Acks of about a millisecond are sent together.

        Returns False if the connection of the delivery has ended, or the consumer is stopped: the broker
        redelivers the message, and the ack counts as stale. With at_most_once the delivery is acked already:
        it returns True and sends nothing.
        Raises AlreadySettled if the application has answered this delivery before.
        """
        return self._answer(delivery, "ack")

    def nack(self, delivery: Delivery, *, requeue: bool = True) -> bool:
        """Return the delivery to its queue or, with requeue=False, reject it into the parking queue.

        Returns and raises as `ack` does; False with at_most_once, because the delivery is acked already.
        """
        return self._answer(delivery, "requeue" if requeue else "reject")

    def ack_safe(self, delivery: Delivery, timeout_s: float = 10.0) -> bool:
        """Ack, and return when the broker has received the ack. It may still redeliver after a crash."""
        (thread, driver), timeout_s = self._running(), checked_grace(timeout_s)
        if self._config.at_most_once:
            return True
        thread.refuse_here()
        self._close(delivery)
        try:
            return thread.run(driver.ack_safe(delivery, timeout_s))
        except Stopped:
            return False

    def retry(
        self,
        delivery: Delivery,
        *,
        after_s: float,
        reason: str = "",
        error: BaseException | None = None,
    ) -> bool:
        """Deliver the message again after a delay, to this subscription only, as its next attempt.

        after_s: the delay in seconds, rounded up to a step of the delay ladder; 0: at once.
        reason, error: stored with the message, without passwords.
        Returns when the copy is stored and this delivery is acked, with the result of `ack_safe`.
        """
        delay_ms = checked_after(after_s, order=self._config.order)
        headers = retry_headers(
            checked_delivery(delivery), None, reason_text(self._bus, reason, error)
        )
        return self._answer_by_copy(
            delivery,
            lambda driver: driver.pipeline.first.retry(
                delivery, delay_ms=delay_ms, headers=headers
            ),
        )

    def park(self, delivery: Delivery, *, reason: str, error: BaseException | None = None) -> bool:
        """Move the message to the parking queue, with the reason. Returns and raises as `retry` does."""
        words = words_of(self._bus)
        exception = "" if error is None else words.of(error)
        headers = park_headers(checked_delivery(delivery), words.short(reason), exception)
        return self._answer_by_copy(
            delivery, lambda driver: driver.pipeline.first.park(delivery, headers=headers)
        )

    def _answer_by_copy(
        self,
        delivery: Delivery,
        answer: Callable[[ConsumeDriver], Awaitable[bool]],
    ) -> bool:
        async def answered() -> bool:
            return await answer(driver)

        thread, driver = self._running()
        if self._config.at_most_once:
            return False
        thread.refuse_here()
        self._close(delivery)
        try:
            return thread.run(answered())
        except Stopped:
            return False

    def _retry_soon(self, delivery: Delivery, delay_ms: int, headers: Mapping[str, Header]) -> bool:
        """Retry without waiting, for `run`."""
        return self._answer(delivery, ("retry", delay_ms, headers))

    def _park_soon(self, delivery: Delivery, headers: Mapping[str, Header]) -> bool:
        """Park without waiting, for `run`."""
        return self._answer(delivery, ("park", 0, headers))

    def _answer(self, delivery: Delivery, answer: str | AnswerByCopy) -> bool:
        self._running()
        if self._config.at_most_once:
            return answer == "ack"
        self._close(delivery)
        # Asked first: a stop that waits for this answer ends the link a moment after it.
        live = delivery._ledger.is_live
        self._send_answer(delivery, answer)
        return live

    def _send_answer(self, delivery: Delivery, answer: str | AnswerByCopy) -> None:
        self._answers.append((delivery, answer))
        if not self._woken:
            self._woken = True  # a race wakes twice, never not at all: cleared before taking
            thread, _driver = self._running()
            # Else the loop has ended and its links with it: the brokers deliver it again.
            thread.try_call_soon(self._take_answers)

    def _close(self, delivery: Delivery) -> None:
        try:
            self._open.remove(delivery)
        except (KeyError, TypeError):  # a list has no hash
            assert self._driver is not None, "nothing is answered before start"
            ledger = checked_delivery(delivery)._ledger
            if ledger.is_live and ledger.by is not self._driver.ledgers:
                why = "was received by another consumer, which alone can answer it"
            else:
                why = "was answered before"
            raise AlreadySettled(f"{delivery.message_id} {why}") from None

    def _take_answers(self) -> None:
        """Pass answers of all threads to the driver. On the loop."""
        assert self._driver is not None
        self._woken = False
        while self._answers:
            delivery, answer = self._answers.popleft()
            if answer == "ack":
                self._driver.ack(delivery)
            elif answer == "unseen":
                self._driver.never_answered(delivery)
            elif isinstance(answer, str):
                self._driver.nack(delivery, requeue=answer == "requeue")
            else:
                self._copy(self._driver, delivery, answer)

    def _copy(self, driver: ConsumeDriver, delivery: Delivery, copy: AnswerByCopy) -> None:
        kind, delay_ms, headers = copy
        if self._copying is None:
            self._copying = Tasks()
        if kind == "retry":
            copying = driver.pipeline.first.retry(delivery, delay_ms=delay_ms, headers=headers)
        else:
            copying = driver.pipeline.first.park(delivery, headers=headers)
        self._copying.keep(copying)

    # Questions.
    def keep_alive(self) -> bool:
        """Return whether the connections to all brokers of the list are open. AMQP has no lease to renew."""
        return self._running()[1].links.keep_alive()

    def stats(self) -> ConsumerStats:
        """Return a snapshot."""
        thread, driver = self._running()
        if self.status is not Status.RUNNING or thread.is_own:
            return with_handling(driver.stats(), self._handlings)
        return with_handling(thread.run(_stats(driver)), self._handlings)

    # Inside.
    def _running(self) -> tuple[LoopThread, ConsumeDriver]:
        """Return thread and driver.

        Raises Stopped before the start, and in a forked child: its copy is nobody's consumer.
        """
        if self._thread is None or self._driver is None:
            raise Stopped(why_not_running(Status.INITIALIZED, "consumer", "with"))
        self._thread.check_is_here()
        return self._thread, self._driver


class _Arrivals:
    """The deliveries that wait between the loop and the application's threads, and the life of that loop.

    It has no reference to its `Consumer`, which can so be collected without a stop. A signal handler may
    interrupt any line of it: its lock can be taken again by the thread that holds it.
    """

    def __init__(self) -> None:
        self.status = Status.INITIALIZED
        self.thread: LoopThread | None = None
        self.driver: ConsumeDriver | None = None
        self.paused = False
        # Taken from the driver and not yet received; bounded by handed_out_max.
        self.arrived = threading.Condition()
        self.ready: deque[Delivery] = deque()
        # Its `put` may interrupt a `get` of the same thread; an Event's `set` may not interrupt its `wait`.
        self._stop_requested: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._ending, self._left, self.grace_s = OneStop(), 0, DRAIN_S
        self.ends = Ends()

    @property
    def is_here(self) -> bool:
        """False in a forked child: open connections are the parent's."""
        return self.thread is None or self.thread.is_here

    def request_stop(self) -> None:
        """Hand out no more. Never waits for the loop."""
        self.status, self.paused = Status.STOPPED, True
        self._stop_requested.put(None)
        if self.thread is not None:
            self.thread.try_call_soon(self._wake_all)

    def _wake_all(self) -> None:
        with self.arrived:
            self.arrived.notify_all()

    def wait_for_stop(self) -> None:
        """Wait until a stop is asked for."""
        asked = False
        while not asked:
            with contextlib.suppress(queue.Empty):
                self._stop_requested.get(timeout=SIGNALS_S)
                asked = True
        self._stop_requested.put(None)  # for another `run`

    def stop(self, timeout_s: float | None) -> int:
        """Begin the stop, if nobody has, and wait for its end. Returns how many were left."""
        if self.is_here and self.thread is not None:
            self.thread.refuse_here()
        ending = self.begin_stop(timeout_s)
        return 0 if ending is None else self.wait_stopped(ending)

    def begin_stop(self, timeout_s: float | None, *, waits: bool = True) -> Future[int] | None:
        """Begin the stop, if nobody has, and return the future of its end. None: nothing is to stop.

        timeout_s: None takes the grace, and leaves a stop under way as it is. waits: as of a publisher.
        """
        if not self.is_here:
            return None
        self.request_stop()
        thread = self.thread
        if thread is None:
            return None
        ending = thread.begin_stop(self._stop(timeout_s), waits=waits)
        if ending is not None and not waits:
            _ending.add(self)
        return ending

    def wait_stopped(self, ending: Future[int]) -> int:
        """Wait for a stop, and for the end of the loop. Returns how many were left."""
        if self.thread is not None:
            self.thread.wait_stopped(ending)
        return self._left

    async def _stop(self, timeout_s: float | None) -> int:
        driver = self.driver
        if driver is None:
            return 0
        if not self._ending.has_begun:
            with self.arrived:
                untouched = list(self.ready)
                self.ready.clear()
                self.arrived.notify_all()
            self._ending.begin(
                driver.stop(self.grace_s if timeout_s is None else timeout_s, untouched=untouched)
            )
        elif timeout_s is not None:
            driver.hurry(timeout_s)
        try:
            self._left = await self._ending.wait()
        finally:
            _ending.discard(self)
        return self._left

    def withdraw(self, before_ns: int, all_if_any: bool) -> list[Delivery]:
        """Take back deliveries that nobody received and that arrived before before_ns. On the loop.

        all_if_any: if there is one, take back all that wait.
        """
        with self.arrived:
            old = [each for each in self.ready if each.received_ns < before_ns]
            if old and all_if_any:
                old = list(self.ready)
            for delivery in old:
                self.ready.remove(delivery)
            return old

    def on_ready(self) -> None:
        """Take over the deliveries that may be handed out. On the loop."""
        driver = self.driver
        if driver is None:
            return
        with self.arrived:
            if self.status is not Status.RUNNING:
                return  # `stop` has counted what it gives back
            before = len(self.ready)
            while (delivery := driver.take()) is not None:
                self.ready.append(delivery)
            if len(self.ready) > before:
                self.arrived.notify(len(self.ready) - before)


# Stops that nobody waits for: the interpreter's exit does.
_ending: set[_Arrivals] = set()


@atexit.register
def _end_all() -> None:
    for each in list(_ending):
        each.stop(None)


async def _stats(driver: ConsumeDriver) -> ConsumerStats:
    return driver.stats()


def with_handling(stats: ConsumerStats, handlings: Sequence[Handling]) -> ConsumerStats:
    """Return the driver's counts with those of the consumer's handlers."""
    if not handlings:
        return stats
    each = [handling.stats() for handling in handlings]
    summed = {key: sum(one[key] for one in each) for key in each[0] if key != "oldest_run_s"}
    oldest_s = max(one["oldest_run_s"] for one in each)
    return dataclasses.replace(stats, **summed, oldest_run_s=oldest_s)


def _is_alone() -> bool:
    """Return whether no thread runs but this one and the library's own threads that never answer."""
    here = threading.current_thread()
    return all(each is here or each.name in _SILENT for each in threading.enumerate())


_SILENT = frozenset(
    f"messagebus-{part}" for part in ("consumer", "publisher", "recorder", "loopwatch")
)
