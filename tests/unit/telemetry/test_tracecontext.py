from __future__ import annotations

from typing import Any

import pytest

from messagebus.core.deliveries import Receipt
from messagebus.destination import Subscription, Topic
from messagebus.message import Delivery, Message
from messagebus.telemetry.tracecontext import TraceContext, trace_headers

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def delivery(**headers: Any) -> Delivery:
    message = Message(body=b"x", message_id="1", headers=headers)
    return Delivery(message, Receipt("b:1", 1, 1), Subscription(Topic("orders"), "billing"))


@pytest.mark.parametrize("parent", [PARENT, "cc" + PARENT[2:] + "-what-comes-later"])
def test_a_context_is_read_with_its_state(parent: str) -> None:
    assert trace_headers({"traceparent": parent, "other": 1}) == {"traceparent": parent}
    both = {"traceparent": parent, "tracestate": "a=b"}
    assert trace_headers({**both, "tracestate2": "x"}) == both


@pytest.mark.parametrize(
    "parent",
    [
        None,
        7,
        b"bytes",
        "",
        "hello",
        PARENT[:-1],
        PARENT.upper(),
        PARENT + "0",
        "ff" + PARENT[2:],
        "00-" + "0" * 32 + PARENT[35:],
        PARENT[:36] + "0" * 16 + PARENT[52:],
        PARENT + "\n",
    ],
)
def test_what_is_no_context_is_not_carried_on(parent: Any) -> None:
    assert trace_headers({"traceparent": parent, "tracestate": "a=b"}) == {}


def test_a_state_that_is_no_text_is_left_out() -> None:
    assert trace_headers({"traceparent": PARENT, "tracestate": 7}) == {"traceparent": PARENT}


def test_what_a_handler_publishes_belongs_to_the_trace_of_its_delivery() -> None:
    hooks = TraceContext()
    message = Message(body=b"y", headers={"own": 1})
    with hooks.handling(delivery(traceparent=PARENT, tracestate="a=b")):
        made = hooks.publishing("invoices", message)
        with hooks.handling(delivery()):
            assert hooks.publishing("invoices", message) is message
        assert hooks.publishing("invoices", message) == made
    assert made.headers == {"own": 1, "traceparent": PARENT, "tracestate": "a=b"}
    assert message.headers == {"own": 1}
    assert hooks.publishing("invoices", message) is message


def test_a_message_that_has_a_context_keeps_it() -> None:
    hooks = TraceContext()
    message = Message(body=b"y", headers={"traceparent": "mine"})
    with hooks.handling(delivery(traceparent=PARENT)):
        assert hooks.publishing("invoices", message) is message
