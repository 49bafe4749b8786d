"""Commands over made-up answers of agents and brokers: their text, questions and exit codes."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from messagebus import BusConfig, Message, Outcome, Publisher, PublisherConfig, Spool
from messagebus.__main__ import cli
from messagebus.admin import directory, parked, spool
from messagebus.admin.directory import (
    PurgedMessages,
    Registration,
    SubscriptionCount,
    SubscriptionCounts,
)
from messagebus.admin.parked import (
    ParkedCount,
    ParkedCounts,
    ParkedMessage,
    ParkedMessages,
    ParkedMoved,
    ParkedProgress,
)
from messagebus.broker import Broker, BrokerList, ListedBroker
from messagebus.commands.exits import Exit
from messagebus.errors import LinkLost, LoginRefused
from messagebus.stats import Durability
from messagebus.terminal import Progress
from messagebus.tools import parked as parked_command
from messagebus.tools import subscriptions, tail

ONE, TWO = "mb1:5672", "mb2:5672"
LISTED = BrokerList(
    listed=(
        ListedBroker(broker=Broker.parse(ONE)),
        ListedBroker(broker=Broker.parse(TWO), draining=True),
    ),
    generation=7,
    cluster="prod",
)
ENV = {"MESSAGEBUS_LIST_URL": "http://lb:8080/consumer-list", "MESSAGEBUS_BROKER": "lb:5672"}


def run(*words: str, told: str | None = None) -> Result:
    return CliRunner().invoke(cli, [*words], env=ENV, input=told)


@pytest.fixture(autouse=True)
def bus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "brokers", lambda _bus: LISTED)
    monkeypatch.setattr(directory, "reach", lambda _bus: None)


@pytest.fixture
def token(tmp_path: Path) -> tuple[str, str]:
    path = tmp_path / "token"
    path.write_text("secret\n")
    return "--token-file", str(path)


def answers(monkeypatch: pytest.MonkeyPatch, home: object, name: str, answer: object) -> list[Any]:
    """Let a function give this answer. Returns the arguments of its calls."""
    calls: list[Any] = []

    def call(*args: object, **named: object) -> object:
        calls.append((args, named))
        return answer

    monkeypatch.setattr(home, name, call)
    return calls


# Brokers, declare.
def test_brokers_are_shown_with_the_generation_of_their_list() -> None:
    done = run("brokers")
    assert done.exit_code == Exit.DONE
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["cluster", "prod", "generation", "7"],
        [ONE, "listed"],
        [TWO, "draining"],
    ]
    told = json.loads(run("brokers", "--json").stdout)
    assert (told["cluster"], told["generation"]) == ("prod", 7)
    assert [(each["broker"], each["draining"]) for each in told["brokers"]] == [
        (ONE, False),
        (TWO, True),
    ]
    assert told["brokers"][0]["agent"].startswith("http://mb1:")


def test_options_of_declare_go_to_the_names_that_can_have_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = Registration(complete=True, held=(ONE,), later=(TWO,))
    calls = answers(monkeypatch, directory, "declare", held)
    options = ("--partitions", "4", "--delivery-limit", "9", "--unordered")
    done = run("declare", "orders", "orders/billing", "queue:jobs", *options)
    assert done.stdout == (
        "declared orders orders/billing queue:jobs on mb1:5672; "
        "later, before they take publishes: mb2:5672\n"
    )
    topic, billing, jobs = calls[0][0][1]
    assert (topic.partitions, topic.mqtt) == (4, None)
    assert (billing.delivery_limit, billing.ordered) == (9, False)
    assert jobs.delivery_limit == 9
    run("declare", "orders", "--mqtt", "--durability", "page-cache")
    (topic,) = calls[1][0][1]
    assert (topic.mqtt, topic.durability) == (True, Durability.PAGE_CACHE)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("queue:jobs", "--mqtt"), "--mqtt: only a topic has it"),
        (("orders/billing", "--partitions", "4"), "--partitions: only a topic has it"),
        (("orders/billing", "--deflate"), "--deflate: only a topic has it"),
        (("orders", "--ttl", "7d"), "--ttl: only a subscription has it"),
        (("queue:jobs", "--unordered"), "--unordered: only a subscription has it"),
        (("orders", "--delivery-limit", "9"), "only a subscription or a queue has it"),
    ],
)
def test_an_option_of_declare_that_no_name_can_have_is_refused(
    words: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = answers(monkeypatch, directory, "declare", Registration(complete=True, held=(ONE,)))
    refused = run("declare", *words)
    assert (refused.exit_code, calls) == (Exit.USAGE, [])
    assert told in refused.stderr


# Subscriptions.
COUNTS = SubscriptionCounts(
    (
        SubscriptionCount(name="orders/billing", broker=ONE, ready=5, consumers=2, unacked=3),
        SubscriptionCount(name="queue:jobs", broker=ONE, ready=0, consumers=0),
    ),
    unanswered={TWO: "no\nanswer"},
    answered=(ONE,),
)


def test_what_waits_is_listed_and_who_does_not_answer_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers(monkeypatch, directory, "count_subscriptions", COUNTS)
    monkeypatch.setattr(subscriptions, "_ages", lambda _bus: {(ONE, "orders/billing"): "3 min"})
    done = run("subscriptions", "list")
    assert done.exit_code == Exit.PARTLY
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["NAME", "BROKER", "READY", "UNACKED", "CONSUMERS", "OLDEST"],
        ["orders/billing", ONE, "5", "3", "2", "3", "min"],
        ["queue:jobs", ONE, "0", "?", "0", "?"],
    ]
    assert done.stderr == "messagebus: mb2:5672 did not answer: no answer; its counts are missing\n"
    told = json.loads(run("subscriptions", "list", "--json").stdout)
    assert told["unanswered"] == {TWO: "no\nanswer"}
    assert [each["ready"] for each in told["subscriptions"]] == [5, 0]


@pytest.mark.parametrize(
    ("done", "code", "out", "err"),
    [
        (Registration(complete=True, held=(ONE, TWO)), Exit.DONE, "on mb1:5672, mb2:5672", ""),
        (
            Registration(complete=True, held=(ONE,), later=(TWO,)),
            Exit.PARTLY,
            "on mb1:5672",
            "mb2:5672 did not answer: deletes it when it is back",
        ),
        (
            Registration(complete=False, missing={ONE: "away", TWO: "away"}),
            Exit.SILENT,
            "",
            "mb1:5672 did not answer: away",
        ),
    ],
)
def test_who_deletes_a_name_and_when_is_told(
    done: Registration,
    code: Exit,
    out: str,
    err: str,
    token: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = answers(monkeypatch, directory, "delete_subscriptions", done)
    ended = run("subscriptions", "delete", "orders/billing", *token, "--yes")
    assert ended.exit_code == code
    assert out in ended.stdout
    assert err in ended.stderr
    ((_, names), named) = calls[0]
    assert (list(names), named["token"].reveal()) == (["orders/billing"], "secret")
    told = json.loads(
        run("subscriptions", "delete", "orders/billing", *token, "--yes", "--json").stdout
    )
    assert (told["complete"], told["missing"]) == (done.complete, dict(done.missing))


def test_a_topic_is_deleted_by_its_own_command(
    token: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = Registration(complete=True, held=(ONE, TWO))
    calls = answers(monkeypatch, directory, "delete_topics", done)
    ended = run("topics", "delete", "orders", *token, "--yes")
    assert (ended.exit_code, ended.stdout) == (0, f"deleted orders on {ONE}, {TWO}\n")
    ((_, names), named) = calls[0]
    assert (list(names), named["token"].reveal()) == (["orders"], "secret")


@pytest.mark.parametrize("name", ["orders/billing", "queue:orders", "stream:orders"])
def test_only_a_topic_is_deleted_as_one(
    name: str, token: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = run("topics", "delete", name, *token, "--yes")
    assert (ended.exit_code, f"{name}: not a topic" in ended.stderr) == (2, True)


@pytest.mark.parametrize(
    ("dropped", "unanswered", "names", "code"),
    [
        ({ONE: {"a/b": 4}, TWO: {"a/b": 0}}, {}, ["a/b"], Exit.DONE),
        ({ONE: {"a/b": 4}}, {TWO: "away"}, ["a/b"], Exit.PARTLY),
        ({ONE: {"a/b": 4}}, {}, ["a/b", "a/c"], Exit.PARTLY),
        ({ONE: {}}, {}, ["a/c"], Exit.ABSENT),
        ({}, {ONE: "away", TWO: "away"}, ["a/b"], Exit.SILENT),
    ],
)
def test_what_was_purged_is_counted_by_broker(
    dropped: dict[str, dict[str, int]],
    unanswered: dict[str, str],
    names: list[str],
    code: Exit,
    token: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = PurgedMessages(dropped, unanswered)
    answers(monkeypatch, directory, "purge_subscriptions", answer)
    done = run("subscriptions", "purge", *names, *token, "--yes")
    assert done.exit_code == code
    counted = [(count, name, at) for at in sorted(dropped) for name, count in dropped[at].items()]
    assert done.stdout.splitlines() == [f"dropped {c} of {name} on {at}" for c, name, at in counted]
    assert ("no broker has a/c" in done.stderr) == (bool(dropped) and "a/c" in names)
    told = json.loads(run("subscriptions", "purge", *names, *token, "--yes", "--json").stdout)
    assert told == {"dropped": dropped, "unanswered": unanswered}


@pytest.mark.parametrize("text", ["", " \n", None, b"\xff"])
def test_a_token_that_is_none_is_one_line(text: str | bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "token"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    done = run("subscriptions", "purge", "a/b", "--token-file", str(path), "--yes")
    assert done.exit_code == Exit.USAGE
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        "top --once",
        "topics list",
        "trace 5f0c2a9be1d04773a1b20000000000c4",
        "tail orders",
        "parked list",
        "subscriptions list",
        "subscriptions delete orders/billing --yes",
        "subscriptions purge orders/billing --yes",
        "topics delete orders --yes",
        "partitions show orders",
        "partitions move orders 1 --to mb2:5672",
        "partitions spread orders --yes",
    ],
)
def test_a_command_of_agents_says_so_where_there_are_none_before_it_asks_for_a_token(
    words: str,
) -> None:
    alone = {"MESSAGEBUS_BROKER": "lb:5672"}
    done = CliRunner().invoke(cli, words.split(), env=alone)
    assert (done.exit_code, done.stderr.count("\n")) == (Exit.USAGE, 1)
    assert "agents" in done.stderr
    assert "token" not in done.stderr


def test_with_agents_a_token_is_required() -> None:
    done = run("subscriptions", "purge", "a/b", "--yes")
    assert done.exit_code == Exit.USAGE
    assert "Missing option '--token-file' (MESSAGEBUS_TOKEN_FILE)" in done.stderr


# Parked.
PARKED = ParkedCounts(
    (
        ParkedCount(
            name="orders/billing",
            broker=ONE,
            count=3,
            oldest_ms=1,
            reasons={"timeout": 2, "rejected": 1},
        ),
    ),
    looked=(ONE,),
)
AWAY = ParkedCounts((), faults={TWO: "away"}, causes={TWO: LinkLost(TWO, "away")})


def test_where_nothing_is_parked_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, parked, "count_parked", ParkedCounts((), looked=(ONE,)))
    done = run("parked", "list")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "nothing is parked\n")


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (PARKED, Exit.DONE),
        (AWAY, Exit.SILENT),
        (ParkedCounts((), faults={TWO: "away"}, looked=(ONE,)), Exit.PARTLY),
        (ParkedCounts((), faults={"a/b": "nobody knows it"}), Exit.ABSENT),
        (
            ParkedCounts(
                (), faults={ONE: "x"}, causes={ONE: LoginRefused(ONE, "x"), TWO: LinkLost(TWO, "y")}
            ),
            Exit.FAILED,
        ),
    ],
)
def test_places_that_were_not_looked_at_decide_the_exit_code(
    found: ParkedCounts, code: Exit, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, parked, "count_parked", found)
    done = run("parked", "list")
    assert done.exit_code == code
    faults = [line for line in done.stderr.splitlines() if line.startswith("messagebus: ")]
    assert [line.partition(" [")[0] for line in faults] == [
        f"messagebus: {place}: {why}" for place, why in found.faults.items()
    ]
    told = json.loads(run("parked", "list", "--json").stdout)
    assert (len(told["parked"]), told["faults"]) == (len(found.counts), dict(found.faults))


def test_parked_messages_are_shown_for_people_and_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known: dict[str, Any] = {
        "name": "orders/billing", "broker": ONE, "key": "", "reason": "timeout", "exception": "",
        "attempts": 2, "first_ms": None, "parked_ms": None, "redriven": 0, "headers": {},
        "content_type": "", "body_bytes": 2,
    }  # fmt: skip
    messages = (
        ParkedMessage(message_id="m1", body=b"hi", **known),
        ParkedMessage(message_id="m2", body=b"\xff\0", **known),
    )
    answers(monkeypatch, parked, "read_parked", ParkedMessages(messages, looked=(ONE,)))
    done = run("parked", "show", "orders/billing")
    assert done.stdout.count("orders/billing on mb1:5672") == 2
    assert done.stderr == "2 shown\n"
    rows = json.loads(run("parked", "show", "orders/billing", "--json").stdout)["messages"]
    assert [(row["id"], row.get("body"), row.get("body_hex")) for row in rows] == [
        ("m1", "hi", None),
        ("m2", None, "ff00"),
    ]


@pytest.mark.parametrize(
    ("verb", "function", "would", "did"),
    [
        ("redrive", "redrive_parked", "would redrive", "redriven"),
        ("purge", "purge_parked", "would drop", "dropped"),
    ],
)
def test_what_would_move_is_told_before_and_what_moved_after(
    verb: str, function: str, would: str, did: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, parked, "count_parked", PARKED)
    moved = ParkedMoved({("orders/billing", ONE): 3}, looked=(ONE,))
    calls = answers(monkeypatch, parked, function, moved)
    words = ("parked", verb, "orders/billing")
    dry = run(*words, "--dry-run", "--limit", "2")
    assert dry.stdout.splitlines()[-1] == f"{would} 2"
    key = would.replace(" ", "_")
    assert json.loads(run(*words, "--dry-run", "--json").stdout)[key] == 3
    unasked = run(*words)
    assert (unasked.exit_code, calls) == (Exit.USAGE, [])
    assert "no terminal to ask on" in unasked.stderr
    done = run(*words, "--yes", "--limit", "5")
    assert done.stdout == f"{did} 3 of orders/billing on mb1:5672\n{did} 3\n"
    assert calls[0][1]["count_max"] == 5
    told = json.loads(run(*words, "--yes", "--json").stdout)
    assert (told["total"], told[did][0]["count"]) == (3, 3)


@pytest.mark.parametrize("answer", ["y", "n"])
def test_a_person_is_asked_and_sees_how_far_it_is(
    answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, parked, "count_parked", PARKED)
    terminal = SimpleNamespace(isatty=lambda: True)
    person = SimpleNamespace(stdin=terminal, stderr=terminal)
    monkeypatch.setattr(parked_command, "sys", person)
    slow = partial(Progress, clock=itertools.count(0, 6).__next__)  # seconds between two looks
    monkeypatch.setattr(parked_command, "Progress", slow)

    def purge(
        *_: object, on_progress: Callable[[ParkedProgress], None], count_max: int, **__: object
    ) -> Any:
        assert count_max == 3, "what was parked since the question stays"
        on_progress(ParkedProgress(name="orders/billing", broker=ONE, moved=2, total=2))
        raise KeyboardInterrupt

    monkeypatch.setattr(parked, "purge_parked", purge)
    done = run("parked", "purge", "orders/billing", told=f"{answer}\n")
    assert "Drop 3 messages of orders/billing?" in done.stderr
    if answer == "n":
        assert (done.exit_code, "nothing was done" in done.stderr) == (Exit.FAILED, True)
        return
    assert done.exit_code == Exit.INTERRUPTED
    assert "dropped 2 of 3 messages, " in done.stderr
    assert " left: orders/billing on mb1:5672\n" in done.stderr
    assert done.stderr.endswith("messagebus: interrupted: dropped 2\n")


# Spool.
@pytest.fixture
def spooled(tmp_path: Path) -> Path:
    """A spool that a publisher of a bus that is away has left, with two messages."""
    folder = tmp_path / "spool"
    bus = BusConfig(broker="127.0.0.1:1")
    with Publisher(bus, PublisherConfig(), spool=Spool(folder, always=True)) as publisher:
        for number in range(2):
            ended = publisher.send_safe("orders", Message(body=b"hello", message_id=f"m{number}"))
            assert ended.outcome is Outcome.SPOOLED
    return folder


def test_only_chosen_messages_of_a_spool_are_dropped(spooled: Path) -> None:
    path = str(spooled)
    assert run("spool", "drop", path).exit_code == Exit.USAGE
    dry = run("spool", "drop", path, "--id", "m1", "--dry-run")
    assert dry.stderr == "would drop 1 message\n"
    assert run("spool", "drop", path, "--id", "m1", "--yes").stderr == "dropped 1 message\n"
    shown = run("spool", "show", path, "--json").stdout.splitlines()
    assert [json.loads(line)["message_id"] for line in shown] == ["m0"]
    assert run("spool", "drop", path, "--all", "--yes").stderr == "dropped 1 message\n"


def test_a_spool_that_is_in_use_is_left_alone(
    spooled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = spool.SpoolDropped(messages=0, in_use=(spooled / "1",))
    monkeypatch.setattr(spool, "drop_spooled", lambda *_args, **_named: left)
    done = run("spool", "drop", str(spooled), "--all", "--yes")
    assert done.exit_code == Exit.PARTLY
    assert f"{spooled / '1'} is in use" in done.stderr


@pytest.mark.parametrize(
    ("stats", "code"),
    [
        ({"replayed": 2}, Exit.DONE),
        ({"replayed": 1, "spool_messages": 1}, Exit.PARTLY),
        ({"spool_messages": 2, "spool_failures": 1, "broker": ONE}, Exit.PARTLY),
        ({"spool_messages": 2}, Exit.SILENT),
    ],
)
def test_what_a_spool_still_holds_decides_the_exit_code(
    stats: dict[str, Any], code: Exit, spooled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fake:
        def __init__(self, _bus: BusConfig, _config: PublisherConfig, *, spool: Spool) -> None:
            assert Path(spool.path) == spooled

        def __enter__(self) -> Fake:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def flush(self, timeout_s: float) -> None:
            assert timeout_s == 0

        def stats(self) -> SimpleNamespace:
            none = {"replayed": 0, "spool_messages": 0, "spool_failures": 0, "broker": ""}
            return SimpleNamespace(**none | stats)

    monkeypatch.setattr("messagebus.publisher.Publisher", Fake)
    monkeypatch.setattr(time, "sleep", lambda _s: None)
    monkeypatch.setenv("MESSAGEBUS_PUBLISHER_SPOOL", str(spooled))
    monkeypatch.setitem(ENV, "MESSAGEBUS_BROKER", "127.0.0.1:1")
    done = run("spool", "replay", "--timeout-s", "0")
    assert done.exit_code == code
    assert ("refused 1 send" in done.stderr) == ("spool_failures" in stats)
    monkeypatch.setitem(ENV, "MESSAGEBUS_BROKER", "127.0.0.1:2")
    other = run("spool", "replay", "--timeout-s", "0")
    assert other.exit_code in (Exit.PARTLY, Exit.SILENT)
    assert "stays: it is for broker=127.0.0.1:1 vhost=/" in other.stderr


def test_without_a_folder_there_is_no_spool(tmp_path: Path) -> None:
    done = run("spool", "status")
    assert (done.exit_code, "PATH, or MESSAGEBUS_PUBLISHER_SPOOL" in done.stderr) == (2, True)
    missing = run("spool", "status", str(tmp_path / "none"))
    assert (missing.exit_code, "no such folder" in missing.stderr) == (Exit.USAGE, True)


# Tail.
LINES = [
    b'{"id": "a", "key": "k", "body": "one", "headers": {}, "time": 1}',
    b"",
    b'{"missed": 3}',
    b'{"missed": 9}',
    b'{"id": "b", "key": "", "body": "t\\u0007wo", "headers": {}, "time": 2}',
    b'{"ended": "after 15 minutes"}',
]


class Body(httpx.AsyncByteStream):
    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._body


def answer_of(status: int, body: bytes) -> httpx.Response:
    return httpx.Response(status, stream=Body(body))


@pytest.fixture
def tapped(monkeypatch: pytest.MonkeyPatch) -> list[httpx.Response]:
    """Answers of agents, which give LINES while it is empty."""
    given: list[httpx.Response] = []

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/tap"
        return given.pop(0) if given else answer_of(200, b"\n".join(LINES) + b"\n")

    def client(_bus: BusConfig) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(answer))

    monkeypatch.setattr(tail, "http_client", client)
    return given


@pytest.mark.parametrize(
    ("options", "out"),
    [
        ((), ["one", "t\\x07wo"]),
        (("--key", "k"), ["one"]),
        (("--grep", "o.e"), ["one"]),
        (("--count", "1"), ["one"]),
        (("--sample", "0"), []),
    ],
)
def test_new_messages_are_filtered_and_what_is_missing_is_told_once(
    options: tuple[str, ...], out: list[str], tapped: list[httpx.Response]
) -> None:
    done = run("tail", "orders", *options)
    assert done.exit_code == Exit.DONE
    assert done.stdout.splitlines() == out
    assert "tapping mb1:5672, 1 of 2 brokers; --all taps all" in done.stderr, "no draining one"
    if "--count" not in options:
        assert done.stderr.count("some are missing") == 1
        assert "the tap of mb1:5672 ended after 15 minutes" in done.stderr


def test_envelopes_are_printed_as_they_came(tapped: list[httpx.Response]) -> None:
    done = run("tail", "orders", "--ndjson", "--broker", TWO)
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == ["a", "b"]


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (401, b'{"error": "who?"}', Exit.LOGIN),
        (403, b"rubbish", Exit.LOGIN),
        (404, b'{"error": "no topic orders"}', Exit.ABSENT),
        (500, b"[]", Exit.SILENT),
        (200, b"no line\xff\n" + b'{"id":\n', Exit.SILENT),
    ],
)
def test_an_agent_that_does_not_tap_is_one_line_with_its_code(
    status: int, body: bytes, code: Exit, tapped: list[httpx.Response]
) -> None:
    tapped.append(answer_of(status, body))
    done = run("tail", "orders", "--broker", ONE)
    assert (done.exit_code, done.stderr.count("\n")) == (code, 1)


def test_one_agent_that_is_away_does_not_end_the_others(tapped: list[httpx.Response]) -> None:
    tapped.append(answer_of(500, b""))
    done = run("tail", "orders", "--all")
    assert done.exit_code == Exit.DONE
    assert len(done.stdout.splitlines()) == 2
    assert "an agent that cannot tap" in done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("queue:jobs",), Exit.USAGE),
        (("orders", "--all", "--broker", ONE), Exit.USAGE),
        (("orders", "--grep", "("), Exit.USAGE),
        (("orders", "--broker", "mb9:5672"), Exit.ABSENT),
    ],
)
def test_what_cannot_be_tapped_is_one_line(words: tuple[str, ...], code: Exit) -> None:
    done = run("tail", *words)
    assert (done.exit_code, done.stderr.count("\n")) == (code, 1)
