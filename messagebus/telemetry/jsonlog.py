"""Logs for machines and for people: one line for each record, whatever is in it.

    configure_logging("json", "INFO")               # in an application's main; the library never calls it

The library's own lines are a constant text and ``key=value`` pairs; as JSON the pairs are fields of
their own. Exceptions and texts are cut and line ends escaped. Passwords are hidden as far as they can be
recognised.

Texts that others wrote are short, on one line, and without what looks like a password. An exception's text
may be 10 MB long and may quote an address with its password. Passwords cannot be recognised for certain:
hidden are texts behind a name like ``password=`` or ``token:``, or in an address before its ``@``.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any, Literal, TextIO

from messagebus.errors import ConfigError, docs_of, text_of

__all__ = ["FORMS", "JsonFormatter", "TextFormatter", "configure_logging"]

FORMS = ("text", "json")
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
MESSAGE_CHARS_MAX = 8 * 1024
FIELDS_MAX = 50

_OURS = "messagebus."
RESERVED = frozenset({"event", "time", "level", "logger", "exception"})
# pika logs its exceptions at ERROR too, and the library logs them in its own words; httpx has a line at
# INFO for each request for the list.
_QUIET = {"pika": logging.CRITICAL, "httpx": logging.WARNING, "httpcore": logging.WARNING}
_PAIR = re.compile(r"\s(\w+)=(%[-#0 +]*\d*(?:\.\d+)?[a-zA-Z])")
# Attributes that every record has; all others were given by `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Formatter of JSON objects: time, level, logger, event, then the pairs of the line and of ``extra``.

    time: UTC, to the microsecond. exception: its type, text and trace, and for an error of this library its
    ``docs``, where there is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        shown: dict[str, Any] = {
            "time": _time_of(record),
            "level": record.levelname,
            "logger": record.name,
            **_event_of(record),
        }
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            shown["exception"] = {
                "type": type(error).__qualname__,
                "text": plain_error(error),
                "trace": plain_trace(error),
            }
            if docs := docs_of(error):
                shown["exception"]["docs"] = docs
        for name, value in _extra(record).items():
            shown.setdefault(name, _plain(value))
        return _encodable(json.dumps(shown, ensure_ascii=False, default=text_of))


class TextFormatter(logging.Formatter):
    """Formatter of one line a record for people: time, level, logger, text.

    An exception is ``exception="type: text"``, with ``docs=`` for an error of this library. trace: its
    traceback follows, over several lines.
    """

    def __init__(self, *, trace: bool = False) -> None:
        super().__init__()
        self._trace = trace

    def format(self, record: logging.LogRecord) -> str:
        text = plain_text(_message(record), MESSAGE_CHARS_MAX)
        line = f"{_time_of(record)} {record.levelname} {record.name} {_escaped_breaks(text)}"
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return _encodable(line)
        said = f"{type(error).__qualname__}: {plain_error(error)}"
        line = f"{line} exception={json.dumps(said, ensure_ascii=False)}"
        if docs := docs_of(error):
            line = f"{line} docs={docs}"
        return _encodable(f"{line}\n{plain_trace(error)}" if self._trace else line)


def configure_logging(
    form: Literal["text", "json"] | str = "text",
    level: int | str = "INFO",
    *,
    stream: TextIO | None = None,
) -> None:
    """Send all logs of this process to a stream, in one form. For an application's main.

    form: "text" or "json". level: a name or number of `logging`; at DEBUG, texts have tracebacks below
    them. stream: None is standard error. Replaces the earlier configuration. Raises ConfigError.
    """
    if form not in FORMS:
        raise ConfigError(f"log form {form!r}: {' or '.join(FORMS)}")
    number = logging.getLevelNamesMapping().get(level.upper()) if isinstance(level, str) else level
    if type(number) is not int or number < 0:
        raise ConfigError(f"log level {level!r}: {', '.join(LEVELS)}")
    handler = logging.StreamHandler(stream or sys.stderr)
    is_json = form == "json"
    handler.setFormatter(
        JsonFormatter() if is_json else TextFormatter(trace=number <= logging.DEBUG)
    )
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(number)
    for name, least in _QUIET.items():
        logging.getLogger(name).setLevel(max(least, number))
    logging.captureWarnings(True)


def _time_of(record: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.created % 1 * 1_000_000):06}Z"


def _event_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the text as ``event``; for our own lines, the part before the first pair, and the pairs."""
    if not record.name.startswith(_OURS) or not isinstance(record.msg, str):
        return {"event": plain_text(_message(record), MESSAGE_CHARS_MAX)}
    pairs = list(_PAIR.finditer(record.msg))
    arguments = record.args if isinstance(record.args, tuple) else ()
    is_all = pairs and record.msg.count("%") == len(pairs) == len(arguments)
    if not is_all:
        return {"event": plain_text(_message(record), MESSAGE_CHARS_MAX)}
    shown: dict[str, Any] = {"event": record.msg[: pairs[0].start()]}
    for pair, value in zip(pairs, arguments, strict=True):
        name = pair[1]
        shown[f"{name}_" if name in RESERVED else name] = _value(name, value)
    return shown


