"""The command `messagebus` as a shell user sees it, on a real cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from messagebus import Message, Publisher
from messagebus.envelope import read_envelope
from ops.local.cluster import LocalCluster
from tests.support.faults import bus_config

WITHIN_S = 60


class Shell:
    """Runner of `messagebus ...` against one cluster."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.env = {**os.environ, **cluster.client_env()}

    def run(
        self, *words: str, given: bytes = b"", env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "messagebus", *words],
            input=given,
            capture_output=True,
            timeout=WITHIN_S,
            env={**self.env, **(env or {})},
            check=False,
        )

    def begin(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "messagebus", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.env,
        )


@pytest.fixture(scope="module")
def shell(cluster: LocalCluster) -> Shell:
    return Shell(cluster)


def one_line(told: bytes) -> bool:
    return told.count(b"\n") == 1 and b"Traceback" not in told


def test_lines_published_from_a_pipe_come_out_of_a_pipe_once_each(shell: Shell) -> None:
    assert shell.run("declare", "pipes", "pipes/all").returncode == 0
    lines = b"".join(b"line %d\n" % number for number in range(500))
    published = shell.run("publish", "pipes", "-", "--lines", given=lines)
    assert (published.returncode, published.stderr) == (0, b"published 500: confirmed 500\n")
    consumed = shell.run("consume", "pipes", "--subscription", "all", "--count", "500")
    assert consumed.returncode == 0
    assert sorted(consumed.stdout.splitlines()) == sorted(lines.splitlines())


def test_a_whole_file_is_one_message_and_its_line_ends_are_escaped(
    shell: Shell, tmp_path: Path
) -> None:
    shell.run("declare", "files/all")
    (tmp_path / "order").write_bytes(b"a\nb\n")
    assert shell.run("publish", "files", str(tmp_path / "order")).returncode == 0
    consumed = shell.run("consume", "files", "-s", "all", "--count", "1")
    assert consumed.stdout == b"a\\nb\\n\n"


def test_ndjson_keeps_every_byte_and_says_which_broker(shell: Shell) -> None:
    shell.run("declare", "json/all")
    shell.run("publish", "json", "-", "--ndjson", "--key", "k", given=b'{"a": "\\n"}\n')
    consumed = shell.run("consume", "json", "-s", "all", "--count", "1", "--ndjson")
    told = json.loads(consumed.stdout)
    assert (told["body"], told["key"]) == ('{"a": "\\n"}', "k")
    assert told["received"]["broker"].count(":") == 1
    assert told["received"]["from"] == "json/all"


def test_what_is_consumed_can_be_published_and_consumed_again(
    shell: Shell, cluster: LocalCluster
) -> None:
    """All but where and when it was received stays, of texts, bytes and headers of every kind."""
    shell.run("declare", "first/all", "second/all")
    headers: dict[str, Any] = {
        "n": 1,
        "b": b"\xff",
        "nested": {"base64": "no bytes"},
        "list": [None, True, "\u202e"],
    }
    sent = [
        Message(body=b"\xff\x00", headers=headers, key="k", priority=3, ttl_s=90.001),
        Message.text("a\nb\x9b", type="t", correlation_id="c", reply_to="r"),
        Message(body=b"", content_type="", message_id="mine"),
    ]
    with Publisher(bus_config(cluster)) as publisher:
        for message in sent:
            publisher.send_safe("first", message)
    printed = shell.run("consume", "first", "-s", "all", "--count", "3", "--ndjson").stdout
    assert shell.run("publish", "second", "-", "--envelope", given=printed).returncode == 0
    again = shell.run("consume", "second", "-s", "all", "--count", "3", "--ndjson").stdout
    first, second = (
        {str(each.message): each for each in map(read_envelope, told.splitlines())}
        for told in (printed, again)
    )
    assert first.keys() == second.keys()
    assert {each.message.body for each in second.values()} == {each.body for each in sent}


def test_a_list_address_that_has_no_list_is_named_at_once(
    shell: Shell, cluster: LocalCluster
) -> None:
    nowhere = cluster.list_url.replace("consumer-list", "nothing")
    env = {"MESSAGEBUS_LIST_URL": nowhere}
    consumed = shell.run("consume", "orders", "-s", "x", env=env)
    assert (consumed.returncode, one_line(consumed.stderr)) == (6, True)
    assert f"{nowhere}: HTTP 404".encode() in consumed.stderr
    other = {"MESSAGEBUS_LIST_URL": cluster.list_url.replace("consumer-list", "topology")}
    told = shell.run("brokers", env=other)
    assert (told.returncode, one_line(told.stderr)) == (1, True)
    assert other["MESSAGEBUS_LIST_URL"].encode() in told.stderr


def test_a_file_is_published_as_what_its_suffix_says_or_who_publishes_it(
    shell: Shell, tmp_path: Path
) -> None:
    shell.run("declare", "types/all")
    (tmp_path / "order.json").write_bytes(b"{}")
    shell.run("publish", "types", str(tmp_path / "order.json"))
    shell.run("publish", "types", "-", given=b"x")
    shell.run("publish", "types", "-", "--content-type", "text/csv", given=b"x")
    consumed = shell.run("consume", "types", "-s", "all", "--count", "3", "--ndjson").stdout
    told = {json.loads(line)["content_type"] for line in consumed.splitlines()}
    assert told == {"application/json", "application/octet-stream", "text/csv"}


