"""Re-entry, signals, cancellation, exit: each call ends, wherever it is made, and so does the client."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from messagebus import (
    App,
    AsyncConsumer,
    AsyncPublisher,
    BacklogFull,
    ConfigError,
    Consumer,
    ConsumerConfig,
    Delivery,
    Hooks,
    Message,
    MessageBusError,
    Outcome,
    Published,
    Publisher,
    PublisherConfig,
    RetryPolicy,
    Stopped,
    Topic,
)
from messagebus import publisher as publisher_module
from messagebus._io import loop as loop_module
from messagebus._io.consume import driver as driver_module
from messagebus._io.consume.links import ConsumerLinks
from messagebus._io.publish.routes import AnyBroker
from messagebus.stats import Status
from messagebus.testing import MemoryBus
from tests.support.eventually import FACTOR, eventually, eventually_async
from tests.support.together import links_left

WITHIN_S = 60.0


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    made = MemoryBus()
    made.declare("orders/a", "log/a")
    yield made
    made.close()


@pytest.fixture(params=["uvloop", "asyncio"])
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "asyncio":
        monkeypatch.setattr(loop_module, "_new_loop", loop_module._Loop)


def started(bus: MemoryBus, **settings: Any) -> Publisher:
    publisher = bus.publisher(PublisherConfig(**settings))
    publisher.start(require="one")
    return publisher


def called_back(publisher: Publisher, call: Callable[[], object]) -> object:
    """Return what a call returned or raised within a done-callback, which runs on the publisher's thread."""
    found: Future[object] = Future()

    def callback(_end: Future[Published]) -> None:
        try:
            found.set_result(call())
        except Exception as fault:
            found.set_result(fault)

    publisher.submit("orders", b"x").add_done_callback(callback)
    return found.result(WITHIN_S * FACTOR)


# Re-entry.
@pytest.mark.parametrize("method", ["send_safe", "send_many", "flush", "stop"])
def test_a_call_that_waits_raises_at_once_on_the_publishers_own_thread(
    bus: MemoryBus, method: str
) -> None:
    publisher = started(bus)
    calls: dict[str, Callable[[], object]] = {
        "send_safe": lambda: publisher.send_safe("log", b"x"),
        "send_many": lambda: publisher.send_many("log", [b"x"]),
        "flush": publisher.flush,
        "stop": publisher.stop,
    }
    fault = called_back(publisher, calls[method])
    assert isinstance(fault, RuntimeError)
    assert "own thread" in str(fault)
    assert publisher.send_safe("orders", b"y").outcome is Outcome.CONFIRMED
    assert not bus.published("log")


def test_on_its_own_thread_a_full_publisher_says_so_at_once_and_takes_what_has_room(
    bus: MemoryBus,
) -> None:
    publisher = started(bus, backlog_messages_max=4, window=1)
    taken = called_back(publisher, lambda: publisher.submit("log", b"1"))
    assert isinstance(taken, Future)
    taken.result(WITHIN_S)
    bus.freeze()
    open_ends = [publisher.submit("orders", b"%d" % number) for number in range(5)]
    found: list[object] = []

    def submit() -> None:
        try:
            found.append(publisher.submit("log", b"2"))
        except BacklogFull as fault:
            found.append(fault)

    publisher._running()[0].call_soon(submit)
    eventually(lambda: found, within_s=WITHIN_S)
    assert isinstance(found[0], BacklogFull)
    bus.thaw()
    assert {end.result(WITHIN_S).outcome for end in open_ends} == {Outcome.CONFIRMED}


def test_a_log_handler_that_publishes_keeps_no_client_from_its_next_link(bus: MemoryBus) -> None:
    publisher = started(bus, backlog_messages_max=2, window=1)

    class Publishing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            try:
                publisher.send("log", record.getMessage())
            except MessageBusError as fault:
                told.append(fault)

    told: list[Exception] = []
    handler = Publishing()
    logger = logging.getLogger("messagebus.publisher")
    logger.addHandler(handler)
    try:
        publisher.send_safe("orders", b"first")
        bus.freeze()
        ends = [publisher.submit("orders", b"%d" % number) for number in range(3)]
        eventually(lambda: publisher.stats().window, within_s=WITHIN_S)
        bus.lose_connection()
        eventually(lambda: told, within_s=WITHIN_S)
        bus.thaw()
        assert {end.result(WITHIN_S).outcome for end in ends} == {Outcome.CONFIRMED}
    finally:
        logger.removeHandler(handler)


