"""clients.conform: its lies are lies, its bodies and tables are those of the library."""

from __future__ import annotations

import urllib.request
from types import SimpleNamespace
from typing import Any, cast

import pika
import pytest

from clients.conform.cases import CASES, COPIED, MUST, SHOULD, TYPES
from clients.conform.cli import conform
from clients.conform.lies import LIES, lie
from clients.conform.lists import ListServer
from clients.conform.witness import BATCH_TYPE, batch_of, body_of
from messagebus._io.amqp.batch import BATCH_TYPE as OUR_BATCH_TYPE
from messagebus._io.amqp.batch import decode_batch
from messagebus._io.amqp.header_table import read_table
from messagebus.broker import WIRE_VERSION, BrokerList
from messagebus.core.membership import Judgement, ListKeeper
from messagebus.errors import ListInvalid

GENERATION = 17


def text(generation: int, lines: list[str]) -> bytes:
    head = [f"# cluster: conform\n# generation: {generation}"]
    return "\n".join([*head, *lines, ""]).encode()


STAGE = cast(
    Any,
    SimpleNamespace(
        lists=SimpleNamespace(generation=GENERATION, cluster="conform", text=text),
        line=lambda broker: f"127.0.0.1:{6000 + broker} agent=8081",
    ),
)


def test_there_are_22_cases_with_names_and_levels() -> None:
    assert [case.number for case in CASES] == list(range(1, 23))
    assert len({case.name for case in CASES}) == 22
    assert {case.level for case in CASES} <= {MUST, SHOULD}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_refused_by_our_own_reader(name: str) -> None:
    told = lie(name, STAGE)
    if told.status != 200 or told.length is not None:
        return
    keeper = ListKeeper(cluster="conform", generation=GENERATION)
    try:
        read = BrokerList.parse(told.body.decode())
    except (ListInvalid, UnicodeDecodeError):
        return
    judged, _ = keeper.judge(generation=read.generation, cluster=read.cluster, hosts=[], now_ms=0)
    assert judged is Judgement.REFUSED


def test_a_list_without_its_lie_would_be_believed() -> None:
    good = text(GENERATION + 1, [STAGE.line(1), STAGE.line(2)])
    assert BrokerList.parse(good.decode()).generation == GENERATION + 1
    assert len(LIES) == 26


def test_the_kits_list_server_sends_the_headers_of_an_agent() -> None:
    lists = ListServer("127.0.0.1:1", "conform")
    try:
        generation = lists.serve([STAGE.line(1)])
        with urllib.request.urlopen(lists.url) as answer:
            sent = dict(answer.headers)
    finally:
        lists.close()
    wanted = {"MB-Wire": WIRE_VERSION, "MB-Cluster": "conform", "MB-Generation": str(generation)}
    assert wanted.items() <= sent.items()


def test_the_kits_batches_are_batches() -> None:
    assert BATCH_TYPE == OUR_BATCH_TYPE
    entries = [(pika.BasicProperties(message_id="a"), b"one"), (pika.BasicProperties(), b"")]
    assert [body for _, body in decode_batch(batch_of(entries))] == [b"one", b""]


@pytest.mark.parametrize("name", [*TYPES, *COPIED])
def test_the_kits_header_values_read_as_it_expects(name: str) -> None:
    value, raw = (TYPES | COPIED)[name]
    row = b"\1k" + raw
    assert read_table(len(row).to_bytes(4, "big") + row, 0) == ({"k": value}, 4 + len(row))


def test_a_body_is_its_id_as_often_as_it_takes() -> None:
    assert [body_of("ab"), body_of("ab", 5)] == [b"ab", b"ababa"]


def test_the_words_behind_the_dashes_are_the_clients() -> None:
    context = conform.make_context("conform", ["--case", "3", "--", "client", "--json"])
    assert context.params["command"] == ("client", "--json")
    assert (context.params["cases"], context.params["as_json"]) == ((3,), False)
