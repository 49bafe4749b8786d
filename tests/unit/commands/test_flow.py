"""`messagebus publish`: its options, and the refusals before anything is sent. `consume`: its notices."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
from click.testing import CliRunner, Result

from messagebus import BusConfig, Destination, Durability, Message, Outcome
from messagebus.__main__ import cli
from messagebus.admin import SubscriptionCount, SubscriptionCounts, directory
from messagebus.commands import flow
from messagebus.commands.exits import Exit
from messagebus.errors import MessageInvalid, NameInvalid


class Sent(list[tuple[str, Message, Mapping[str, Any]]]):
    """Stands for `flow.Sending`, and keeps what it is given."""

    ends: ClassVar[Counter[Outcome]] = Counter()

    def __call__(self, rate_per_s: float | None) -> Self:
        self.rate_per_s = rate_per_s
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def send(self, to: Destination, message: Message, options: Mapping[str, Any]) -> None:
        self.destination = to
        self.append((str(to), message, options))

    def report_ends(self) -> Exit:
        return Exit.DONE


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    made = Sent()
    monkeypatch.setattr(flow, "Sending", made)
    return made


def publish(*words: str, given: bytes = b"hello") -> Result:
    return CliRunner().invoke(cli, ["publish", *words], input=given, catch_exceptions=True)


def test_options_become_those_of_the_message(sent: Sent) -> None:
    words = ["--key", "k", "--type", "t", "--id", "mine", "--delay", "90s", "--ttl", "2h"]
    words += ["--priority", "3", "--redundant", "--header", "a=1", "--header", "b=x=y"]
    assert publish("orders", "-", *words, "--rate", "50").exit_code == Exit.DONE
    [(to, message, options)] = sent
    assert (to, message.body, sent.rate_per_s) == ("orders", b"hello", 50)
    assert options == {
        **{"key": "k", "type": "t", "message_id": "mine", "deliver_after_s": 90.0},
        **{"ttl_s": 7_200.0, "priority": 3, "redundant": True, "headers": {"a": "1", "b": "x=y"}},
    }


def test_a_time_is_this_hosts_unless_it_says_otherwise(sent: Sent) -> None:
    for said in ("2030-01-31T08:00", "2030-01-31T08:00+00:00"):
        publish("queue:jobs", "-", "--at", said, "--durability", "none")
        assert sent[-1][2]["deliver_at"] == datetime.fromisoformat(said).astimezone()
    assert sent.destination.durability is Durability.NONE


@pytest.mark.parametrize(
    ("name", "words", "content_type"),
    [
        ("order.json", [], "application/json"),
        ("order", [], "application/octet-stream"),
        ("order.json", ["--lines"], "text/plain"),
        ("order.txt", ["--ndjson"], "application/json"),
        ("order.txt", ["--content-type", "text/x"], "text/x"),
    ],
)
def test_a_content_type_is_that_of_the_suffix_unless_it_is_said(
    sent: Sent, tmp_path: Path, name: str, words: list[str], content_type: str
) -> None:
    (tmp_path / name).write_bytes(b"{}\n\n{}\n")
    publish("orders", str(tmp_path / name), *words)
    assert {message.content_type for _, message, _ in sent} == {content_type}
    assert len(sent) == (3 if "--lines" in words else 2 if "--ndjson" in words else 1)


def test_what_is_said_goes_before_what_an_envelope_says(sent: Sent) -> None:
    envelope = {"body": "x", "id": "mine", "delay_s": 60, "headers": {"a": "old", "c": "kept"}}
    given = json.dumps(envelope).encode()
    publish("orders", "-", "--envelope", given=given)
    words = ["--new-ids", "--delay", "5s", "--header", "a=new", "--content-type", "text/x"]
    publish("orders", "-", "--envelope", *words, given=given)
    (_, old, kept), (_, new, said) = sent
    assert (old.message_id, kept) == ("mine", {"deliver_after_s": 60})
    assert said == {"message_id": "", "deliver_after_s": 5, "headers": {"a": "new", "c": "kept"}}
    assert new.content_type == "text/x"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--id", "x", "--lines"], "--id is for a single message, not for --lines"),
        (["--new-ids"], "--new-ids is for --envelope"),
        (["--delay", "5s", "--at", "2030-01-31"], "--delay or --at, not both"),
        (["--at", "soon"], "--at 'soon': a time wanted, such as 2030-01-31T08:00"),
        (["--at", "0001-01-01"], "--at '0001-01-01': a time wanted"),
        (["--header", "shop"], "--header 'shop': NAME=VALUE wanted"),
        (["--header", "=12"], "--header '=12': NAME=VALUE wanted"),
        (["--priority", "10"], "10 is not in the range 0<=x<=9"),
        (["--rate", "nan"], "nan: a number below 1,000,000,000 wanted"),
    ],
)
def test_bad_options_are_refused_before_anything_is_sent(
    sent: Sent, words: list[str], told: str
) -> None:
    done = publish("orders", "-", *words)
    assert done.exit_code == Exit.USAGE
    assert told in done.stderr
    assert not sent


def test_a_bad_line_is_named_and_those_before_it_are_sent(sent: Sent) -> None:
    done = publish("orders", "-", "--ndjson", given=b"1\n\nnonsense\n2\n")
    assert isinstance(done.exception, SystemExit | MessageInvalid)
    assert "line 3: not JSON" in f"{done.stderr}{done.exception}"
    assert [message.body for _, message, _ in sent] == [b"1"]


THERE = SubscriptionCount(name="orders/billing", broker="mb1:5672", ready=5, consumers=0)


@pytest.mark.parametrize(
    ("counted", "is_told"),
    [
        (SubscriptionCounts((), answered=("mb1:5672",)), True),
        (SubscriptionCounts((THERE,), answered=("mb1:5672",)), False),
        (SubscriptionCounts((), {"mb2:5672": "no answer"}, ("mb1:5672",)), False),
        (SubscriptionCounts((), {"mb1:5672": "no answer"}), False),
    ],
)
def test_a_source_is_called_new_only_where_every_broker_has_answered(
    counted: SubscriptionCounts,
    is_told: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(directory, "count_subscriptions", lambda _bus: counted)
    bus = BusConfig(list_urls=("http://mb:8081/consumer-list",))
    flow._tell_what_is_there(bus, "orders/billing", "orders", ask=True)
    assert ("orders/billing did not exist" in capsys.readouterr().err) == is_told


@pytest.mark.parametrize("words", [["orders/billing"], ["orders", "-s", "billing"]])
@pytest.mark.parametrize("command", [["consume"], ["to-file"], ["to-http"]])
def test_a_subscription_is_named_in_one_word_or_in_two(
    command: list[str], words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[tuple[str, str]] = []

    def consumer(_bus: object, topic: object, *, subscription: str, **_: object) -> None:
        made.append((str(topic), subscription))
        raise NameInvalid("seen")

    for module in ("commands.flow", "tools.archive"):
        monkeypatch.setattr(f"messagebus.{module}.Consumer", consumer)
    monkeypatch.setattr("messagebus.tools.webhook.AsyncConsumer", consumer)
    more = {"to-file": [str(tmp_path)], "to-http": ["http://localhost/"]}.get(command[0], [])
    CliRunner().invoke(cli, [*command, words[0], *more, *words[1:]])
    assert made == [("orders", "billing")]


def test_where_a_topic_is_wanted_a_subscription_is_answered_with_its_topic(sent: Sent) -> None:
    told = publish("orders/billing", "-").output
    assert "'orders/billing' is a subscription, and a topic is wanted: 'orders'" in told


def test_a_body_in_place_of_its_file_is_answered_with_what_is_wanted(sent: Sent) -> None:
    told = publish("orders", '{"number": 17}').output
    assert "; FILE is the path of a file, or - for standard input" in told
