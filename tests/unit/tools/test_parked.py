"""Messages looked for and looked at: parked, found, tailed, deduplicated."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from messagebus.__main__ import cli
from messagebus._io.consume.dedup import dedup_id
from messagebus.admin.parked import ParkedCount, ParkedCounts, ParkedMessage
from messagebus.commands.options import iso
from messagebus.core.claims import Turn, key_of
from messagebus.errors import ConfigError, LinkLost, NameInvalid
from messagebus.recording.events import SCHEMA
from messagebus.recording.files import message_id_hex
from messagebus.stores import Dedup, open_store
from messagebus.tools import parked, tail
from messagebus.tools.dedup import group
from messagebus.tools.find import find_rows

MESSAGE = ParkedMessage(
    name="orders/billing",
    broker="mb1:5672",
    message_id="m",
    key="",
    reason="timeout",
    exception="",
    attempts=None,
    first_ms=None,
    parked_ms=1_700_000_000_123,
    redriven=0,
    headers={},
    content_type="text/plain",
    body=b"hello",
    body_bytes=5,
)


def test_a_message_is_told_with_what_it_says() -> None:
    assert parked._lines(MESSAGE) == [
        "m",
        "  in         orders/billing on mb1:5672",
        "  reason     timeout",
        "  attempts   ?",
        "  first      ?",
        "  parked     2023-11-14T22:13:20.123+00:00",
        "  body       text/plain 5 bytes: hello",
    ]
    more = replace(MESSAGE, redriven=2, attempts=3, headers={f"h{n}": n for n in range(30)})
    lines = parked._lines(more)
    assert "  attempts   3, redriven 2 times before" in lines
    assert "  header     and 10 more" in lines


@pytest.mark.parametrize(
    ("looked", "told"),
    [
        (("mb1:5672", "mb3:5672"), "nothing is parked on the 2 brokers that answered"),
        ((), "whether messages are parked is not known: no broker was read"),
    ],
)
def test_a_list_with_a_dead_broker_says_what_is_known_of_the_others_and_where_to_read_on(
    monkeypatch: pytest.MonkeyPatch, looked: tuple[str, ...], told: str
) -> None:
    cause = LinkLost("mb2:5672", "connection refused")
    found = ParkedCounts((), {"mb2:5672": cause.reason}, {"mb2:5672": cause}, looked)
    monkeypatch.setattr("messagebus.admin.parked.count_parked", lambda *_, **__: found)
    env = {"MESSAGEBUS_BROKER": "mb1:5672"}
    done = CliRunner().invoke(cli, ["parked", "list"], env=env)
    assert done.stderr.splitlines() == [
        told,
        "messagebus: mb2:5672: connection refused [messagebus explain linklost]",
    ]
    assert done.exit_code == (3 if looked else 6)


@pytest.mark.parametrize("which", [(), ("--id", "order-1*"), ("--key", "k")])
def test_a_corrected_body_is_for_one_message_by_its_whole_id(
    which: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "body").write_bytes(b"{}")
    words = ["parked", "redrive", "orders/billing", "--body", str(tmp_path / "body"), "--yes"]
    done = CliRunner().invoke(cli, [*words, *which], env={"MESSAGEBUS_BROKER": "mb1:5672"})
    assert done.exit_code == 2
    assert done.stderr.splitlines()[-1].startswith("messagebus: a body is for one message")


@pytest.mark.parametrize(
    ("body", "body_bytes", "shown"),
    [
        (b"a\x1bb", 3, "a\\x1bb"),
        (b"\xff\x00", 2, "hex ff00"),
        (b"\xff" * 300, 300, "hex " + "ff" * 100 + "..."),
        ("é" * 150, 9_000, "é" * 150 + "..."),
        (b"x" * 300, 300, "x" * 200 + "..."),
        ("é".encode()[:1], 2, "..."),
        (b"", 0, ""),
        (b"a\xff" * 2_048, 9_000, "hex " + "61ff" * 50 + "..."),
    ],
)
def test_a_body_is_shown_as_far_as_it_is_bounded(
    body: bytes | str, body_bytes: int, shown: str
) -> None:
    raw = body.encode() if isinstance(body, str) else body
    assert parked._body(replace(MESSAGE, body=raw, body_bytes=body_bytes)) == shown


@pytest.mark.parametrize(
    ("body", "row"),
    [
        ("€".encode()[:2], {"body": ""}),
        (b"a\xff", {"body_hex": "61ff"}),
        ("aé€".encode()[:-1], {"body": "aé"}),
    ],
)
def test_json_has_a_body_as_text_where_only_its_last_character_is_cut(
    body: bytes, row: dict[str, str]
) -> None:
    told = parked._message_row(replace(MESSAGE, body=body, body_bytes=9_000))
    assert {key: told[key] for key in ("body", "body_hex") if key in told} == row


def test_the_most_frequent_reasons_are_told() -> None:
    reasons = {"a": 5, "b": 4, "c\x1b": 3, "d": 2, "e": 1}
    count = ParkedCount(name="n", broker="b", count=15, reasons=reasons, unseen=3)
    assert parked._reasons(count) == "a: 5; b: 4; c\\x1b: 3; others: 3"
    assert parked._many(count) == "15+3?"


@pytest.mark.parametrize(
    ("age_ms", "told"),
    [(-5, "0s"), (119_000, "119s"), (120_000, "2m"), (7_200_000, "2h"), (172_800_000, "2d")],
)
def test_ages_are_short(age_ms: int, told: str) -> None:
    assert parked._age(1_000_000_000, 1_000_000_000 + age_ms) == told


def test_a_time_that_no_calendar_has_is_none() -> None:
    assert iso(1 << 62) is None
    assert parked._age(None, 0) == "?"


IDS = [f"{number:032x}" for number in range(300)]
WALL_NS = 1_700_000_000_000_000_000


def recorded(folder: Path) -> Path:
    head = {
        "schema": SCHEMA,
        "anchor": {"host": "h", "process": "p", "wall_minus_monotonic_ns": WALL_NS},
    }
    published = [
        {"message_id": each, "topic": "orders", "outcome": "confirmed", "confirmed_ns": 5_000_000}
        for each in [*IDS, message_id_hex("order-4711")]
    ]
    delivered = [
        {"message_id": each, "topic": "orders", "ack": "acked", "acknowledged_ns": 9_000_000}
        for each in IDS[::2]
    ]
    for kind, rows in (("published", published), ("delivered", delivered)):
        lines = [json.dumps(each, separators=(",", ":")) for each in (head, *rows)]
        (folder / f"{kind}-p.ndjson").write_text("\n".join(lines) + '\n{"message_id":"cut')
    (folder / "published-empty.ndjson").write_text("")
    return folder


@pytest.mark.parametrize("number", [0, 1, 255])
def test_every_row_of_an_id_is_found_in_the_order_of_time(tmp_path: Path, number: int) -> None:
    rows = find_rows(recorded(tmp_path), IDS[number])
    assert [row["at_ms"] for row in rows] == [
        1_700_000_000_005,
        *([1_700_000_000_009] if number % 2 == 0 else []),
    ]
    assert {row["message_id"] for row in rows} == {IDS[number]}


def test_a_beginning_finds_all_that_begin_so_within_a_bound(tmp_path: Path) -> None:
    assert len(find_rows(recorded(tmp_path), IDS[255][:31])) == 16 + 8
    assert len(find_rows(tmp_path, "0000")) == 100


def test_an_id_of_another_form_is_found_by_its_digest(tmp_path: Path) -> None:
    assert len(find_rows(recorded(tmp_path), "order-4711")) == 1
    assert find_rows(tmp_path, "order-47") == []


async def chunked(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def test_lines_are_whole_however_they_are_cut() -> None:
    whole = b'{"id":"1"}\n\n{"id":"2"}\n{"id":"3"}'
    for size in range(1, len(whole) + 1):
        cut = [whole[at : at + size] for at in range(0, len(whole), size)]
        lines = [line async for some in tail.whole_lines(chunked(cut)) for line in some]
        assert lines == [b'{"id":"1"}', b"", b'{"id":"2"}']


async def test_a_line_without_an_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "LINE_BYTES_MAX", 100)
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b"x" * 10

    with pytest.raises(ValueError, match="a line of more than 100 bytes"):
        async for _ in tail.whole_lines(endless()):
            pass
    assert taken == 11


@pytest.mark.parametrize("line", [b'{"id":"\xe2\x80\xae"}', b'{"id":\x1b[2J', b'{"id":\xff'])
def test_a_line_of_an_agent_that_lies_is_shown_without_what_does_not_print(
    line: bytes, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    printing = tail._Printing(None, None, None, None, None)
    assert printing.lines("mb1:5672", [line])
    out = capsysbinary.readouterr().out
    assert out.rstrip(b"\n").decode().isprintable()


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
    a, again, b, c = done.output.splitlines()
    assert a.startswith("a  done, remembered until 2")
    assert again.startswith("a  after redrive 1: done, remembered until 2")
    assert b.startswith("b  running")
    assert b.endswith("1 run without an end")
    assert (c, done.return_value) == ("c  nothing is known", 0)
    assert command("show", "c", "--store", url, "--subscription", NAME).return_value == 4
    only = command("show", "a", "--redriven", "1", "--store", url, "--subscription", NAME)
    assert only.output.splitlines() == [again]
    told = command("show", "a", "c", "--store", url, "--subscription", NAME, "--json")
    rows = json.loads(told.output)["records"]
    assert [(each["id"], each.get("redriven"), each["state"]) for each in rows] == [
        ("a", 0, "done"),
        ("a", 1, "done"),
        ("c", None, None),
    ]


def test_what_is_forgotten_is_known_no_more(url: str) -> None:
    where = ("--store", url, "--subscription", NAME)
    told = command("forget", "a", "z", "--redriven", "1", *where).output
    assert told == "forgot 1 record of 2 messages\n"
    assert command("show", "a", *where).return_value == 0
    assert command("forget", "a", *where).output == "forgot 1 record of 1 message\n"
    assert command("show", "a", *where).return_value == 4
    assert command("forget", "a", *where).return_value == 4


def test_what_is_forgotten_is_forgotten_with_its_redrives(url: str) -> None:
    where = ("--store", url, "--subscription", NAME)
    assert command("forget", "a", *where).output == "forgot 2 records of 1 message\n"
    assert command("show", "a", *where).return_value == 4


def test_without_a_store_or_a_subscription_nothing_is_done(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "which store?" in str(command("stats").exception)
    with pytest.raises(NameInvalid, match="say subscription"):
        raise command("show", "a", "--store", url, "--subscription", "orders").exception or OSError
    with pytest.raises(ConfigError) as told:
        raise command("stats", "--store", "rabbit://u:secret@h").exception or OSError
    assert "secret" not in str(told.value)
    monkeypatch.setenv("MESSAGEBUS_CONSUMER_DEDUP", url)
    assert command("stats").return_value == 0


def test_a_store_that_is_not_there_is_told_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mistyped\.db: no such file"):
        raise command("stats", "--store", f"sqlite:///{tmp_path}/mistyped.db").exception or OSError
    assert list(tmp_path.iterdir()) == []
    assert "only the process" in str(command("stats", "--store", "memory:").exception)


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