def _value(name: str, value: object) -> Any:
    """Redact a pair's value by its name too: an application's pair called password is hidden as well."""
    shown = _plain(value)
    if isinstance(shown, str):
        hidden = plain_text(f"{name}={shown}")
        return hidden.removeprefix(f"{name}=") if hidden.startswith(f"{name}=") else shown
    return shown


def _message(record: logging.LogRecord) -> str:
    """Return the message; one whose arguments do not fit is returned all the same."""
    try:
        return record.getMessage()
    except Exception as fault:  # also an argument's own __str__
        return f"{record.msg} (its arguments fail: {type(fault).__name__})"


def _extra(record: logging.LogRecord) -> Mapping[str, Any]:
    given = [each for each in vars(record).items() if each[0] not in _STANDARD]
    return dict(given[:FIELDS_MAX])


def _plain(value: object) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):  # JSON knows no others
        return value
    return plain_text(text_of(value), MESSAGE_CHARS_MAX)


def _escaped_breaks(text: str) -> str:
    if "\n" not in text and "\r" not in text:
        return text
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def _encodable(text: str) -> str:
    """Escape half surrogate pairs, which a stream does not take, in JSON too."""
    return text.encode("utf-8", "backslashreplace").decode()


TEXT_CHARS_MAX = 1024
TRACE_CHARS_MAX = 8 * 1024
FRAMES_MAX = 30
# Times the shown length that is read of a text, so that no password is cut before it can be
# recognised.
READ_FACTOR = 4
HIDDEN = "***"

_IN_ADDRESS = re.compile(r"(://[^\s:/@]{0,255}):[^\s/]{0,1024}@")
_BEHIND_NAME = re.compile(
    r"""(?ix) ( \b [\w-]{0,32} (?: passw(?:or)?d | passphrase | pwd | secret | token | api[_-]?key
        | authori[sz]ation | credentials? ) [\w-]{0,32} ["']? \s? (?: = | : | => ) \s{0,3} )
    ( "[^"]{0,1024}"? | '[^']{0,1024}'? | (?: basic | bearer ) \s+ \S{1,2048} | [^\s,;&)}\]]{1,1024} )"""
)


def plain_text(text: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    """Return at most chars_max characters of it, passwords hidden. Cost: none for the rest."""
    read = text[: READ_FACTOR * chars_max]
    read = _BEHIND_NAME.sub(rf"\1{HIDDEN}", _IN_ADDRESS.sub(rf"\1:{HIDDEN}@", read))
    if len(read) > chars_max or len(text) > READ_FACTOR * chars_max:
        return f"{read[: chars_max - 3]}..."
    return read


def plain_error(error: BaseException) -> str:
    """Return an exception's text; "" when it has none."""
    return plain_text(text_of(error))


def plain_trace(error: BaseException) -> str:
    """Return the traceback, outermost first: its last FRAMES_MAX frames and the first exception's text."""
    try:
        frames = traceback.format_tb(error.__traceback__, limit=-FRAMES_MAX)
    except Exception:  # its source file is gone or no text
        return ""
    return plain_text("".join(frames).rstrip(), TRACE_CHARS_MAX)