class Interrupted(Exception):
    """The error of a signal handler."""


class Ends(Hooks):
    def __init__(self) -> None:
        self.of: list[tuple[bytes, Outcome]] = []

    def published(self, destination: str, message: Message, published: Published) -> None:
        self.of.append((message.body, published.outcome))


@pytest.mark.parametrize("is_accepted", [False, True])
def test_a_publish_that_a_signal_handler_interrupts_has_one_end(
    bus: MemoryBus, is_accepted: bool
) -> None:
    hooks = Ends()
    config = PublisherConfig(window=1, backlog_messages_max=1)
    publisher = bus.publisher(config, hooks=[hooks])
    publisher.start(require="one")
    bus.freeze()
    publisher.submit("orders", b"sent")
    eventually(lambda: publisher.stats().window, within_s=WITHIN_S)
    publisher.submit("orders", b"waits")

    def interrupt(*_: object) -> None:
        if is_accepted:  # in the moment of the signal
            bus.thaw()
            eventually(lambda: not publisher._intake._queue, within_s=WITHIN_S)
        raise Interrupted

    def interrupt_soon() -> None:
        eventually(lambda: publisher._intake._queue, within_s=WITHIN_S)
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with ThreadPoolExecutor() as threads:
            threads.submit(interrupt_soon)
            with pytest.raises(Interrupted):
                publisher.submit("orders", b"interrupted", timeout_s=WITHIN_S)
    finally:
        signal.signal(signal.SIGUSR1, before)
    bus.thaw()
    assert publisher.stop() == 0
    sent = [b"sent", b"waits"] + [b"interrupted"] * is_accepted
    assert [message.body for message in bus.published("orders")] == sent
    outcome = Outcome.CONFIRMED if is_accepted else Outcome.REFUSED
    assert [end for body, end in hooks.of if body == b"interrupted"] == [outcome]


@pytest.mark.parametrize("topic", ["orders", "parts"])
def test_a_stopped_publisher_counts_nothing_as_waiting_or_sent(bus: MemoryBus, topic: str) -> None:
    bus.declare(Topic("parts", partitions=2), "parts/a")
    publisher = started(bus, window=1)
    publisher.send_safe(topic, b"first")
    bus.freeze()
    ends = [publisher.submit(topic, b"x") for _ in range(5)]
    eventually(lambda: publisher.stats().window, within_s=WITHIN_S)
    assert publisher.stop(0) == len(ends)
    assert {end.result(WITHIN_S).reason for end in ends} == {"the publisher was stopped"}
    stats = publisher.stats()
    assert (stats.backlog, stats.window) == (0, 0)


@pytest.mark.parametrize(
    "call", ["receive", "ack_safe", "retry", "park", "run", "stop"], ids=lambda call: call
)
def test_a_call_that_waits_raises_at_once_on_the_consumers_own_thread(
    bus: MemoryBus, call: str
) -> None:
    with bus.publisher() as publisher:
        publisher.send_safe("orders", b"x")
    consumer = bus.consumer("orders", subscription="a")
    consumer.start(require="one")
    delivery = consumer.receive(WITHIN_S)
    assert delivery is not None
    calls: dict[str, Callable[[], object]] = {
        "receive": lambda: consumer.receive(WITHIN_S),
        "ack_safe": lambda: consumer.ack_safe(delivery),
        "retry": lambda: consumer.retry(delivery, after_s=0),
        "park": lambda: consumer.park(delivery, reason="x"),
        "run": lambda: consumer.run(lambda _delivery: None),
        "stop": consumer.stop,
    }
    found: list[BaseException] = []

    def on_the_loop() -> None:
        try:
            calls[call]()
        except RuntimeError as fault:
            found.append(fault)

    consumer._running()[0].call_soon(on_the_loop)
    eventually(lambda: found, within_s=WITHIN_S)
    assert consumer.ack_safe(delivery), "it was not answered by the refused call"


