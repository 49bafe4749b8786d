"""Clients for asyncio: the same drivers, on the caller's own loop. Not thread-safe, as asyncio is not."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from messagebus._io.amqp_wire import AmqpWire
from messagebus._io.consume.batches import Gathering
from messagebus._io.consume.driver import ConsumeDriver
from messagebus._io.consume.run_in_threads import Bridge, HandlerThreads
from messagebus._io.consume.run_on_loop import HandlerTasks, watched
from messagebus._io.consume.runs import (
    LINGER_S,
    Answers,
    BatchHandler,
    Handling,
    Job,
    LateRunsByPost,
    Ticking,
    batch_faults,
    checked_count,
    deliveries_of,
    handled_by,
    is_coroutine_handler,
    reason_text,
    run_context,
    words_of,
)
from messagebus._io.hooks import hook_chain
from messagebus._io.loop import Ends, OneStop, Origin, Tasks
from messagebus._io.publish.admission import Admission
from messagebus._io.publish.calls import checked_payloads
from messagebus._io.publish.drivers import Drivers
from messagebus._io.publish.publishes import Many
from messagebus._io.wire import Wire
from messagebus.checks import raise_faults
from messagebus.config import BusConfig, ConsumerConfig, PublisherConfig, Spool, settings_of
from messagebus.consumer import (
    DRAIN_S,
    as_dedup,
    as_source,
    fulfilled,
    not_ready,
    with_handling,
    with_order,
)
from messagebus.core.confirms import Bodies, bundled
from messagebus.destination import Destination, Source
from messagebus.errors import AlreadySettled, Stopped
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
from messagebus.message import (
    NONE_GIVEN,
    Delivery,
    Given,
    Header,
    Payload,
    checked_delivery,
    given_options,
)
from messagebus.publisher import (
    START_TIMEOUT_S,
    STOP_TIMEOUT_S,
    ends_or_raise,
    raise_unless_confirmed,
    refuse_unconfirmed,
    with_spool,
)
from messagebus.stats import (
    CONFIRMED_OUTCOME,
    RUNNING,
    ConsumerStats,
    Published,
    PublisherStats,
    Status,
    why_not_running,
)

if TYPE_CHECKING:
    from messagebus.consumer import Deduplication, Order

__all__ = ["AsyncConsumer", "AsyncPublisher"]

log = logging.getLogger("messagebus.consumer")


class AsyncPublisher:
    """Publisher for asyncio, with the guarantees of `messagebus.Publisher`.

        async with AsyncPublisher(bus) as publisher:
            await publisher.send_safe("orders", b"...")

    It belongs to the loop that it was started on.
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
        self._admission = Admission(bus, self._config, self._hooks, _wire or AmqpWire(bus))
        self._outgoing = self._admission.outgoing

    @property
    def status(self) -> Status:
        """The current `Status`."""
        return self._admission.status

    @property
    def config(self) -> PublisherConfig:
        """The settings of the publisher, with its spool."""
        return self._config

    async def start(
        self, *, require: str | None = None, timeout_s: float = START_TIMEOUT_S
    ) -> None:
        """Start, as `Publisher.start` does. A start that is cancelled stops the publisher."""
        self._loop = await self._admission.start()
        try:
            if require is not None:
                await self._admission.fulfil(timeout_s)
        except BaseException:
            await self.stop(0)
            raise

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Stop, as `Publisher.stop` does. A caller that is cancelled leaves the stop running."""
        return await self._admission.stop(checked_grace(timeout_s))

    def __del__(self) -> None:
        admission: Admission | None = getattr(self, "_admission", None)
        if admission is not None and admission.status is RUNNING and admission.origin is not None:
            admission.origin.end_dropped(self, partial(admission.begin_stop, STOP_TIMEOUT_S))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def submit(
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
    ) -> asyncio.Future[Published]:
        """Wait for room, accept a publish and return the future of its result. See `Publisher.submit`."""
        given = (headers, key, priority, ttl_s, correlation_id, reply_to, message_id, type,
                 content_encoding, app_id, deliver_after_s, deliver_at, redundant)  # fmt: skip
        outgoing = self._outgoing.read(destination, payload, given)
        admission = self._admission
        future = admission.new_future()
        if admission.enter(outgoing, timeout_s, future) is None:
            await admission.admit(outgoing, timeout_s, future)
        return future

    async def send(
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
        """Accept a publish without waiting for its outcome, as `Publisher.send` does; wait for room only."""
        given = (headers, key, priority, ttl_s, correlation_id, reply_to, message_id, type,
                 content_encoding, app_id, deliver_after_s, deliver_at, redundant)  # fmt: skip
        outgoing = self._outgoing.read(destination, payload, given)
        if self._admission.enter(outgoing, None, None) is None:
            await self._admission.admit(outgoing, None, None)

    async def send_safe(
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
        """Publish and wait for the confirm, as `Publisher.send_safe` does."""
        given = (headers, key, priority, ttl_s, correlation_id, reply_to, message_id, type,
                 content_encoding, app_id, deliver_after_s, deliver_at, redundant)  # fmt: skip
        outgoing = self._outgoing.read(destination, payload, given)
        if not outgoing[0].confirms:
            refuse_unconfirmed(outgoing[0])
        admission = self._admission
        future = admission.new_future()
        if admission.enter(outgoing, timeout_s, future) is None:
            await admission.admit(outgoing, timeout_s, future)
        published = await future
        if published.outcome is CONFIRMED_OUTCOME:
            return published
        return raise_unless_confirmed(published, destination)

    async def send_many(
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
        """Publish several payloads together, as `Publisher.send_many` does."""
        given = (headers, key, priority, ttl_s, correlation_id, reply_to, None, type,
                 content_encoding, app_id, deliver_after_s, deliver_at, redundant)  # fmt: skip
        given = NONE_GIVEN if given == NONE_GIVEN else given  # compared once, not for each payload
        payloads = checked_payloads(payloads)
        if self._hooks is not None:
            with self._hooks.publishing_many(self._outgoing.name_of(destination)):
                return await self._send_one_by_one(destination, payloads, timeout_s, given)
        admission, read = self._admission, self._outgoing.read
        admission.check_running()
        finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        many, failed = Many(finished), None
        bare = read(destination, b"", NONE_GIVEN)[0]
        packing = None if given is not NONE_GIVEN else admission.packing_of(bare)
        if packing is not None:
            payloads = bundled(payloads, packing)
        try:
            for payload in payloads:
                if isinstance(payload, Bodies):
                    many.extend(await admission.admit_bodies(bare, payload, timeout_s, many))
                    continue
                outgoing = read(destination, payload, given)
                publish = admission.enter(outgoing, timeout_s, many)
                if publish is None:
                    publish = await admission.admit(outgoing, timeout_s, many)
                many.add(publish)
        except Exception as fault:  # also of the application's iterable
            failed = fault
        many.all_added()
        await finished
        return ends_or_raise(many.results(), failed)

    async def _send_one_by_one(
        self,
        destination: Destination | str,
        payloads: Iterable[Payload],
        timeout_s: float | None,
        given: Given,
    ) -> list[Published]:
        """Publish several payloads, each with a future of its own: hooks learn of each."""
        failed: Exception | None = None
        ends: list[asyncio.Future[Published]] = []
        try:
            for payload in payloads:
                ends.append(
                    await self.submit(
                        destination, payload, timeout_s=timeout_s, **given_options(given)
                    )
                )
        except Exception as fault:  # also of the application's iterable
            failed = fault
        return ends_or_raise([await end for end in ends], failed)

    async def flush(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Wait for the outcome of every accepted publish, as `Publisher.flush` does."""
        return await self._admission.running().flush(timeout_s)

    def refresh_connection(self) -> None:
        """Open a new connection, as `Publisher.refresh_connection` does."""
        self._admission.running().renew()

    def stats(self) -> PublisherStats:
        """Return a snapshot; cheap."""
        if self._drivers is None:
            raise Stopped(why_not_running(Status.INITIALIZED, "publisher", "async with"))
        return self._drivers.stats()

    @property
    def _drivers(self) -> Drivers | None:
        return self._admission.drivers

    def _away_home(self, destination: str, key: str) -> str:
        """Return the home of a key, or of no key, that is away; "" where none is, or no broker is there."""
        return "" if self._drivers is None else self._drivers.away_home(destination, key)


