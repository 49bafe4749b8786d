"""Declarations of handlers, and their errors. The handlers' runs: tests/contract/test_app.py."""

from __future__ import annotations

import asyncio
import signal
import threading
from typing import Any

import pytest

from messagebus import (
    App,
    ConfigError,
    ConsumerConfig,
    NameInvalid,
    RetryPolicy,
    Stopped,
    Subscription,
    Topic,
    Unknown,
)
from messagebus import app as module
from messagebus.stats import Status
from messagebus.testing import MemoryBus
from tests.support.eventually import eventually_async


def handle(body: bytes) -> None: ...


def other(body: bytes) -> None: ...


def test_a_handler_stays_what_it_was() -> None:
    assert App().subscriber("queue:jobs")(handle) is handle


def test_a_decorator_without_parentheses_is_told_with_the_handlers_name() -> None:
    bare: Any = App().subscriber
    with pytest.raises(ConfigError, match=r"test_app.handle: @app.subscriber wants parentheses"):
        bare(handle)


def test_one_handler_may_serve_several_subscriptions() -> None:
    app = App()
    app.subscriber("queue:jobs")(app.subscriber("orders", subscription="billing")(handle))
    name = f"{__name__}.handle"
    assert app.handlers == {"orders/billing": name, "queue:jobs": name}


