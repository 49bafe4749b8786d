from __future__ import annotations

import io

import pytest
from rich.console import Console

from consumer_lists.nodes import Client, Served
from consumer_lists.show import behind, client_table, differences, node_table, plain
from messagebus.broker import BrokerList

OURS = BrokerList.parse("# cluster: prod\n# generation: 7\nmb1\nmb2\n")


def _served(text: str) -> Served:
    return Served(node="a", served=BrokerList.parse(text))


@pytest.mark.parametrize(
    ("node", "told"),
    [
        (Served(node="a", served=OURS), []),
        (Served(node="a", fault="Connection refused"), ["serves no list: Connection refused"]),
        (
            _served("# cluster: test\n# generation: 6\nmb1 draining\nmb3\n"),
            [
                "generation 6 instead of 7",
                "cluster 'test' instead of 'prod'",
                "lacks mb2:5672",
                "has mb3:5672 too",
                "says 'mb1:5672 draining' instead of 'mb1:5672'",
            ],
        ),
        (_served("# cluster: prod\n# generation: 7\nmb2\nmb1\n"), ["another order"]),
    ],
)
def test_differences_are_told_in_sentences(node: Served, told: list[str]) -> None:
    assert differences(OURS, node) == told


def test_programs_get_nodes_clients_and_who_was_silent() -> None:
    client = Client(id="x", subscription="orders/billing", applied=6, age_s=1.5)
    shown = plain(OURS, [_served("mb1\n")], [client], {"b": "Connection refused"})
    assert shown["generation"] == 7
    assert shown["brokers"][0]["broker"] == "mb1:5672"
    assert shown["brokers"][0]["agent"] == "http://mb1:8081"
    assert shown["nodes"] == [{"name": "a", "generation": 0, "same": False, "fault": ""}]
    assert shown["clients"][0]["applied"] == 6
    assert shown["silent"] == {"b": "Connection refused"}


def test_programs_get_https_addresses_where_agents_speak_tls() -> None:
    shown = plain(OURS, [], [], {}, tls=True)
    assert shown["brokers"][0]["agent"] == "https://mb1:8081"


def test_people_see_who_is_behind() -> None:
    console = Console(width=120, file=io.StringIO(), record=True)
    clients = [Client(id="x", subscription="orders/billing", applied=6, age_s=1.5)]
    console.print(client_table(OURS, clients))
    console.print(node_table(OURS, [Served(node="a", served=OURS), Served(node="b", fault="dead")]))
    shown = console.export_text()
    assert "6 (behind)" in shown
    assert "same" in shown
    assert "dead" in shown


def test_who_is_behind_is_told_in_sentences() -> None:
    late = Client(id="x", subscription="", applied=0, age_s=1.5)
    good = Client(id="y", subscription="orders/billing", applied=7, age_s=1)
    assert behind(OURS, [late, good]) == [
        "client x of no subscription: applied 0 instead of 7, heard of 2 s ago"
    ]


def test_ten_thousand_clients_fit_a_screen() -> None:
    clients = [
        Client(id=f"c{number}", subscription="orders/billing", applied=7 - (number < 2), age_s=1)
        for number in range(10_000)
    ]
    table = client_table(OURS, clients)
    assert table.row_count == 2
    console = Console(width=160, file=io.StringIO(), record=True)
    console.print(table)
    shown = console.export_text()
    assert "c0 (1 s ago), c1 (1 s ago)" in shown
    assert "c4 (1 s ago) and 9995 more" in shown


@pytest.mark.parametrize(
    "text", ["boom[/x]", "[red]x", "x\x1b]0;title\x07\x1b[2J", "a\nb", "\x9b2J"]
)
def test_what_a_client_calls_itself_is_shown_as_it_is(text: str) -> None:
    client = Client(id=text, subscription=text, applied=7, age_s=1)
    out = io.StringIO()
    console = Console(file=out, width=160)
    console.print(client_table(OURS, [client]))
    console.print(node_table(OURS, [Served(node=text, fault=text)]))
    shown = text.encode("unicode_escape").decode()
    assert out.getvalue().count(shown) == 4
    assert out.getvalue().replace("\n", "").isprintable()