class AsyncConsumer:
    """Consumer for asyncio; see `messagebus.Consumer`.

        async with AsyncConsumer(bus, "orders", subscription="billing") as consumer:
            async for delivery in consumer:
                await handle(delivery.body)
                consumer.ack(delivery)

    It belongs to the loop that it was started on.
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
        self._status = Status.INITIALIZED
        self._driver: ConsumeDriver | None = None
        self._ready = asyncio.Event()
        self._stopped = asyncio.Event()
        self._copying = Tasks()
        self._handlings: list[Handling] = []
        self._bridges: list[Bridge] = []
        self._ending = OneStop()
        self._ends = Ends()
        self._grace_s = DRAIN_S

    @property
    def status(self) -> Status:
        """The current `Status`."""
        return self._status

    @property
    def registered(self) -> bool:
        """True when the registration is complete, as `Consumer.registered`."""
        return self._driver is not None and self._driver.registering.is_complete

    async def start(
        self, *, require: str | None = None, timeout_s: float = START_TIMEOUT_S
    ) -> None:
        """Start, as `Consumer.start` does."""
        if self._status is not Status.INITIALIZED:
            raise Stopped(f"a consumer starts once; this one is {self._status.value}")
        self._origin = Origin()
        self._loop = self._origin.loop
        self._driver = driver = ConsumeDriver(
            self._bus,
            self._source,
            self._config,
            self._ready.set,
            self._wire,
            withdraw=partial(_withdraw, self._bridges, self._config.at_most_once),
            dedup=self._dedup,
            chain=self._hooks,
        )
        driver.start()
        self._status = RUNNING
        try:
            done = await fulfilled(driver, require, timeout_s)
        except BaseException:
            await self.stop(0)
            raise
        if require and not done:
            await self.stop(0)
            raise not_ready(driver, require, timeout_s)

    async def stop(self, timeout_s: float | None = None) -> int:
        """Stop, as `Consumer.stop` does. A caller that is cancelled leaves the stop running."""
        timeout_s = None if timeout_s is None else checked_grace(timeout_s)
        driver = self._driver
        if not self._ending.has_begun:
            was, self._status = self._status, Status.STOPPED
            if was is not RUNNING or driver is None:
                return 0
            self._ready.set()
            self._stopped.set()
            self._ending.begin(
                driver.stop(
                    self._grace_s if timeout_s is None else timeout_s,
                    untouched=_withdraw(
                        self._bridges, self._config.at_most_once, None, all_if_any=True
                    ),
                )
            )
        elif driver is not None and timeout_s is not None:
            driver.hurry(timeout_s)
        return 0 if handled_by() is self else await self._ending.wait()

    def __del__(self) -> None:
        if getattr(self, "_status", None) is RUNNING and (driver := self._driver) is not None:
            ending = self._ending
            self._origin.end_dropped(self, lambda: ending.begin(driver.stop(0)))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.stop(None if kind is None else 0)

    async def receive(self, timeout_s: float | None = None) -> Delivery | None:
        """Wait for the next delivery, as `Consumer.receive` does; for a thread read a task."""
        delivery = self.receive_immediate() or await self._receive(timeout_s)
        if delivery is None and self._status is not RUNNING:
            self._ends.give(asyncio.current_task())
        return delivery

    async def _receive(self, timeout_s: float | None = None) -> Delivery | None:
        if (delivery := self.receive_immediate()) is not None:  # without the cost of a timeout
            return delivery
        if (timeout_s := checked_wait(timeout_s)) is None:
            return await self._next()
        try:
            async with asyncio.timeout(timeout_s):
                return await self._next()
        except TimeoutError:
            return None

    async def _next(self) -> Delivery | None:
        """Wait for the next delivery; None once the consumer is stopped."""
        while self._status is RUNNING:
            self._ready.clear()
            await self._ready.wait()
            if (delivery := self.receive_immediate()) is not None:
                return delivery
        return None

    def receive_immediate(self) -> Delivery | None:
        """Return a delivery that has already arrived, or None."""
        driver = self._driver
        if driver is None:
            driver = self._started()
        delivery = driver.take()
        if delivery is None:
            driver.resume_idle()
        elif self._config.at_most_once:
            driver.ack(delivery)
        return delivery

    async def receive_many(self, count_max: int, timeout_s: float | None = None) -> list[Delivery]:
        """Wait for one delivery and return all that have arrived, as `Consumer.receive_many` does."""
        first = await self.receive(timeout_s) if checked_most(count_max) else None
        found = [] if first is None else [first]
        while found and len(found) < count_max:
            if (delivery := self.receive_immediate()) is None:
                break
            found.append(delivery)
        return found

    def pause(self) -> None:
        """Hand out nothing until `resume`, as `Consumer.pause` does."""
        self._started().pause()

    def resume(self) -> None:
        """Hand out deliveries again, as `Consumer.resume` does."""
        self._started().resume()

    @property
    def in_order(self) -> bool:
        """True if returned deliveries must be redelivered in their order."""
        return self._started().inbox.in_order

    def rest(self, *, prefetch: int | None = None) -> None:
        """Return the buffered deliveries to the brokers; consume again at the next `receive` or `resume`.

        The application keeps the deliveries that it has. prefetch: of each broker from then on, 1 to 2,000;
        None: as configured. A single active source returns its deliveries by closing its connections, once
        the application holds none of them.
        """
        self._started().rest(
            self._config.prefetch
            if prefetch is None
            else replace(self._config, prefetch=prefetch).prefetch
        )

    def __aiter__(self) -> AsyncIterator[Delivery]:
        """Return an iterator over the deliveries until the consumer is stopped.

        A wait for the next one may be cancelled: the one after it goes on.
        """
        return _Deliveries(self._take(), self._receive)

    def _take(self) -> Callable[[], Delivery | None]:
        """Return the shortest way to the next delivery; whoever finds none asks `_receive` then."""
        return self.receive_immediate if self._config.at_most_once else self._started().take

    async def run(
        self,
        handler: Callable[[Any], object] | BatchHandler,
        *,
        concurrency: int = 1,
        retry: RetryPolicy | None = None,
        time_limit_s: float | None = None,
        grace_s: float = DRAIN_S,
        batch: int | None = None,
        linger_s: float | None = None,
    ) -> int:
        """Run a handler for each delivery until the consumer is stopped. See `Consumer.run`.

        concurrency: the largest number of runs at the same time. A coroutine function runs on this event
        loop, a plain function in that many threads. A coroutine that exceeds time_limit_s is cancelled. If
        this call is cancelled, its runs are cancelled too, and their deliveries return to the brokers.

        batch: None: the handler receives one delivery; otherwise a list of 1 to `batch` deliveries. A batch
        is handled when it is full, linger_s seconds (0 to 60; None: 0.2) after its first delivery, or at the
        stop. All its deliveries are acked when the handler returns. To answer them one by one, the handler
        returns a mapping: delivery -> the value that its own run would have returned, or the exception that
        it would have raised. If the handler raises, the run of each delivery has failed. A batch counts as
        one run.
        """
        self._started()
        checked_count("concurrency", concurrency)
        grace_s = checked_grace(grace_s, "grace_s")
        raise_faults(batch_faults(batch, linger_s, self._config))
        read: Callable[[Delivery], object] | None = None
        if isinstance(handler, BatchHandler):
            read, handler = handler.read, handler.function
        jobs: Gathering | _Singles = _Singles(self)
        if batch is not None:
            jobs = self._gathering(batch, LINGER_S if linger_s is None else linger_s, read)
        answers = Answers(self.ack, self._retry_soon, self._park_soon)
        bridge = None
        if not is_coroutine_handler(handler):
            bridge = Bridge(
                threads=concurrency,
                take=jobs.take,
                receive=jobs.receive,
                answering=answers,
                held_max=batch and (concurrency + 1) * batch,
            )
        handling = Handling(
            handler,
            answers if bridge is None else bridge,
            policy=retry,
            time_limit_s=time_limit_s,
            chain=self._hooks,
            words=lambda: words_of(self._bus),
            answers_first=self._config.at_most_once,
            consumer_timeout_s=self._config.consumer_timeout_s,
            order=self._config.order,
        )
        if (claims := self._started().pipeline.run_handlers()) is not None:
            handling.claims = LateRunsByPost(claims, self._post)
        self._grace_s = grace_s
        self._handlings.append(handling)
        if isinstance(jobs, Gathering):
            handling.around = None if self._hooks is None else self._hooks.handling_many
            jobs.on_misfit = handling.failed if bridge is None else bridge.answers(handling.failed)
        try:
            if bridge is None:
                return await self._run_tasks(handling, jobs, concurrency, grace_s)
            return await self._run_threads(handling, bridge, concurrency, grace_s)
        finally:
            self._put_back(jobs.withdraw())

    def _gathering(
        self, size: int, linger_s: float, read: Callable[[Delivery], object] | None
    ) -> Gathering:
        at_most_once = self._config.at_most_once
        return Gathering(
            size,
            linger_s,
            take=self.receive_immediate,
            receive=self._receive,
            is_over=lambda: self._status is not RUNNING,
            is_wanted=lambda delivery: at_most_once or self._is_live(delivery),
            read=read,
        )

    def _is_live(self, delivery: Delivery) -> bool:
        """Return whether a delivery may still be handled; if not, nobody will answer it."""
        live = delivery._ledger.is_live
        if not live and (self._dedup is not None or self._config.order != "none"):
            self._started().never_answered(delivery)
        return live

    def _post(self, function: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the claim runs out
            self._loop.call_soon_threadsafe(function)

    async def _run_tasks(
        self, handling: Handling, jobs: Gathering | _Singles, concurrency: int, grace_s: float
    ) -> int:
        tasks = HandlerTasks(
            handling,
            cast(Callable[[Any], Awaitable[object]], handling.handler),
            take=jobs.take,
            receive=jobs.receive,
            give_back=self._give_back,
            context=run_context(self),
        )
        ticking = Ticking(handling, tasks.tick)
        ticking.start()
        stopped = asyncio.create_task(self._stopped.wait())
        working = asyncio.create_task(tasks.wait())
        tasks.start(concurrency)
        try:
            with watched(tasks.describe):
                await asyncio.wait({stopped, working}, return_when=asyncio.FIRST_COMPLETED)
                left = await tasks.end(grace_s)
            if working.done():
                working.result()
            return left
        except BaseException:
            await tasks.end(0)
            raise
        finally:
            ticking.stop()
            for task in (stopped, working):
                task.cancel()

    def _give_back(self, job: Delivery | Sequence[Delivery]) -> None:
        """Give deliveries back while the consumer runs; after a stop the links do, and `stop` counts them."""
        for delivery in [job] if isinstance(job, Delivery) else job:
            if self._status is RUNNING:
                self.nack(delivery)
            else:
                self._started().pipeline.give_back(delivery)

    def _put_back(self, untouched: Sequence[Delivery]) -> None:
        """Hand out deliveries again that no handler has seen, unless they are answered already."""
        if untouched and self._status is RUNNING and not self._config.at_most_once:
            self._started().put_back(list(untouched))

    async def _run_threads(
        self, handling: Handling, bridge: Bridge, concurrency: int, grace_s: float
    ) -> int:
        self._bridges.append(bridge)
        receive = bridge.receive
        if self._config.order != "none":
            receive = partial(self._receive_live, bridge)
        threads = HandlerThreads(
            handling, receive, context=run_context(self), awaited=bridge.awaited
        )
        ticking = Ticking(handling)
        ticking.start()
        try:
            threads.start(concurrency)
            await bridge.feed()
            return await asyncio.to_thread(threads.join, grace_s)
        finally:
            self._put_back(bridge.withdraw(None))  # feeding was cancelled
            bridge.close()
            ticking.stop()

    def _receive_live(self, bridge: Bridge) -> Job | None:
        """Return the next job for a thread; what a lost link delivered comes again, and may be newer then."""
        while (job := bridge.receive()) is not None:
            if any(delivery._ledger.is_live for delivery in deliveries_of(job)):
                return job
            bridge.never_answered(job, self._started().never_answered)
        return None

    def ack(self, delivery: Delivery) -> bool:
        """Ack, as `Consumer.ack` does."""
        driver = self._driver
        if driver is None:
            driver = self._started()
        if self._config.at_most_once:
            return True
        # `_close` written out: each delivery passes here.
        try:
            if delivery._answered or delivery._ledger.by is not driver.ledgers:
                _close(delivery, driver)
        except AttributeError:
            checked_delivery(delivery)
            raise
        delivery._answered = True
        return driver.ack(delivery)

    def nack(self, delivery: Delivery, *, requeue: bool = True) -> bool:
        """Return or reject the delivery, as `Consumer.nack` does."""
        driver = self._started()
        if self._config.at_most_once:
            return False
        _close(delivery, driver)
        return driver.nack(delivery, requeue=requeue)

    async def ack_safe(self, delivery: Delivery, timeout_s: float = 10.0) -> bool:
        """Ack and wait until the broker has received the ack, as `Consumer.ack_safe` does."""
        driver, timeout_s = self._started(), checked_grace(timeout_s)
        if self._config.at_most_once:
            return True
        _close(delivery, driver)
        return await driver.ack_safe(delivery, timeout_s)

    async def retry(
        self,
        delivery: Delivery,
        *,
        after_s: float,
        reason: str = "",
        error: BaseException | None = None,
    ) -> bool:
        """Deliver the message again later, as `Consumer.retry` does."""
        driver, delay_ms = self._started(), checked_after(after_s, order=self._config.order)
        if self._config.at_most_once:
            return False
        headers = retry_headers(
            checked_delivery(delivery), None, reason_text(self._bus, reason, error)
        )
        _close(delivery, driver)
        return await driver.pipeline.first.retry(delivery, delay_ms=delay_ms, headers=headers)

    async def park(
        self, delivery: Delivery, *, reason: str, error: BaseException | None = None
    ) -> bool:
        """Move the message to the parking queue, as `Consumer.park` does."""
        driver = self._started()
        if self._config.at_most_once:
            return False
        words = words_of(self._bus)
        exception = "" if error is None else words.of(error)
        headers = park_headers(checked_delivery(delivery), words.short(reason), exception)
        _close(delivery, driver)
        return await driver.pipeline.first.park(delivery, headers=headers)

    def _retry_soon(self, delivery: Delivery, delay_ms: int, headers: Mapping[str, Header]) -> bool:
        """Retry without waiting, for `run`."""
        driver = self._started()
        _close(delivery, driver)
        live = delivery._ledger.is_live
        copying = driver.pipeline.first.retry(delivery, delay_ms=delay_ms, headers=headers)
        self._copying.keep(copying)
        return live

    def _park_soon(self, delivery: Delivery, headers: Mapping[str, Header]) -> bool:
        """Park without waiting, for `run`."""
        driver = self._started()
        _close(delivery, driver)
        live = delivery._ledger.is_live
        self._copying.keep(driver.pipeline.first.park(delivery, headers=headers))
        return live

    def keep_alive(self) -> bool:
        """Return whether all connections are open, as `Consumer.keep_alive` does."""
        return self._started().links.keep_alive()

    def stats(self) -> ConsumerStats:
        """Return a snapshot."""
        return with_handling(self._started().stats(), self._handlings)

    def _started(self) -> ConsumeDriver:
        if self._driver is None:
            raise Stopped(why_not_running(Status.INITIALIZED, "consumer", "async with"))
        return self._driver


class _Deliveries:
    """Iterator over deliveries. No generator: a wait that is cancelled would end it, as the stop does."""

    __slots__ = ("_receive", "_take")

    def __init__(
        self,
        take: Callable[[], Delivery | None],
        receive: Callable[[], Awaitable[Delivery | None]],
    ) -> None:
        self._take, self._receive = take, receive

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        delivery = self._take() or await self._receive()
        if delivery is None:
            raise StopAsyncIteration
        return delivery


class _Singles:
    """Source of single deliveries; its counterpart `Gathering` makes batches of them."""

    def __init__(self, consumer: AsyncConsumer) -> None:
        self.take = consumer._take()
        self.receive = consumer._receive

    def withdraw(self) -> Sequence[Delivery]:
        """Return nothing: no delivery waits here."""
        return ()


def _withdraw(
    bridges: Iterable[Bridge], at_most_once: bool, before_ns: int | None, all_if_any: bool
) -> list[Delivery]:
    """Take back deliveries that wait for a handler's thread, without an answer.

    before_ns: only those that arrived before; None: all. all_if_any: if there is one, all of them.
    """
    if at_most_once and before_ns is not None:
        return []
    found = [
        delivery
        for bridge in bridges
        for delivery in bridge.withdraw(before_ns, all_if_any=all_if_any)
    ]
    return [] if at_most_once else found


def _close(delivery: Delivery, driver: ConsumeDriver) -> None:
    """Note that the application answers a delivery.

    Raises AlreadySettled at its second answer, and for a delivery that another consumer received.
    """
    if checked_delivery(delivery)._ledger.is_live and delivery._ledger.by is not driver.ledgers:
        raise AlreadySettled(
            f"{delivery.message_id} was received by another consumer, which alone can answer it"
        )
    if delivery._answered:
        raise AlreadySettled(f"{delivery.message_id} was answered before")
    delivery._answered = True