@pytest.mark.parametrize(
    ("environ", "options", "fault"),
    [
        ({}, {"retry": RetryPolicy(then="park-key")}, "then='park-key' wants a consumer"),
        ({}, {"retry": RetryPolicy(where="place")}, "where='place' wants a consumer"),
        ({"AT_MOST_ONCE": "true"}, {"retry": RetryPolicy()}, "retry: with at_most_once"),
        ({"ORDER": "key"}, {"retry": RetryPolicy(where="ladder")}, "where='ladder' overtakes"),
        ({"ORDER": "partition"}, {"batch": 5}, "batch 5: with order='partition'"),
    ],
)
def test_options_that_contradict_the_environment_fail_the_start(
    environ: dict[str, str],
    options: dict[str, Any],
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The start is where the environment is read, and where a handler that can never run is reported."""
    app = App()

    @app.subscriber("orders", subscription="billing", **options)
    def bill(body: list[dict[str, int]]) -> None: ...

    for name, value in environ.items():
        monkeypatch.setenv(f"MESSAGEBUS_CONSUMER_{name}", value)

    async def start() -> None:
        async with app:
            pass

    with pytest.raises(ConfigError, match=f"subscriber of orders/billing: .*{fault}"):
        asyncio.run(start())


def test_a_subscription_has_one_handler() -> None:
    app = App()
    app.subscriber("orders", subscription="billing")(handle)
    app.subscriber("orders", subscription="audit")(other)
    with pytest.raises(
        ConfigError, match=r"^orders/billing has a handler already: .*\.handle; not"
    ):
        app.subscriber(Subscription(Topic("orders"), "billing"))(other)


@pytest.mark.parametrize(
    ("destination", "options", "words"),
    [
        ("orders", {}, "orders is a topic: say subscription="),
        ("queue:jobs", {"subscription": "billing"}, "queue:jobs has no subscriptions"),
        ("a b", {"subscription": "billing"}, "topic name 'a b'"),
    ],
)
def test_where_from_must_be_said(destination: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(NameInvalid, match=words):
        App().subscriber(destination, **options)


def test_all_that_is_wrong_is_told_together() -> None:
    wrong: dict[str, Any] = {"concurrency": 0, "time_limit_s": -1, "retry": 5, "config": {}}
    with pytest.raises(ConfigError) as caught:
        App().subscriber("queue:jobs", **wrong)
    told = str(caught.value)
    assert told.startswith("subscriber of queue:jobs: ")
    for words in (
        "retry 5: a RetryPolicy",
        "concurrency 0: 1 to 10,000",
        "time_limit_s -1",
        "config",
    ):
        assert words in told


def test_an_unusable_annotation_is_told_when_it_is_declared() -> None:
    def untyped(body): ...  # type: ignore[no-untyped-def]

    with pytest.raises(ConfigError, match="parameter 'body' has no type"):
        App().subscriber("queue:jobs")(untyped)


def test_an_app_that_was_not_started_says_so() -> None:
    app = App()
    with pytest.raises(Stopped, match="the app has not been started: use `async with app`"):
        app.publish_blocking("orders", "x")
    with pytest.raises(Stopped, match="the app has not been started: use `async with app`"):
        _ = app.publisher
    with pytest.raises(Stopped, match="the app has not been started"):
        app.stats()
    app.request_stop()


def test_an_app_without_a_subscriber_has_nothing_to_run() -> None:
    with pytest.raises(ConfigError, match="no subscriber: nothing to run"):
        asyncio.run(App().run())


def test_a_wrong_environment_is_told_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESSAGEBUS_CONSUMER_PREFETCH", "none")
    app = App()
    app.subscriber("queue:jobs")(handle)
    with pytest.raises(ConfigError, match="MESSAGEBUS_CONSUMER_PREFETCH: a whole number"):
        asyncio.run(app.run())


def test_in_tests_the_environment_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESSAGEBUS_CONSUMER_PREFETCH", "none")
    app = App()
    app.use(MemoryBus())

    async def run() -> None:
        async with app:
            with pytest.raises(ConfigError, match="stop it first"):
                app.use(None)
            with pytest.raises(ConfigError, match="declared after the app was started"):
                app.subscriber("queue:jobs")(handle)
            with pytest.raises(Stopped, match="runs already"):
                await app.start()
        assert await app.stop() == 0

    asyncio.run(run())


# Signals, stops that come early.
def app_in_memory() -> App:
    app = App()
    app.subscriber("queue:jobs")(handle)
    app.use(MemoryBus())
    return app


async def running(*apps: App) -> list[asyncio.Task[int]]:
    tasks = [asyncio.create_task(app.run(grace_s=5)) for app in apps]
    for app in apps:
        await eventually_async(lambda app=app: app.status is Status.RUNNING, within_s=5)  # type: ignore[misc]
    for _ in range(3):  # from the start of the last to its ear for signals
        await asyncio.sleep(0)
    return tasks


@pytest.mark.guarantee("signals-stop-all-apps")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_all_apps_of_the_process_and_what_was_there_before_is_put_back(
    number: signal.Signals,
) -> None:
    heard: list[int] = []

    def theirs(number: int, _frame: object) -> None:
        heard.append(number)

    async def run() -> None:
        first, second = app_in_memory(), app_in_memory()
        tasks = await running(first, second)
        assert signal.getsignal(number) is not theirs
        signal.raise_signal(number)
        assert await asyncio.gather(*tasks) == [0, 0]
        assert signal.getsignal(number) is theirs
        signal.raise_signal(number)

    before = signal.signal(number, theirs)
    try:
        asyncio.run(run())
        assert heard == [number]
        assert signal.getsignal(number) is theirs
    finally:
        signal.signal(number, before)


def test_the_app_that_ends_first_leaves_the_other_its_signals() -> None:
    async def run() -> None:
        first, second = app_in_memory(), app_in_memory()
        one, other = await running(first, second)
        first.request_stop()
        assert await one == 0
        signal.raise_signal(signal.SIGTERM)
        assert await other == 0

    before = signal.getsignal(signal.SIGTERM)
    asyncio.run(run())
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_handler_that_somebody_added_to_the_loop_is_still_there_afterwards() -> None:
    async def run() -> None:
        heard = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, heard.set)
        (task,) = await running(app := app_in_memory())
        app.request_stop()
        await task
        assert not heard.is_set()
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait_for(heard.wait(), 60)
        loop.remove_signal_handler(signal.SIGTERM)

    asyncio.run(run())


def test_a_second_signal_does_what_it_did_before_also_while_the_loop_stands_still() -> None:
    async def run() -> None:
        (task,) = await running(app_in_memory())
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(ZeroDivisionError):
            signal.raise_signal(signal.SIGTERM)
        assert await task == 0

    def theirs(_number: int, _frame: object) -> None:
        raise ZeroDivisionError

    before = signal.signal(signal.SIGTERM, theirs)
    try:
        asyncio.run(run())
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_handler_that_raises_what_ctrl_c_does_ends_no_app() -> None:
    """The app hears Ctrl-C itself, so this one is the handler's own."""
    memory, app = MemoryBus(), App()
    app.use(memory)

    @app.subscriber("queue:jobs")
    async def interrupted(body: bytes) -> None:
        raise KeyboardInterrupt

    async def run() -> None:
        (task,) = await running(app)
        await app.publish("queue:jobs", b"x")
        await eventually_async(lambda: app.stats().consumers["queue:jobs"].parked == 1, within_s=20)
        app.request_stop()
        assert await task == 0

    asyncio.run(run())
    memory.assert_parked("queue:jobs", count=1)


def test_a_stop_that_is_asked_for_before_run_is_not_lost() -> None:
    app = app_in_memory()
    app.request_stop()
    assert asyncio.run(app.run()) == 0
    assert app.status.value == "initialized"


async def test_a_start_that_a_stop_overtakes_in_any_turn_does_not_say_that_it_runs() -> None:
    ends = set()
    for turns in range(1, 40):
        app = app_in_memory()
        starting = asyncio.create_task(app.start(require="all"))
        for _ in range(turns):
            await asyncio.sleep(0)
        was = app.status
        await app.stop(0)
        await asyncio.wait([starting])
        assert app.status is Status.STOPPED
        assert isinstance(starting.exception(), Stopped) or was is Status.RUNNING
        ends.add(starting.exception() is None)
    assert ends == {True, False}, "the stop came before the end of the start, and behind it"


@pytest.mark.parametrize("grace_s", [float("inf"), float("nan"), -1, None, "5"])
def test_a_grace_is_a_number_of_seconds(grace_s: Any) -> None:
    with pytest.raises(ConfigError, match="grace_s"):
        asyncio.run(app_in_memory().run(grace_s=grace_s))


def test_a_policy_that_at_most_once_cannot_keep_is_refused_where_it_is_declared() -> None:
    config = ConsumerConfig(at_most_once=True)
    for retry in (RetryPolicy(), RetryPolicy(then="drop"), RetryPolicy(attempts_max=1)):
        with pytest.raises(ConfigError, match=r"^subscriber of \S*jobs: retry: with at_most_once"):
            App().subscriber("queue:jobs", retry=retry, config=config)
    App().subscriber("queue:jobs", retry=RetryPolicy(attempts_max=1, then="drop"), config=config)
    App().subscriber("queue:jobs", config=config)


def test_an_app_whose_loop_ended_may_be_used_again() -> None:
    app = app_in_memory()
    asyncio.run(app.start())
    app.use(MemoryBus())
    assert asyncio.run(app.stop()) == 0
    asyncio.run(app.start())


# Batches.
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch": 0}, "batch 0: 1 to 2,000"),
        ({"batch": 2_001}, "batch 2001: 1 to 2,000"),
        ({"batch": 10, "linger_s": float("inf")}, "linger_s inf: 0 to 60"),
        ({"batch": 10, "linger_s": -1}, "linger_s -1"),
        ({"linger_s": 1}, "of what"),
        ({"batch": 300, "config": ConsumerConfig()}, "batch 300: prefetch is 200, so it never"),
    ],
)
def test_a_batch_that_could_never_be_is_told(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        App().subscriber("queue:jobs", **options)


async def test_a_batch_larger_than_the_default_prefetch_becomes_full() -> None:
    bus, app, sizes = MemoryBus(), App(), []
    app.use(bus)

    @app.subscriber("queue:jobs", batch=1_000, linger_s=60)
    async def work(texts: list[str]) -> None:
        sizes.append(len(texts))

    async with app:
        await app.publisher.send_many("queue:jobs", ["x"] * 2_000)
        await bus.handled()
    assert sizes == [1_000, 1_000]


def test_deduplication_that_cannot_work_is_refused_where_it_is_declared() -> None:
    app = App()
    with pytest.raises(ConfigError, match="store"):
        App(dedup="rabbit://h")
    with pytest.raises(ConfigError, match="store"):
        app.subscriber("orders", subscription="billing", dedup="rabbit://h")
    with pytest.raises(ConfigError, match="at_most_once"):
        app.subscriber(
            "orders",
            subscription="billing",
            dedup="memory:",
            config=ConsumerConfig(at_most_once=True),
        )


@pytest.mark.parametrize("closes", [True, False])
def test_after_the_app_s_thread_has_ended_another_one_of_its_number_is_not_taken_for_it(
    monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    """The system gives the number of a thread that has ended to the next one."""
    monkeypatch.setattr(module, "LATE_S", 0)
    bus, app, said = MemoryBus(), App(), list[tuple[int, str]]()
    bus.declare("orders/a")
    app.use(bus)
    loop = asyncio.new_event_loop()

    def run() -> None:
        said.append((threading.get_ident(), ""))
        loop.run_until_complete(app.start())
        if closes:
            loop.close()  # and the app was never stopped

    def publish() -> None:
        with pytest.raises((Stopped, Unknown)) as told:
            app.publish_blocking("orders", b"x", timeout_s=0)
        said.append((threading.get_ident(), str(told.value)))

    for target in (run, *100 * (publish,)):
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
        if len(said) > 1 and said[0][0] == said[-1][0]:
            break
    if not closes:
        loop.run_until_complete(app.stop(0))
        loop.close()
    bus.close()
    (number, _), *_, (other, told) = said
    assert number == other, "no number came again: nothing was tried"
    assert "would stop the loop" not in told
    assert told == "the app's event loop has ended" or not closes
