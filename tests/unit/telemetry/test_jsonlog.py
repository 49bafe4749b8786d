"""Logs in JSON: redaction, trace context, names of attributes."""

from __future__ import annotations

import io
import json
import logging
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus.core.deliveries import Receipt
from messagebus.destination import Queue, Subscription, Topic
from messagebus.errors import ConfigError, MessageBusError, Refused, StoreAway
from messagebus.message import Delivery, Message
from messagebus.secret import Secret
from messagebus.telemetry import semconv
from messagebus.telemetry.jsonlog import (
    TEXT_CHARS_MAX,
    JsonFormatter,
    TextFormatter,
    configure_logging,
    plain_error,
    plain_text,
    plain_trace,
)
from messagebus.telemetry.tracecontext import TraceContext, trace_headers

PASSWORD = "hunter2"


def record(
    text: Any, *arguments: object, name: str = "messagebus.consumer", **fields: Any
) -> logging.LogRecord:
    made = logging.LogRecord(name, logging.WARNING, "f.py", 1, text, arguments, None)
    made.created = 1_700_000_000.25
    vars(made).update(fields)
    return made


def as_json(made: logging.LogRecord) -> dict[str, Any]:
    line = JsonFormatter().format(made)
    assert "\n" not in line
    line.encode()

    def no_constant(text: str) -> None:
        raise AssertionError(f"{text} is no JSON")

    shown = json.loads(line, parse_constant=no_constant)
    assert isinstance(shown, dict)
    return shown


def raised(error: Exception) -> dict[str, Any]:
    try:
        raise error
    except Exception as caught:
        return {"exc_info": (type(caught), caught, caught.__traceback__)}


def test_pairs_of_our_lines_are_fields() -> None:
    line = record("link lost broker=%s epoch=%d owed=%d reason=%r", "mb2:5672", 4, 50, "gone")
    assert as_json(line) == {
        "time": "2023-11-14T22:13:20.250000Z",
        "level": "WARNING",
        "logger": "messagebus.consumer",
        "event": "link lost",
        "broker": "mb2:5672",
        "epoch": 4,
        "owed": 50,
        "reason": "gone",
    }


@pytest.mark.parametrize(
    ("text", "arguments", "event"),
    [
        ("hello", (), "hello"),
        ("50%% of room=%s", ("a",), "50% of room=a"),
        ("%s lost broker=%s", ("link", "b"), "link lost broker=b"),
        ("lost broker=%(broker)s", ({"broker": "b"},), "lost broker=b"),
        ("lost broker=%s", ("b", "c"), "lost broker=%s (its arguments fail: TypeError)"),
        (Exception("no text"), (), "no text"),
    ],
)
def test_what_is_no_row_of_pairs_is_told_as_it_is(
    text: Any, arguments: tuple[Any, ...], event: str
) -> None:
    assert as_json(record(text, *arguments))["event"] == event


def test_lines_of_others_are_not_taken_apart() -> None:
    shown = as_json(record("took %s user=%s", "1s", "x", name="app"))
    assert (shown["event"], shown["logger"]) == ("took 1s user=x", "app")


def test_a_field_never_hides_one_of_the_record() -> None:
    shown = as_json(record("told level=%s time=%s", "x", "y"))
    assert (shown["level"], shown["level_"], shown["time_"]) == ("WARNING", "x", "y")
    shown = as_json(record("told", level="mine", logger="mine", order=7))
    assert (shown["level"], shown["logger"], shown["order"]) == (
        "WARNING",
        "messagebus.consumer",
        7,
    )


def test_exceptions_are_bounded_and_on_the_line() -> None:
    error = ValueError(f"at amqp://bus:{PASSWORD}@mb1/ " + "x" * 10_000_000)
    made = record("handler failed", **raised(error))
    shown = as_json(made)
    assert shown["exception"]["type"] == "ValueError"
    assert shown["exception"]["text"].startswith("at amqp://bus:***@mb1/ xxx")
    assert "in raised" in shown["exception"]["trace"]
    text = TextFormatter().format(made)
    assert text.startswith(
        "2023-11-14T22:13:20.250000Z WARNING messagebus.consumer handler failed"
        ' exception="ValueError: at amqp://bus:***@mb1/ xxx'
    )
    assert "\n" not in text
    assert "in raised" in TextFormatter(trace=True).format(made)
    for line in (json.dumps(shown), text):
        assert len(line) < 12_000
        assert PASSWORD not in line