# Whatever a callback raises.
@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
@pytest.mark.parametrize("where", ["callback", "hook", "turn"])
def test_whatever_a_callback_raises_every_publish_has_its_end(
    bus: MemoryBus, where: str, error: type[BaseException]
) -> None:
    class Raises(Hooks):
        def published(self, destination: str, message: Message, published: Published) -> None:
            raise error("mine")

    publisher = bus.publisher(hooks=[Raises()] if where == "hook" else [])
    publisher.start(require="one")
    bus.freeze()
    ends = [publisher.submit("orders", b"%d" % number) for number in range(20)]

    def fails(*_: object) -> None:
        raise error("mine")

    if where == "callback":
        for end in ends:
            end.add_done_callback(fails)
    elif where == "turn":
        publisher._running()[0].call_soon(fails)
    bus.thaw()
    assert {end.result(WITHIN_S).outcome for end in ends} == {Outcome.CONFIRMED}
    assert publisher.send_safe("orders", b"y").outcome is Outcome.CONFIRMED
    assert publisher.stop() == 0
    assert not links_left(bus)


def test_all_callbacks_of_one_publish_run_whatever_the_first_raises(bus: MemoryBus) -> None:
    publisher, ran = started(bus), threading.Event()
    bus.freeze()
    end = publisher.submit("orders", b"x")
    end.add_done_callback(lambda _end: sys.exit(1))
    end.add_done_callback(lambda _end: ran.set())
    bus.thaw()
    assert ran.wait(WITHIN_S)


# Calls that wait when the publisher stops.
@pytest.mark.guarantee("accepted-before-a-stop")
def test_a_call_that_waits_for_room_ends_with_the_stop() -> None:
    for _ in range(10):
        bus = MemoryBus()
        bus.declare("orders/a")
        publisher = started(bus, backlog_messages_max=5, window=1)
        publisher.send_safe("orders", b"0")
        bus.freeze()
        ends: list[str] = []

        def send(publisher: Publisher = publisher, ends: list[str] = ends) -> None:
            try:
                publisher.send_safe("orders", b"x")
            except MessageBusError as fault:
                ends.append(type(fault).__name__)

        threads = [threading.Thread(target=send, daemon=True) for _ in range(30)]
        for thread in threads:
            thread.start()
        eventually(lambda p=publisher: len(p._intake._queue) >= 24, within_s=WITHIN_S)  # type: ignore[misc]
        publisher.stop(0)
        for thread in threads:
            thread.join(WITHIN_S)
        assert len(ends) == len(threads)
        assert ends.count("Stopped") >= 24
        bus.close()


def test_a_stop_that_is_requested_takes_no_more_and_settles_what_was_taken(bus: MemoryBus) -> None:
    publisher = started(bus, backlog_messages_max=1, window=1)
    publisher.send_safe("orders", b"0")
    bus.freeze()
    ends = [publisher.submit("orders", b"%d" % number) for number in range(2)]
    with ThreadPoolExecutor(1) as caller:
        waiting = caller.submit(publisher.submit, "orders", b"late")
        eventually(lambda: publisher._intake._queue, within_s=WITHIN_S)
        publisher.request_stop()
        assert publisher.status is Status.STOPPED
        with pytest.raises(Stopped):
            waiting.result(WITHIN_S)
    with pytest.raises(Stopped):
        publisher.send("orders", b"later")
    bus.thaw()
    assert publisher.stop() == 0
    assert {end.result(0).outcome for end in ends} == {Outcome.CONFIRMED}


def test_a_consumer_that_is_asked_to_stop_ends_its_loop_and_keeps_its_last_answer(
    bus: MemoryBus,
) -> None:
    with bus.publisher() as publisher:
        publisher.send_many("orders", [b"1", b"2", b"3"])
    answers = []
    with bus.consumer("orders", subscription="a") as consumer:
        for delivery in consumer:
            consumer.request_stop()
            consumer.request_stop()
            answers.append(consumer.ack(delivery))
        assert consumer.receive(WITHIN_S) is None
        consumer.resume()
        assert consumer.receive_immediate() is None
    assert answers == [True]
    assert bus.waiting("orders", "a") == 2


def test_a_loop_that_receives_from_a_stopped_consumer_ends_and_never_spins(bus: MemoryBus) -> None:
    with bus.consumer("orders", subscription="a") as consumer:
        consumer.request_stop()
        assert consumer.receive(WITHIN_S) is None
        with pytest.raises(Stopped):
            consumer.receive(WITHIN_S)
        assert list(consumer) == []
        with ThreadPoolExecutor(1) as other:
            assert other.submit(consumer.receive, WITHIN_S).result(WITHIN_S) is None
    with pytest.raises(Stopped):
        consumer.receive_many(5, WITHIN_S)


