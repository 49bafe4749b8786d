"""`App`: handlers declared by decorator, consumed together, with one publisher for all of them.

`AsyncConsumer.run` runs, retries and parks; `AsyncPublisher` publishes; the app adds no promises of its
own. It may be started again after it was stopped, with new clients.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from messagebus._io.consume.runs import (
    BATCH_MAX,
    BatchHandler,
    batch_faults,
    handled_by,
    retry_faults,
)
from messagebus._io.publish.calls import whole_timeout_ms
from messagebus.admin import directory
from messagebus.aio import AsyncConsumer, AsyncPublisher
from messagebus.config import BusConfig, ConsumerConfig, PublisherConfig, Spool, bus_of
from messagebus.consumer import as_dedup, as_source, with_order
from messagebus.destination import Destination, Source
from messagebus.errors import ConfigError, Stopped
from messagebus.handling import RetryPolicy, checked_grace
from messagebus.hooks import Hooks
from messagebus.message import Header, given_options
from messagebus.payloads import Codec, as_payload
from messagebus.payloads.binding import Bound, Middleware, bind, bind_batch, name_of
from messagebus.publisher import with_spool
from messagebus.stats import AppStats, Published, Status

if TYPE_CHECKING:
    from messagebus.consumer import Deduplication, Order
    from messagebus.outbox import AsyncRelay, Outbox, RelayConfig

__all__ = ["App", "Clients"]

log = logging.getLogger("messagebus.app")

START_TIMEOUT_S = 10.0
# For handlers that run when the app is told to stop. Kubernetes kills after 30 s, if not told otherwise.
GRACE_S = 25.0
# For publishes without a confirm and for runners that end; a handler's own publishes have confirms by then.
PUBLISHER_STOP_S = RUNNERS_STOP_S = 5.0
# Beyond a publish's own deadline: for a loop that is late.
LATE_S = 5.0
CONCURRENCY_MAX = 10_000
# The upper bound of `ConsumerConfig`.
HANDED_OUT_MAX = 1_000_000

T = TypeVar("T")
H = TypeVar("H", bound=Callable[..., object])


class Clients(Protocol):
    """Source of an app's clients: the bus, or `messagebus.testing.MemoryBus`."""

    def async_publisher(
        self, config: PublisherConfig | None = None, *, hooks: Sequence[Hooks] = ()
    ) -> AsyncPublisher: ...

    def async_consumer(
        self,
        destination: Destination | Source | str,
        *,
        subscription: str = "",
        config: ConsumerConfig | None = None,
        hooks: Sequence[Hooks] = (),
        dedup: Deduplication = None,
    ) -> AsyncConsumer: ...


@dataclass(frozen=True, slots=True)
class _Subscriber:
    """A declared handler."""

    source: Source
    name: str
    function: Callable[..., object]
    run: Bound | BatchHandler
    retry: RetryPolicy | None
    concurrency: int
    time_limit_s: float | None
    config: ConsumerConfig | None
    batch: int | None
    linger_s: float | None
    dedup: Deduplication
    order: Order | None

    def configured(self, default: ConsumerConfig) -> ConsumerConfig:
        """Return the config of its consumer; where none was given, one that lets batches become full."""
        if self.config is not None or self.batch is None:
            return with_order(self.config or default, self.order)
        wanted = self.batch * (self.concurrency + 1)
        return replace(
            with_order(default, self.order),
            prefetch=max(default.prefetch, min(wanted, BATCH_MAX)),
            handed_out_max=max(default.handed_out_max, min(wanted, HANDED_OUT_MAX)),
        )

    def check(self, config: ConsumerConfig) -> None:
        """Raise ConfigError if the handler cannot run by this config of its consumer."""
        faults = batch_faults(self.batch, self.linger_s, config)
        _check(self.source, self.retry, self.concurrency, self.time_limit_s, config, faults)