def test_an_error_of_this_library_is_logged_with_its_section() -> None:
    made = record("answer failed", **raised(StoreAway("no answer")))
    place = "docs/reference/errors.md#storeaway"
    assert as_json(made)["exception"]["docs"] == place
    assert TextFormatter().format(made).endswith(f'exception="StoreAway: no answer" docs={place}')
    other = record("answer failed", **raised(MessageBusError("no heading")))
    assert "docs" not in as_json(other)["exception"]
    assert "docs=" not in TextFormatter().format(other)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("login refused password=%s", (PASSWORD,)),
        ("dial url=%s", (f"amqp://bus:{PASSWORD}@mb1:5672/",)),
        ("settings %s", ({"password": PASSWORD},)),
        ("secret value=%s", (Secret(PASSWORD),)),
        ("Authorization: Bearer %s", (PASSWORD,)),
    ],
)
@pytest.mark.parametrize("name", ["messagebus.publisher", "app"])
def test_no_line_shows_a_password(text: str, arguments: tuple[Any, ...], name: str) -> None:
    made = record(text, *arguments, name=name)
    assert PASSWORD not in json.dumps(as_json(made))
    assert PASSWORD not in TextFormatter().format(made)


class Mute:
    def __str__(self) -> str:
        raise OSError("no text")


@given(
    st.text(max_size=50),
    st.lists(
        st.text(max_size=30) | st.integers() | st.floats() | st.binary(max_size=5), max_size=4
    ),
)
def test_every_record_is_one_line_of_json(text: str, arguments: list[Any]) -> None:
    as_json(record(text, *arguments))
    assert "\n" not in TextFormatter().format(record(text, *arguments))


def test_what_cannot_be_told_is_told_so() -> None:
    shown = as_json(record("odd value=%s", Mute(), thing=Mute(), number=math.inf, lone="\ud800"))
    assert shown["value"] == shown["thing"] == "(its text fails: OSError)"
    assert (shown["number"], shown["lone"]) == ("inf", "\ud800")
    assert TextFormatter().format(record("odd \ud800")).endswith(r"odd \ud800")


@pytest.fixture
def logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers = root.handlers[:]
    loggers = [root, *(logging.getLogger(name) for name in ("pika", "httpx", "httpcore"))]
    levels = [each.level for each in loggers]
    yield
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    for each, level in zip(loggers, levels, strict=True):
        each.setLevel(level)


@pytest.mark.usefixtures("logging_as_it_was")
def test_logs_are_configured_once_for_all_loggers() -> None:
    stream = io.StringIO()
    configure_logging("text", stream=io.StringIO())
    configure_logging("json", "info", stream=stream)
    logging.getLogger("messagebus.publisher").warning("link lost broker=%s", "b")
    logging.getLogger("app").debug("unheard")
    logging.getLogger("pika.adapters").error("told twice")
    logging.getLogger("httpx").info("a line for each request")
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["broker"] == "b"


@pytest.mark.parametrize(("before", "after"), [(None, "CRITICAL"), ("INFO", "INFO")])
def test_the_level_of_pika_is_left_to_an_application_that_has_set_one(
    before: str | None, after: str
) -> None:
    program = "import logging, sys; pika = logging.getLogger('pika')\n"
    program += "pika.setLevel(sys.argv[1]) if sys.argv[1:] else None\n"
    program += "from messagebus import Publisher; print(logging.getLevelName(pika.level))"
    argv = [sys.executable, "-c", program, *([before] if before else [])]
    ended = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.strip() == after


