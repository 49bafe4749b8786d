"""`messagebus outbox`: what operators print, ask and order, on an outbox in SQLite."""

from __future__ import annotations

import json
import logging
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from messagebus.__main__ import cli
from messagebus.commands.exits import Exit
from messagebus.errors import NotReady
from messagebus.outbox import Outbox, session
from messagebus.outbox.table import Table
from messagebus.tools import outbox as outbox_command

SETTING = "MESSAGEBUS_OUTBOX_DATABASE"


def run(*argv: str, told: str = "") -> Result:
    return CliRunner().invoke(cli, ["outbox", *argv], input=told)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sqlite3.Connection]:
    """A database with an outbox made by the command, which the environment names."""
    path = tmp_path / "shop.db"
    monkeypatch.setenv(SETTING, f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as connection:
        made = run("ddl", "--database", "sqlite")
        assert made.exit_code == Exit.DONE
        connection.executescript(made.stdout)
        yield connection


def test_a_relay_logs_as_json_where_it_is_asked_to(
    shop: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reach(*_: object, **__: object) -> None:
        logging.getLogger("messagebus.publisher").warning("link lost broker=%s", "mb1:5672")
        raise NotReady("no answer")

    monkeypatch.setattr("messagebus.admin.directory.reach", reach)
    line, _end = run("relay", "--log", "json").stderr.splitlines()
    told = json.loads(line)
    assert (told["event"], told["broker"], told["level"]) == ("link lost", "mb1:5672", "WARNING")
    assert " WARNING messagebus.publisher link lost broker=mb1:5672" in run("relay").stderr


def park(connection: sqlite3.Connection, *bodies: bytes, destination: str = "orders") -> None:
    for body in bodies:
        Outbox().add(connection, destination, body, key="customer-4")
        connection.execute(
            "UPDATE messagebus_outbox SET parked_ms = 1000, attempts = 20,"
            " reason = 'unroutable: nobody' WHERE body = ?",
            (body,),
        )
    connection.commit()


def ids(connection: sqlite3.Connection, where: str) -> list[int]:
    found = connection.execute(f"SELECT id FROM messagebus_outbox WHERE {where} ORDER BY id")
    return [row[0] for row in found.fetchall()]


@pytest.mark.parametrize("name", ["postgresql", "mysql", "mariadb", "sqlite"])
def test_the_statements_are_printed_without_a_database(name: str) -> None:
    made = run("ddl", "--database", name, "--table", "shop.events")
    assert made.exit_code == Exit.DONE
    assert "CREATE TABLE shop.events (" in made.stdout
    assert made.stdout.count(";\n") == (4 if name in ("mysql", "mariadb") else 5)
    dropped = run("ddl", "--database", name, "--drop").stdout
    assert dropped == "DROP TABLE messagebus_outbox_lease;\nDROP TABLE messagebus_outbox;\n"


def test_dropping_undoes_what_was_made(shop: sqlite3.Connection) -> None:
    shop.executescript(run("ddl", "--database", "sqlite", "--drop").stdout)
    assert shop.execute(
        "SELECT count(*) FROM sqlite_master WHERE name LIKE 'messagebus%'"
    ).fetchone() == (0,)


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["ddl", "--database", "postgre"], "'postgre' is not one of"),
        (["ddl", "--database", "sqlite", "--table", "a b"], "letters, digits and _"),
        (["status"], SETTING),
        (["status", "--database", "shop.db"], "an address wanted"),
        (
            ["status", "--database", "oracle://u:secret@h/d"],
            "postgresql://HOST/DB, mysql://HOST/DB",
        ),
        (
            ["status", "--database", "postgresql://u:secret@h:1x/d"],
            "postgresql://u@h:1x/d: the port is a number",
        ),
        (["status", "--database", "postgresql://u:secret/x@h/d"], "/ is %2F"),
        (["status", "--database", "mysql://u:secret#x@h/d"], "# is %23"),
        (["status", "--database", "postgresql://u:[secret]@h/d"], "[ is %5B"),
        (["status", "--database", "postgresql://u:secret%zz@h/d"], "PostgreSQL understands"),
        (["status", "--database", "postgresql://u:secret x@h/d"], "PostgreSQL understands"),
        (["status", "--database", "sqlite:///:memory:"], "a file wanted"),
        (["retry", "--database", "sqlite:///x.db"], "which rows?"),
        (["drop", "--yes", "--all", "7", "--database", "sqlite:///x.db"], "which rows?"),
        (["drop", "7", "--database", "sqlite:///x.db"], "--yes"),
    ],
)
def test_wrong_use_is_one_line_without_a_password(argv: list[str], told: str) -> None:
    done = run(*argv)
    assert done.exit_code == Exit.USAGE
    assert told in done.stderr
    assert "secret" not in done.output


def test_a_database_that_does_not_answer_is_told_and_not_made(tmp_path: Path) -> None:
    path = tmp_path / "none.db"
    done = run("status", "--database", f"sqlite:///{path}")
    assert done.exit_code == Exit.SILENT
    assert "unable to open database file" in done.stderr
    assert not path.exists()


def test_a_database_without_an_outbox_is_told_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    sqlite3.connect(path).close()
    path.touch()
    done = run("status", "--database", f"sqlite:///{path}")
    assert done.exit_code == Exit.USAGE
    assert "messagebus outbox ddl --database sqlite" in done.stderr


