"""CloudEvents, with the official library as the oracle."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cloudevents.core.bindings.http import (
    HTTPMessage,
    from_structured,
    to_binary,
    to_structured,
)
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from messagebus import Delivery, Message, MessageInvalid, Receipt, parse_destination
from messagebus.destination import Subscription, Topic
from messagebus_integrations import cloudevents

texts = st.text(
    st.characters(min_codepoint=0x20, exclude_categories=("Cs", "Cn", "Cc")),
    min_size=1,
    max_size=30,
)
attributes = st.fixed_dictionaries(
    {"id": texts, "type": texts, "source": st.just("/shop")},
    optional={"subject": texts, "myext": texts},
)
data = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), min_size=1)


def event(given_attributes: dict[str, Any], body: Any) -> CloudEvent:
    found = {"specversion": "1.0", "datacontenttype": "application/json"} | given_attributes
    return CloudEvent(found, body)


def delivered(message: Message) -> Delivery:
    source = Subscription(Topic("orders"), "billing")
    assert parse_destination("orders") == source.topic
    return Delivery(message, Receipt("mb1:5672", 1, 1), source)


def plain(found: Any) -> dict[str, Any]:
    return {k: v for k, v in found.get_attributes().items() if v is not None}


@given(attributes, data)
def test_what_the_official_library_writes_comes_back_as_the_same_event(
    named: dict[str, str], body: dict[str, Any]
) -> None:
    sent = event(named, body)
    binary = to_binary(sent, JSONFormat())
    headers = [(name.lower(), value) for name, value in binary.headers.items()]
    kind = dict(headers)["content-type"]
    for message in (
        cloudevents.of_headers(headers, bytes(binary.body), kind),
        cloudevents.of_json(json.loads(to_structured(sent, JSONFormat()).body)),
    ):
        back = json.dumps(cloudevents.as_event(delivered(message))).encode()
        read = from_structured(
            HTTPMessage({"content-type": cloudevents.STRUCTURED}, back), JSONFormat()
        )
        assert plain(read) == plain(sent)
        assert read.get_data() == body


def test_the_id_is_the_messages_where_it_may_be_one() -> None:
    good = cloudevents.of_json(
        {"specversion": "1.0", "id": "a-1", "type": "t", "source": "/s", "partitionkey": "c7"}
    )
    assert (good.message_id, good.key) == ("a-1", "c7")
    assert "cloudEvents_id" not in good.headers
    other = cloudevents.of_json({"specversion": "1.0", "id": "ä 1", "type": "t", "source": "/s"})
    assert (other.message_id, other.headers["cloudEvents_id"]) == ("", "ä 1")


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"specversion": "0.3", "id": "1", "type": "t", "source": "s"},
        {"specversion": "1.0", "id": "", "type": "t", "source": "s"},
        {"specversion": "1.0", "id": "1", "type": "t", "source": "s", "Upper": "x"},
        {"specversion": "1.0", "id": "1", "type": "t", "source": "s", "ext": {}},
        {"specversion": "1.0", "id": "1", "type": "t", "source": "s", "ext": 1 << 40},
        {"specversion": "1.0", "id": "1", "type": "t", "source": "s", "data_base64": "?"},
        {"specversion": "1.0", "id": "1", "type": "t", "source": "s", "datacontenttype": 1},
        [],
        "x",
    ],
)
def test_what_is_no_event_is_refused(wrong: Any) -> None:
    with pytest.raises(MessageInvalid):
        cloudevents.of_json(wrong)


def test_a_message_that_was_no_event_becomes_one() -> None:
    found = cloudevents.as_event(delivered(Message(body=b"\xff", message_id="7", key="k")))
    assert found["source"] == "/orders/billing"
    assert (found["id"], found["partitionkey"], found["data_base64"]) == ("7", "k", "/w==")
