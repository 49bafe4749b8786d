"""tests.support.leaks: a password is found in any output, and is not repeated."""

from __future__ import annotations

import base64
import logging
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.leaks import Leaks, spellings

SECRET = "pa$$/word-0815"


@pytest.fixture
def leaks() -> Leaks:
    made = Leaks()
    made.remember(SECRET)
    return made


def record(text: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("x", logging.INFO, "/code/file.py", 7, text, args, None)


@pytest.mark.parametrize(
    "shown",
    [
        SECRET,
        quote(SECRET, safe=""),
        SECRET.encode().hex(),
        base64.b64encode(f"bus:{SECRET}".encode()).decode(),
        base64.b64encode(f"\0someone\0{SECRET}".encode()).decode(),
    ],
)
def test_a_secret_in_a_log_record_is_told_by_file_and_line(leaks: Leaks, shown: str) -> None:
    leaks.emit(record("login %s", f"x{shown}y"))
    assert leaks.told == ["/code/file.py:7: a log record shows a secret"]


def test_what_is_harmless_is_not_told(leaks: Leaks) -> None:
    leaks.emit(record("login of bus, Secret(***)"))
    assert leaks.told == []


def test_an_exception_of_a_record_is_looked_at(leaks: Leaks) -> None:
    each = record("failed")
    each.exc_info = (ValueError, ValueError(SECRET), None)
    leaks.emit(each)
    assert len(leaks.told) == 1


def test_a_secret_may_become_known_later() -> None:
    leaks = Leaks()
    leaks.emit(record("sesame-sesame"))
    assert leaks.told == []
    leaks.remember("sesame-sesame")
    assert leaks.told


def test_logs_of_a_cluster_are_told_by_file_and_line(tmp_path: Path) -> None:
    for file, text in {
        "secrets/admin.password": "generated-secret\n",
        "run/haproxy.log": "fine\n",
        "nodes/mb1/log/broker.log": "fine\nlogin generated-secret\nfine\n",
        "nodes/mb1/advanced.config": "generated-secret",
    }.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    leaks = Leaks()
    assert leaks.look_into(tmp_path) == 2
    assert leaks.told == [f"{tmp_path}/nodes/mb1/log/broker.log:2: a part's log shows a secret"]


def test_what_is_told_holds_no_secret(leaks: Leaks) -> None:
    leaks.heard("test_x", f"{SECRET} and more")
    assert SECRET not in "".join(leaks.told)


@given(
    st.binary(max_size=9), st.text("abcXYZ019-_", min_size=8, max_size=20), st.binary(max_size=9)
)
def test_base64_of_anything_with_a_secret_in_it_is_found(
    before: bytes, secret: str, after: bytes
) -> None:
    text = base64.b64encode(before + secret.encode() + after)
    assert any(word in text for word in spellings(secret))


def test_what_another_process_told_is_told_as_well(leaks: Leaks) -> None:
    leaks.also(["/code/other.py:1: a log record shows a secret"])
    assert leaks.told == ["/code/other.py:1: a log record shows a secret"]