async def test_a_task_that_receives_from_a_stopped_consumer_ends_and_never_spins(
    bus: MemoryBus,
) -> None:
    consumer = bus.async_consumer("orders", subscription="a")
    await consumer.start()
    waiting = asyncio.create_task(consumer.receive())
    await asyncio.sleep(0)
    await consumer.stop()
    assert await waiting is None
    assert await consumer.receive(WITHIN_S) is None
    with pytest.raises(Stopped):
        await consumer.receive(WITHIN_S)
    assert [each async for each in consumer] == []


def test_a_requested_stop_ends_run_in_every_thread(bus: MemoryBus) -> None:
    with bus.publisher() as publisher:
        publisher.send_safe("orders", b"1")
    consumer = bus.consumer("orders", subscription="a")
    consumer.start()

    def handle(_delivery: Delivery) -> None:
        consumer.request_stop()

    assert consumer.run(handle, concurrency=3) == 0
    assert consumer.stop() == 0
    assert bus.answers("orders", "a")


# Signals: a process each, which its own watchdog ends where it hangs.
SIGNALLED = """
import faulthandler, os, signal, threading, time
from messagebus import *
from messagebus.stats import Status
from messagebus.testing import MemoryBus
faulthandler.dump_traceback_later({within_s}, exit=True)
def when(signalled, work):
    for number in range({rounds}):
        bus = MemoryBus(); bus.declare("orders/a")
        handler, loop, end = work(bus)
        signal.signal(signal.SIGTERM, handler)
        delay_s = 0.001 + (number * 0.000_317) % 0.01
        threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGTERM)).start()
        try:
            loop()
        except Stopped:
            pass
        end()
        bus.close()
"""


def signalled(program: str, *, rounds: int = 20) -> None:
    code = SIGNALLED.format(within_s=WITHIN_S * FACTOR, rounds=rounds) + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.mark.parametrize("handler", ["stop", "restored", "request_stop"])
@pytest.mark.parametrize("call", ["send", "send_safe"])
def test_a_signal_handler_that_stops_a_publisher_never_hangs(handler: str, call: str) -> None:
    signalled(
        f"""
        def work(bus):
            publisher = bus.publisher(); publisher.start(require="one")
            def stop(*_):
                if "{handler}" == "restored":
                    signal.signal(signal.SIGTERM, signal.SIG_DFL)
                publisher.request_stop() if "{handler}" == "request_stop" else publisher.stop(2)
            def loop():
                while True:
                    publisher.{call}("orders", b"x")
            def end():
                publisher.stop(2)
                assert publisher.stats().backlog == publisher.stats().window == 0
            return stop, loop, end
        when("publisher", work)
        print("done")
        """
    )


@pytest.mark.parametrize("handler", ["stop", "restored", "request_stop"])
@pytest.mark.parametrize("way", ["receive_immediate", "receive", "iterate", "run"])
def test_a_signal_handler_that_stops_a_consumer_never_hangs(handler: str, way: str) -> None:
    signalled(
        f"""
        def work(bus):
            with bus.publisher() as publisher:
                publisher.send_many("orders", [b"x"] * 500)
            consumer = bus.consumer("orders", subscription="a"); consumer.start(require="one")
            def stop(*_):
                if "{handler}" == "restored":
                    signal.signal(signal.SIGTERM, signal.SIG_DFL)
                consumer.request_stop() if "{handler}" == "request_stop" else consumer.stop(2)
            def loop():
                if "{way}" == "run":
                    consumer.run(lambda delivery: None)
                elif "{way}" == "iterate":
                    for delivery in consumer:
                        consumer.ack(delivery)
                while consumer.status is Status.RUNNING:
                    receive = getattr(consumer, "{way}")
                    if (delivery := receive()) is not None:
                        consumer.ack(delivery)
            def end():
                assert consumer.stop(2) == 0
            return stop, loop, end
        when("consumer", work)
        print("done")
        """,
        rounds=10,
    )


def test_a_stop_in_a_signal_handler_lets_the_interrupted_delivery_be_answered() -> None:
    signalled(
        """
        bus = MemoryBus(); bus.declare("orders/a")
        with bus.publisher() as publisher:
            publisher.send_many("orders", [b"1", b"2", b"3"])
        consumer = bus.consumer("orders", subscription="a"); consumer.start(require="one")
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
        for delivery in consumer:
            signal.raise_signal(signal.SIGTERM)
            assert consumer.ack(delivery)
        assert consumer.stop() == 0
        assert bus.waiting("orders", "a") == 2
        print("done")
        """
    )


