"""Samples of all brokers, and the table of `top`."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from messagebus.__main__ import cli
from messagebus.admin.directory import SubscriptionCount, SubscriptionCounts
from messagebus.config import BusConfig
from messagebus.destination import Queue, Subscription, Topic
from messagebus.errors import ConfigError, ListUnavailable, NameInvalid
from messagebus.observing.ask import Asker
from messagebus.observing.totals import SOURCES
from messagebus.recording.events import SAMPLED
from messagebus.recording.files import EventFile, anchor_now
from messagebus.terminal import folded
from messagebus.tools import top as module
from messagebus.tools import topics
from messagebus.tools.sampler import QueueSampler
from messagebus.topology import Wanted
from tests.support.fleet import Fleet


class Shell:
    def __init__(self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fleet = fleet
        made = functools.partial(Asker, transport=fleet.transport)
        monkeypatch.setattr(module, "Asker", made)

    def top(self, *words: str) -> Result:
        return self.invoke("top", "--once", *words)

    def invoke(self, *words: str) -> Result:
        env = {
            "MESSAGEBUS_LIST_URL": self.fleet.bus.list_urls[0],
            "MESSAGEBUS_USER": "bus",
            "MESSAGEBUS_PASSWORD": "pw",
        }
        return CliRunner().invoke(cli, words, env=env)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(Fleet(3, 50), monkeypatch)


def test_each_broker_and_the_worst_names_have_a_line(shell: Shell) -> None:
    done = shell.top()
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("fleet, generation 1: 3 brokers  ")
    assert lines[1].startswith("rates (IN/s, OUT/s) need two looks")
    for broker in shell.fleet.ports:
        assert [line for line in lines if line.startswith(f"{broker}  ready")]
    assert lines[-1] == "and 10 more: --sort, --filter, --json"


def test_topics_are_listed_as_soon_as_they_are_declared_by_what_agents_know(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def topology(_bus: BusConfig) -> list[Wanted]:
        bare, new = Topic("bare"), Subscription(Topic("new"), "first")
        return [bare, new, Subscription(Topic("topic0"), "sub1"), Queue("jobs")]

    monkeypatch.setattr(topics, "topology", topology)
    done = shell.invoke("topics", "list")
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()[1:]}
    assert list(rows) == ["bare", "new", "queue:jobs", "topic0"]
    # Nobody subscribes to it, so nothing waits. What no broker has shown yet is not known.
    assert rows["bare"] == ["0"]
    assert rows["new"][0] == "1"
    assert rows["topic0"][0] == "1"


def test_a_silent_broker_is_a_question_and_ends_with_3(shell: Shell) -> None:
    silent = next(iter(shell.fleet.ports))
    shell.fleet.answers[silent] = lambda _: httpx.Response(503)
    done = shell.top()
    assert done.exit_code == 3
    assert f"2 of 3 brokers counted, without {silent}" in done.stdout.splitlines()[0]
    assert f"! {silent} is not counted: HTTP 503" in done.stdout.splitlines()
    (line,) = [line for line in done.stdout.splitlines() if line.startswith(silent)]
    assert line.split()[-6:] == ["?"] * 6
    told = json.loads(shell.top("--json").stdout)
    assert told["without"] == {silent: "HTTP 503"}
    assert told["brokers"][silent]["state"] is None


def test_a_broker_that_is_down_is_not_called_a_silent_agent(shell: Shell) -> None:
    down = next(iter(shell.fleet.ports))
    shell.fleet.answers[down] = lambda _: httpx.Response(503, json={"linked": False})
    done = shell.top()
    (line,) = [line for line in done.stdout.splitlines() if line.startswith(down)]
    assert "down: no AMQP link to the broker" in line
    assert "silent" not in line


def test_a_sum_that_lacks_a_broker_is_a_lower_bound(shell: Shell) -> None:
    silent = next(iter(shell.fleet.ports))
    shell.fleet.answers[silent] = lambda _: httpx.Response(503)
    lines = [line for line in shell.top().stdout.splitlines() if line.startswith("topic")]
    assert lines
    for line in lines:
        _, *figures = re.split(r"\s{2,}", line)
        assert all(each == "?" or each.startswith("≥ ") for each in figures), line


def test_when_nobody_answers_nothing_is_0(shell: Shell) -> None:
    shell.fleet.answers = dict.fromkeys(shell.fleet.ports, lambda _: httpx.Response(503))
    done = shell.top("--filter", "topic")
    assert done.exit_code == 3
    assert re.search(r"(?<!\S)0(?!\S)", done.stdout.partition("BROKER")[2]) is None


@pytest.mark.parametrize("sort", [*module.SORTS])
def test_names_are_sorted_and_filtered(shell: Shell, sort: str) -> None:
    lines = shell.top("--sort", sort, "--filter", "topic1/", "--exact").stdout.splitlines()
    names = [line.split()[0] for line in lines if line.startswith("topic")]
    assert sorted(names) == [f"topic1/sub{number}" for number in range(10, 20)]
    if sort == "waiting":
        ready = [int(line.split()[1]) for line in lines if line.startswith("topic")]
        assert ready == sorted(ready, reverse=True)
    if sort == "name":
        assert names == sorted(names)


def test_large_numbers_are_short_unless_they_are_to_be_exact() -> None:
    told = [module._count(count, exact=False) for count in (None, 0, 9_999, 10_000, 12_345_678)]
    assert told == ["?", "0", "9999", "10.0k", "12.3M"]
    assert module._count(12_345_678, exact=True) == "12345678"
    assert [module.oldest(age) for age in (None, 0, 61_000)] == ["?", "-", "1 min 1 s"]


BUS = BusConfig(list_urls=("http://127.0.0.1:1/consumer-list",))
NAMES = ["orders/billing", "queue:jobs"]


def counted(name: str, unacked: int | None = None) -> SubscriptionCount:
    return SubscriptionCount(name=name, broker="mb1", ready=5, consumers=1, unacked=unacked)


def sampled(
    tmp_path: Path, *answers: SubscriptionCounts | Exception
) -> tuple[QueueSampler, list[Any]]:
    """Look once for each answer; return the sampler, and its rows."""
    said: Iterator[SubscriptionCounts | Exception] = iter(answers)

    def count(_bus: BusConfig) -> SubscriptionCounts:
        answer = next(said)
        if isinstance(answer, Exception):
            raise answer
        return answer

    sampler = QueueSampler(tmp_path, BUS, NAMES, run_id="r", count=count)
    path = tmp_path / "sampled-x.ndjson"
    with EventFile(path, anchor_now("x"), clock_ns=lambda: 0) as file:
        for _ in answers:
            sampler.look(file)
    return sampler, [json.loads(line) for line in path.read_text().splitlines()[1:]]


def test_rows_have_the_columns_of_samples_and_the_names_of_recorded_rows(tmp_path: Path) -> None:
    counts = (counted("orders/billing"), counted("queue:jobs", unacked=2), counted("orders/other"))
    sampler, rows = sampled(tmp_path, SubscriptionCounts(counts))
    assert all(set(row) == {column.name for column in SAMPLED} for row in rows)
    assert [(row["topic"], row["subscription"], row["ready"], row["unacked"]) for row in rows] == [
        ("orders", "billing", 5, None),
        ("queue:jobs", "jobs", 5, 2),
    ]
    assert (sampler.stats().written, sampler.stats().missed) == (2, 0)


def test_who_does_not_answer_has_no_row_and_is_counted(tmp_path: Path) -> None:
    some = SubscriptionCounts((counted("orders/billing"),), {"mb2": "timed out"})
    sampler, rows = sampled(tmp_path, ListUnavailable("no list"), some)
    assert [row["broker"] for row in rows] == ["mb1"]
    assert sampler.stats().missed == 2


def test_a_run_is_complete_when_its_sampler_has_ended(tmp_path: Path) -> None:
    answer = SubscriptionCounts((counted("orders/billing"),))
    sampler = QueueSampler(tmp_path / "run", BUS, NAMES, run_id="r", count=lambda _: answer)
    with sampler:
        assert not json.loads((tmp_path / "run" / "manifest.json").read_text())["complete"]
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert (manifest["complete"], manifest["topics"]) == (True, {})
    assert sampler.stats().written == 1


@pytest.mark.parametrize("names", [["orders"], ["orders/delay:5s"]])
def test_what_nobody_reads_from_has_no_depth(tmp_path: Path, names: list[str]) -> None:
    with pytest.raises(NameInvalid):
        QueueSampler(tmp_path, BUS, names, run_id="r")


def test_no_names_are_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one"):
        QueueSampler(tmp_path, BUS, [], run_id="r")


def test_on_a_terminal_of_80_columns_no_line_is_longer_and_a_state_is_whole(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "columns", lambda: 80)
    down = next(iter(shell.fleet.ports))
    shell.fleet.answers[down] = lambda _: httpx.Response(503, json={"linked": False})
    lines = shell.top("--sort", "name").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line.endswith("PARKED")]
    (line,) = [line for line in lines if line.startswith(f"{down}  ")]
    assert "down: no AMQP link to the broker" in line, "the state is whole, before other columns"
    assert f"! {down} is not counted: no AMQP link to the broker" in lines


def test_a_name_without_consumers_has_a_sentence_at_the_first_look(shell: Shell) -> None:
    broker = next(iter(shell.fleet.ports))
    (name, kind), row = next(
        (key, row) for key, row in shell.fleet.rows[broker].items() if key[1] in SOURCES
    )
    for rows in shell.fleet.rows.values():
        rows[name, kind] = replace(row, ready=5, consumers=0)
    lines = shell.top().stdout.splitlines()
    assert [
        line for line in lines if line.startswith(f"! {name} has no consumer; 15 messages wait")
    ]


def test_a_table_leaves_out_columns_before_it_shortens_a_text() -> None:
    titles, row = ("BROKER", "IN/s", "FREE", "VERSION"), ("127.0.0.11:5672", "1.0", "9", "4.0")

    def shown(width: int) -> list[str]:
        lines = module.table(titles, [row], texts=1, width=width, spared=("VERSION", "FREE"))
        return next(iter(lines)).split()

    assert shown(40) == [*titles]
    assert shown(30) == ["BROKER", "IN/s", "FREE"]
    assert shown(22) == ["BROKER", "IN/s"]


def test_a_table_shortens_texts_in_their_middle_and_leaves_numbers_whole() -> None:
    rows = [("warehouse.orders/billing-of-the-north", "12,345"), ("a", "7")]
    assert [*module.table(("NAME", "READY"), rows, texts=1, width=30)] == [
        "NAME                     READY",
        "warehouse.o\N{HORIZONTAL ELLIPSIS}-the-north  12,345",
        "a                            7",
    ]
    whole = [*module.table(("NAME", "READY"), rows, texts=1)]
    assert whole[1] == "warehouse.orders/billing-of-the-north  12,345"


def test_a_sentence_is_folded_at_a_terminal_s_width_and_nowhere_else() -> None:
    told = "! orders/billing has waited for long at 127.0.0.12:5672 and nobody consumes it"
    assert folded(told, 40) == [
        "! orders/billing has waited for long at",
        "  127.0.0.12:5672 and nobody consumes it",
    ]
    assert folded(told, None) == folded(told, 80) == [told]
