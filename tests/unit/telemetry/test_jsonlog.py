from __future__ import annotations

import io
import json
import logging
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus.errors import ConfigError
from messagebus.secret import Secret
from messagebus.telemetry.jsonlog import JsonFormatter, TextFormatter, configure_logging

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


@pytest.mark.usefixtures("logging_as_it_was")
@pytest.mark.parametrize(
    ("form", "level", "what"),
    [("xml", "INFO", "log form 'xml': text or json"), ("json", "LOUD", "log level 'LOUD': DEBUG")],
)
def test_wrong_settings_are_told(form: str, level: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        configure_logging(form, level)