# Exit, and what nobody stops.
@pytest.mark.guarantee("exit-settles-or-says")
def test_publishers_stop_side_by_side_at_exit(bus: MemoryBus) -> None:
    publishers = [started(bus) for _ in range(3)]
    bus.freeze()
    ends = [publisher.submit("orders", b"x") for publisher in publishers]
    exiting = threading.Thread(target=publisher_module._stop_all)
    exiting.start()
    eventually(
        lambda: all(each._intake._ending.has_begun for each in publishers), within_s=WITHIN_S
    )
    assert not any(end.done() for end in ends), "none has waited for another's stop"
    bus.thaw()
    exiting.join(WITHIN_S)
    assert [end.result(0).outcome for end in ends] == [Outcome.CONFIRMED] * 3


@pytest.mark.parametrize("kind", ["publisher", "consumer"])
def test_a_client_that_is_dropped_without_stop_warns_and_is_collected(
    bus: MemoryBus, kind: str
) -> None:
    def drop() -> threading.Thread:
        client: Publisher | Consumer
        client = (
            bus.publisher() if kind == "publisher" else bus.consumer("orders", subscription="a")
        )
        client.start(require="one")
        if isinstance(client, Publisher):
            client.send("orders", b"x")
        bus._blocking.clear()
        return client._running()[0]._thread

    def dropped() -> threading.Thread:
        thread = drop()
        gc.collect()
        return thread

    with pytest.warns(ResourceWarning, match="dropped without stop"):
        thread = dropped()
    thread.join(WITHIN_S)
    assert not thread.is_alive()
    assert not links_left(bus)
    assert len(bus.published("orders")) == (kind == "publisher")


@pytest.mark.parametrize("in_cycle", [False, True])
@pytest.mark.parametrize("kind", ["publisher", "consumer"])
async def test_an_asyncio_client_that_is_dropped_without_stop_warns_and_hangs_up(
    bus: MemoryBus, kind: str, in_cycle: bool
) -> None:
    async def start_and_drop() -> weakref.ref[AsyncPublisher | AsyncConsumer]:
        client: AsyncPublisher | AsyncConsumer
        if kind == "publisher":
            client = bus.async_publisher()
        else:
            client = bus.async_consumer("orders", subscription="a")
        await client.start(require="one")
        if isinstance(client, AsyncPublisher):
            await client.send("orders", b"x")
        if in_cycle:
            client.itself = client  # type: ignore[union-attr]
        return weakref.ref(client)

    async def dropped() -> weakref.ref[AsyncPublisher | AsyncConsumer]:
        client = await start_and_drop()
        gc.collect()
        return client

    with pytest.warns(ResourceWarning, match=rf"an Async{kind.title()} was dropped without stop"):
        client = await dropped()
    assert client() is None
    await eventually_async(lambda: not links_left(bus), within_s=WITHIN_S)
    assert len(bus.published("orders")) == (kind == "publisher")


@pytest.mark.parametrize("kind", ["publisher", "consumer"])
def test_an_asyncio_client_whose_loop_has_ended_is_collected_in_silence(
    bus: MemoryBus, kind: str, recwarn: pytest.WarningsRecorder
) -> None:
    async def start() -> AsyncPublisher | AsyncConsumer:
        client: AsyncPublisher | AsyncConsumer
        if kind == "publisher":
            client = bus.async_publisher()
        else:
            client = bus.async_consumer("orders", subscription="a")
        await client.start(require="one")
        return client

    client = asyncio.run(start())
    assert client.status is Status.RUNNING
    gone = weakref.ref(client)
    del client
    gc.collect()
    assert gone() is None
    assert not recwarn.list


# Cancellation.
async def test_a_consumers_stop_that_was_cancelled_goes_on_and_is_waited_for(
    bus: MemoryBus,
) -> None:
    async with bus.async_publisher() as publisher:
        await publisher.send_many("orders", [b"%d" % number for number in range(20)])
    consumer = bus.async_consumer("orders", subscription="a")
    await consumer.start(require="one")
    assert await consumer.receive(WITHIN_S) is not None
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(consumer.stop(), 0.01)
    assert await consumer.stop(0) == 1, "the delivery without an answer"
    assert not links_left(bus)
    assert bus.waiting("orders", "a") == 20