def test_an_unknown_topic_is_told_with_the_nearest_one(shell: Shell) -> None:
    shell.run("declare", "nearby/all")
    done = shell.run("publish", "naerby", "-", given=b"x")
    assert done.returncode == 4
    assert done.stderr.splitlines()[1] == b"messagebus: did you mean nearby?"


def test_a_terminal_gets_escapes(shell: Shell) -> None:
    shell.run("declare", "screens/all")
    shell.run("publish", "screens", "-", given=b"a\x1b[2Jb")
    ours, theirs = os.openpty()
    try:
        words = ("consume", "screens", "-s", "all", "--count", "1")
        command = [sys.executable, "-m", "messagebus", *words]
        subprocess.run(command, stdout=theirs, env=shell.env, timeout=WITHIN_S, check=True)
        assert os.read(ours, 100) == b"a\\x1b[2Jb\r\n"
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_line_that_is_not_json_stops_with_its_number_and_the_ends_of_those_before(
    shell: Shell,
) -> None:
    shell.run("declare", "badjson/all")
    done = shell.run("publish", "badjson", "-", "--ndjson", given=b'{"a":1}\nnonsense\n')
    assert done.returncode == 2
    published, fault = done.stderr.splitlines()
    assert published == b"published 1: confirmed 1"
    assert fault.startswith(b"messagebus: line 2: not JSON")


@pytest.mark.parametrize("nowhere", ["nobody-listens", "queue:remniders"])
def test_an_unroutable_message_is_told_and_fails(shell: Shell, nowhere: str) -> None:
    done = shell.run("publish", nowhere, "-", given=b"x")
    assert done.returncode == 4
    assert b"unroutable" in done.stderr


NOBODY = {"MESSAGEBUS_LIST_URL": "http://127.0.0.1:9/consumer-list"}


@pytest.mark.parametrize(
    ("words", "env", "code"),
    [
        (["consume", "orders"], {}, 2),
        (["publish", "a b", "-"], {}, 2),
        (["publish", "orders", "/no/such/file"], {}, 2),
        (["nonsense"], {}, 2),
        (["brokers"], {"MESSAGEBUS_USR": "x"}, 2),
        (["brokers"], NOBODY, 6),
        (["publish", "orders", "-"], {"MESSAGEBUS_BROKER": "127.0.0.1:9"}, 6),
        (["publish", "orders", "-"], NOBODY, 6),
        (["consume", "orders", "-s", "x"], NOBODY, 6),
        (["consume", "orders", "-s", "x", "--idle-exit-s", "1"], NOBODY, 6),
        (["declare", "orders", "--timeout-s", "1"], NOBODY, 6),
        (["subscriptions", "list"], NOBODY, 6),
        (["parked", "list"], NOBODY, 6),
        (["declare", "orders"], {"MESSAGEBUS_PASSWORD_FILE": "/no/such/file"}, 2),
        (["agent", "--config", "/no/such/file"], {}, 2),
    ],
)
def test_every_mistake_is_one_line_without_a_traceback(
    shell: Shell, words: list[str], env: dict[str, str], code: int
) -> None:
    done = shell.run(*words, env=env)
    assert (done.returncode, one_line(done.stderr)) == (code, True), done.stderr


def test_a_wrong_password_is_told_at_once(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("wrong-password")
    env = {"MESSAGEBUS_PASSWORD_FILE": str(tmp_path / "password")}
    for words in (["publish", "orders", "-"], ["consume", "orders", "-s", "x", "--count", "1"]):
        done = shell.run(*words, env=env)
        assert (done.returncode, one_line(done.stderr)) == (5, True), done.stderr
        assert b"refused" in done.stderr
        assert b"wrong-password" not in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_waiting_consumer_with_one_line_and_its_code(
    shell: Shell, number: signal.Signals, code: int
) -> None:
    shell.run("declare", "idle/all")
    consumer = shell.begin("-v", "consume", "idle", "--subscription", "all")
    assert consumer.stderr is not None
    assert any(b"attached" in line for line in iter(consumer.stderr.readline, b""))
    consumer.send_signal(number)
    rest = consumer.communicate(timeout=WITHIN_S)[1]
    assert consumer.returncode == code
    assert b"Traceback" not in rest


def test_what_is_not_printed_is_not_acked(shell: Shell) -> None:
    """A reader that goes away loses nothing: messages that it did not read come again."""
    shell.run("declare", "heads/all")
    shell.run("publish", "heads", "-", "--lines", given=b"".join(b"%05d\n" % n for n in range(50)))
    first = shell.run("consume", "heads", "-s", "all", "--count", "5").stdout.splitlines()
    rest = shell.run("consume", "heads", "-s", "all", "--idle-exit-s", "2").stdout.splitlines()
    assert len(first) == 5
    assert sorted({*first, *rest}) == [b"%05d" % n for n in range(50)]
