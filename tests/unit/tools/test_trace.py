"""`messagebus trace`: what it asks for, prints and ends with."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from messagebus.__main__ import cli
from messagebus.commands.exits import Exit
from messagebus.observing.ask import Asker
from messagebus.observing.trace import Evidence
from messagebus.tools import top
from messagebus.tools import trace as module
from tests.support.fleet import Fleet

ID = "5f0c2a9be1d04773a1b20000000000c4"


class _Clock(datetime):
    """The host's clock."""

    now_s = 0.0

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> _Clock:
        return cls.fromtimestamp(cls.now_s, tz)


class Shell:
    """The command over agents in memory, and what it looks for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fleet = Fleet(3, 2)
        self.found: dict[str, Any] = {}
        self.asked: Mapping[str, Any] = {}
        monkeypatch.setattr(top, "Asker", functools.partial(Asker, transport=self.fleet.transport))
        monkeypatch.setattr(module, "evidence_of", self._evidence_of)

    def _evidence_of(self, _bus: object, message_id: str, **asked: Any) -> Evidence:
        if len(message_id) < 6:
            raise ValueError("an id, or its beginning, has 6 to 255 characters")
        self.asked = asked
        known = {"topic": asked["topic"], "published_ms": asked["published_ms"]}
        return Evidence(id=message_id, **known, **self.found)

    def trace(self, *words: str, **env: str) -> Result:
        given = {
            "MESSAGEBUS_LIST_URL": self.fleet.bus.list_urls[0],
            "MESSAGEBUS_USER": "bus",
            "MESSAGEBUS_PASSWORD": "pw",
        }
        return CliRunner().invoke(cli, ["trace", *words], env=given | env)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(monkeypatch)


def test_where_it_may_wait_is_said_with_how_that_is_known(shell: Shell) -> None:
    done = shell.trace(ID)
    assert done.exit_code == Exit.DONE
    answer, *lines = done.stdout.splitlines()
    assert answer.startswith("It might wait in ")
    assert lines[0].startswith("  id: number 197 of one publishing process")
    assert all(line.endswith(")") for line in lines)


def test_json_has_the_same_answer_and_lines(shell: Shell) -> None:
    text, told = shell.trace(ID).stdout, json.loads(shell.trace(ID, "--json").stdout)
    assert text.splitlines()[0] == told["answer"]
    assert len(told["lines"]) == len(text.splitlines()) - 1


def test_what_somebody_knows_of_it_is_handed_on(shell: Shell, tmp_path: Path) -> None:
    at = "2026-05-01T12:00:00+02:00"
    shell.trace(ID, "--topic", "orders", "--published-at", at, "--recording", str(tmp_path))
    assert shell.asked["topic"] == "orders"
    assert shell.asked["recording"] == tmp_path
    assert shell.asked["published_ms"] == datetime.fromisoformat(at).timestamp() * 1_000


@pytest.mark.parametrize(("now", "day"), [("2030-01-31T23:58", 31), ("2030-01-31T00:03", 30)])
def test_a_time_without_a_date_is_the_last_one_of_this_host(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, now: str, day: int
) -> None:
    now_s = datetime.fromisoformat(now).timestamp()
    monkeypatch.setattr(module, "datetime", _Clock)
    monkeypatch.setattr(_Clock, "now_s", now_s)
    shell.trace(ID, "--published-at", "23:55")
    at = datetime.fromtimestamp(shell.asked["published_ms"] / 1_000)
    assert (at.month, at.day, at.hour, at.minute) == (1, day, 23, 55)


def test_a_message_that_nobody_knows_ends_with_4(shell: Shell) -> None:
    done = shell.trace("nobody's", "--topic", "elsewhere")
    assert done.stdout.splitlines()[0] == "There is no record of it."
    assert done.exit_code == Exit.ABSENT


def test_a_place_that_could_not_be_looked_at_ends_with_3_and_is_named(shell: Shell) -> None:
    shell.found["faults"] = {"memory-1:5672": "no answer in time"}
    done = shell.trace(ID)
    assert done.exit_code == Exit.PARTLY
    assert "some places could not be looked at." in done.stdout.splitlines()[0]
    assert "?: memory-1:5672 could not be looked at: no answer in time" in done.stdout
    shell.found.clear()
    shell.fleet.answers[next(iter(shell.fleet.ports))] = lambda _: httpx.Response(503)
    assert shell.trace("nobody's", "--topic", "elsewhere").exit_code == Exit.PARTLY


def test_text_of_brokers_moves_no_cursor(shell: Shell) -> None:
    shell.found["faults"] = {"mb1": "\x1b[2J"}
    assert "\x1b" not in shell.trace(ID).stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["ab"], "ID: an id, or its beginning, has 6 to 255 characters"),
        ([ID, "--published-at", "noon"], "--published-at 'noon': Invalid isoformat string"),
        ([ID, "--published-at", "25:00"], "--published-at '25:00': hour must be in 0..23"),
    ],
)
def test_bad_words_are_one_line(shell: Shell, words: list[str], told: str) -> None:
    done = shell.trace(*words)
    assert done.exit_code == Exit.USAGE
    assert told in done.stderr


def test_without_agents_nothing_can_be_said(shell: Shell) -> None:
    done = shell.trace(ID, MESSAGEBUS_LIST_URL="")
    assert done.exit_code == Exit.USAGE
    assert "list_urls (MESSAGEBUS_LIST_URL) is not set: this needs agents" in done.stderr