def test_the_status_counts_what_waits_and_what_was_parked(shop: sqlite3.Connection) -> None:
    assert json.loads(run("status", "--json").stdout) == {
        "waiting": 0,
        "retrying": 0,
        "parked": 0,
        "oldest_s": None,
        "relays": 0,
    }
    park(shop, b"one")
    Outbox().add(shop, "orders", b"two")
    shop.execute("UPDATE messagebus_outbox SET created_ms = created_ms - 100000")
    shop.commit()
    done = run("status", "--older-than", "99s")
    assert done.exit_code == Exit.FOUND
    assert re.match(r"waiting   1, the oldest for 1\d\d\.", done.stdout)
    assert "parked    1" in done.stdout
    assert run("status", "--older-than", "200").exit_code == Exit.DONE


def test_parked_rows_are_shown_with_their_reason(shop: sqlite3.Connection) -> None:
    park(shop, b"one\x1b[2J", b"\xff")
    shown = run("parked").stdout
    assert "unroutable: nobody" in shown
    assert "one\\x1b[2J" in shown
    assert "hex ff" in shown
    rows = json.loads(run("parked", "--json", "--limit", "1").stdout)
    assert [(row["destination"], row["attempts"], row["key"]) for row in rows] == [
        ("orders", 20, "customer-4")
    ]
    assert run("parked", "--destination", "others").stdout == ""


def test_parked_rows_are_given_to_the_relays_again(shop: sqlite3.Connection) -> None:
    park(shop, b"one", b"two", b"three")
    assert run("retry", "1").stdout == "retried 1 row\n"
    assert ids(shop, "parked_ms = 0 AND attempts = 0") == [1]
    assert run("retry", "1", "2").exit_code == Exit.PARTLY
    assert run("retry", "--destination", "others").exit_code == Exit.ABSENT
    assert run("retry", "--all").exit_code == Exit.DONE
    assert ids(shop, "parked_ms > 0") == []


def test_only_parked_rows_are_dropped(shop: sqlite3.Connection) -> None:
    park(shop, b"one", b"two")
    Outbox().add(shop, "orders", b"waits")
    shop.commit()
    assert run("drop", "3", "--yes").exit_code == Exit.ABSENT
    assert run("drop", "1", "--yes").stdout == "dropped 1 row\n"
    assert run("drop", "--all", "--yes").exit_code == Exit.DONE
    assert ids(shop, "1 = 1") == [3]


def test_a_row_that_took_the_id_of_a_row_that_was_shown_is_kept(
    shop: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    park(shop, b"one", b"two", b"three")
    shown: list[str] = []

    def comes_back_older(question: Callable[[], str], _yes: bool) -> None:
        shown.append(question())
        shop.execute("DELETE FROM messagebus_outbox WHERE id >= 2")
        shop.execute("UPDATE sqlite_sequence SET seq = 1")
        park(shop, b"another", b"four")

    monkeypatch.setattr(outbox_command, "confirm", comes_back_older)
    done = run("drop", "--all")
    assert shown == ["Delete 3 rows?"]
    assert "1  " in done.stderr
    assert (done.stdout, done.exit_code) == ("dropped 1 row\n", Exit.PARTLY)
    bodies = shop.execute("SELECT id, body FROM messagebus_outbox ORDER BY id").fetchall()
    assert bodies == [(2, b"another"), (3, b"four")]


@pytest.mark.parametrize("change", ["retry", "drop", "place"])
def test_no_statement_changes_a_row_that_took_the_id_of_another(
    shop: sqlite3.Connection, change: str
) -> None:
    table = Table("sqlite")
    park(shop, b"one", b"two")
    shop.execute("UPDATE messagebus_outbox SET shard = -1")
    read = shop.execute("SELECT id, message_id FROM messagebus_outbox").fetchall()
    rows: dict[int, object] = {**dict(read), 1: "of before"}
    statements = (
        table.place({3: [1, 2]}, rows) if change == "place" else getattr(table, change)(rows)
    )
    for text, values in statements:
        shop.execute(text, values)
    assert ids(shop, "id = 1 AND shard = -1 AND parked_ms > 0") == [1]
    assert ids(shop, "id = 2 AND shard = -1 AND parked_ms > 0") == []


def test_rows_that_others_wrote_are_shown_whatever_they_hold(shop: sqlite3.Connection) -> None:
    park(shop, b"one", b"two")
    shop.execute("UPDATE messagebus_outbox SET body = 'text' WHERE id = 1")
    shop.execute("UPDATE messagebus_outbox SET body = 5, created_ms = 1 << 62 WHERE id = 2")
    shop.commit()
    assert ["text" in run("parked").stdout, "added     ?" in run("parked").stdout] == [True, True]
    assert [row["body"] for row in json.loads(run("parked", "--json").stdout)] == ["text", "5"]


def test_a_database_that_refuses_is_one_line_without_a_word_about_brokers(
    shop: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "hint", " (no broker is set)")
    monkeypatch.setattr(session, "LOCKED_TIMEOUT_S", 0.01)
    park(shop, b"one")
    shop.execute("BEGIN IMMEDIATE")
    done = run("retry", "--all")
    assert done.exit_code == Exit.SILENT
    assert done.stderr.startswith("messagebus: database sqlite://")
    assert "database is locked [messagebus explain " in done.stderr
    assert run("parked", "--limit", "9" * 20).stderr.count("\n") == 1


def test_a_table_in_a_schema_is_made_in_sqlite(shop: sqlite3.Connection) -> None:
    shop.executescript(run("ddl", "--database", "sqlite", "--table", "main.events").stdout)
    assert shop.execute(
        "SELECT count(*) FROM sqlite_master WHERE name LIKE 'events%'"
    ).fetchone() == (5,)