@pytest.mark.usefixtures("logging_as_it_was")
@pytest.mark.parametrize(
    ("form", "level", "what"),
    [("xml", "INFO", "log form 'xml': text or json"), ("json", "LOUD", "log level 'LOUD': DEBUG")],
)
def test_wrong_settings_are_told(form: str, level: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        configure_logging(form, level)


LONGER_PASSWORD = "hunter2-of-the-bus"


@pytest.mark.parametrize(
    "text",
    [
        "cannot reach amqp://bus:{}@mb1:5672/vhost",
        "https://user:{}@host/path?x=1",
        "login failed password={}",
        "PASSWORD = '{}' is wrong",
        'settings: {{"db_password": "{}", "host": "x"}}',
        "passwd:{};host=x",
        "Authorization: Bearer {}",
        "authorization=Basic {}",
        "MESSAGEBUS_TOKEN={}",
        "api-key: {}, next",
        "client_secret=>{}",
        "{{'secret': '{}'}}",
    ],
)
def test_what_looks_like_a_password_is_hidden(text: str) -> None:
    shown = plain_text(text.format(LONGER_PASSWORD))
    assert LONGER_PASSWORD not in shown
    assert "***" in shown


@pytest.mark.parametrize(
    "text",
    ["no room for 10 bytes", "key 'orders' not found", "see https://host:8080/path", "a: b", ""],
)
def test_other_texts_are_left_as_they_are(text: str) -> None:
    assert plain_text(text) == text


@given(st.text(max_size=5000), st.integers(min_value=10, max_value=2000))
def test_no_text_is_longer_than_asked(text: str, most: int) -> None:
    assert len(plain_text(text, most)) <= most


def test_ten_megabytes_cost_no_more_than_one_page() -> None:
    before = time.process_time()
    shown = plain_text("x" * 10_000_000)
    assert shown == "x" * (TEXT_CHARS_MAX - 3) + "..."
    hostile = "password=" * 1_000_000 + "://" * 1_000_000 + "a-" * 1_000_000
    plain_text(hostile)
    plain_text("-" * 100_000)
    assert time.process_time() - before < 5


def test_a_password_at_the_edge_of_what_is_read_is_not_shown() -> None:
    for shift in range(60):
        text = "x" * (TEXT_CHARS_MAX - 30 + shift) + f" amqp://u:{LONGER_PASSWORD}@h"
        assert LONGER_PASSWORD[:8] not in plain_text(text)


class MuteError(Exception):
    def __str__(self) -> str:
        raise OSError("no text")


def test_an_exception_whose_text_fails_is_told_all_the_same() -> None:
    assert plain_error(MuteError()) == "(its text fails: OSError)"
    assert plain_error(ValueError("password=abc")) == "password=***"


def test_a_traceback_is_bounded() -> None:
    def fall(depth: int) -> None:
        if not depth:
            raise ValueError("deep")
        fall(depth - 1)

    try:
        fall(500)
    except ValueError as error:
        shown = plain_trace(error)
    assert "in fall" in shown
    assert len(shown) <= 8 * 1024
    assert plain_trace(ValueError("never raised")) == ""


TOPIC = Topic("orders")


def test_a_topic_is_its_exchange_and_a_subscription_its_queue_too() -> None:
    assert semconv.publishing_place(TOPIC) == semconv.Place("mb.topic/orders", "orders")
    assert semconv.consuming_place(Subscription(TOPIC, "billing")) == semconv.Place(
        "mb.topic/orders:mb.sub/orders/billing", "orders/billing"
    )


def test_a_queue_is_published_to_through_its_exchange() -> None:
    jobs = Queue("jobs")
    assert semconv.publishing_place(jobs) == semconv.Place("mb.to/jobs", "queue:jobs")
    assert semconv.consuming_place(jobs) == semconv.Place("mb.to/jobs:mb.queue/jobs", "queue:jobs")


def test_a_name_that_nobody_else_has_is_no_label() -> None:
    place = semconv.consuming_place(Subscription.ephemeral("orders"))
    assert place.template == "orders/(expiring)"
    assert place.attributes()[semconv.TEMPORARY] is True
    assert place.metric_attributes() == {
        semconv.SYSTEM: "rabbitmq",
        semconv.TEMPLATE: "orders/(expiring)",
    }


def test_an_error_is_its_class() -> None:
    assert semconv.error_type(ValueError()) == "ValueError"
    assert semconv.error_type(Refused("1", "no")) == "messagebus.errors.Refused"


PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def delivery(**headers: Any) -> Delivery:
    message = Message(body=b"x", message_id="1", headers=headers)
    return Delivery(message, Receipt("b:1", 1, 1), Subscription(Topic("orders"), "billing"))


@pytest.mark.parametrize("parent", [PARENT, "cc" + PARENT[2:] + "-what-comes-later"])
def test_a_context_is_read_with_its_state(parent: str) -> None:
    assert trace_headers({"traceparent": parent, "other": 1}) == {"traceparent": parent}
    both = {"traceparent": parent, "tracestate": "a=b"}
    assert trace_headers({**both, "tracestate2": "x"}) == both


@pytest.mark.parametrize(
    "parent",
    [
        None,
        7,
        b"bytes",
        "",
        "hello",
        PARENT[:-1],
        PARENT.upper(),
        PARENT + "0",
        "ff" + PARENT[2:],
        "00-" + "0" * 32 + PARENT[35:],
        PARENT[:36] + "0" * 16 + PARENT[52:],
        PARENT + "\n",
    ],
)
def test_what_is_no_context_is_not_carried_on(parent: Any) -> None:
    assert trace_headers({"traceparent": parent, "tracestate": "a=b"}) == {}


def test_a_state_that_is_no_text_is_left_out() -> None:
    assert trace_headers({"traceparent": PARENT, "tracestate": 7}) == {"traceparent": PARENT}


def test_what_a_handler_publishes_belongs_to_the_trace_of_its_delivery() -> None:
    hooks = TraceContext()
    message = Message(body=b"y", headers={"own": 1})
    with hooks.handling(delivery(traceparent=PARENT, tracestate="a=b")):
        made = hooks.publishing("invoices", message)
        with hooks.handling(delivery()):
            assert hooks.publishing("invoices", message) is message
        assert hooks.publishing("invoices", message) == made
    assert made.headers == {"own": 1, "traceparent": PARENT, "tracestate": "a=b"}
    assert message.headers == {"own": 1}
    assert hooks.publishing("invoices", message) is message


def test_a_message_that_has_a_context_keeps_it() -> None:
    hooks = TraceContext()
    message = Message(body=b"y", headers={"traceparent": "mine"})
    with hooks.handling(delivery(traceparent=PARENT)):
        assert hooks.publishing("invoices", message) is message