@pytest.mark.parametrize("at_most_once", [False, True])
async def test_a_wait_of_an_iteration_that_was_cancelled_does_not_end_it(
    bus: MemoryBus, at_most_once: bool
) -> None:
    config = ConsumerConfig(at_most_once=at_most_once)
    async with (
        bus.async_publisher() as publisher,
        bus.async_consumer("orders", subscription="a", config=config) as consumer,
    ):
        deliveries = aiter(consumer)
        for body in (b"0", b"1"):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(deliveries), 0.01)
            await publisher.send_safe("orders", body)
            delivery = await anext(deliveries)
            assert delivery.body == body
            assert consumer.ack(delivery)
    with pytest.raises(StopAsyncIteration):
        await anext(deliveries)


async def test_a_publishers_stop_that_was_cancelled_goes_on_and_is_waited_for(
    bus: MemoryBus,
) -> None:
    publisher = bus.async_publisher()
    await publisher.start(require="one")
    await publisher.send_safe("orders", b"0")
    bus.freeze()
    end = await publisher.submit("orders", b"x")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(publisher.stop(), 0.01)
    bus.thaw()
    assert await publisher.stop() == 0
    assert end.result().outcome is Outcome.CONFIRMED
    assert not links_left(bus)


@pytest.mark.parametrize("redundant", [False, True])
def test_a_stop_that_ends_with_its_loop_ends_each_publish(redundant: bool) -> None:
    bus = MemoryBus(2)
    bus.declare("orders/a")

    async def begin() -> asyncio.Future[Published]:
        publisher = bus.async_publisher()
        await publisher.start(require="one")
        await publisher.send_safe("orders", b"0", redundant=redundant)
        bus.freeze()
        end = await publisher.submit("orders", b"x", redundant=redundant)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(publisher.stop(WITHIN_S), 0.01)
        return end

    assert asyncio.run(begin()).result().outcome is Outcome.UNKNOWN


@pytest.fixture
def filter_that_raises() -> Iterator[list[str]]:
    """Messages that a log filter of the application has seen; it raises for each."""
    seen: list[str] = []

    def fail(record: logging.LogRecord) -> bool:
        seen.append(record.msg)
        raise RuntimeError(record.msg)

    logs = [logging.getLogger(f"messagebus.{name}") for name in ("publisher", "consumer")]
    for log in logs:
        log.addFilter(fail)
    yield seen
    for log in logs:
        log.removeFilter(fail)


def test_a_log_filter_that_raises_leaves_no_publish_without_its_end(
    bus: MemoryBus, filter_that_raises: list[str]
) -> None:
    with bus.publisher(PublisherConfig(confirm_slow_s=0.01)) as publisher:
        publisher.send_safe("orders", b"x")
        bus.freeze()
        future = publisher.submit("orders", b"y", timeout_s=0.5)
        assert future.result(WITHIN_S * FACTOR).outcome is Outcome.UNKNOWN
        bus.thaw()
    assert any("broker s" in each for each in filter_that_raises)


@pytest.mark.parametrize("gone", ["before the first dial", "with its links"])
def test_a_log_filter_that_raises_keeps_no_client_from_dialling_again(
    bus: MemoryBus, filter_that_raises: list[str], gone: str
) -> None:
    if gone == "before the first dial":
        bus.stop_brokers()
    with bus.publisher() as publisher, bus.consumer("orders", subscription="a") as consumer:
        if gone == "with its links":
            publisher.send_safe("orders", b"x")
            assert consumer.receive(WITHIN_S * FACTOR) is not None
            bus.stop_brokers()
        for event in ("no answer yet", "link lost"):
            if gone == "with its links" or event == "no answer yet":
                eventually(
                    lambda e=event: sum(e in each for each in filter_that_raises) >= 2,  # type: ignore[misc]
                    within_s=WITHIN_S,
                )
        bus.start_brokers()
        assert publisher.send_safe("orders", b"y").broker
        assert consumer.receive(WITHIN_S * FACTOR) is not None