@dataclass(slots=True)
class _Life:
    """State of an app from a start to its stop."""

    loop: asyncio.AbstractEventLoop
    thread: threading.Thread
    grace_s: float
    deadline_s: float
    publisher: AsyncPublisher
    relay: AsyncRelay | None
    consumers: dict[str, AsyncConsumer]
    runs: dict[str, asyncio.Task[int]] = field(default_factory=dict)
    ended: dict[str, BaseException] = field(default_factory=dict)
    """Subscription or queue -> the error of its runner that ended although nobody stopped it."""
    stop_requested: asyncio.Event = field(default_factory=asyncio.Event)
    ending: asyncio.Future[int] | None = None


class App:
    """Handlers and their clients, started and stopped together.

        app = App()

        @app.subscriber("orders", subscription="billing", retry=RetryPolicy(), concurrency=10)
        async def bill(order: Order, delivery: Delivery) -> None:
            await app.publish("invoices", Invoice(order.number, delivery.attempt))

        app.run_blocking()  # or: messagebus worker module:app

    bus: settings of the bus; None reads them from the environment when the app starts. The settings of the
        publisher and of the consumers are read in the same way.
    outbox, relay: with relay=True the app publishes the rows of this outbox while it runs. It uses the
        publisher that the handlers share, or a second one if that publisher has a spool.
    dedup: deduplication of all subscribers; each subscriber may have its own: see `Consumer`.
    spool: disk spool of the publisher that the handlers share: see `Publisher`.
    middleware: functions around each run of a handler, the first outermost: see docs/guides/frameworks.md.
    codecs: payload formats in addition to JSON: see `messagebus.payloads.Codec`.
    Thread: call everything on the event loop of `start`, except `publish_blocking` and `request_stop`.
    """

    def __init__(
        self,
        bus: BusConfig | None = None,
        *,
        publisher: PublisherConfig | None = None,
        spool: Spool | str | Path | None = None,
        hooks: Sequence[Hooks] = (),
        outbox: Outbox | None = None,
        relay: bool | RelayConfig = False,
        dedup: Deduplication = None,
        middleware: Sequence[Middleware] = (),
        codecs: Sequence[Codec] = (),
    ) -> None:
        if bus is not None:  # without one, the environment is read at the start
            bus_of(bus)
        if relay and (outbox is None or outbox.database is None):
            raise ConfigError("relay: needs outbox=Outbox(database=...)")
        self._bus, self._publisher_config, self._hooks = bus, publisher, tuple(hooks)
        self._outbox, self._relay = outbox, relay
        as_dedup(dedup, ConsumerConfig())  # raises here
        self._dedup: Deduplication = dedup
        self._spool = spool
        self._middleware, self._codecs = tuple(middleware), tuple(codecs)
        self._clients: Clients | None = None
        self._with_relay = self._with_spool = self._with_store = True
        self._subscribers: dict[Source, _Subscriber] = {}
        self._status = Status.INITIALIZED
        self._last: _Life | None = None
        self._stop_early = False
        self._asking = threading.Lock()
        self._unanswered: Mapping[str, int] = {}

    # Declaring.
    def subscriber(
        self,
        destination: Destination | Source | str,
        *,
        subscription: str = "",
        retry: RetryPolicy | None = None,
        concurrency: int = 1,
        time_limit_s: float | None = None,
        config: ConsumerConfig | None = None,
        batch: int | None = None,
        linger_s: float | None = None,
        dedup: Deduplication = None,
        order: Order | None = None,
        middleware: Sequence[Middleware] = (),
    ) -> Callable[[H], H]:
        """Run the decorated function for each delivery of the subscription or queue.

        The function itself is unchanged, so tests can call it. A coroutine function runs on the app's event
        loop, a plain function in a thread. The first parameter receives the payload, converted to its
        annotation (see `messagebus.payloads`); a parameter annotated `Delivery` receives the delivery. A
        delivery whose payload cannot be converted is parked. `messagebus.handling` describes how the result
        of a run becomes the answer to the broker.

        concurrency: the largest number of runs at the same time, in this process.
        time_limit_s: the longest duration of one run, in seconds; None: no limit.
        retry: what happens after a failed run; None: `RetryPolicy()`. config: settings of the consumer.
        batch: None: one delivery for each run. A number from 1 to 2,000: the parameters are lists of up to
        that many. A batch that is not full is handled linger_s seconds (0 to 60; None: 0.2) after its first
        delivery. The result of the run applies to each delivery: see `AsyncConsumer.run`. A delivery whose
        payload cannot be converted is parked and is in no batch.
        dedup: a `Dedup`, a store or its address: at most one successful run for each message. None: the
        app's; False: none.
        order: "key": messages of one key run one after the other, at any concurrency. "partition": so do all
        messages of one broker or partition. "none": no order. None: as config says.
        middleware: functions around its runs, inside of the app's.
        Raises ConfigError or NameInvalid at once if a setting or the signature cannot work. What depends on
        settings of the environment, such as the order, raises ConfigError when the app starts.
        """
        if callable(destination):
            raise ConfigError(
                f"{name_of(destination)}: @app.subscriber wants parentheses:"
                ' @app.subscriber("orders", subscription="billing")'
            )
        source = as_source(destination, subscription)
        ordered: object = config
        if order is not None and (config is None or isinstance(config, ConsumerConfig)):
            ordered = with_order(config or ConsumerConfig(), order)
        faults = batch_faults(batch, linger_s, config, order=order)
        _check(source, retry, concurrency, time_limit_s, ordered, faults)
        if dedup is not None:
            as_dedup(dedup, config or ConsumerConfig())

        def declare(handler: H) -> H:
            if source in self._subscribers:
                other = self._subscribers[source].name
                raise ConfigError(
                    f"{source} has a handler already: {other}; not {name_of(handler)}"
                )
            if self._life is not None:
                raise ConfigError(f"{source}: declared after the app was started")
            around = (*self._middleware, *middleware)
            bound = (bind if batch is None else bind_batch)(handler, self._codecs, around)
            self._subscribers[source] = _Subscriber(
                source,
                name_of(handler),
                handler,
                bound,
                retry,
                concurrency,
                time_limit_s,
                config,
                batch,
                linger_s,
                dedup,
                order,
            )
            return handler

        return declare

    def use(
        self,
        clients: Clients | None,
        *,
        relay: bool = False,
        spool: bool = False,
        store: bool = False,
    ) -> None:
        """Use these clients from the next start on: a `MemoryBus` in tests; None: the real bus.

        With a `MemoryBus` the app uses nothing outside of the process: it starts no relay, opens no spool
        folder, and keeps records of deduplication in memory; one INFO line lists the parts that are left out.
        relay, spool: True uses those of the application nevertheless. store: True uses its SqliteStore,
        RedisStore or SqlStore, if it was given as an object. A store of any other class is always used.
        """
        if self._life is not None:
            raise ConfigError("other clients after the app was started: stop it first")
        self._clients, is_real = clients, clients is None
        self._with_relay, self._with_spool = is_real or relay, is_real or spool
        self._with_store = is_real or store

    # Life.
    @property
    def status(self) -> Status:
        """The current `Status`."""
        return self._status

    @property
    def ended(self) -> Mapping[str, str]:
        """Handlers that ended without a stop: subscription or queue -> reason.

        Their messages wait until the app is started again. Any thread may read it.
        """
        life = self._life
        return (
            {}
            if life is None
            else {name: _without_secrets(error) for name, error in life.ended.items()}
        )

    async def start(
        self,
        *,
        require: str | None = None,
        timeout_s: float = START_TIMEOUT_S,
        grace_s: float = GRACE_S,
    ) -> None:
        """Create every subscription, connect to the brokers, and begin to handle messages in the background.

        require: as of `Consumer.start`, for each subscription. grace_s: seconds that handlers may take to end
        when the app stops.
        Raises NotReady, LoginRefused or ConfigError; the app does not run then.
        """
        if self._life is not None:
            raise Stopped("the app runs already")
        if not isinstance(grace_s, int | float) or not 0 <= grace_s < math.inf:
            raise ConfigError(f"grace_s {grace_s!r}: a number of seconds")
        life = self._new_life(grace_s)
        with self._asking:
            self._last = life
            if self._takes_early_stop():
                life.stop_requested.set()
        try:
            await life.publisher.start(require=require and "one", timeout_s=timeout_s)
            if life.relay is not None:
                await life.relay.start()
            await _all(
                consumer.start(require=require, timeout_s=timeout_s)
                for consumer in life.consumers.values()
            )
            if life.ending is not None:
                raise Stopped("the app was stopped while it started")
        except BaseException:
            await self.stop(0)
            raise
        self._status = Status.RUNNING
        for each in self._subscribers.values():
            # In an empty context: its messages do not belong to a span around the start.
            task = asyncio.create_task(_handle(each, life), context=Context())
            life.runs[str(each.source)] = task
            task.add_done_callback(lambda task, name=str(each.source): _on_end(life, name, task))  # type: ignore[misc]

    async def stop(self, timeout_s: float | None = None) -> int:
        """Accept no more deliveries, wait for running handlers, answer their deliveries, disconnect.

        timeout_s: the longest wait, in seconds; None: the grace_s of `start`.
        Returns the number of deliveries without an answer: the brokers redeliver them. A call from one of
        the app's own handlers returns 0 at once and the stop continues in the background, because it also
        waits for that handler.
        """
        wanted_s = None if timeout_s is None else checked_grace(timeout_s)
        life = self._life
        if life is None:
            return 0
        if life.ending is None:
            self._status = Status.STOPPED
            wait_s = life.grace_s if wanted_s is None else wanted_s
            life.ending = asyncio.create_task(self._end(life, wait_s), context=Context())
        if handled_by() in life.consumers.values():
            return 0
        return await asyncio.shield(life.ending)

    async def _end(self, life: _Life, wait_s: float) -> int:
        life.stop_requested.set()
        try:
            counts = await _all(consumer.stop(wait_s) for consumer in life.consumers.values())
            self._unanswered = dict(zip(life.consumers, counts, strict=True))
            runs = list(life.runs.values())
            if runs and not any(counts):  # else their time is over
                await asyncio.wait(runs, timeout=RUNNERS_STOP_S)
            for task in runs:
                task.cancel()
            await asyncio.gather(*runs, return_exceptions=True)
        finally:
            if life.relay is not None:
                await life.relay.stop(PUBLISHER_STOP_S)
            await life.publisher.stop(PUBLISHER_STOP_S)
            self._last = None
        return sum(counts)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.stop(None if kind is None else 0)

    async def run(
        self,
        *,
        require: str | None = None,
        timeout_s: float = START_TIMEOUT_S,
        grace_s: float = GRACE_S,
    ) -> int:
        """Start, handle messages until SIGTERM, SIGINT or `request_stop`, then stop.

        Returns the result of `stop`. A second signal has its effect from before `run`: by default it ends the
        process. Every running app receives the signal. Signals are handled on the main thread only.
        Raises the errors of `start`, and Stopped if the handling of a subscription failed.
        """
        if not self._subscribers and not self._relay:
            raise ConfigError("the app has no subscriber: nothing to run")
        if self._takes_early_stop():
            return 0
        # Also while it starts: it may handle messages by then.
        with _signals.heard(self.request_stop):
            await self.start(require=require, timeout_s=timeout_s, grace_s=grace_s)
            life = self._running()
            if self._takes_early_stop():
                life.stop_requested.set()
            asked = asyncio.create_task(life.stop_requested.wait())
            try:
                await asyncio.wait(
                    [asked, *life.runs.values()], return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                asked.cancel()
                left = await self.stop()
        for name, error in life.ended.items():
            raise Stopped(
                f"handling of {name} ended by itself: {_without_secrets(error)}"
            ) from error
        return left

    def run_blocking(self, *, require: str | None = None, grace_s: float = GRACE_S) -> int:
        """Call `run` on a new event loop and wait for its end."""
        return asyncio.run(self.run(require=require, grace_s=grace_s))

    def _takes_early_stop(self) -> bool:
        """Return whether a stop was requested before the first start, and forget the request."""
        early, self._stop_early = self._stop_early, False
        return early

    def request_stop(self) -> None:
        """End `run`; any thread may call it. Before the first start, the next `run` returns at once."""
        with self._asking:
            life = self._life
            if life is None:
                self._stop_early = self._status is Status.INITIALIZED
                return
        with suppress(RuntimeError):  # its loop has ended meanwhile
            life.loop.call_soon_threadsafe(life.stop_requested.set)

    # Publishing.
    @property
    def publisher(self) -> AsyncPublisher:
        """The publisher that all handlers share, for calls that `publish` does not offer. Raises Stopped."""
        return self._running().publisher

    async def publish(
        self,
        destination: Destination | str,
        payload: Any,
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
        """Publish, and return when a broker has confirmed. Raises the errors of `Publisher.send_safe`.

        payload: a `Message`, bytes or text. Any other value is published as JSON: see `messagebus.payloads`.
        """
        given = (headers, key, priority, ttl_s, correlation_id, reply_to, message_id, type,
                 content_encoding, app_id, deliver_after_s, deliver_at, redundant)  # fmt: skip
        publisher, message = self._running().publisher, as_payload(payload, self._codecs)
        return await publisher.send_safe(
            destination, message, timeout_s=timeout_s, **given_options(given)
        )

    def publish_blocking(
        self,
        destination: Destination | str,
        payload: Any,
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
        """Publish as `publish` does, from a plain function, on any thread except that of the event loop."""
        given = (headers, key, priority, ttl_s, correlation_id, reply_to, message_id, type,
                 content_encoding, app_id, deliver_after_s, deliver_at, redundant)  # fmt: skip
        life = self._running()
        if threading.current_thread() is life.thread:
            raise Stopped("publish_blocking would stop the loop that it waits for: await publish")
        wait_s = life.deadline_s if timeout_s is None else whole_timeout_ms(timeout_s) / 1000
        publishing = self.publish(destination, payload, timeout_s=timeout_s, **given_options(given))
        try:
            future = asyncio.run_coroutine_threadsafe(publishing, life.loop)
        except RuntimeError:
            publishing.close()
            raise Stopped("the app has stopped, and its loop with it") from None
        try:
            return future.result(wait_s + LATE_S)
        except TimeoutError:
            future.cancel()
            raise Stopped("the app's loop ended first: it may or may not be published") from None

    # Questions.
    def stats(self) -> AppStats:
        """Return a snapshot of the clients of the app. Raises Stopped if the app does not run."""
        life = self._running()
        relay = life.relay
        return AppStats(
            consumers={
                name: consumer.stats()
                for name, consumer in life.consumers.items()
                if consumer.status is not Status.INITIALIZED
            },
            publisher=life.publisher.stats(),
            relay=None if relay is None or relay.status is Status.INITIALIZED else relay.stats(),
        )

    @property
    def outbox(self) -> Outbox:
        """The outbox of the app, for handlers. Raises ConfigError if the app has none."""
        if self._outbox is None:
            raise ConfigError("the app has no outbox: App(outbox=Outbox())")
        return self._outbox

    @property
    def unanswered(self) -> Mapping[str, int]:
        """The deliveries that the last stop left without an answer, by subscription or queue."""
        return self._unanswered

    @property
    def functions(self) -> Mapping[str, Callable[..., object]]:
        """The function of each subscription or queue, as it was declared."""
        return {str(each.source): each.function for each in self._subscribers.values()}

    @property
    def handlers(self) -> Mapping[str, str]:
        """The name of each subscription's or queue's handler."""
        return {str(each.source): each.name for each in self._subscribers.values()}

    # Inside.
    @property
    def _life(self) -> _Life | None:
        """The state since the last start; None when the app does not run. It also ends with its loop."""
        life = self._last
        return None if life is None or life.loop.is_closed() else life

    def reach(self) -> None:
        """Wait a few seconds until the address of the bus accepts connections.

        For programs that must end if there is no broker, such as `messagebus worker`; `run` waits for one.
        Raises NotReady, whose text names every address.
        """
        if self._clients is None and (self._subscribers or self._relay):
            directory.reach(bus_of(self._bus))

    def _running(self) -> _Life:
        if self._life is None and self._status is Status.INITIALIZED:
            raise Stopped("the app has not been started: use `async with app`, or its lifespan")
        if self._life is None:
            is_left = self._status is Status.RUNNING
            raise Stopped(
                "the app's event loop has ended" if is_left else f"the app is {self._status.value}"
            )
        return self._life

    def _new_relay(self, clients: Clients, publisher: AsyncPublisher) -> AsyncRelay | None:
        outbox = self._outbox
        database = None if outbox is None else outbox.database
        if not (self._relay and self._with_relay) or outbox is None or database is None:
            return None
        from messagebus.outbox.relay import AsyncRelay  # apps without an outbox do not pay for it

        config = None if isinstance(self._relay, bool) else self._relay
        if publisher.config.spool is None:
            return AsyncRelay(database, publisher, config, table=outbox.table)
        # What waits in the database needs no second place to wait in.
        plain = replace(publisher.config, spool=None)
        return AsyncRelay(
            database, clients, config, table=outbox.table, publisher=plain, hooks=self._hooks
        )

    def _new_life(self, grace_s: float) -> _Life:
        """Make clients that are not started.

        Raises ConfigError for a wrong environment, and for one that contradicts a handler's options.
        """
        environ: Mapping[str, str] = {} if self._clients is not None else os.environ
        clients = self._clients or _BusClients(bus_of(self._bus))
        publishing = self._publisher_config or PublisherConfig.from_env(environ)
        publishing = with_spool(publishing, self._spool)
        left_out = [] if self._with_relay or not self._relay else ["relay"]
        if publishing.spool is not None and not self._with_spool:
            publishing = replace(publishing, spool=None)
            left_out.append("spool")
        consuming = ConsumerConfig.from_env(environ)
        configs = {source: each.configured(consuming) for source, each in self._subscribers.items()}
        for source, each in self._subscribers.items():
            each.check(configs[source])
        publisher = clients.async_publisher(publishing, hooks=self._hooks)
        dedups = {
            source: self._dedup_of(each, configs[source])
            for source, each in self._subscribers.items()
        }
        if any(
            dedups[each.source] is not self._given_dedup(each)
            for each in self._subscribers.values()
        ):
            left_out.append("store")
        if left_out:
            log.info("app on other clients leaves_out=%s: see App.use", ",".join(left_out))
        return _Life(
            loop=asyncio.get_running_loop(),
            thread=threading.current_thread(),
            grace_s=grace_s,
            deadline_s=publishing.deadline_s,
            publisher=publisher,
            relay=self._new_relay(clients, publisher),
            consumers={
                str(each.source): clients.async_consumer(
                    each.source,
                    config=configs[each.source],
                    hooks=self._hooks,
                    dedup=dedups[each.source],
                )
                for each in self._subscribers.values()
            },
        )

    def _given_dedup(self, subscriber: _Subscriber) -> Deduplication:
        return self._dedup if subscriber.dedup is None else subscriber.dedup

    def _dedup_of(self, subscriber: _Subscriber, config: ConsumerConfig) -> Deduplication:
        """Return the deduplication of a subscriber; in memory where no store outside is to be used."""
        given = self._given_dedup(subscriber)
        found = None if self._with_store else as_dedup(given, config)
        if found is None:
            return given
        from messagebus.stores import keeps_outside  # apps without deduplication do not pay for it

        return replace(found, store="memory:") if keeps_outside(found.store) else given


class _BusClients:
    """Clients of the real bus."""

    def __init__(self, bus: BusConfig) -> None:
        self._bus = bus

    def async_publisher(
        self, config: PublisherConfig | None = None, *, hooks: Sequence[Hooks] = ()
    ) -> AsyncPublisher:
        return AsyncPublisher(self._bus, config, hooks=hooks)

    def async_consumer(
        self,
        destination: Destination | Source | str,
        *,
        subscription: str = "",
        config: ConsumerConfig | None = None,
        hooks: Sequence[Hooks] = (),
        dedup: Deduplication = None,
    ) -> AsyncConsumer:
        return AsyncConsumer(
            self._bus,
            destination,
            subscription=subscription,
            config=config,
            hooks=hooks,
            dedup=dedup,
        )


async def _handle(subscriber: _Subscriber, life: _Life) -> int:
    return await life.consumers[str(subscriber.source)].run(
        subscriber.run,
        concurrency=subscriber.concurrency,
        retry=subscriber.retry,
        time_limit_s=subscriber.time_limit_s,
        grace_s=life.grace_s,
        batch=subscriber.batch,
        linger_s=subscriber.linger_s,
    )


async def _all(works: Iterable[Awaitable[T]]) -> list[T]:
    """Await all at the same time, each to its end; then raise the first error, if there is one."""
    ends = await asyncio.gather(*works, return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end
    return [end for end in ends if not isinstance(end, BaseException)]


def _on_end(life: _Life, name: str, task: asyncio.Task[int]) -> None:
    """Record a runner that ends although nobody stops it as a fault, whatever it ended by."""
    if life.ending is not None:
        return
    error = asyncio.CancelledError() if task.cancelled() else task.exception()
    life.ended[name] = error or Stopped("it returned")
    log.error(
        "handling ended source=%s error=%r",
        name,
        _without_secrets(life.ended[name]),
        exc_info=error,
    )


def _without_secrets(error: BaseException) -> str:
    """Return an error's class; the text too only of `Stopped`, since others may hold passwords."""
    return (
        f"{type(error).__name__}: {error}" if isinstance(error, Stopped) else type(error).__name__
    )


class _Signals:
    """Handlers of SIGTERM and SIGINT that ask all running apps of the process to stop. On the main thread.

    They are Python's own signal handlers, which can be put back as they were. An event loop's cannot: a
    handler that was added to the loop before would be lost.
    """

    def __init__(self) -> None:
        self._asks: list[tuple[asyncio.AbstractEventLoop, Callable[[], None]]] = []
        self._before: dict[signal.Signals, Any] = {}
        self._heard = False

    @contextmanager
    def heard(self, ask: Callable[[], None]) -> Iterator[None]:
        """Have signals ask this app to stop meanwhile; with the last app restore the earlier handlers."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        if not self._asks:
            self._begin()
        asked = (asyncio.get_running_loop(), ask)
        self._asks.append(asked)
        try:
            yield
        finally:
            self._asks.remove(asked)
            if not self._asks:
                self._put_back()

    def _begin(self) -> None:
        self._heard = False
        for each in (signal.SIGTERM, signal.SIGINT):
            before = signal.getsignal(each)
            # The process that started us may have one of them ignored, as a shell does for background
            # jobs; and a handler that is not Python's (None) cannot be put back.
            if before not in (signal.SIG_IGN, None):
                self._before[each] = before
                signal.signal(each, self._hear)

    def _put_back(self) -> None:
        for each, before in self._before.items():
            if signal.getsignal(each) == self._hear:  # else somebody else's by now
                signal.signal(each, before)
        self._before = {}

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._heard:  # and the loop stands still, or would have put it back
            self._put_back()
            signal.raise_signal(number)
            return
        self._heard = True
        for loop, ask in self._asks:
            loop.call_soon_threadsafe(ask)

    # Until it is put back: a KeyboardInterrupt of a handler is the handler's own (`_io.consume.run_on_loop`).
    _hear.raises_nothing = True  # type: ignore[attr-defined]


_signals = _Signals()


def _check(
    source: Source,
    retry: object,
    concurrency: object,
    time_limit_s: object,
    config: object,
    more: list[str],
) -> None:
    """Raise ConfigError with every fault. more: faults that were found before."""
    faults = list(more)
    if retry is not None and not isinstance(retry, RetryPolicy):
        faults.append(f"retry {retry!r}: a RetryPolicy")
    if type(concurrency) is not int or not 1 <= concurrency <= CONCURRENCY_MAX:
        faults.append(f"concurrency {concurrency!r}: 1 to {CONCURRENCY_MAX:,}")
    if time_limit_s is not None and not _is_positive(time_limit_s):
        faults.append(f"time_limit_s {time_limit_s!r}: a number of seconds, more than 0")
    if config is not None and not isinstance(config, ConsumerConfig):
        faults.append(f"config {config!r}: a ConsumerConfig")
    elif config is not None and isinstance(retry, RetryPolicy):
        faults += retry_faults(retry, config.at_most_once, config.order)
    if faults:
        raise ConfigError(f"subscriber of {source}: {'; '.join(faults)}")


def _is_positive(number: object) -> bool:
    return (
        isinstance(number, int | float) and not isinstance(number, bool) and 0 < number < math.inf
    )
