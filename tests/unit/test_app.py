"""What is told when handlers are declared. What happens when they run: tests/contract/test_app.py."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from messagebus import App, ConfigError, NameInvalid, Stopped, Subscription, Topic
from messagebus.testing import MemoryBus


def handle(body: bytes) -> None: ...


def other(body: bytes) -> None: ...


def test_a_handler_stays_what_it_was() -> None:
    assert App().subscriber("queue:jobs")(handle) is handle


def test_one_handler_may_serve_several_subscriptions() -> None:
    app = App()
    app.subscriber("queue:jobs")(app.subscriber("orders", subscription="billing")(handle))
    name = f"{__name__}.handle"
    assert app.handlers == {"orders/billing": name, "queue:jobs": name}


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
        ("orders", {}, "orders is a topic: say which subscription"),
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
    with pytest.raises(Stopped, match="the app is initialized"):
        app.publish_blocking("orders", "x")
    with pytest.raises(Stopped, match="the app is initialized"):
        _ = app.publisher
    assert app.stats() == {}
    app.request_stop()


def test_an_app_without_a_subscriber_has_nothing_to_run() -> None:
    with pytest.raises(ConfigError, match="no subscriber: nothing to run"):
        asyncio.run(App().run())


def test_a_wrong_environment_is_told_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESSAGEBUS_CONSUMER_PREFETCH", "none")
    app = App()
    app.subscriber("queue:jobs")(handle)
    with pytest.raises(ConfigError, match="prefetch"):
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
