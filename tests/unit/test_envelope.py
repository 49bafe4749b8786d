"""The envelope: what is written is read again, whatever the message, and nothing else is."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from messagebus import Message, MessageInvalid
from messagebus.core.headers import OF_BROKERS
from messagebus.destination import parse_destination
from messagebus.envelope import Layout, as_envelope, delivered, read_envelope, write_envelope
from messagebus.message import TTL_S_MAX
from messagebus.testing import MemoryBus

SHORT = st.text(max_size=40)
NAMES = st.text(min_size=1, max_size=20).filter(
    lambda name: not name.startswith(("mb-", "x-")) and name not in OF_BROKERS
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["base64", "time", "decimal", "object", "a"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)
MESSAGES = st.builds(
    Message,
    body=st.binary(max_size=200) | st.text(max_size=100).map(str.encode),
    content_type=SHORT,
    message_id=st.text(min_size=1, max_size=40),
    headers=st.dictionaries(NAMES, VALUES, max_size=4),
    key=SHORT,
    priority=st.none() | st.integers(0, 9),
    correlation_id=SHORT,
    reply_to=SHORT,
    type=SHORT,
    # None expires while the test runs.
    ttl_s=st.none() | st.integers(600_000, int(TTL_S_MAX * 1000)).map(lambda ms: ms / 1000),
)


def line_of(message: Message, **more: Any) -> bytes:
    return write_envelope(as_envelope(message, destination="orders", time_ms=1, **more))


@given(MESSAGES)
@example(Message(body=b"\x7f", message_id="1"))
def test_a_message_that_was_written_is_read_again(message: Message) -> None:
    line = line_of(message, received={"broker": "mb1:5672"})
    read = read_envelope(line)
    assert (read.message, read.destination, read.delay_s) == (message, "orders", None)
    assert line.decode().isprintable()


@settings(max_examples=25, deadline=None)
@given(st.lists(MESSAGES, min_size=1, max_size=5, unique_by=lambda each: each.message_id))
def test_consumed_published_and_consumed_again_a_message_is_the_same(sent: list[Message]) -> None:
    bus = MemoryBus()
    seen: list[list[dict[str, Any]]] = []
    messages = sent
    for topic in ("first", "second"):
        told = []
        with bus.consumer(topic, subscription="all") as consumer, bus.publisher() as publisher:
            for message in messages:
                publisher.send_safe(parse_destination(topic), message)
            for _ in messages:
                delivery = consumer.receive(timeout_s=5)
                assert delivery is not None
                told.append(delivered(delivery))
                consumer.ack(delivery)
        lines = [write_envelope(each) for each in told]
        messages = [read_envelope(line).message for line in lines]
        kept = {"received", "time_ms", "destination"}
        seen.append([{k: v for k, v in each.items() if k not in kept} for each in told])
    assert seen[0] == seen[1]
    assert messages == sent


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("nonsense", "not JSON"),
        ("[]", "no envelope: a JSON object"),
        ('{"body": "x", "headrs": {}}', "unknown field 'headrs'; did you mean 'headers'?"),
        ("{}", "body or body_base64"),
        ('{"body": "x", "body_base64": ""}', "body or body_base64"),
        ('{"body": 1}', "body: a text wanted, not int"),
        ('{"body_base64": "*"}', "body_base64: "),
        ('{"body_base64": "é"}', "body_base64: "),
        ('{"body": "\\ud800"}', "body: "),
        ('{"body": "x", "body": "y"}', "names one thing twice"),
        ('{"body": "x", "ttl_s": -1}', "ttl_s: seconds"),
        ('{"body": "x", "delay_s": true}', "delay_s: seconds"),
        ('{"body": "x", "delay_s": NaN}', "NaN is no number"),
        ('{"body": "x", "headers": []}', "headers: a JSON object"),
        ('{"body": "x", "headers": {"a": {"base64": "*"}}}', "a header that is no base64"),
        ('{"body": "x", "headers": {"a": {"time": "1999-01-01"}}}', "datetime"),
        ('{"body": "x", "headers": {"mb-a": 1}}', "belongs to the library"),
        ('{"body": "x", "destination": 1}', "destination: a text"),
        ('{"body": "x", "priority": 10}', "priority"),
        ('{"body": "x", "id": 7}', "message_id is int"),
        ("[" * 100_000, "nested too deep"),
    ],
    ids=range(21),
)
def test_a_line_that_is_no_envelope_is_refused_by_its_field(line: str, told: str) -> None:
    with pytest.raises(MessageInvalid, match=re.escape(told)):
        read_envelope(line.encode())


@given(st.binary(max_size=100))
def test_no_bytes_make_it_fail_otherwise(line: bytes) -> None:
    with contextlib.suppress(MessageInvalid):
        read_envelope(line)


TOLD = {
    "id": "m1",
    "time_ms": 0,
    "body": json.dumps({"a": [{"b": "deep"}], "n": 1.5}),
    "headers": {"shop": 12},
    "received": {"broker": "mb1:5672"},
}


@pytest.mark.parametrize(
    ("layout", "line"),
    [
        ("{id} {broker}", "m1 mb1:5672"),
        ("{header[shop]}|{header[none]}|{key}", "12||"),
        ("{json[a][0][b]:.2} {json[n]} {json[a][7]}", "de 1.5 "),
        ("{body_base64}{body:.1}", "{"),
        ("\x1b{id}", "\\x1bm1"),
    ],
)
def test_a_layout_shows_fields_and_nothing_else(layout: str, line: str) -> None:
    assert Layout(layout).line(TOLD) == line


@pytest.mark.parametrize("time_ms", [10**18, -(10**17), 2**63 * 1_000])
def test_a_time_that_no_calendar_has_is_empty(time_ms: int) -> None:
    assert Layout("{time}|{id}").line(TOLD | {"time_ms": time_ms}) == f"|{TOLD['id']}"


@pytest.mark.parametrize("step", ["-1", "2", "\u00b2", "9" * 5_000, "x"])
def test_a_place_that_a_list_does_not_have_is_empty(step: str) -> None:
    assert Layout(f"{{json[{step}]}}").line(TOLD | {"body": "[0, 1]"}) == ""


@pytest.mark.parametrize("layout", ["{boody}", "{id.__class__}", "{id", "{0}", "{id!r}"])
def test_a_layout_with_an_unknown_place_is_refused(layout: str) -> None:
    with pytest.raises(ValueError, match=r"no field|a brace"):
        Layout(layout)
