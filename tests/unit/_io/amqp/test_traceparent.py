from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from messagebus._io.amqp.properties import NO_TRACEPARENT, decode, encode, find_traceparent
from messagebus.message import Message

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
NAMES = st.sampled_from(["traceparent", "tracestate", "baggage", "own", "x", "traceparent2"])
TEXTS = st.sampled_from(
    [PARENT, PARENT[:-1], PARENT + "x", "", "traceparent", "\x0btraceparentS", "ä"]
)
VALUES = TEXTS | st.integers(0, 5) | st.binary(max_size=3) | st.lists(TEXTS, max_size=2)


@given(
    headers=st.dictionaries(NAMES, VALUES, max_size=4),
    correlation_id=st.sampled_from(["", "talk"]),
    key=st.sampled_from(["", "traceparent", "k"]),
)
def test_what_is_found_at_a_glance_is_what_is_there(
    headers: dict[str, Any], correlation_id: str, key: str
) -> None:
    message = Message(body=b"", headers=headers, correlation_id=correlation_id, key=key)
    raw = encode(message, "id", 5)
    found, there = find_traceparent(raw), decode(raw, b"")
    if found is None:
        return
    assert found == there.headers.get("traceparent", NO_TRACEPARENT)
    assert "baggage" not in there.headers
    assert not found or "tracestate" not in there.headers
    assert there.correlation_id == ""


def test_the_usual_messages_are_found() -> None:
    bare = encode(Message(body=b""), "id", 5)
    traced = encode(Message(body=b"", headers={"traceparent": PARENT, "own": 1}), "id", 5)
    assert (find_traceparent(bare), find_traceparent(traced)) == (NO_TRACEPARENT, PARENT)


@given(st.binary(max_size=100))
def test_nothing_that_arrives_can_raise(raw: bytes) -> None:
    find_traceparent(raw)