@pytest.mark.parametrize("answer", ["retry", "park", "ack_safe"])
async def test_a_stop_ends_the_wait_for_what_no_broker_and_no_store_takes(
    bus: MemoryBus, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    monkeypatch.setattr(driver_module, "FINISH_TIMEOUT_S", 0.05)
    async with bus.async_publisher() as publisher:
        await publisher.send_safe("orders", b"x")
    dedup = "memory:" if answer == "ack_safe" else None
    consumer = bus.async_consumer("orders", subscription="a", dedup=dedup)
    await consumer.start(require="one")
    delivery = await consumer.receive(WITHIN_S * FACTOR)
    assert delivery is not None
    bus.freeze()
    if dedup:
        bus.store.lose()
    answers = {
        "ack_safe": lambda: consumer.ack_safe(delivery, 10 * WITHIN_S),
        "retry": lambda: consumer.retry(delivery, after_s=1),
        "park": lambda: consumer.park(delivery, reason="no such order"),
    }
    answering = asyncio.create_task(answers[answer]())
    await asyncio.sleep(0)
    assert await consumer.stop(0) == 1
    assert await asyncio.wait_for(answering, WITHIN_S * FACTOR) is False, "it comes again"


NO_SECONDS: list[Any] = [float("nan"), "5"]


@pytest.mark.parametrize("seconds", NO_SECONDS)
@pytest.mark.parametrize("kind", ["publisher", "consumer"])
def test_a_stop_for_no_number_of_seconds_stops_nothing_and_the_next_one_does(
    bus: MemoryBus, kind: str, seconds: Any
) -> None:
    client = bus.publisher() if kind == "publisher" else bus.consumer("orders", subscription="a")
    client.start(require="one")
    with pytest.raises(ConfigError, match=r"timeout_s .*: a number of seconds"):
        client.stop(seconds)
    assert client.status is Status.RUNNING
    assert client.stop() == 0
    assert not links_left(bus)


@pytest.mark.parametrize("seconds", NO_SECONDS)
@pytest.mark.parametrize("kind", ["publisher", "consumer", "app"])
async def test_an_asyncio_stop_for_no_number_of_seconds_stops_nothing_and_the_next_one_does(
    bus: MemoryBus, kind: str, seconds: Any
) -> None:
    app = App()
    app.use(bus)

    @app.subscriber("orders", subscription="a")
    async def handle(body: bytes) -> None: ...

    made: dict[str, Callable[[], Any]] = {
        "publisher": bus.async_publisher,
        "consumer": lambda: bus.async_consumer("orders", subscription="a"),
        "app": lambda: app,
    }
    client = made[kind]()
    await client.start(require="one")
    with pytest.raises(ConfigError, match=r"timeout_s .*: a number of seconds"):
        await client.stop(seconds)
    assert client.status is Status.RUNNING
    assert await client.stop() == 0
    assert not links_left(bus)


@pytest.mark.parametrize("seconds", NO_SECONDS)
def test_each_wait_for_no_number_of_seconds_is_refused_before_it_does_anything(
    bus: MemoryBus, seconds: Any
) -> None:
    with (
        bus.publisher() as publisher,
        bus.consumer("orders", subscription="a") as consumer,
    ):
        publisher.send_safe("orders", b"x")
        delivery = consumer.receive(WITHIN_S)
        assert delivery is not None
        with pytest.raises(ConfigError, match="timeout_s"):
            consumer.ack_safe(delivery, seconds)
        assert consumer.ack(delivery), "it has no answer yet"
        with pytest.raises(ConfigError, match="timeout_s"):
            publisher.flush(seconds)
    for client in (bus.publisher(), bus.consumer("orders", subscription="a")):
        with pytest.raises(ConfigError, match="timeout_s"):
            client.start(require="one", timeout_s=seconds)
        assert client.status is Status.STOPPED
    assert not links_left(bus)


def test_a_wait_beyond_all_clocks_is_a_long_one(bus: MemoryBus) -> None:
    with bus.publisher() as publisher:
        for seconds in (1e308, 10**400):
            assert publisher.send_safe("orders", b"x", timeout_s=seconds).message_id
            assert publisher.flush(seconds) == 0


def test_run_waits_for_its_handlers_as_long_as_they_take_where_its_grace_has_no_bound(
    bus: MemoryBus,
) -> None:
    with bus.publisher() as publisher:
        publisher.send_safe("orders", b"x")
    with bus.consumer("orders", subscription="a") as consumer:
        for wrong in NO_SECONDS:
            with pytest.raises(ConfigError, match=r"grace_s .*: a number of seconds"):
                consumer.run(lambda _delivery: None, grace_s=wrong)
        assert consumer.run(lambda _delivery: consumer.request_stop(), grace_s=float("inf")) == 0
    bus.assert_answered("orders", "a", count=1)


@pytest.fixture
def threads_max(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list whose number is how many more threads of handlers the system gives."""
    left, start = [100], threading.Thread.start

    def started(thread: threading.Thread) -> None:
        if thread.name.startswith("messagebus-worker"):
            left[0] -= 1
            if left[0] < 0:
                raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)
    return left


def test_every_run_that_overran_has_its_answer_where_no_thread_is_left_to_go_on(
    bus: MemoryBus, threads_max: list[int]
) -> None:
    threads_max[0] = 2
    go_on = threading.Event()

    def hang(delivery: Delivery) -> None:
        if delivery.body == b"2":
            consumer.request_stop()
        go_on.wait(WITHIN_S)

    with bus.publisher() as publisher:
        publisher.send_many("orders", [b"0", b"1", b"2"])
    with bus.consumer("orders", subscription="a") as consumer, ThreadPoolExecutor(1) as pool:
        once = RetryPolicy(attempts_max=1)
        ran = pool.submit(consumer.run, hang, concurrency=2, time_limit_s=0.05, retry=once)
        eventually(lambda: len(bus.parked("orders", "a")) == 2, within_s=WITHIN_S)
        go_on.set()  # both keep their places, and take what follows
        assert ran.result(WITHIN_S) == 0
    assert len(bus.answers("orders", "a")) == 3


async def test_a_run_that_gets_too_few_threads_says_so_and_leaves_none(
    bus: MemoryBus, threads_max: list[int]
) -> None:
    threads_max[0] = 2
    async with bus.async_consumer("orders", subscription="a") as consumer:
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await consumer.run(lambda _delivery: None, concurrency=3)
    with bus.consumer("orders", subscription="a") as blocking:
        threads_max[0] = 2
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await asyncio.to_thread(blocking.run, lambda _delivery: None, concurrency=3)
    await eventually_async(
        lambda: not any("messagebus-worker" in each.name for each in threading.enumerate()),
        within_s=WITHIN_S,
    )


@pytest.mark.parametrize("kind", ["publisher", "consumer"])
async def test_a_start_that_was_cancelled_leaves_nothing(bus: MemoryBus, kind: str) -> None:
    bus.freeze()
    client = (
        bus.async_publisher()
        if kind == "publisher"
        else bus.async_consumer("orders", subscription="a")
    )
    before = asyncio.all_tasks()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.start(require="one"), 0.01)
    assert client.status is Status.STOPPED
    await eventually_async(lambda: asyncio.all_tasks() <= before, within_s=WITHIN_S)


@pytest.mark.parametrize("kind", ["publisher", "consumer"])
async def test_a_stop_during_the_start_wins(bus: MemoryBus, kind: str) -> None:
    bus.freeze()
    client = (
        bus.async_publisher()
        if kind == "publisher"
        else bus.async_consumer("orders", subscription="a")
    )
    starting = asyncio.create_task(client.start(require="one"))
    await asyncio.sleep(0)
    await client.stop(0)
    with pytest.raises(Stopped):
        await starting
    with pytest.raises(Stopped):
        await client.start()
    assert not links_left(bus)


# gevent.
def test_under_gevent_a_loop_of_its_own_kind_runs_and_a_second_one_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop_module, "is_patched_by_gevent", lambda: True)
    loop = loop_module._new_loop()
    loop.close()
    assert isinstance(loop, loop_module._Loop)

    async def start() -> None:
        # As in a greenlet beside another client's: both see one thread, with a loop that runs.
        with pytest.raises(ValueError, match=r"gevent: .* one blocking client at a time"):
            loop_module.LoopThread("second")

    asyncio.run(start())


class Broken(Exception):
    pass


def broken(*_: object) -> None:
    raise Broken


@pytest.mark.parametrize("client", ["publisher", "consumer"])
async def test_a_stop_that_fails_cuts_every_link(
    monkeypatch: pytest.MonkeyPatch, client: str
) -> None:
    bus = MemoryBus(brokers=2)
    bus.declare("orders/billing")
    if client == "publisher":
        publisher = bus.async_publisher()
        await publisher.start(require="one")
        drivers = publisher._admission.drivers
        assert drivers is not None
        stop, links = publisher.stop, list(drivers.own.links.open.values())
        monkeypatch.setattr(AnyBroker, "stop", broken)
    else:
        consumer = bus.async_consumer("orders", subscription="billing")
        await consumer.start(require="all")
        assert consumer._driver is not None
        stop, links = consumer.stop, list(consumer._driver.links.links.values())
        monkeypatch.setattr(ConsumerLinks, "cancel_all", broken)
    assert links
    with pytest.raises(Broken):
        await stop(timeout_s=0)
    assert not any(link.is_open for link in links)
