"""messagebus.broker: addresses and lists, read and written."""

from __future__ import annotations

import dataclasses
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus.broker import LIST_BYTES_MAX, Broker, BrokerList, ListedBroker, parse_port
from messagebus.errors import ListInvalid
from tests.support.lists import broker_lists, list_texts

LISTED = """\
# cluster: prod
# generation: 17
mb1.example:5672

mb2.example agent=99   # the loud one
  [::1]:5673 draining agent=8081
"""

hosts = st.text(string.ascii_letters + string.digits, min_size=1, max_size=20)


def test_a_list_is_read() -> None:
    read = BrokerList.parse(LISTED)
    assert (read.cluster, read.generation) == ("prod", 17)
    assert read.listed == (
        ListedBroker(broker=Broker("mb1.example")),
        ListedBroker(broker=Broker("mb2.example"), agent_port=99),
        ListedBroker(broker=Broker("[::1]", 5673), draining=True),
    )
    assert read.names == {"mb1.example:5672", "mb2.example:5672", "[::1]:5673"}


def test_a_plain_file_of_addresses_is_a_list() -> None:
    read = BrokerList.parse("mb1:5672\nmb2:5672\n")
    assert (read.cluster, read.generation, len(list(read))) == ("", 0, 2)


def test_a_listed_broker_is_found_by_name() -> None:
    read = BrokerList.parse(LISTED)
    assert read.find("mb2.example:5672") is read.listed[1]
    assert read.find("mb2.example") is None


def test_an_agent_has_its_own_port() -> None:
    assert BrokerList.parse(LISTED).listed[1].agent_address == "mb2.example:99"


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("", 0, "no broker in it"),
        ("\n  \n# nobody\n", 0, "no broker in it"),
        ("<html><body>503</body></html>", 1, "not a host name or address"),
        ("mb1\nmb2:0\n", 2, "not a port"),
        ("mb1\nmb2:65536\n", 2, "not a port"),
        ("mb1:0000099999\n", 1, "not a port"),
        ("mb1:\n", 1, "not a port"),
        ("mb1:56\N{FULLWIDTH DIGIT SEVEN}2\n", 1, "not a port"),
        ("mb1:-1\n", 1, "not a port"),
        (":5672\n", 1, "not a host"),
        ("::1\n", 1, "not a host"),
        ("-mb1:5672\n", 1, "not a host"),
        ("mb_ü:5672\n", 1, "not a host"),
        (f"{'x' * 254}:5672\n", 1, "not a host"),
        ("mb1\nmb2 drainin\n", 2, "unknown attribute 'drainin'; allowed: draining, agent=PORT"),
        ("mb1 agent=x\n", 1, "not a port"),
        ("mb1\namqp://u:pw@mb2:5672/\n", 2, "write mb2:5672, not a URL"),
        ("mb1\nmb1:5672\n", 2, "mb1:5672 is listed twice"),
        (
            "\ufeff# generation: 1\nmb1\n",
            1,
            "it begins with a byte order mark: save it without one",
        ),
        ("# generation: x\nmb1\n", 1, "not a generation: 'x'"),
        ("# generation: -1\nmb1\n", 1, "not a generation"),
        ("# generation: 1234567890123456789\nmb1\n", 1, "not a generation"),
        ("# generation: 1\n# generation: 2\nmb1\n", 2, "generation is said twice"),
        ("# cluster: a b\nmb1\n", 1, "not a cluster"),
        ("# cluster:\nmb1\n", 1, "not a cluster"),
    ],
)
def test_any_bad_line_rejects_the_whole_with_its_number(text: str, line: int, told: str) -> None:
    with pytest.raises(ListInvalid) as raised:
        BrokerList.parse(text)
    assert raised.value.line == line
    assert told in str(raised.value)


def test_a_list_beyond_its_bound_is_refused_unread() -> None:
    with pytest.raises(ListInvalid, match=f"more than {LIST_BYTES_MAX} bytes"):
        BrokerList.parse("mb1\n" + "#" * LIST_BYTES_MAX)


@given(broker_lists)
def test_what_is_rendered_is_read_again(listed: BrokerList) -> None:
    assert BrokerList.parse(listed.render()) == listed


@given(list_texts())
def test_comments_and_spaces_say_nothing(text: str) -> None:
    read = BrokerList.parse(text)
    assert BrokerList.parse(read.render()) == read


@given(st.text() | st.text("mb1:567 2#=generation\n\r\t[]draiagents.-", max_size=80))
def test_of_any_text_only_list_invalid_escapes(text: str) -> None:
    try:
        read = BrokerList.parse(text)
    except ListInvalid:
        return
    assert read.listed
    assert len(read.names) == len(read.listed)


@given(st.text(max_size=40))
def test_of_any_address_only_value_error_escapes(text: str) -> None:
    try:
        broker = Broker.parse(text)
    except ValueError:
        return
    assert 1 <= broker.port <= 65_535
    assert Broker.parse(broker.name) == broker


@given(hosts, st.integers(1, 65_535))
def test_an_address_is_read_as_it_is_written(host: str, port: int) -> None:
    assert Broker.parse(f"{host}:{port}") == Broker(host, port)
    assert str(Broker(host, port)) == f"{host}:{port}"
    assert Broker.parse(host) == Broker(host)


@given(st.integers(-10, 70_000))
def test_a_port_is_between_1_and_65535(port: int) -> None:
    if 1 <= port <= 65_535:
        assert parse_port(str(port)) == port
    else:
        with pytest.raises(ValueError, match="not a port"):
            parse_port(str(port))


def test_values_do_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Broker("mb1").port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("amqp://shop:hunter2@mb1", "mb1:5672"),
        ("amqps://shop:hunter2@mb1:7001/shop", "mb1:7001"),
        ("amqps://mb1/", "mb1:5671"),
        ("http://shop:hunter2@mb1:8081", "host:port"),
        ("shop:hunter2@mb1:5672", "host:port"),
        ("amqp://shop:hunter2/@mb1", "host:port"),
    ],
)
def test_a_url_where_a_broker_is_named_is_refused_with_what_to_write(
    text: str, wanted: str
) -> None:
    with pytest.raises(
        ValueError, match=f"^write {wanted}, not a URL: login, vhost and TLS"
    ) as fault:
        Broker.parse(text)
    assert "hunter2" not in f"{fault.value!r}{fault.value.__context__!r}"
