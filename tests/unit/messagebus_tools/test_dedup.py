"""`messagebus dedup`: what a store knows, shown and forgotten, and errors in one line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from messagebus._io.consume.dedup import dedup_id
from messagebus.core.claims import Turn, key_of
from messagebus.errors import ConfigError, NameInvalid
from messagebus.stores import Dedup, open_store
from messagebus_tools.dedup import group

NAME = "orders/billing"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store that knows `a` as done, `b` as running and the first redrive of `a` as done."""
    made = f"sqlite:///{tmp_path}/dedup.db"

    async def fill() -> None:
        store, rule = open_store(made), Dedup("memory:").rule
        done = [key_of(NAME, "a"), key_of(NAME, dedup_id("a", 1))]
        await store.turn(Turn(done=done, claim=[key_of(NAME, "b")], token=b"somebody"), rule)
        await store.close()

    asyncio.run(fill())
    return made


def command(*words: str) -> Result:
    return CliRunner().invoke(group, words, standalone_mode=False)


def test_records_are_counted_by_state(url: str) -> None:
    done = command("stats", "--store", url, "--json")
    assert json.loads(done.output) == {"running": 1, "waiting": 0, "done": 2, "parked": 0}


def test_what_is_known_of_messages_is_shown(url: str) -> None:
    done = command("show", "a", "b", "c", "--store", url, "--subscription", NAME)
    a, b, c = done.output.splitlines()
    assert a.startswith("a  done, remembered until 2")
    assert b.startswith("b  running")
    assert b.endswith("1 run without an end")
    assert (c, done.return_value) == ("c  nothing is known", 0)
    assert command("show", "c", "--store", url, "--subscription", NAME).return_value == 4


def test_what_is_forgotten_is_known_no_more(url: str) -> None:
    where = ("--store", url, "--subscription", NAME)
    assert command("forget", "a", "z", *where).output == "forgot 1 of 2 messages\n"
    assert command("forget", "a", *where).return_value == 4
    assert command("show", "a", "--redriven", "1", *where).return_value == 0


def test_without_a_store_or_a_subscription_nothing_is_done(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "which store?" in str(command("stats").exception)
    with pytest.raises(NameInvalid, match="which subscription"):
        raise command("show", "a", "--store", url, "--subscription", "orders").exception or OSError
    with pytest.raises(ConfigError) as told:
        raise command("stats", "--store", "rabbit://u:secret@h").exception or OSError
    assert "secret" not in str(told.value)
    monkeypatch.setenv("MESSAGEBUS_CONSUMER_DEDUP", url)
    assert command("stats").return_value == 0


def test_a_store_that_does_not_answer_is_exit_code_6() -> None:
    done = command("stats", "--store", "redis://:secret@127.0.0.1:1")
    assert isinstance(done.exception, SystemExit)
    assert done.exception.code == 6
    assert "secret" not in done.output


def test_no_repr_of_the_settings_shows_an_address() -> None:
    assert "secret" not in repr(Dedup("redis://:secret@cache"))


@pytest.mark.parametrize("database", ["sqlite", "postgresql", "mysql"])
def test_the_statements_of_a_database_are_printed(database: str) -> None:
    text = command("ddl", "--database", database).output
    assert "messagebus_dedup" in text
    assert "messagebus_inbox" in text
